"""Analyses, decisions and failures of all sources as rows, and their accounting."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from curation.accounting import Fate, account
from curation.captions import Captions, Span
from curation.decide import Decision
from curation.ledger import KnownSource
from curation.shard import ShardedClip
from curation.stage import Failure
from curation.stages.analyse import Analysis
from curation.tables import ClipRow, VideoRow


class Collected:
    """Everything known of a curated folder's sources; clips may still change by failing."""

    def __init__(self) -> None:
        self.sources: dict[str, KnownSource] = {}
        """By video id, originals only."""
        self.videos: list[VideoRow] = []
        self.failed_entries: list[dict[str, Any]] = []
        """Lines of `failed.jsonl`, with `path` in place of the command."""
        self.num_analysed = 0
        self._clips: dict[str, ClipRow] = {}
        self._others: list[Fate] = []

    @property
    def clips(self) -> list[ClipRow]:
        return list(self._clips.values())

    def accounting(self) -> dict[str, Any]:
        """See `curation.accounting.account`."""
        num_clips = sum(video.num_clips for video in self.videos)
        return account(self._duration_us(), num_clips, self.clips, self._others)

    def _duration_us(self) -> int:
        """Of all sources, by their own rows."""
        return sum(round(video.duration_s * 1e6) for video in self.videos)

    def video_counts(self) -> dict[str, int]:
        """Sources by status."""
        return dict(sorted(Counter(video.status for video in self.videos).items()))

    @classmethod
    def restored(
        cls,
        sources: Sequence[KnownSource],
        videos: list[VideoRow],
        clips: Sequence[ClipRow],
        failed_entries: list[dict[str, Any]],
        others: list[Fate],
    ) -> "Collected":
        """What an earlier run collected and wrote down."""
        found = cls()
        found.sources = {source.video_id: source for source in sources if not source.duplicate}
        found.videos = videos
        found.failed_entries = failed_entries
        found._clips = {clip.clip_id: clip for clip in clips}
        found._others = others
        return found

    def decide(self, decision: Decision) -> None:
        """Every clip is kept or rejected. One that should be kept but could not be encoded stays
        as failed as it is; see `try_again`."""
        for clip in self.clips:
            reason = decision.reject_reason(clip)
            if reason is not None or clip.failed_reason is None:
                self._set(clip, reason)

    def measured(self, analyses: Iterable[Analysis], analysis_hash: str) -> None:
        """Gives clips other scores and crops, those of an analysis of the same clips."""
        for analysis in analyses:
            for clip in analysis.clips:
                self._clips[clip.clip_id] = dataclasses.replace(
                    self._clips[clip.clip_id],
                    scores=clip.scores,
                    crop=clip.crop,
                    analysis_hash=analysis_hash,
                )
        self.videos = [
            dataclasses.replace(row, analysis_hash=analysis_hash) if row.num_clips else row
            for row in self.videos
        ]

    def try_again(self) -> None:
        """Clips that could not be encoded count as kept once more."""
        for clip in self.clips:
            if clip.failed_reason is not None:
                self._set(clip, None)

    def _set(self, clip: ClipRow, reason: str | None) -> None:
        self._clips[clip.clip_id] = dataclasses.replace(
            clip,
            kept=reason is None,
            reject_reason=reason,
            failed_reason=None,
            bucket=None,
        )
        if clip.failed_reason is not None:
            self.failed_entries = [e for e in self.failed_entries if e["id"] != clip.clip_id]

    def place(self, clip_id: str, bucket: str | None, transcode_hash: str | None) -> None:
        """Notes where a clip goes if it is kept, and how it was encoded if it was."""
        self._clips[clip_id] = dataclasses.replace(
            self._clips[clip_id], bucket=bucket, transcode_hash=transcode_hash
        )

    def clip_failed(self, clip_id: str, failure: Failure) -> None:
        """A clip that should have been kept could not be encoded."""
        clip = self._clips[clip_id]
        self._clips[clip_id] = dataclasses.replace(
            clip,
            kept=False,
            reject_reason=f"failed: {failure.reason}",
            failed_reason=failure.reason,
            bucket=None,
            transcode_hash=None,
        )
        self._fail(clip_id, self.sources[clip.video_id], failure, clip.seconds)

    def set_sharded(self, sharded: Mapping[str, ShardedClip]) -> int:
        """Gives clips the captions that their shards hold, which are never rewritten.

        Returns how many should have another one by now.
        """
        num_differing = 0
        for clip_id, there in sharded.items():
            clip = self._clips.get(clip_id)
            if clip is not None and (clip.caption or "") != there.caption:
                num_differing += 1
                self._clips[clip_id] = dataclasses.replace(
                    clip, caption=there.caption or None, caption_source=there.caption_source
                )
        return num_differing

    def add_analysis(
        self,
        source: KnownSource,
        analysis: Analysis,
        captions: Captions,
        *,
        analysis_hash: str,
        thumbnails: Collection[str],
    ) -> None:
        """A source that was read, whole or in part."""
        self.sources[source.video_id] = source
        self.num_analysed += 1
        lost_us = self._lose(source, analysis)
        self._others += [
            Fate(kind="rejected", reason="transition", duration_us=end - start)
            for start, end in analysis.transitions_us
        ]
        for clip in analysis.clips:
            caption, origin = captions.of(clip.start_us / 1e6, clip.end_us / 1e6)
            thumbnail = f"{clip.clip_id}.jpg"
            self._clips[clip.clip_id] = ClipRow(
                clip_id=clip.clip_id,
                video_id=analysis.video_id,
                source=source.source,
                start_us=clip.start_us,
                end_us=clip.end_us,
                kept=True,
                reject_reason=None,
                failed_reason=None,
                width=analysis.width,
                height=analysis.height,
                fps=clip.num_frames / ((clip.end_us - clip.start_us) / 1e6),
                num_frames=clip.num_frames,
                caption=caption or None,
                caption_source=origin or None,
                scores=clip.scores,
                crop=clip.crop,
                thumbnail=f"report/thumbs/{thumbnail}" if thumbnail in thumbnails else None,
                bucket=None,
                analysis_hash=analysis_hash,
                transcode_hash=None,
            )
        damaged = lost_us > 0
        detail = None
        if damaged:
            saved_s = (analysis.duration_us - lost_us) / 1e6
            detail = (
                f"{saved_s:.2f} s saved, {lost_us / 1e6:.2f} s lost, "
                f"{analysis.num_errors} decode errors"
            )
        self.videos.append(
            VideoRow(
                video_id=analysis.video_id,
                source=source.source,
                status="salvaged" if damaged else "ok",
                reason=_hole_reasons(analysis)[0] if damaged else None,
                detail=detail,
                duration_s=analysis.duration_us / 1e6,
                lost_s=lost_us / 1e6,
                width=analysis.width,
                height=analysis.height,
                fps=analysis.fps,
                codec=analysis.codec,
                pix_fmt=analysis.pix_fmt,
                rotation_deg=analysis.rotation_deg,
                has_audio=analysis.has_audio,
                num_bytes=analysis.num_bytes,
                num_frames=analysis.num_frames,
                num_errors=analysis.num_errors,
                num_clips=len(analysis.clips),
                analysis_hash=analysis_hash,
                notes=analysis.notes or None,
            )
        )

    def add_refused(self, source: KnownSource, failure: Failure, analysis_hash: str) -> None:
        """A source without a single clip."""
        self._others.append(
            Fate(kind="failed", reason=failure.reason, duration_us=round(failure.seconds * 1e6))
        )
        self._fail(source.video_id, source, failure, failure.seconds)
        self._bare(
            source, "refused", failure.reason, failure.detail, failure.seconds, analysis_hash
        )

    def add_duplicate(
        self, source: KnownSource, original: str, duration_us: int, analysis_hash: str
    ) -> None:
        """The same bytes under another name."""
        self._others.append(Fate(kind="rejected", reason="duplicate", duration_us=duration_us))
        detail = f"same bytes as {original}"
        self._bare(source, "duplicate", "duplicate", detail, duration_us / 1e6, analysis_hash)

    def add_unread(self, failure: Failure, path: str) -> None:
        """A file whose bytes could not be read, so it has no id."""
        source = KnownSource(
            video_id="", source=failure.label, path=path, duplicate=False, captions={}
        )
        self._fail("", source, failure, 0.0)
        self._others.append(Fate(kind="failed", reason=failure.reason, duration_us=0))
        self._bare(source, "refused", failure.reason, failure.detail, 0.0, "")

    def _lose(self, source: KnownSource, analysis: Analysis) -> int:
        reasons = _hole_reasons(analysis)
        total_us = 0
        for (start, end), reason in zip(analysis.lost_us, reasons, strict=True):
            self._others.append(Fate(kind="failed", reason=reason, duration_us=end - start))
            failure = Failure(
                content_id=source.video_id,
                span=f"{start}-{end}",
                label=source.source,
                stage="analyse",
                attempts=1,
                reason=reason,
                detail=f"{(end - start) / 1e6:.2f} s lost from {start / 1e6:.2f} s on",
                lasting=True,
            )
            self._fail(source.video_id, source, failure, (end - start) / 1e6)
            total_us += end - start
        return total_us

    def _fail(self, item_id: str, source: KnownSource, failure: Failure, seconds: float) -> None:
        self.failed_entries.append(
            {
                "id": item_id,
                "source": source.source,
                "stage": failure.stage,
                "attempts": failure.attempts,
                "reason": failure.reason,
                "detail": failure.detail,
                "seconds": seconds,
                "path": source.path,
                **({"traceback": failure.traceback} if failure.traceback else {}),
            }
        )

    def _bare(
        self,
        source: KnownSource,
        status: str,
        reason: str,
        detail: str,
        duration_s: float,
        analysis_hash: str,
    ) -> None:
        self.videos.append(
            VideoRow(
                video_id=source.video_id,
                source=source.source,
                status=status,
                reason=reason,
                detail=detail,
                duration_s=duration_s,
                lost_s=duration_s if status == "refused" else 0.0,
                width=None,
                height=None,
                fps=None,
                codec=None,
                pix_fmt=None,
                rotation_deg=None,
                has_audio=None,
                num_bytes=None,
                num_frames=None,
                num_errors=None,
                num_clips=0,
                analysis_hash=analysis_hash,
            )
        )


def collect(
    sources: Sequence[KnownSource],
    analyses: Mapping[str, Analysis],
    failures: Sequence[Failure],
    unread: Sequence[tuple[Failure, str]],
    *,
    analysis_hash: str,
    thumbnails: Collection[str],
) -> Collected:
    """All sources of the folder with what became of them; the clips are still to be decided on.

    Args:
        failures: of sources.
        unread: failures of files without an id, and their paths.
        thumbnails: names of those that there are.
    """
    found = Collected()
    refused = {failure.content_id: failure for failure in failures}
    captions = _captions(sources)
    originals = {source.video_id: source.source for source in sources if not source.duplicate}
    for source in sources:
        analysis = analyses.get(source.video_id)
        failure = refused.get(source.video_id)
        if source.duplicate:
            duration_us = analysis.duration_us if analysis else 0
            found.add_duplicate(source, originals[source.video_id], duration_us, analysis_hash)
        elif analysis is not None:
            found.add_analysis(
                source,
                analysis,
                captions[source.video_id],
                analysis_hash=analysis_hash,
                thumbnails=thumbnails,
            )
        elif failure is not None:
            found.add_refused(source, failure, analysis_hash)
    for failure, path in unread:
        found.add_unread(failure, path)
    return found


def _captions(sources: Sequence[KnownSource]) -> dict[str, Captions]:
    """What is said of each video under the first of its names of which anything is said; the
    original's name comes first."""
    found: dict[str, Captions] = {}
    for source in sorted(sources, key=lambda s: s.duplicate):
        if source.video_id not in found or not found[source.video_id].spans:
            found[source.video_id] = Captions(
                spans=tuple(Span(**span) for span in source.captions["spans"]),
                origin=source.captions["origin"],
            )
    return found


def _hole_reasons(analysis: Analysis) -> list[str]:
    return [
        "truncated" if end == analysis.duration_us else "damaged" for _, end in analysis.lost_us
    ]
