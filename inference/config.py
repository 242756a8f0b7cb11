"""What can be asked of `vfm generate`."""

from dataclasses import dataclass, field, fields
from typing import Literal

from common.errors import ConfigError, nearest
from common.rng import check_seed
from inference.samplers import SAMPLERS, Path
from models.power_ema import gamma_of


@dataclass(kw_only=True)
class SamplerConfig:
    """How the noise is taken away; defaults are those of EDM, and a scale fit for small models."""

    name: str = "heun"
    num_steps: int = 18
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    schedule: Literal["auto", "karras", "flow"] = "auto"
    """Where the steps lie, and along what. karras: from sigma_max to sigma_min as EDM does; flow:
    equal steps of flow matching's time, shifted as in training. auto: as the model was trained."""
    guidance_scale: float = 2.0

    def __post_init__(self) -> None:
        if self.name not in SAMPLERS:
            raise ConfigError(
                f"sampler.name={self.name} is not known{nearest(self.name, SAMPLERS)}; "
                f"choose one of {', '.join(SAMPLERS)}"
            )
        if self.num_steps < 1:
            raise ConfigError(f"sampler.num_steps must be at least 1, got {self.num_steps}")
        # Beyond these a float32 overflows on the way, and long before that nothing is gained.
        if not 0 < self.sigma_max <= 1e6:
            raise ConfigError(f"sampler.sigma_max must lie in 0 to 1e6, got {self.sigma_max}")
        if not 0 < self.sigma_min < self.sigma_max:
            raise ConfigError(
                f"sampler.sigma_min={self.sigma_min} must lie between 0 and "
                f"sampler.sigma_max={self.sigma_max}"
            )
        if not 0.1 <= self.rho <= 100:
            raise ConfigError(f"sampler.rho must lie in 0.1 to 100, got {self.rho}")
        if not 0 <= self.guidance_scale <= 1000:
            raise ConfigError(
                f"sampler.guidance_scale must lie in 0 to 1000, got {self.guidance_scale}"
            )

    def path(self, target: str) -> Path:
        """Along what a model of this target is sampled.

        Raises `ConfigError` for settings that say nothing there.
        """
        by_itself = "flow" if target == "flow" else "karras"
        schedule = by_itself if self.schedule == "auto" else self.schedule
        if schedule == "karras":
            return "edm"
        for one in fields(self):
            if one.name in ("sigma_min", "sigma_max", "rho"):
                value = getattr(self, one.name)
                if value != one.default:
                    raise ConfigError(
                        f"sampler.{one.name}={value} is of sampler.schedule=karras, and the "
                        "steps here are flow matching's: leave it out, or give that schedule"
                    )
        return "flow"


@dataclass(kw_only=True)
class TokenSamplerConfig:
    """How an autoregressive network's tokens are drawn."""

    temperature: float = 1.0
    """Below 1 the likely are likelier; 0 takes the likeliest."""
    top_k: int = 0
    """Draws among this many of the likeliest; 0: among all."""
    top_p: float = 1.0
    """Draws among the likeliest that together have this share."""
    guidance_scale: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise ConfigError(f"tokens.temperature must lie in 0 to 100, got {self.temperature}")
        if self.top_k < 0:
            raise ConfigError(f"tokens.top_k must not be negative, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"tokens.top_p must lie above 0 and up to 1, got {self.top_p}")
        if not 0 <= self.guidance_scale <= 1000:
            raise ConfigError(
                f"tokens.guidance_scale must lie in 0 to 1000, got {self.guidance_scale}"
            )


@dataclass(kw_only=True)
class GenerateConfig:
    """One video from one prompt. Sizes not given are those the model was trained on."""

    checkpoint: str
    prompt: str
    output: str
    num_frames: int | None = None
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    seed: int = 0
    weights: Literal["ema", "model"] = "ema"
    lora: str | None = None
    """A folder with a low-rank adapter in the layout of peft, which is added to the weights: a
    checkpoint's `adapter` of `vfm finetune lora.rank=N`."""
    image: str | None = None
    """A picture that is the first frame; of a model trained with `model.prefix`."""
    video: str | None = None
    """A video whose first frames are the first."""
    actions: str | None = None
    """A JSON file with a list of numbers for each frame, or one for all: what is done in them; of a
    model trained with `model.action_dim`."""
    prefix_frames: int | None = None
    """How many of them; null: the most that the model has learned to go on from."""
    prefix_sigma: float = 0.0
    """Noise on what is given, as the model had it in training; more holds less closely to it."""
    ema_width: float | None = None
    """The average of this width, 0.001 to 0.288 of the training, of a run with `power_ema`."""
    device: str = "auto"
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    tokens: TokenSamplerConfig = field(default_factory=TokenSamplerConfig)
    """In place of `sampler`, of an autoregressive network."""

    def __post_init__(self) -> None:
        limits = {"num_frames": (1, 100_000), "width": (1, 16384), "height": (1, 16384)}
        for name, (least, most) in {**limits, "fps": (0.01, 1000)}.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name} must lie in {least} to {most}, got {value}")
        check_seed(self.seed)
        if self.image is not None and self.video is not None:
            raise ConfigError(
                f"image={self.image} and video={self.video} both say how the video begins: leave "
                "one of them out"
            )
        if self.prefix_frames is not None and self.video is None:
            raise ConfigError(f"prefix_frames={self.prefix_frames} are of a video: give video=FILE")
        if not 0 <= self.prefix_sigma <= 1e3:
            raise ConfigError(f"prefix_sigma must lie in 0 to 1000, got {self.prefix_sigma}")
        if self.prefix_sigma and self.image is None and self.video is None:
            raise ConfigError(
                f"prefix_sigma={self.prefix_sigma} is noise on what is given: give image=FILE or "
                "video=FILE"
            )
        if self.ema_width is not None:
            try:
                gamma_of(self.ema_width)
            except ConfigError as error:
                raise ConfigError(f"ema_width={self.ema_width}: {error}") from None
            if self.weights == "model":
                raise ConfigError(
                    f"ema_width={self.ema_width} asks for an average, weights=model for none: "
                    "leave one of them out"
                )
        if not self.output.endswith(".mp4"):
            raise ConfigError(f"output={self.output} must end in .mp4")
