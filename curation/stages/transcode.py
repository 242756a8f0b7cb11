"""Third stage: one more decode of a source encodes the clips that are kept."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import av
from av.error import FFmpegError
from av.video.frame import VideoFrame

from common.audio import read_sound
from common.encoders import check_encoder
from common.errors import MediaError
from common.machine import is_machine_fault, writing_to
from common.media import RawFrame, VideoReader
from common.picture import cropped
from common.storage import atomic_path
from common.store_path import Place
from common.stream_copy import NotCopyable, copy_span
from common.video_writer import VideoWriter
from curation.config import TranscodeConfig
from curation.scores import Crop
from curation.sources import FileState, unchanged
from curation.spool import EncodedClip, Spool
from curation.stage import Failure, Resources, Stage, failure_of


@dataclass(frozen=True, kw_only=True)
class ClipOrder:
    """One clip to encode."""

    clip_id: str
    content_id: str
    start_us: int
    end_us: int
    num_frames: int
    width: int
    """Of the encoded picture; even."""
    height: int
    box: Crop | None = None
    """What is shown of the displayed picture, even on every side; None is all of it."""

    @property
    def span(self) -> str:
        return f"{self.start_us}-{self.end_us}"

    @property
    def label(self) -> str:
        return self.clip_id


@dataclass(frozen=True, kw_only=True)
class SourceOrder:
    """All clips that one decode of a source shall give, in order of time."""

    content_id: str
    source: str
    path: str
    clips: list[ClipOrder]
    num_threads: int = 0
    """Of the decoder; 0 takes every core. Damaged sources need the one that analysed them."""
    state: FileState | None = None
    """Of the file when its id was taken."""

    @property
    def span(self) -> str:
        return ""

    @property
    def label(self) -> str:
        return self.source


def even_box(crop: Crop | None) -> Crop | None:
    """The largest box inside another whose edges and sizes are even, as 4:2:0 needs."""
    if crop is None:
        return None
    left, top, width, height = crop
    right, bottom = (left + width) // 2 * 2, (top + height) // 2 * 2
    left, top = (left + 1) // 2 * 2, (top + 1) // 2 * 2
    return left, top, max(2, right - left), max(2, bottom - top)


def encoded_size(width: int, height: int, max_short_side_px: int | None) -> tuple[int, int]:
    """Even (width, height), scaled down where the short side is over the limit."""
    if max_short_side_px is not None and min(width, height) > max_short_side_px:
        scale = max_short_side_px / min(width, height)
        width, height = round(width * scale), round(height * scale)
    return max(2, width // 2 * 2), max(2, height // 2 * 2)


class Transcode(Stage[SourceOrder, EncodedClip]):
    """Cuts by timestamp: a clip holds exactly the frames that begin inside its span, and keeps the
    distances between them, so variable frame rates stay as they are."""

    name = "transcode"
    version = 5

    def __init__(self, config: TranscodeConfig, spool: Place, *, retries: int) -> None:
        self._config = config
        self.retries = retries
        hardware = config.encoding(25.0).encoder.hardware
        self.resources = Resources(cpus=float(config.threads), gpus=0.1 if hardware else 0.0)
        self.spool = Spool(spool, self.params_hash)

    def params(self) -> dict[str, Any]:
        # The encoder's version changes bytes too. PyAV's names the encoders that it brings along.
        versions = {name: list(av.library_versions[name]) for name in ("libavcodec", "libswscale")}
        encoder = self._config.encoding(25.0).encoder.name
        return {
            **asdict(self._config),
            "preset": self._config.encoding(25.0).preset,
            "libraries": {**versions, "pyav": av.__version__, "encoder": encoder},
        }

    def setup(self) -> None:
        check_encoder(self._config.encoding(25.0).encoder)

    def process(self, item: SourceOrder) -> Sequence[EncodedClip | Failure]:
        results: dict[str, EncodedClip | Failure] = {}
        waiting = item.clips
        with unchanged(item.path, item.state), writing_to(self.spool.folder):
            for attempt in range(1, self.retries + 2):
                results.update(self._pass(item, waiting, attempt))
                waiting = [clip for clip in waiting if _may_succeed(results[clip.clip_id])]
                if not waiting:
                    break
        return [results[clip.clip_id] for clip in item.clips]

    def found(self, clip: ClipOrder) -> EncodedClip | None:
        """What was encoded before and waits for its shard."""
        there = self.spool.find(clip.clip_id)
        same = there and (there.width, there.height) == (clip.width, clip.height)
        return there if same else None

    def _pass(
        self, item: SourceOrder, clips: list[ClipOrder], attempt: int
    ) -> Iterator[tuple[str, EncodedClip | Failure]]:
        """One decode for some clips of a source, which fail alone.

        From the start on even where the first of them lies late: the analysis read so too, and in
        some formats (intra refresh, broken indexes, damage) pictures after a seek are others.
        A resumed run pays for that with a decode of what it passes over, without encoding it.
        """
        left = []
        for clip in clips:
            there = self.found(clip)  # made by a run that was killed before it said so
            if there is None:
                left.append(clip)
            else:
                yield clip.clip_id, there
        if not left:
            return
        reader = VideoReader(
            item.path, num_threads=item.num_threads, tone_map=self._config.tone_map
        )
        with reader:
            rest = []
            for clip in left:
                copied = self._copied(clip, reader, item.path) if self._config.copy else None
                if copied is None:
                    rest.append(clip)
                else:
                    yield clip.clip_id, copied
            if not rest:
                return
            frames = _Cursor(reader.frames(end_s=rest[-1].end_us / 1e6))
            for clip in rest:
                try:
                    yield clip.clip_id, self._encode(clip, reader, frames, item.path)
                except (MediaError, ValueError, FFmpegError) as error:
                    if isinstance(error, FFmpegError) and is_machine_fault(error):
                        raise
                    yield clip.clip_id, failure_of(clip, self.name, attempt, error)

    def _copied(self, clip: ClipOrder, reader: VideoReader, source: str) -> EncodedClip | None:
        """The clip without encoding, where that gives the same pictures."""
        info, clock = reader.info, reader.time_base
        changes = clip.box is not None or (clip.width, clip.height) != (info.width, info.height)
        sound = self._config.audio != "none" and info.has_audio
        mapped = self._config.tone_map and info.hdr
        if changes or sound or mapped or info.rotation_deg:
            return None
        try:
            with atomic_path(self.spool.video(clip.clip_id)) as temporary:
                keyframes_s = copy_span(
                    source,
                    temporary,
                    codec=self._config.codec,
                    start_tick=reader.origin_pts + round(clip.start_us / 1e6 / clock),
                    end_tick=reader.origin_pts + round(clip.end_us / 1e6 / clock),
                    num_frames=clip.num_frames,
                )
                num_bytes = temporary.stat().st_size
        except NotCopyable:
            return None
        return self._told(clip, num_bytes, keyframes_s)

    def _encode(
        self, clip: ClipOrder, reader: VideoReader, frames: "_Cursor", source: str
    ) -> EncodedClip:
        clock = reader.time_base
        fps = clip.num_frames / ((clip.end_us - clip.start_us) / 1e6)
        sound = None
        if self._config.audio == "aac":
            origin_s = float(reader.origin_pts * clock)
            sound = read_sound(source, origin_s + clip.start_us / 1e6, origin_s + clip.end_us / 1e6)
        num_frames = 0
        with atomic_path(self.spool.video(clip.clip_id)) as temporary:
            with VideoWriter(
                temporary,
                width=clip.width,
                height=clip.height,
                rate=Fraction(fps).limit_denominator(1001),
                time_base=clock,
                encoding=self._config.encoding(fps),
                sound=sound,
            ) as writer:
                first_tick: int | None = None
                for frame in frames.between(clip.start_us, clip.end_us):
                    tick = round(frame.pts_s / clock)
                    first_tick = tick if first_tick is None else first_tick
                    end_tick = round(min(frame.pts_s + frame.duration_s, clip.end_us / 1e6) / clock)
                    picture = _picture(reader, frame.picture, clip)
                    writer.write(picture, pts=tick - first_tick, duration=max(1, end_tick - tick))
                    num_frames += 1
                if num_frames != clip.num_frames:
                    raise MediaError(
                        "changed",
                        f"{clip.clip_id}: {num_frames} frames where the analysis saw "
                        f"{clip.num_frames}; the source has changed or is damaged",
                    )
            num_bytes = temporary.stat().st_size
        return self._told(clip, num_bytes, [float(tick * clock) for tick in writer.keyframes])

    def _told(self, clip: ClipOrder, num_bytes: int, keyframes_s: list[float]) -> EncodedClip:
        duration_s = (clip.end_us - clip.start_us) / 1e6
        encoded = EncodedClip(
            clip_id=clip.clip_id,
            content_id=clip.content_id,
            span=clip.span,
            num_bytes=num_bytes,
            num_frames=clip.num_frames,
            width=clip.width,
            height=clip.height,
            duration_s=duration_s,
            fps=clip.num_frames / duration_s,
            keyframes_s=keyframes_s,
        )
        self.spool.tell(encoded)
        return encoded


def _picture(reader: VideoReader, picture: VideoFrame, clip: ClipOrder) -> VideoFrame:
    """A decoded picture as it is encoded: cropped, then scaled."""
    size = (clip.width, clip.height)
    if clip.box is None:
        return reader.yuv(picture, size=size)
    width, height = reader.display_size(picture)
    whole = reader.yuv(picture, size=(max(2, width // 2 * 2), max(2, height // 2 * 2)))
    return cropped(whole, clip.box, size)


def _may_succeed(result: EncodedClip | Failure) -> bool:
    return isinstance(result, Failure) and not result.lasting


class _Cursor:
    """One pass over frames, handed out span by span."""

    def __init__(self, frames: Iterator[RawFrame]) -> None:
        self._frames = frames
        self._ahead: RawFrame | None = None

    def between(self, start_us: int, end_us: int) -> Iterator[RawFrame]:
        """The frames that begin inside the span; earlier ones are passed over."""
        while True:
            frame = self._ahead or next(self._frames, None)
            self._ahead = None
            if frame is None:
                return
            pts_us = round(frame.pts_s * 1e6)
            if pts_us >= end_us:
                self._ahead = frame
                return
            if pts_us >= start_us:
                yield frame
