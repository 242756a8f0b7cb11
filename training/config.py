"""What can be asked of `vfm pretrain`. Every section sits beside what it configures."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from common.errors import ConfigError
from common.rng import check_seed
from dataloading.config import LoaderConfig
from inference.config import SamplerConfig, TokenSamplerConfig
from models.autoregressive import AutoregressiveConfig
from models.dit import DiTConfig
from models.family import NetworkConfig, action_dim, told_prefix
from models.lora import LoRAConfig
from models.objectives.config import ObjectiveConfig
from models.power_ema import gamma_of
from models.text.choose import TextConfig
from models.text.hashed import HashedTextConfig
from models.tokenizers.causal import CausalConfig
from models.tokenizers.hub import Precision
from parallel.context import Comm
from training.prefix import PrefixConfig


@dataclass(kw_only=True)
class OptimizerConfig:
    """AdamW, warm-up, and then a constant rate or a cosine to zero at the last step."""

    lr: float = 1e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 100
    schedule: Literal["constant", "cosine"] = "constant"
    clip_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"optimizer.{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(
                f"optimizer.weight_decay must not be negative, got {self.weight_decay}"
            )
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ConfigError(f"optimizer.betas must be two numbers in [0, 1), got {self.betas}")
        if self.warmup_steps < 0:
            raise ConfigError(
                f"optimizer.warmup_steps must not be negative, got {self.warmup_steps}"
            )
        # A very large number is a way to say that nothing is clipped.
        if not self.clip_grad_norm > 0:
            raise ConfigError(
                f"optimizer.clip_grad_norm must be positive, got {self.clip_grad_norm}"
            )


@dataclass(kw_only=True)
class TokenizerSettings:
    """A saved tokenizer by `path`, or one that is fitted to the training footage at the start."""

    path: str | None = None
    """A folder that vfm or diffusers saved a tokenizer in, or a hub id of a Cosmos or Wan one."""
    precision: Precision = "fp32"
    """In which an autoencoder of Cosmos or Wan computes; ours is always fp32."""
    fit: CausalConfig = field(default_factory=CausalConfig)
    fit_videos: int = 128
    """Training windows that the fit sees, at most."""
    fit_steps: int = 200
    """Training steps of its networks, by mean squared error; `vfm tokenizer` knows more recipes."""

    def __post_init__(self) -> None:
        if self.fit_videos < 1:
            raise ConfigError(f"tokenizer.fit_videos must be at least 1, got {self.fit_videos}")
        if self.fit_steps < 0:
            raise ConfigError(f"tokenizer.fit_steps must not be negative, got {self.fit_steps}")


@dataclass(kw_only=True)
class ValidationConfig:
    """Denoising error on held-out windows, at fixed noise levels and fixed noise."""

    every: int = 100
    sigmas: list[float] = field(default_factory=lambda: [0.1, 0.3, 1.0, 3.0, 10.0])
    max_packs: int = 16

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"validation.every must be at least 1, got {self.every}")
        if not self.sigmas or not all(0 < sigma < math.inf for sigma in self.sigmas):
            raise ConfigError(
                f"validation.sigmas must be positive and at least one, got {self.sigmas}"
            )
        # As they are written in the metrics, where equal names would hide one another.
        if len({f"{sigma:g}" for sigma in self.sigmas}) < len(self.sigmas):
            raise ConfigError(
                f"validation.sigmas must differ in their first six digits, got {self.sigmas}"
            )
        if self.max_packs < 1:
            raise ConfigError(f"validation.max_packs must be at least 1, got {self.max_packs}")


@dataclass(kw_only=True)
class SamplesConfig:
    """Videos generated during training, for eyes. `every: 0` makes none."""

    every: int = 0
    count: int = 4
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    tokens: TokenSamplerConfig = field(default_factory=TokenSamplerConfig)
    """In place of `sampler`, of an autoregressive network."""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigError(f"samples.every must not be negative, got {self.every}")
        if self.count < 1:
            raise ConfigError(f"samples.count must be at least 1, got {self.count}")


@dataclass(kw_only=True)
class PowerEMAConfig:
    """Averages that let the width of the average be chosen after training (EDM2)."""

    widths: list[float] = field(default_factory=list)
    """Widths to track, as a share of the training, such as [0.05,0.1]; none: no such averages."""
    every: int = 500
    """Steps between stored ones."""

    def __post_init__(self) -> None:
        for width in self.widths:
            try:
                gamma_of(width)
            except ConfigError as error:
                raise ConfigError(f"power_ema.widths={self.widths}: {error}") from None
        # As they are written in names of files, where equal ones would hide one another.
        if len({f"{width:g}" for width in self.widths}) < len(self.widths):
            raise ConfigError(
                f"power_ema.widths must differ in their first six digits, got {self.widths}"
            )
        if self.every < 1:
            raise ConfigError(f"power_ema.every must be at least 1, got {self.every}")


@dataclass(kw_only=True)
class WandbConfig:
    """Weights & Biases; `offline` needs no account and no network."""

    mode: Literal["offline", "online", "disabled"] = "offline"
    project: str = "vfm"


@dataclass(kw_only=True)
class ParallelConfig:
    """How the processes that torchrun started share the work.

    ulysses x ring ranks split each pack's tokens; what is left over of the world is data parallel.
    """

    ulysses: int = 1
    """Ranks that exchange tokens for heads; within a machine."""
    ring: int = 1
    """Ranks that keys and values go around."""
    comm: Comm | list[Comm] = "a2a+p2p"
    """How attention goes over them. Of a list, the layers take one after the other, around."""
    fp8: bool = False
    """Rounds queries, keys and values to 8 bits in the forward pass of self-attention."""
    attention: Literal["vfm", "transformer_engine"] = "vfm"
    """Whose attention over ranks; TransformerEngine's serves fewer cases, on GPUs alone."""
    timeout_s: float = 60.0
    """After which a rank that waits for another gives up."""
    log_traffic: bool = False
    """Writes what rank 0 sends in each step to metrics.jsonl, by collective."""

    def __post_init__(self) -> None:
        for name in ("ulysses", "ring"):
            if getattr(self, name) < 1:
                raise ConfigError(f"parallel.{name} must be at least 1, got {getattr(self, name)}")
        if self.comm == []:
            raise ConfigError("parallel.comm is empty: give one way, or one for each layer")
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"parallel.timeout_s must be positive, got {self.timeout_s}")


@dataclass(kw_only=True)
class TrainConfig:
    """A pretraining run. `output` is the run's folder; the same command on it goes on."""

    data: LoaderConfig
    output: str
    steps: int = 10_000
    seed: int = 0
    packs_per_step: int = 1
    """Of all data-parallel ranks together."""
    text_dropout: float = 0.1
    action_dropout: float = 0.1
    """Share of samples that lose their actions in a step, of a network with `model.action_dim`."""
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    ema_decay: float = 0.999
    power_ema: PowerEMAConfig = field(default_factory=PowerEMAConfig)
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str = "auto"
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    checkpoint: str | None = None
    """A run, or one of its checkpoints, whose averaged weights the network starts from."""
    lora: LoRAConfig | None = None
    """Trains small differences to these weights alone (LoRA), such as with lora.rank=16."""
    model: NetworkConfig = field(default_factory=DiTConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    text: TextConfig = field(default_factory=HashedTextConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "packs_per_step", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.keep_checkpoints < 1:
            raise ConfigError(f"keep_checkpoints must be at least 1, got {self.keep_checkpoints}")
        check_seed(self.seed)
        if isinstance(self.model, DiTConfig) and self.model.num_classes:
            raise ConfigError(
                f"model.num_classes={self.model.num_classes}: shards carry captions and no class "
                "labels; give model.num_classes=0"
            )
        if self.lora is not None and self.checkpoint is None:
            raise ConfigError(
                f"lora.rank={self.lora.rank} adapts weights that are there: add checkpoint=RUN, "
                "or use vfm finetune"
            )
        if self.samples.every:
            self.samples.sampler.path(self.objective.target)
        self._check_prefix()
        if not 0 <= self.text_dropout < 1:
            raise ConfigError(f"text_dropout must lie in [0, 1), got {self.text_dropout}")
        if not 0 <= self.action_dropout < 1:
            raise ConfigError(f"action_dropout must lie in [0, 1), got {self.action_dropout}")
        told = action_dim(self.model)
        if self.data.action_dim not in (0, told):
            raise ConfigError(
                f"data.action_dim={self.data.action_dim} is read, and model.action_dim={told} "
                "told: leave data.action_dim out, it follows the model"
            )
        self.data = replace(self.data, action_dim=told)
        if not 0 <= self.ema_decay < 1:
            raise ConfigError(f"ema_decay must lie in [0, 1), got {self.ema_decay}")

    def _check_prefix(self) -> None:
        lens = self.prefix.lens
        if lens != [0] and isinstance(self.model, AutoregressiveConfig):
            raise ConfigError(
                f"prefix.shares={self.prefix.shares}: an autoregressive network goes on from any "
                "beginning as it is; leave prefix out"
            )
        if lens != [0] and not told_prefix(self.model):
            raise ConfigError(
                f"prefix.shares={self.prefix.shares} gives samples their first frames, which this "
                "network cannot be told: add model.prefix=true"
            )
        if lens == [0] and told_prefix(self.model):
            raise ConfigError(
                "model.prefix=true, but no sample is given frames: add the shares of samples that "
                "are given 0, 1, 2, ... latent frames, such as prefix.shares=[0.5,0.3,0.2]"
            )
        if self.samples.every and 0 not in lens:
            raise ConfigError(
                f"samples.every={self.samples.every} makes videos from text alone, and "
                f"prefix.shares={self.prefix.shares} trains none so: give samples.every=0, or the "
                "first share something"
            )
