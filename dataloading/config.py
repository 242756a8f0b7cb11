"""What a user sets for the loader, and the token geometry it needs to know of the model."""

from dataclasses import dataclass, field
from math import ceil, isqrt

from common.errors import ConfigError, nearest

RESIZES = ("crop", "area")
SPLITS = ("train", "val", "all")
BATCHES = ("packed", "bucketed")
_POOL_SLACK = 4096
_WINDOW_SAMPLES = 1024


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
class CurriculumStage:
    """What holds from a pack on, for samples drawn from then on; what is not given stays as the
    loader's own settings say."""

    from_pack: int
    """Number of the pack in the global order: optimizer step times packs per step."""
    num_frames: list[int] | None = None
    size: list[int] | None = None
    blend: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """From curated folders to a stream of packs.

    `cache_bytes`, `remote_cache_bytes`, `prefetch_packs`, `num_threads`, `storage_timeout_s`,
    `max_bad_clips` and `accept_changes` never change what is delivered, so a resumed run may change
    them; others only with `accept_changes`.
    """

    path: str = field(metadata={"url": True})
    """The curated folder, or its URL in an object store: what holds `shards/`."""
    token_budget: int
    """Tokens per pack, at most."""
    num_frames: list[int]
    """Window lengths; each sample takes one of those that fit its clip, all equally likely."""
    size: list[int]
    """Width and height in pixels."""
    blend: dict[str, float] = field(default_factory=dict)
    """More folders, each with the samples it gives for each one of `path`; `path` itself may be
    among them, with another number than 1. Each folder has epochs of its own: every clip of it
    comes once before any comes again.
    """
    curriculum: list[CurriculumStage] = field(default_factory=list)
    """Other lengths, sizes and shares from some packs on, ascending."""
    batches: str = "packed"
    """`packed`: samples of any shapes, as fill the budget best. `bucketed`: each batch holds
    samples of one shape, as many as the budget allows.
    """
    resize: str = "crop"
    """`crop`: every sample has exactly `size`. `area`: each keeps its aspect, at about the same
    number of pixels, with sides that divide into patches. Both scale to cover and crop the centre.
    """
    fps: float | None = None
    """Frames per second of the windows; none takes each clip's own."""
    action_dim: int = 0
    """Numbers of an action. More than 0: `actions` in a clip's JSON are read, a list for each frame
    of the clip, or one for all of it; a clip may have none.
    """
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
    balance_packs: int = 64
    """Packs are planned so many at a time and put in the order of what they cost to compute,
    ascending and descending in turn, so that those of one step cost its ranks about the same. 1
    leaves them as they come. Fewer are taken where packs hold very many samples.
    """
    cache_bytes: int = 1 << 30
    """Memory for decoded, resized clips: what fits is decoded once, the rest for each window."""
    prefetch_packs: int = 2
    """Packs that are read ahead of the one in use; each is in memory, decoded."""
    num_threads: int = 2
    remote_cache_bytes: int = 1 << 28
    """Memory for clips as they lie in an object store: what fits is fetched once."""
    storage_timeout_s: float = 50.0
    """A file that takes longer to read ends the run with its name."""
    max_bad_clips: int = 100
    """More unreadable clips than this stop the run with a list of them. Each rank counts those
    that it finds itself since it was started; those that a resumed state names do not count again.
    """
    accept_changes: bool = False
    """Whether a state of other settings or other data is taken. With other settings, what waited is
    delivered first; with other data, it goes on with the folders' next epoch.
    """

    def __post_init__(self) -> None:
        if self.resize not in RESIZES:
            raise ConfigError(
                f"resize is {self.resize!r}, must be one of {', '.join(RESIZES)}"
                + nearest(self.resize, RESIZES)
            )
        if self.batches not in BATCHES:
            raise ConfigError(
                f"batches is {self.batches!r}, must be one of {', '.join(BATCHES)}"
                + nearest(self.batches, BATCHES)
            )
        _check_shapes(self.num_frames, self.size)
        if self.fps is not None and not self.fps > 0:
            raise ConfigError(f"fps is {self.fps}, must be positive, or null for the clip's own")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}, must fit in 64 bits: -2^63 .. 2^63-1")
        for name in (
            "token_budget",
            "shuffle_shards",
            "balance_packs",
            "prefetch_packs",
            "num_threads",
        ):
            self._at_least(name, 1)
        self._at_least("cache_bytes", 0)
        self._at_least("action_dim", 0)
        self._at_least("remote_cache_bytes", 0)
        self._at_least("max_bad_clips", 0)
        if not self.storage_timeout_s > 0:
            raise ConfigError(f"storage_timeout_s is {self.storage_timeout_s}, must be positive")
        if self.pool_size is not None:
            self._at_least("pool_size", 1)
        self._check_blend("blend", self.blend)
        self._check_curriculum()

    def _at_least(self, name: str, least: int) -> None:
        if getattr(self, name) < least:
            raise ConfigError(f"{name} is {getattr(self, name)}, must be at least {least}")

    def _check_blend(self, name: str, blend: dict[str, float]) -> None:
        for path, share in blend.items():
            if not share >= 0:
                raise ConfigError(f"{name} gives {path} the share {share}, must be at least 0")
        if not sum({self.path: 1.0, **blend}.values()) > 0:
            raise ConfigError(f"{name} gives no folder a share above 0: {blend}")

    def _check_curriculum(self) -> None:
        before = 0
        for stage in self.curriculum:
            if stage.from_pack <= before:
                raise ConfigError(
                    f"curriculum has from_pack {stage.from_pack} after {before}, must ascend from "
                    "at least 1"
                )
            before = stage.from_pack
            try:
                _check_shapes(stage.num_frames or self.num_frames, stage.size or self.size)
            except ConfigError as error:
                raise ConfigError(f"curriculum from pack {stage.from_pack}: {error}") from None
            for path in stage.blend or {}:
                if path not in self.paths:
                    raise ConfigError(
                        f"curriculum from pack {stage.from_pack} has the folder {path}, which "
                        f"blend does not name{nearest(path, self.paths)}; give it the share 0 there"
                    )
            self._check_blend(f"curriculum from pack {stage.from_pack}", stage.blend or {})

    @property
    def paths(self) -> list[str]:
        """The folders, `path` first."""
        return list({self.path: 1.0, **self.blend})

    @property
    def stages(self) -> list[CurriculumStage]:
        """All stages with every setting filled in, the first from pack 0 on."""
        first = CurriculumStage(from_pack=0)
        return [
            CurriculumStage(
                from_pack=stage.from_pack,
                num_frames=stage.num_frames or self.num_frames,
                size=stage.size or self.size,
                blend={self.path: 1.0, **(self.blend if stage.blend is None else stage.blend)},
            )
            for stage in [first, *self.curriculum]
        ]

    @property
    def lengths(self) -> list[int]:
        """The window lengths of all stages, ascending."""
        return sorted({t for stage in self.stages for t in stage.num_frames or []})

    def pool(self, mean_tokens: float) -> tuple[int, int]:
        """Pool size and age bound, for samples of `mean_tokens` on average."""
        per_pack = self.token_budget / mean_tokens
        pool_size = self.pool_size or max(128, ceil(per_pack + min(3 * per_pack, _POOL_SLACK)))
        max_age = 2 * pool_size if self.max_age is None else self.max_age
        if max_age < pool_size:
            raise ConfigError(
                f"max_age is {max_age}, must be at least pool_size ({pool_size}): a pool of "
                "samples that each fill a pack needs that many packs to empty"
            )
        return pool_size, max_age

    def window(self, mean_tokens: float) -> int:
        """Packs that are planned at a time, for samples of `mean_tokens` on average."""
        most = int(_WINDOW_SAMPLES * mean_tokens / self.token_budget)
        return max(1, min(self.balance_packs, most))

    def check(self, compression: Compression) -> None:
        """Refuses lengths and sizes that do not divide into tokens, or exceed the budget."""
        for stage in self.stages:
            width, height = stage.size or self.size
            for num_frames in stage.num_frames or self.num_frames:
                tokens = compression.tokens(num_frames, width, height)
                if tokens > self.token_budget and self.resize == "crop":
                    raise ConfigError(
                        f"num_frames {num_frames} at {width}x{height} is {tokens} tokens, over "
                        f"token_budget {self.token_budget}; raise the budget to {tokens} or drop "
                        "the length"
                    )


def _check_shapes(num_frames: list[int], size: list[int]) -> None:
    if len(size) != 2:
        raise ConfigError(f"size is {size}, must be [width, height] in pixels")
    if not num_frames or len(set(num_frames)) != len(num_frames):
        raise ConfigError(f"num_frames is {num_frames}, must list at least one length, each once")


def target_size(
    resize: str, size: list[int], compression: Compression, width: int, height: int
) -> tuple[int, int]:
    """Width and height that a clip of `width` x `height` is brought to.

    With `area`, the sides are the multiples of the patch nearest to those of the same aspect and
    the area of `size`, at least one patch each.
    """
    if resize == "crop":
        return size[0], size[1]
    area = size[0] * size[1]
    step_w, step_h = compression.step_px
    # Nearest multiple of the step to sqrt(area * w/h), in integers, so that it is exact.
    units_w = isqrt(4 * area * width // (height * step_w**2))
    units_h = isqrt(4 * area * height // (width * step_h**2))
    return max(1, (units_w + 1) // 2) * step_w, max(1, (units_h + 1) // 2) * step_h


def _nearest_lengths(num_frames: int, temporal: int) -> str:
    below = 1 + max(0, num_frames - 1) // temporal * temporal
    return f"{below} and {below + temporal}"
