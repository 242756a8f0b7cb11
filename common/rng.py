"""Counter-based random numbers: a pure function of a key and a position.

A key is derived from (seed, purpose, step, sample id); a position is the element's global index
inside the sample. Nothing else enters, so a draw does not depend on device, batch layout, rank,
worker, or on what was drawn before, and there is no state to save.

The generator is Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
section 3.3, constants of table 2). It is written in torch integer arithmetic, so that it runs
where the tensors live. Integers are identical on every device; `normal` goes through log and cos
and may differ between devices in the last bit.
"""

import hashlib
import math
import struct

import numpy as np
import torch
from torch import Tensor

from common.errors import ConfigError

_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def check_seed(seed: int) -> None:
    """Raises `ConfigError` for a seed that does not fit into 64 bits."""
    if not -(2**63) <= seed < 2**63:
        raise ConfigError(f"seed={seed} must lie within 64 bits, -2^63 to 2^63-1")


def key(seed: int, purpose: str, *, step: int = 0, sample_id: str = "") -> Tensor:
    """The key of one stream of numbers, `int64 [2]` holding two 32-bit words.

    Args:
        seed: the run's seed.
        purpose: what the numbers are for (`"noise"`, `"sigma"`, `"text_dropout"`, ...), so that
            two uses never share numbers.
        step: optimizer step, epoch, or whatever counts repetitions.
        sample_id: which sample; empty for draws that belong to no sample.
    """
    return keys(seed, purpose, step=step, sample_ids=[sample_id])[0]


def keys(seed: int, purpose: str, *, step: int, sample_ids: list[str]) -> Tensor:
    """One key per sample, `int64 [n, 2]`."""
    head = struct.pack("<qq", seed, step) + f"{len(purpose)}:{purpose}".encode()
    digests = [hashlib.blake2b(head + i.encode(), digest_size=8).digest() for i in sample_ids]
    words = np.frombuffer(b"".join(digests), dtype="<u4").astype(np.int64)
    return torch.from_numpy(words.reshape(-1, 2))


def philox(key: Tensor, counter: Tensor) -> Tensor:
    """Philox4x32-10: four 32-bit words for each counter.

    Args:
        key: `int64 [..., 2]`, words in 0 .. 2^32-1; broadcasts against `counter`.
        counter: `int64 [...]`, non-negative; the upper half of the 128-bit counter is zero.
    Returns:
        `int64 [..., 4]`, words in 0 .. 2^32-1.
    """
    c0, c1 = counter & _MASK, (counter >> 32) & _MASK
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = key[..., 0], key[..., 1]
    for _ in range(10):
        # The product of two 32-bit words fills 64 bits exactly; the sign bit is masked away.
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)


def uniform(key: Tensor, position: Tensor) -> Tensor:
    """Uniform in [0, 1) with 53 random bits, `float64`, one value per position."""
    words = philox(key, position >> 1)
    odd = (position & 1).bool()
    hi = torch.where(odd, words[..., 2], words[..., 0])
    lo = torch.where(odd, words[..., 3], words[..., 1])
    return ((hi >> 5) * 67108864.0 + (lo >> 6)) / 9007199254740992.0


def normal(key: Tensor, position: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal, one value per position, shape of `position` against `key[..., 0]`.

    Any subset of positions can be drawn alone. Whole rows are four times cheaper by `normal_rows`,
    which gives the same values.
    """
    lanes = _four_normals(philox(key, position >> 2))
    index = (position & 3).expand(lanes.shape[:-1]).unsqueeze(-1)
    return lanes.gather(-1, index).squeeze(-1).to(dtype)


def normal_rows(key: Tensor, row: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal rows `[n, width]`; row r holds the positions r*w .. r*w+width-1.

    Here w is `width` rounded up to a multiple of 4, since a counter gives four numbers.

    Args:
        key: `int64 [2]`, or `[n, 2]` for a key per row.
        row: `int64 [n]`, the row's index inside its sample.
        width: values per row.
    """
    fours = math.ceil(width / 4)
    counter = row.unsqueeze(-1) * fours + torch.arange(fours, device=row.device)
    values = _four_normals(philox(key.unsqueeze(-2), counter)).flatten(-2)
    return values[..., :width].to(dtype)


def _four_normals(words: Tensor) -> Tensor:
    """Box-Muller on two pairs of 32-bit words: `int64 [..., 4]` to `float64 [..., 4]`."""
    pairs = (words.unflatten(-1, (2, 2)).double() + 0.5) * 2.0**-32
    radius = torch.sqrt(-2.0 * torch.log(pairs[..., 0]))
    angle = 2.0 * math.pi * pairs[..., 1]
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1).flatten(-2)


def integer(key: Tensor, high: int, position: int = 0) -> int:
    """One integer in 0 .. high-1."""
    return int(float(uniform(key, torch.tensor(position))) * high)


def permutation(key: Tensor, n: int) -> Tensor:
    """A permutation of 0 .. n-1, `int64 [n]`: positions sorted by 62 random bits."""
    words = philox(key, torch.arange(n))
    return torch.argsort((words[:, 0] << 30) ^ words[:, 1], stable=True)
