"""Layers of a video tokenizer, causal in time, that can also see a video in pieces.

Legend: B videos, C channels, T frames, H and W places. Convolutions and attention are factorised
into space and time. Norms are over the channels of one place, so that neither later frames nor
far places enter.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


class Stream:
    """What causal layers remember of the frames before; empty where a video begins.

    One for each video and direction. Where `keeps` is false the video comes in one piece, and
    nothing is remembered.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._kept: dict[nn.Module, Tensor] = {}

    def past(self, layer: nn.Module) -> Tensor | None:
        """What `layer` kept of the piece before; None in the first piece."""
        return self._kept.get(layer)

    def keep(self, layer: nn.Module, frames: Tensor) -> None:
        if self._keeps:
            # A copy: a view would keep the whole piece alive.
            self._kept[layer] = frames.detach().clone()


class ChannelNorm(nn.Module):
    """Root-mean-square norm over the channels of `[B, C, T, H, W]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
        return x * scale * self.weight[:, None, None, None]


class TemporalConv(nn.Module):
    """A convolution along time over this frame and those before; the first frame stands before
    itself. With stride 2, 1 + 2k frames become 1 + k."""

    KERNEL = 3

    def __init__(self, channels_in: int, channels_out: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv3d(channels_in, channels_out, (self.KERNEL, 1, 1), stride=(stride, 1, 1))

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        past = stream.past(self)
        if past is None:
            past = x[:, :, :1].expand(-1, -1, self.KERNEL - 1, -1, -1)
        x = torch.cat([past, x], dim=2)
        stream.keep(self, x[:, :, x.shape[2] - (self.KERNEL - self.stride) :])
        return self.conv(x)


def spatial_conv(channels_in: int, channels_out: int, *, stride: int = 1) -> nn.Conv3d:
    """A 3x3 convolution inside each frame."""
    return nn.Conv3d(channels_in, channels_out, (1, 3, 3), (1, stride, stride), (0, 1, 1))


class Block(nn.Module):
    """Residual: norm, 3x3 in space, 3 in time."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.spatial = spatial_conv(channels, channels)
        self.temporal = TemporalConv(channels, channels)

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        return x + self.temporal(F.silu(self.spatial(F.silu(self.norm(x)))), stream)


class Down(nn.Module):
    """Half as many places along each side, half as many frames after the first, or both."""

    def __init__(self, channels_in: int, channels_out: int, *, time: bool, space: bool) -> None:
        super().__init__()
        self.spatial = spatial_conv(channels_in, channels_out, stride=2 if space else 1)
        self.temporal = TemporalConv(channels_out, channels_out, stride=2) if time else None

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        x = self.spatial(x)
        return x if self.temporal is None else self.temporal(x, stream)


class Up(nn.Module):
    """The other way: the first frame stays one, each other becomes two."""

    def __init__(self, channels_in: int, channels_out: int, *, time: bool, space: bool) -> None:
        super().__init__()
        self.time, self.space = time, space
        self.temporal = TemporalConv(channels_in, channels_in * (2 if time else 1))
        self.spatial = spatial_conv(channels_in, channels_out * (4 if space else 1))

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        begins = stream.past(self.temporal) is None
        x = self.temporal(x, stream)
        if self.time:
            x = rearrange(x, "b (d c) t h w -> b c (t d) h w", d=2)
            x = x[:, :, 1:] if begins else x
        x = self.spatial(x)
        if self.space:
            x = rearrange(x, "b (y x c) t h w -> b c t (h y) (w x)", y=2, x=2)
        return x


class SpatialAttention(nn.Module):
    """Residual attention inside square windows of each frame, with a learned bias per offset.

    Windows lie on a fixed grid from the frame's corner; those cut off by its border attend to what
    is there.
    """

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = ChannelNorm(channels)
        self.qkv = nn.Conv3d(channels, 3 * channels, 1)
        self.out = nn.Conv3d(channels, channels, 1)
        self.bias = nn.Parameter(torch.zeros(heads, (2 * window - 1) ** 2))
        place = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij"), dim=-1
        ).flatten(0, 1)
        offset = place[:, None] - place[None] + window - 1
        index = offset[..., 0] * (2 * window - 1) + offset[..., 1]
        self.register_buffer("index", index, persistent=False)

    index: Tensor

    def forward(self, x: Tensor) -> Tensor:
        frames, (height, width), n = x.shape[2], x.shape[3:], self.window
        short = (-width) % n, (-height) % n
        padded = F.pad(self.qkv(self.norm(x)), (0, short[0], 0, short[1]))
        q, k, v = rearrange(
            padded,
            "b (three a c) t (h y) (w x) -> three (b t) (h w) a (y x) c",
            three=3,
            a=self.heads,
            y=n,
            x=n,
        )
        bias = self.bias[:, self.index].to(q.dtype)
        if any(short):
            there = F.pad(x.new_ones(height, width), (0, short[0], 0, short[1]))
            there = rearrange(there, "(h y) (w x) -> (h w) 1 1 (y x)", y=n, x=n) > 0
            bias = bias.masked_fill(~there, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = rearrange(
            y,
            "(b t) (h w) a (y x) c -> b (a c) t (h y) (w x)",
            t=frames,
            h=padded.shape[3] // n,
            y=n,
        )
        return x + self.out(y[..., :height, :width])


class TemporalAttention(nn.Module):
    """Residual attention of each place to itself in this frame and the `window - 1` before."""

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = ChannelNorm(channels)
        self.qkv = nn.Conv3d(channels, 3 * channels, 1)
        self.out = nn.Conv3d(channels, channels, 1)
        self.bias = nn.Parameter(torch.zeros(heads, window))

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        height, width = x.shape[3:]
        q, k, v = rearrange(
            self.qkv(self.norm(x)),
            "b (three a c) t h w -> three (b h w) a t c",
            three=3,
            a=self.heads,
        )
        past = stream.past(self)
        if past is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(past, (k, v), strict=True))
        stream.keep(self, torch.stack([k, v])[:, :, :, max(0, k.shape[2] - self.window + 1) :])
        before = k.shape[2] - q.shape[2]
        query = torch.arange(q.shape[2], device=x.device)[:, None] + before
        distance = query - torch.arange(k.shape[2], device=x.device)[None]
        seen = (distance >= 0) & (distance < self.window)
        bias = self.bias[:, distance.clamp(0, self.window - 1)].to(q.dtype)
        bias = bias.masked_fill(~seen, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.out(rearrange(y, "(b h w) a t c -> b (a c) t h w", h=height, w=width))


class Attention(nn.Module):
    """Inside the frame, then along time."""

    def __init__(self, channels: int, heads: int, *, spatial: int, temporal: int) -> None:
        super().__init__()
        self.spatial = SpatialAttention(channels, heads, spatial)
        self.temporal = TemporalAttention(channels, heads, temporal)

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        return self.temporal(self.spatial(x), stream)
