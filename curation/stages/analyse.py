"""Second stage: one decode of a source gives its shots, scores, thumbnails and its health."""

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import MediaError
from common.machine import writing_to
from common.media import CodedSizes, Health, VideoInfo, VideoReader
from common.planes import luma_of, shown_luma, small_picture
from common.storage import write_atomic
from common.store_path import Place
from common.tape import Spill
from curation.config import AnalysisConfig, CurateConfig, ShotsConfig
from curation.measures.base import Picture, as_score
from curation.scores import (
    BITS,
    LIGHT,
    MEASURES,
    Crop,
    FrameScorer,
    Score,
    Scores,
    measure_hashes,
    measure_params,
)
from curation.shots import FrameTimes, shot_finder, split_spans
from curation.sources import SourceFile, clip_id_of, unchanged
from curation.stage import Failure, Resources, Stage
from curation.stages.strip import Strip


@dataclass(frozen=True, kw_only=True)
class ScoredClip:
    """A span of a source and what was measured in it. Times in microseconds are exact."""

    clip_id: str
    start_us: int
    end_us: int
    num_frames: int
    scores: Mapping[str, Score]
    crop: Crop | None
    """What is inside its black bars, in pixels as displayed; None where that cannot be told."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """One source after its only analysis decode."""

    video_id: str
    width: int
    height: int
    fps: float
    codec: str
    pix_fmt: str
    rotation_deg: int
    has_audio: bool
    num_bytes: int
    duration_us: int
    """The last frame's end, or the header's word where footage is missing at the end."""
    num_frames: int
    num_errors: int
    lost_us: list[tuple[int, int]]
    """Spans without a trustworthy picture."""
    transitions_us: list[tuple[int, int]]
    """Spans that belong to no shot; with the lost ones and the clips they tile 0 .. duration_us."""
    clips: list[ScoredClip]
    base: str
    """Names everything but the measures that made this: what the clips are."""
    measured: dict[str, str]
    """Measure to the name of its parameters."""
    notes: str = ""
    """As `VideoInfo.notes`."""


class Refused(MediaError):
    """A source that is not used, with the seconds that are lost by it."""

    def __init__(self, reason: str, detail: str, seconds: float) -> None:
        super().__init__(reason, detail)
        self.seconds = seconds


class Analyse(Stage[SourceFile, Analysis]):
    """Streams: memory holds what measures need of the last minute; the numbers that frames leave
    wait on the disk of the thumbnails for the clips' ends."""

    name = "analyse"
    version = 8

    def __init__(self, config: CurateConfig, thumbnails: Place) -> None:
        self._shots: ShotsConfig = config.shots
        self._analysis: AnalysisConfig = config.analysis
        self._max_clip_us = round(config.max_clip_s * 1e6)
        self._min_side_px = config.min_side_px
        self._thumbnails = thumbnails
        self.retries = config.retries
        self.resources = Resources(cpus=2.0)

    def params(self) -> dict[str, Any]:
        return {**self._base_params(), "measures": measure_params(self._analysis)}

    def _base_params(self) -> dict[str, Any]:
        return {
            "shots": asdict(self._shots),
            "width_px": self._analysis.width_px,
            "thumbnail_px": self._analysis.thumbnail_px,
            "max_clip_us": self._max_clip_us,
            "min_side_px": self._min_side_px,
        }

    @property
    def base(self) -> str:
        """See `Analysis.base`."""
        text = json.dumps([self.name, self.version, self._base_params()], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def measured(self) -> dict[str, str]:
        """See `Analysis.measured`."""
        return measure_hashes(self._analysis)

    def process(self, item: SourceFile) -> Sequence[Analysis | Failure]:
        """Where an earlier analysis of the same clips is known, one decode measures again what was
        measured with other parameters; the rest stays."""
        known = item.known if isinstance(item.known, Analysis) else None
        if known is not None and known.base != self.base:
            known = None
        now = self.measured
        stale = [name for name in MEASURES if not known or known.measured.get(name) != now[name]]
        damaged = known is not None and known.num_errors > 0
        disk = self._thumbnails if isinstance(self._thumbnails, Path) else None
        with Spill(disk) as spill:
            with unchanged(item.path, item.state):
                threads = 1 if damaged else self._analysis.threads
                seen = self._decode(item, stale, spill, threads)
                if seen.health.num_errors and self._analysis.threads != 1 and not damaged:
                    # What a decoder makes of damage depends on its threads.
                    seen = self._decode(item, stale, spill, 1)
            with _lost_with(seen.info.duration_s):
                if known is None:
                    return [self._judge(item, seen, now)]
                clips = [self._measured_again(clip, seen, stale) for clip in known.clips]
                return [replace(known, clips=clips, measured=now)]

    def _decode(
        self, item: SourceFile, only: Collection[str], spill: Spill, num_threads: int
    ) -> "_Seen":
        with VideoReader(item.path, num_threads=num_threads) as reader:
            info = reader.info
            if min(info.width, info.height) < self._min_side_px:
                raise Refused(
                    "too_small",
                    f"{info.width}x{info.height} pixels, under {self._min_side_px}",
                    info.duration_s,
                )
            with _lost_with(info.duration_s):
                return self._watch(reader, only, spill)

    def _watch(self, reader: VideoReader, only: Collection[str], spill: Spill) -> "_Seen":
        info = reader.info
        size = reduced_size(info.width, info.height, self._analysis.width_px)
        finder = shot_finder(self._shots, fps=info.fps, spill=spill)
        scorer = FrameScorer(self._analysis, spill, only)
        starts = FrameTimes(spill, self._max_clip_us)
        strip = Strip(self._analysis.thumbnail_px, spill)
        sizes = reader.coded_sizes(spill)
        end_us = 0
        for frame in reader.frames():
            pts_us = _us(frame.pts_s)
            if len(starts) and pts_us > end_us + 1:  # frames tile the time, but for holes
                finder.interrupt()
                scorer.interrupt()
            end_us = _us(frame.pts_s + frame.duration_s)
            bgr, grey = small_picture(reader, frame.picture, size)
            finder.feed(pts_us, bgr, grey)
            picture = Picture(
                pts_us,
                bgr,
                grey,
                coded=partial(luma_of, frame.picture),
                shown=partial(shown_luma, reader, frame.picture),
            )
            if scorer.feed(picture):
                strip.feed(pts_us, bgr)
            starts.append(pts_us)
        return _Seen(
            info=info,
            health=reader.health,
            starts=starts,
            end_us=end_us,
            boundaries_us=finder.boundaries(),
            scorer=scorer,
            sizes=sizes,
            strip=strip,
        )

    def _judge(self, item: SourceFile, seen: "_Seen", measured: dict[str, str]) -> Analysis:
        info, starts, end_us = seen.info, seen.starts, seen.end_us
        if len(starts) < 2:
            raise Refused(
                "too_few_frames",
                f"{item.source} has {len(starts)} usable frame: a video needs two",
                info.duration_s,
            )
        lost = [(_us(a), _us(b)) for a, b in seen.health.lost_s if _us(b) > _us(a)]
        duration_us = max([end_us, *(b for _, b in lost)])
        spans: list[tuple[int, int]] = []
        transitions: list[tuple[int, int]] = []
        for stretch in _stretches(starts, end_us, lost):
            kept, cut_out = split_spans(
                stretch,
                seen.boundaries_us,
                starts,
                min_shot_us=round(self._shots.min_shot_s * 1e6),
            )
            spans += kept
            transitions += cut_out
        lost = _rest(sorted(spans + transitions), duration_us)
        clips = [self._clip(item.content_id, seen, *span) for span in spans]
        with writing_to(self._thumbnails):
            for clip in clips:
                jpeg = seen.strip.nearest(clip.start_us, clip.end_us)
                if jpeg is not None:
                    write_atomic(self._thumbnails / f"{clip.clip_id}.jpg", jpeg)
        return Analysis(
            video_id=item.content_id,
            width=info.width,
            height=info.height,
            fps=info.fps,
            codec=info.codec,
            pix_fmt=info.pix_fmt,
            rotation_deg=info.rotation_deg,
            has_audio=info.has_audio,
            num_bytes=info.num_bytes,
            duration_us=duration_us,
            num_frames=len(starts),
            num_errors=seen.health.num_errors,
            lost_us=lost,
            transitions_us=transitions,
            clips=clips,
            base=self.base,
            measured=measured,
            notes=info.notes,
        )

    def _clip(self, content_id: str, seen: "_Seen", start: int, end: int) -> ScoredClip:
        clip = ScoredClip(
            clip_id=clip_id_of(content_id, start, end),
            start_us=start,
            end_us=end,
            num_frames=seen.starts.count(start, end),
            scores={},
            crop=None,
        )
        return self._measured_again(clip, seen, MEASURES)

    def _measured_again(
        self, clip: ScoredClip, seen: "_Seen", measures: Collection[str]
    ) -> ScoredClip:
        """A clip with the scores of these measures; those of others stay."""
        start, end, crop = clip.start_us, clip.end_us, clip.crop
        scores = {**clip.scores, **seen.scorer.over(start, end)}
        if BITS in measures:
            bits = seen.sizes.bits_per_pixel(start / 1e6, end / 1e6, clip.num_frames)
            scores["bits_per_pixel"] = as_score(bits)
        if LIGHT in measures:
            crop = seen.scorer.crop(start, end, seen.info.width, seen.info.height)
        return replace(clip, scores=Scores(scores), crop=crop)


@contextlib.contextmanager
def _lost_with(seconds: float) -> Iterator[None]:
    """What goes wrong inside costs the whole source, and its failure says so."""
    try:
        yield
    except Exception as error:
        if not getattr(error, "seconds", 0.0):
            error.seconds = seconds  # pyright: ignore[reportAttributeAccessIssue]
        raise


def reduced_size(width: int, height: int, width_px: int) -> tuple[int, int]:
    """(width, height) with the area of a 16:9 picture of that width, whatever the source's size:
    scores of different sources compare on equal planes only."""
    scale = (width_px * width_px * 9 / 16 / (width * height)) ** 0.5
    return max(8, round(width * scale)), max(8, round(height * scale))


def analysis_to_dict(analysis: Analysis) -> dict[str, Any]:
    raw = asdict(analysis)
    for clip in raw["clips"]:
        clip["scores"] = dict(clip["scores"])
    return raw


def analysis_from_dict(raw: dict[str, Any]) -> Analysis:
    clips = [_clip_from_dict(clip) for clip in raw["clips"]]
    spans = {name: [(a, b) for a, b in raw[name]] for name in ("lost_us", "transitions_us")}
    return Analysis(**{**raw, **spans, "clips": clips})


def _clip_from_dict(raw: dict[str, Any]) -> ScoredClip:
    scores = Scores({name: Score(*score) for name, score in raw["scores"].items()})
    crop = None if raw["crop"] is None else tuple(raw["crop"])
    return ScoredClip(**{**raw, "scores": scores, "crop": crop})


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _stretches(
    starts: FrameTimes, end_us: int, lost_us: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The pieces of good footage between the holes."""
    edges = [starts.first_us]
    for hole_start, hole_end in lost_us:
        if starts.first_us < hole_end <= starts.last_us:
            edges += [hole_start, hole_end]
    edges.append(end_us)
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in pairs if end > start]


def _rest(spans: list[tuple[int, int]], duration_us: int) -> list[tuple[int, int]]:
    """What the clips leave of 0 .. duration_us."""
    holes, at = [], 0
    for start, end in spans:
        if start > at:
            holes.append((at, start))
        at = end
    if at < duration_us:
        holes.append((at, duration_us))
    return holes


@dataclass(kw_only=True)
class _Seen:
    """What one decode of a source gave."""

    info: VideoInfo
    health: Health
    starts: FrameTimes
    end_us: int
    boundaries_us: list[tuple[int, int]]
    scorer: FrameScorer
    sizes: CodedSizes
    strip: Strip
