"""Packs shared by a model-parallel group: each rank reads a part, and all have all of it.

The ranks of a TP x CP x PP group need the same pack. Each reads the samples that fall to it, about
equally many bytes, and an all-gather gives every rank every part. So the group reads each byte of
the storage once, and a sample that one rank cannot read fails on all of them alike.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import torch

from common.errors import ConfigError, DataError, MediaError
from dataloading.batch import Batch
from dataloading.encoded import EncodedReader
from dataloading.reader import Window, WindowReader
from dataloading.sources import Sample
from dataloading.windows import Told

FORMS = ("compressed", "decoded")
_HEAD = struct.Struct("<Q")


class Peers(Protocol):
    """A group of ranks; `parallel.peers.BytePeers` is one over gloo."""

    rank: int
    size: int

    def all_gather(self, part: bytes) -> list[bytes]:
        """The parts of all ranks in their order."""
        ...


def owners(num_bytes: Sequence[int], size: int) -> list[int]:
    """Which rank reads each sample: the largest first, each to the rank with least so far.

    No rank then has more than its equal share and one sample.
    """
    load = [0] * size
    owner = [0] * len(num_bytes)
    for i in sorted(range(len(num_bytes)), key=lambda i: (-num_bytes[i], i)):
        owner[i] = min(range(size), key=lambda rank: (load[rank], rank))
        load[owner[i]] += num_bytes[i]
    return owner


class Sharing:
    """What a rank reads of each pack, and the exchange that makes packs whole.

    `compressed` sends the files as they are, and each rank decodes all of a pack: least on the
    wire. `decoded` sends frames, and each rank decodes its part: least work.
    """

    def __init__(self, peers: Peers, form: str, reader: "WindowReader | EncodedReader") -> None:
        if form not in FORMS:
            raise ConfigError(f"share is {form!r}, must be one of {', '.join(FORMS)}")
        self._peers = peers
        self._form = form
        self._reader = reader

    def mine(self, samples: Sequence[Sample]) -> list[bool]:
        """Which samples this rank reads."""
        sizes = [self._reader.num_bytes(sample) for sample in samples]
        return [rank == self._peers.rank for rank in owners(sizes, self._peers.size)]

    def read(self, sample: Sample) -> bytes:
        """This rank's part of one sample, or why there is none; never raises.

        A storage that cannot be read is told to the peers too, which would wait for ever else.
        """
        try:
            if self._form == "compressed":
                video, told = self._reader.fetch(sample)
                return _packed(asdict(told), video)
            window = self._reader.read(sample)
        except MediaError as error:
            return _packed({"bad": [error.reason, error.detail]}, b"")
        except DataError as error:
            return _packed({"fatal": f"{error} (rank {self._peers.rank} of the group)"}, b"")
        assert window.frames is not None
        about = {
            "clip_id": window.clip_id,
            "caption": window.caption,
            "start_s": window.start_s,
            "fps": window.fps,
            "shape": list(window.frames.shape),
            "actions": None if window.actions is None else window.actions.tolist(),
        }
        return _packed(about, window.frames.contiguous().numpy().tobytes())

    def exchange(
        self, samples: Sequence[Sample], parts: list[bytes], pool: Executor
    ) -> list[Window | MediaError]:
        """All samples of a pack, from this rank's parts of it; every rank must call it alike.

        Raises `DataError` on all ranks where one cannot read its storage.
        """
        gathered = self._peers.all_gather(b"".join(_HEAD.pack(len(p)) + p for p in parts))
        queues = [iter(_split(part)) for part in gathered]
        sizes = [self._reader.num_bytes(sample) for sample in samples]
        whole = [next(queues[rank]) for rank in owners(sizes, self._peers.size)]
        unpacked = [_unpacked(part) for part in whole]
        if fatal := next((about["fatal"] for about, _ in unpacked if "fatal" in about), None):
            raise DataError(fatal)
        return list(pool.map(self._window, samples, unpacked))

    def verify(self, batch: Batch) -> None:
        """Compares a digest of the whole batch over the group. Raises `DataError` naming ranks."""
        digest = hashlib.sha256(repr((batch.sample_ids, batch.captions)).encode())
        seen = [*(batch.frames or []), *(batch.latents or [])]
        seen += [a for a in batch.actions or [] if a is not None]
        if batch.text is not None:
            seen.append(batch.text)
        for tensor in (batch.grid, batch.cu_seqlens, batch.fps, *seen):
            digest.update(tensor.contiguous().numpy().tobytes())
        all_digests = self._peers.all_gather(digest.digest())
        if len(set(all_digests)) > 1:
            other = [rank for rank, d in enumerate(all_digests) if d != all_digests[0]]
            raise DataError(
                f"pack {batch.pack_index} differs between rank 0 of its group and ranks {other}: "
                "their data, settings or decoders are not the same"
            )

    def _window(self, sample: Sample, part: tuple[dict[str, Any], bytes]) -> Window | MediaError:
        about, content = part
        try:
            if "bad" in about:
                return MediaError(*about["bad"])
            if self._form == "compressed":
                return self._reader.decode(sample, content, Told(**about))
        except MediaError as error:
            return error
        frames = np.frombuffer(bytearray(content), dtype=np.uint8).reshape(about.pop("shape"))
        actions = about.pop("actions")
        actions = None if actions is None else torch.tensor(actions, dtype=torch.float32)
        return Window(frames=torch.from_numpy(frames), actions=actions, **about)


def _packed(about: dict[str, Any], content: bytes) -> bytes:
    head = json.dumps(about).encode()
    return _HEAD.pack(len(head)) + head + content


def _unpacked(part: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = _HEAD.unpack_from(part)
    end = _HEAD.size + length
    return json.loads(part[_HEAD.size : end]), part[end:]


def _split(part: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(part):
        (length,) = _HEAD.unpack_from(part, at)
        at += _HEAD.size
        found.append(part[at : at + length])
        at += length
    return found
