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
            lengths = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(lengths, torch.tensor([len(part)]), group=self._group)
            longest = max(int(n) for n in lengths)
            mine = torch.zeros(longest, dtype=torch.uint8)
            if part:  # A pack may have fewer samples than the group has ranks.
                mine[: len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
            every = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(every, mine, group=self._group)
        except RuntimeError as error:
            raise CollectiveError(
                f"rank {self.rank} of {self.size} shares a pack and a peer does not answer: {error}"
            ) from error
        if self._traffic is not None:
            num_bytes = (self.size - 1) * (lengths[0].element_size() + longest)
            self._traffic.record("loader", "all_gather", num_bytes)
        return [row[: int(n)].numpy().tobytes() for row, n in zip(every, lengths, strict=True)]
