"""Bytes between the ranks of a model-parallel group: what the loader shares packs by."""

import torch
import torch.distributed as dist

from parallel.collectives import CollectiveError
from parallel.traffic import Traffic


class BytePeers:
    """An all-gather of bytes of any lengths over a gloo group, in host memory.

    It makes two collectives: of the lengths, and of the bytes padded to the longest. So each rank
    of m sends (m-1) * (8 + longest) bytes. Every rank must call it the same number of times.
    """

    def __init__(self, group: dist.ProcessGroup | None, traffic: Traffic | None = None) -> None:
        """`group`: none for the default one."""
        self._group = group
        self._traffic = traffic
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_gather(self, part: bytes) -> list[bytes]:
        """The parts of all ranks in their order. Raises `CollectiveError` where a peer is gone."""
        try:
            lengths = torch.empty(self.size, dtype=torch.int64)
            dist.all_gather_into_tensor(lengths, torch.tensor([len(part)]), group=self._group)
            longest = int(lengths.max())
            mine = torch.zeros(longest, dtype=torch.uint8)
            if part:  # A pack may have fewer samples than the group has ranks.
                mine[: len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
            every = torch.empty(self.size * longest, dtype=torch.uint8)
            dist.all_gather_into_tensor(every, mine, group=self._group)
        except RuntimeError as error:
            raise CollectiveError(
                f"rank {self.rank} of {self.size} shares a pack and a peer does not answer: {error}"
            ) from error
        if self._traffic is not None:
            num_bytes = (self.size - 1) * (lengths.element_size() + longest)
            self._traffic.record("loader", "all_gather", num_bytes)
        rows = every.view(self.size, longest).numpy()
        return [row[:n].tobytes() for row, n in zip(rows, lengths.tolist(), strict=True)]
