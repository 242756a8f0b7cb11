"""Encoded clips between their encoding and their shard: `CLIP_ID.mp4`, and beside it a JSON of what
an index must know of it, which is written last and removed first. So whoever finds that has the
whole clip, whatever was killed since, and need not encode it again.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from common.storage import write_atomic
from common.store_path import Place, bytes_of, remove


@dataclass(frozen=True, kw_only=True)
class EncodedClip:
    """A clip's file in the spool and what an index must know of it."""

    clip_id: str
    content_id: str
    span: str
    num_bytes: int
    num_frames: int
    width: int
    height: int
    duration_s: float
    fps: float
    keyframes_s: list[float]

    @property
    def label(self) -> str:
        return self.clip_id


class Spool:
    """
    Args:
        params: names the parameters of the encodings that count.
    """

    def __init__(self, folder: Place, params: str) -> None:
        self.folder = folder
        self._params = params

    def video(self, clip_id: str) -> Place:
        return self.folder / f"{clip_id}.mp4"

    def _told(self, clip_id: str) -> Place:
        return self.folder / f"{clip_id}.json"

    def tell(self, clip: EncodedClip) -> None:
        """To be called once the video is there."""
        note = {"params": self._params, "clip": asdict(clip)}
        write_atomic(self._told(clip.clip_id), json.dumps(note).encode())

    def find(self, clip_id: str) -> EncodedClip | None:
        """A clip that is whole here. The note on one of other parameters is removed, since another
        clip is about to take its place."""
        try:
            note = json.loads(self._told(clip_id).read_bytes())
            clip = EncodedClip(**note["clip"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            note, clip = {}, None
        if clip is None or note["params"] != self._params:
            remove([self._told(clip_id)])
            return None
        return clip if bytes_of(self.video(clip_id)) == clip.num_bytes else None

    def clip_ids(self) -> list[str]:
        """Of all clips that are here, whole or not."""
        return [path.stem for path in self.folder.glob("*.mp4")]

    def read(self, clip_id: str) -> bytes:
        return self.video(clip_id).read_bytes()

    def forget(self, clip_ids: Iterable[str]) -> None:
        """Removes clips, which shards hold by now."""
        ids = list(clip_ids)
        remove(self._told(clip_id) for clip_id in ids)
        remove(self.video(clip_id) for clip_id in ids)
