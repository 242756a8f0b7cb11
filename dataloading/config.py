"""What a user sets for the loader, and the token geometry it needs to know of the model."""

from dataclasses import dataclass
from math import ceil, isqrt

from common.errors import ConfigError, nearest

RESIZES = ("crop", "area")
SPLITS = ("train", "val", "all")


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How frames become tokens: the tokenizer's factors and the model's patch (t, h, w).

    A causal tokenizer maps T frames to 1 + (T-1)/temporal latent frames, so T is 1 + k*temporal.
    """

    temporal: int = 4
    spatial: int = 8
    patch: tuple[int, int, int] = (1, 2, 2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch", tuple(self.patch))
        if len(self.patch) != 3 or min(self.temporal, self.spatial, *self.patch) < 1:
            raise ConfigError(
                f"compression needs positive factors and a patch of three (t, h, w), got "
                f"temporal={self.temporal} spatial={self.spatial} patch={self.patch}"
            )

    @property
    def step_px(self) -> tuple[int, int]:
        """Width and height must be multiples of these."""
        return self.spatial * self.patch[2], self.spatial * self.patch[1]

    def grid(self, num_frames: int, width: int, height: int) -> tuple[int, int, int]:
        """Patches along (t, h, w). Raises `ConfigError` where something does not divide."""
        if num_frames < 1 or (num_frames - 1) % self.temporal:
            raise ConfigError(
                f"num_frames {num_frames} is not 1 + k*{self.temporal}, which the tokenizer "
                f"needs; nearest are {_nearest_lengths(num_frames, self.temporal)}"
            )
        latent_frames = 1 + (num_frames - 1) // self.temporal
        if latent_frames % self.patch[0]:
            raise ConfigError(
                f"num_frames {num_frames} gives {latent_frames} latent frames, which the temporal "
                f"patch {self.patch[0]} does not divide; choose another length or patch"
            )
        step_w, step_h = self.step_px
        if width < 1 or height < 1 or width % step_w or height % step_h:
            raise ConfigError(
                f"size {width}x{height} does not divide into patches: width must be a multiple of "
                f"{step_w} and height of {step_h} pixels"
            )
        return latent_frames // self.patch[0], height // step_h, width // step_w

    def tokens(self, num_frames: int, width: int, height: int) -> int:
        """Length of the sample in the pack."""
        t, h, w = self.grid(num_frames, width, height)
        return t * h * w


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """From a curated folder to a stream of packs.

    `cache_bytes`, `prefetch_packs`, `num_threads` and `max_bad_clips` never change what is
    delivered, so a resumed run may change them; it may change nothing else.
    """

    path: str
    """The curated folder: the one that holds `shards/`."""
    token_budget: int
    """Tokens per pack, at most."""
    num_frames: list[int]
    """Window lengths; each sample takes one of those that fit its clip, all equally likely."""
    size: list[int]
    """Width and height in pixels."""
    resize: str = "crop"
    """`crop`: every sample has exactly `size`. `area`: each keeps its aspect, at about the same
    number of pixels, with sides that divide into patches. Both scale to cover and crop the centre.
    """
    fps: float | None = None
    """Frames per second of the windows; none takes each clip's own."""
    seed: int = 0
    shuffle_shards: int = 8
    """Clips are shuffled inside blocks of this many (shuffled) shards; reads stay in these."""
    pool_size: int | None = None
    """Samples a pack is chosen from; more fills better and mixes wider. None takes 128, or as many
    as make four packs of average samples if that is more.
    """
    max_age: int | None = None
    """No sample waits in the pool for more packs than this; at least `pool_size`, and twice as
    many where none is given.
    """
    cache_bytes: int = 1 << 30
    """Memory for decoded, resized clips: what fits is decoded once, the rest for each window."""
    prefetch_packs: int = 2
    """Packs that are read ahead of the one in use; each is in memory, decoded."""
    num_threads: int = 2
    max_bad_clips: int = 100
    """More unreadable clips than this stop the run with a list of them. Each rank counts those
    that it finds itself since it was started; those that a resumed state names do not count again.
    """

    def __post_init__(self) -> None:
        if self.resize not in RESIZES:
            raise ConfigError(
                f"resize is {self.resize!r}, must be one of {', '.join(RESIZES)}"
                + nearest(self.resize, RESIZES)
            )
        if len(self.size) != 2:
            raise ConfigError(f"size is {self.size}, must be [width, height] in pixels")
        if not self.num_frames or len(set(self.num_frames)) != len(self.num_frames):
            raise ConfigError(
                f"num_frames is {self.num_frames}, must list at least one length, each once"
            )
        if self.fps is not None and not self.fps > 0:
            raise ConfigError(f"fps is {self.fps}, must be positive, or null for the clip's own")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}, must fit in 64 bits: -2^63 .. 2^63-1")
        for name in ("token_budget", "shuffle_shards", "prefetch_packs", "num_threads"):
            self._at_least(name, 1)
        self._at_least("cache_bytes", 0)
        self._at_least("max_bad_clips", 0)
        if self.pool_size is not None:
            self._at_least("pool_size", 1)

    def _at_least(self, name: str, least: int) -> None:
        if getattr(self, name) < least:
            raise ConfigError(f"{name} is {getattr(self, name)}, must be at least {least}")

    def pool(self, mean_tokens: float) -> tuple[int, int]:
        """Pool size and age bound, for samples of `mean_tokens` on average."""
        pool_size = self.pool_size or max(128, ceil(4 * self.token_budget / mean_tokens))
        max_age = 2 * pool_size if self.max_age is None else self.max_age
        if max_age < pool_size:
            raise ConfigError(
                f"max_age is {max_age}, must be at least pool_size ({pool_size}): a pool of "
                "samples that each fill a pack needs that many packs to empty"
            )
        return pool_size, max_age

    def check(self, compression: Compression) -> None:
        """Refuses lengths and sizes that do not divide into tokens, or exceed the budget."""
        width, height = self.size
        for num_frames in self.num_frames:
            tokens = compression.tokens(num_frames, width, height)
            if tokens > self.token_budget and self.resize == "crop":
                raise ConfigError(
                    f"num_frames {num_frames} at {width}x{height} is {tokens} tokens, over "
                    f"token_budget {self.token_budget}; raise the budget to {tokens} or drop the "
                    "length"
                )


def target_size(
    config: LoaderConfig, compression: Compression, width: int, height: int
) -> tuple[int, int]:
    """Width and height that a clip of `width` x `height` is brought to.

    With `area`, the sides are the multiples of the patch nearest to those of the same aspect and
    the area of `config.size`, at least one patch each.
    """
    if config.resize == "crop":
        return config.size[0], config.size[1]
    area = config.size[0] * config.size[1]
    step_w, step_h = compression.step_px
    # Nearest multiple of the step to sqrt(area * w/h), in integers, so that it is exact.
    units_w = isqrt(4 * area * width // (height * step_w**2))
    units_h = isqrt(4 * area * height // (width * step_h**2))
    return max(1, (units_w + 1) // 2) * step_w, max(1, (units_h + 1) // 2) * step_h


def _nearest_lengths(num_frames: int, temporal: int) -> str:
    below = 1 + max(0, num_frames - 1) // temporal * temporal
    return f"{below} and {below + temporal}"
