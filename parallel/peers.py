"""Bytes between the ranks of a model-parallel group: what the loader shares packs by."""

import torch

from parallel.collectives import Channel


class BytePeers:
    """An all-gather of bytes of any lengths over a channel, in host memory.

    Lengths go first, then the bytes: a rank of m with n bytes sends (m-1) * (8 + n) bytes. Every
    rank must call it the same number of times.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.rank, self.size = channel.rank, channel.size

    def all_gather(self, part: bytes) -> list[bytes]:
        """The parts of all ranks in their order. Raises `CollectiveError` where a peer is gone."""
        mine = torch.empty(len(part), dtype=torch.uint8)
        if part:  # A pack may have fewer samples than the group has ranks.
            mine = torch.frombuffer(bytearray(part), dtype=torch.uint8)
        sizes = self._channel.all_gather(torch.tensor([len(part)]), [1] * self.size, "sizes")
        every = self._channel.all_gather(mine, [int(n) for n in sizes], "parts")
        return [x.numpy().tobytes() for x in every]
