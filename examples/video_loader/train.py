"""A tiny training loop on plain video files: the frame between two others, from these two.

    python examples/video_loader/train.py VIDEO [VIDEO ...]

Prints the error of plain averaging and the model's, both on the same batches.
"""

import argparse
import sys

import torch
from torch import Tensor, nn

from dataloading.video import VideoDataset, VideoLoader


class Between(nn.Module):
    """The average of two frames, and a correction that is learned."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.correction = nn.Sequential(
            nn.Conv2d(6, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, 3, 3, padding=1)
        )
        nn.init.zeros_(self.correction[-1].weight)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Two of `[B, 3, H, W]` to one."""
        return (before + after) / 2 + self.correction(torch.cat([before, after], dim=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=64, help="side of the random crops, in pixels")
    parser.add_argument("--stride", type=int, default=2, help="frames from one to the next")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = VideoDataset(
        args.videos,
        sequence_length=3,
        stride=args.stride,
        scale=2 * args.size,
        crop=(args.size, args.size),
        flip=0.5,
    )
    loader = VideoLoader(dataset, batch_size=args.batch_size, shuffle=True, device=device)
    print(f"{len(dataset)} windows of {len(dataset.files)} files, {len(loader)} batches an epoch")

    torch.manual_seed(0)
    model = Between().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step = 0
    while step < args.steps:
        for batch in loader:
            before, middle, after = batch.frames.unbind(dim=1)
            loss = nn.functional.mse_loss(model(before, after), middle)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0 or step == args.steps:
                plain = nn.functional.mse_loss((before + after) / 2, middle)
                print(f"step {step}: average {plain.item():.6f}, model {loss.item():.6f}")
            if step == args.steps:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
