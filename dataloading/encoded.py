"""Folders of encoded windows: latents and text embeddings in place of videos.

`vfm encode` writes them. `shards/train/*.tar` and `shards/val/*.tar` hold, for each window,
`KEY.safetensors` with `latents` (`float32 [C, t, h, w]`) and maybe `text` (`float32 [L, d]`), and
`KEY.json` with its caption and where it begins. Indexes and manifest are those of a curated folder,
with a window for a clip; the manifest also says what was encoded with (`EncodedWith`). Nothing in
them is a pickle.
"""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass

import numpy as np
import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor

from common.errors import ConfigError, MediaError
from common.ranges import Ranges
from common.storage import atomic_path
from common.store_path import Place
from dataloading.config import Compression, CurriculumStage, LoaderConfig
from dataloading.index import ClipLocation, ClipTable
from dataloading.reader import Window
from dataloading.schema import EncodedWith, IndexRow, ShardInfo, index_path, write_index
from dataloading.sources import Sample
from dataloading.split import Windows
from dataloading.threads import StorageWatch
from dataloading.windows import Told, read_members

SUFFIX = ".safetensors"
_TAR_BLOCK = 512
_SETTINGS = ("num_frames", "size", "resize", "fps")


@dataclass(frozen=True, kw_only=True)
class EncodedWindow:
    """One window as it is written. `fps` is 0 for a single frame."""

    key: str
    clip_id: str
    caption: str
    start_s: float
    fps: float
    num_frames: int
    width: int
    height: int
    latents: Tensor
    text: Tensor | None = None


def check_settings(
    with_: EncodedWith, named: str, config: LoaderConfig, compression: Compression
) -> None:
    """Raises `ConfigError` where other windows, or another compression, are asked for."""
    if config.action_dim:
        raise ConfigError(
            f"{named} holds encoded windows, which have no actions (action_dim="
            f"{config.action_dim}): train on the clips that they were made of"
        )
    faults = []
    for name in _SETTINGS:
        held = with_.data[name]
        stages = [getattr(stage, name, None) for stage in config.curriculum]
        for asked in [getattr(config, name), *(v for v in stages if v is not None)]:
            same = set(asked) <= set(held) if name == "num_frames" else asked == held
            if not same:
                faults.append(f"data.{name} is {asked}, it holds {held}")
    for name in ("temporal", "spatial"):
        if getattr(compression, name) != with_.tokenizer[name]:
            faults.append(
                f"the tokenizer's {name} compression is {getattr(compression, name)}, it was "
                f"encoded with {with_.tokenizer[name]}"
            )
    if faults:
        raise ConfigError(
            f"{named} holds other encoded windows: {'; '.join(faults)}. Give its settings, or run "
            "vfm encode with these"
        )


def write_shard(shards: Place, path: str, windows: list[EncodedWindow]) -> ShardInfo:
    """Writes a tar and its index. Equal windows give equal bytes."""
    rows = []
    with (
        atomic_path(shards / path) as temporary,
        tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for window in windows:
            tensors = {"latents": window.latents.contiguous()}
            if window.text is not None:
                tensors["text"] = window.text.contiguous()
            content = save(tensors)
            said = {
                "caption": window.caption,
                "clip_id": window.clip_id,
                "fps": window.fps,
                "start_s": window.start_s,
            }
            text = json.dumps(said, sort_keys=True, ensure_ascii=False).encode()
            rows.append(
                IndexRow(
                    clip_id=window.key,
                    video_offset=_add(tar, window.key + SUFFIX, content),
                    video_bytes=len(content),
                    json_offset=_add(tar, f"{window.key}.json", text),
                    json_bytes=len(text),
                    width=window.width,
                    height=window.height,
                    num_frames=window.num_frames,
                    fps=window.fps,
                    duration_s=window.num_frames / window.fps if window.fps else 0.0,
                    caption_bytes=len(window.caption.encode()),
                    keyframes_s=[],
                )
            )
        tar.close()
        content = temporary.read_bytes()
    index = shards / index_path(path)
    write_index(index, rows)
    return ShardInfo(
        path=path,
        num_clips=len(rows),
        num_bytes=len(content),
        duration_s=round(sum(row.duration_s for row in rows), 6),
        sha256=hashlib.sha256(content).hexdigest(),
        index_sha256=hashlib.sha256(index.read_bytes()).hexdigest(),
    )


def encoded_windows(
    table: ClipTable,
    config: LoaderConfig,
    compression: Compression,
    split: str,
    stage: CurriculumStage,
) -> Windows:
    """Each row of the table as a clip with the one window that it is."""
    candidates = np.array(config.lengths, dtype=np.int64)
    in_stage = np.isin(candidates, stage.num_frames or config.num_frames)
    in_split = np.array([split in ("all", named) for named in table.splits])
    fits = (table.num_frames[:, None] == candidates) & in_stage & in_split[:, None]
    size = np.stack([table.width, table.height], axis=1)
    shapes, which = np.unique(size, axis=0, return_inverse=True)
    tokens = np.array(
        [[compression.tokens(int(t), int(w), int(h)) for t in candidates] for w, h in shapes],
        dtype=np.int64,
    )[which.reshape(-1)]
    over = tokens[fits].max(initial=0)
    if over > config.token_budget:
        raise ConfigError(
            f"token_budget {config.token_budget} is too small for encoded windows of "
            f"{over} tokens: raise it to that"
        )
    zero = np.zeros((len(table), 1), dtype=np.int64)
    return Windows(
        candidates=candidates,
        first=zero,
        end=zero + 1,
        starts_in=fits.astype(np.int64)[:, None],
        tokens=np.where(fits, tokens, 0),
        fps=table.fps,
        size=size,
    )


class EncodedReader:
    """Reads encoded windows as `WindowReader` reads and decodes videos; nothing is computed."""

    def __init__(self, table: ClipTable, *, ranges: Ranges, watch: StorageWatch) -> None:
        self._table = table
        self._ranges = ranges
        self._watch = watch

    def read(self, sample: Sample) -> Window:
        """Raises `MediaError` naming the window where it cannot be read, or is not what it should
        be: a wrong shape, or values that are not finite."""
        return self.decode(sample, *self.fetch(sample))

    def num_bytes(self, sample: Sample) -> int:
        """What `fetch` reads of it, by the index."""
        return int(self._table.num_bytes[sample.ordinal])

    def fetch(self, sample: Sample) -> tuple[bytes, Told]:
        """The file of its tensors, and what is told of it."""
        window = self._table.location(sample.ordinal)
        try:
            with self._watch.reading(window.shard):
                return read_members(window, self._ranges)
        except MediaError as error:
            raise MediaError(error.reason, f"window {window.clip_id}: {error.detail}") from error

    def decode(self, sample: Sample, tensors: bytes, told: Told) -> Window:
        """The window out of what `fetch` gave. Raises as `read`."""
        window = self._table.location(sample.ordinal)
        try:
            found = load(tensors)
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise MediaError(
                "bad_latents", f"window {window.clip_id}: no safetensors: {error}"
            ) from None
        with_ = self._table.encoded
        assert with_ is not None
        dim = None if with_.text is None else with_.text["dim"]
        latents = _checked(window.clip_id, found, "latents", self._shape(sample, window, with_))
        text = None if dim is None else _checked(window.clip_id, found, "text", (None, dim))
        return Window(
            clip_id=window.clip_id,
            frames=None,
            latents=latents,
            text=text,
            caption=told.caption,
            start_s=told.start_s or 0.0,
            fps=told.fps or 0.0,
        )

    def _shape(
        self, sample: Sample, window: ClipLocation, with_: EncodedWith
    ) -> tuple[int | None, ...]:
        num_frames = int(self._table.num_frames[sample.ordinal])
        spatial = with_.tokenizer["spatial"]
        return (
            with_.tokenizer["channels"],
            1 + (num_frames - 1) // with_.tokenizer["temporal"],
            window.height // spatial,
            window.width // spatial,
        )


def _checked(
    key: str, tensors: dict[str, Tensor], name: str, shape: tuple[int | None, ...]
) -> Tensor:
    """`float32`. Raises `MediaError` where it lacks, or has another shape, or is not finite."""
    tensor = tensors.get(name)
    if tensor is None:
        raise MediaError("missing_member", f"window {key}: its file has no {name}")
    if tensor.dim() != len(shape) or any(
        n is not None and n != m for n, m in zip(shape, tensor.shape, strict=True)
    ):
        wanted = ["any" if n is None else n for n in shape]
        raise MediaError(
            "wrong_shape", f"window {key}: {name} is {list(tensor.shape)}, its index says {wanted}"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise MediaError("not_finite", f"window {key}: {name} holds values that are not finite")
    return tensor.to(torch.float32)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Adds a member without owner or date; returns where its content begins."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    offset = tar.offset + _TAR_BLOCK
    tar.addfile(member, io.BytesIO(data))
    return offset
