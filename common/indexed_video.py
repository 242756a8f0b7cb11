"""A video whose frames are all known by their times, so that any few can be decoded alone.

Headers of packets give every frame's time and which ones are key frames, without decoding. To get
some frames, decoding begins at the key frame before them, leaves out pictures that nothing refers
to (H.264 marks those), and ends as soon as the last wanted packet is in. Where packets cannot be
trusted to say what will be shown (AVI, MPEG-TS, missing times), frames are found as `VideoReader`
finds them, by a decode of the whole file once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame

from common.errors import MediaError
from common.timeline import SAME_S
from common.video_reader import VideoReader


@dataclass(frozen=True, kw_only=True)
class FrameTable:
    """The frames of a video in order of presentation.

    Attributes:
        times_s: `float64 [n]`, seconds from the start of the stream, ascending.
        ticks: `int64 [n]`, the same in the stream's own clock; none where packets do not tell.
        keyframes: `int64 [k]`, positions at which decoding can begin.
        size: width and height in pixels as displayed.
    """

    times_s: np.ndarray
    ticks: np.ndarray | None
    keyframes: np.ndarray
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.times_s)


class IndexedVideo(VideoReader):
    """An open file from which any frames can be had; not for two threads at once.

    Args:
        table: from an earlier `IndexedVideo` of the same file; made by reading all packets where
            there is none.
    Raises `MediaError` as `VideoReader` does.
    """

    def __init__(self, path: str | Path, *, table: FrameTable | None = None) -> None:
        super().__init__(path, num_threads=1)
        try:
            self.table = table or self._scan()
        except BaseException:
            self._container.close()
            raise
        # Only H.264 says for certain which pictures nothing refers to.
        self._can_skip = self.info.codec == "h264"

    def pictures(self, wanted: Sequence[int]) -> list[VideoFrame]:
        """The frames at these positions, ascending and each once.

        Raises `MediaError` `missing_frames` where one does not decode.
        """
        if self.table.ticks is None:
            return self._by_time(wanted)
        ticks = [int(self.table.ticks[i]) for i in wanted]
        last_error = ""
        for start, skip in self._attempts(wanted[0]):
            try:
                found = self._decoded(start, set(ticks), skip=skip)
            except FFmpegError as error:
                last_error = f" ({error.strerror})"
                continue
            if all(tick in found for tick in ticks):
                return [found[tick] for tick in ticks]
        at_s = float(self.table.times_s[wanted[0]])
        raise MediaError(
            "missing_frames", f"{self.name}: not all frames from {at_s:.3f} s on decode{last_error}"
        )

    def _scan(self) -> FrameTable:
        self._reopen()
        seen: list[tuple[int, bool]] = []
        told = not (self._decode_times or self._joins)
        if told:
            for packet in self._packets():
                if packet is None or packet.is_corrupt:
                    told = False
                    break
                if packet.size == 0 or packet.is_discard:
                    continue
                if packet.pts is None:
                    told = False
                    break
                seen.append((packet.pts, packet.is_keyframe))
        # Before the start that the file declares, an edit list hides pictures.
        shown = sorted((pts, key) for pts, key in seen if pts >= self.origin_pts)
        ticks = np.array([pts for pts, _ in shown], dtype=np.int64)
        if not told or not len(ticks) or not shown[0][1] or np.any(np.diff(ticks) == 0):
            return self._scan_by_decoding()
        return FrameTable(
            times_s=(ticks - self.origin_pts) * float(self.time_base),
            ticks=ticks,
            keyframes=np.flatnonzero([key for _, key in shown]),
            size=(self.info.width, self.info.height),
        )

    def _scan_by_decoding(self) -> FrameTable:
        found = [(raw.pts_s, bool(raw.picture.key_frame)) for raw in self.frames()]
        if not found:
            raise MediaError("decode_failed", f"{self.name}: not one picture decodes")
        return FrameTable(
            times_s=np.array([pts_s for pts_s, _ in found]),
            ticks=None,
            keyframes=np.flatnonzero([key for _, key in found]),
            size=(self.info.width, self.info.height),
        )

    def _attempts(self, first: int) -> Iterator[tuple[int, bool]]:
        """Key frames to begin at, the nearest first; each with whether to leave out pictures."""
        assert self.table.ticks is not None
        before = self.table.keyframes[self.table.keyframes <= first]
        nearest = [int(self.table.ticks[k]) for k in before[::-1][:3]]
        for start in nearest[:1]:
            yield start, self._can_skip
        for start in [*nearest, int(self.table.ticks[0])]:
            yield start, False

    def _decoded(self, start: int, wanted: set[int], *, skip: bool) -> dict[int, VideoFrame]:
        """Those of the wanted ticks that come out when decoding begins at the key frame `start`."""
        self._container.seek(start, stream=self._stream, backward=True)
        codec = self._stream.codec_context
        found: dict[int, VideoFrame] = {}
        missing = len(wanted)

        def keep(pictures: list[VideoFrame]) -> None:
            for picture in pictures:
                if picture.pts in wanted and not picture.is_corrupt:
                    found[picture.pts] = picture

        try:
            for packet in self._container.demux(self._stream):
                if packet.size == 0:
                    break
                is_wanted = packet.pts in wanted
                codec.skip_frame = "DEFAULT" if is_wanted or not skip else "NONREF"
                keep(codec.decode(packet))
                missing -= is_wanted
                if missing == 0:
                    break
            # No more packets are needed to bring out what the decoder holds back for its order.
            keep(codec.decode(None))
        finally:
            codec.skip_frame = "DEFAULT"
        return found

    def _by_time(self, wanted: Sequence[int]) -> list[VideoFrame]:
        times_s = self.table.times_s
        found: list[VideoFrame] = []
        first_s, last_s = float(times_s[wanted[0]]), float(times_s[wanted[-1]])
        for raw in self.frames(start_s=first_s, end_s=last_s + 2 * SAME_S):
            if len(found) < len(wanted) and abs(raw.pts_s - times_s[wanted[len(found)]]) < SAME_S:
                found.append(raw.picture)
        if len(found) < len(wanted):
            raise MediaError(
                "missing_frames", f"{self.name}: not all frames from {first_s:.3f} s on decode"
            )
        return found

    def ycbcr(self, picture: VideoFrame, *, size: tuple[int, int] | None = None) -> np.ndarray:
        """`uint8 [H, W, 3]` of Y, Cb, Cr in full range by the file's own matrix, as displayed."""
        turn = self.turn(picture)
        planes = self._scaled(picture, size, "yuv444p", turn).to_ndarray()
        # PyAV gives the planes one after another, or stacked, by version.
        height = planes.size // (3 * planes.shape[-1])
        return turn.apply(planes.reshape(3, height, -1).transpose(1, 2, 0))
