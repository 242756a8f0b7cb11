"""Low-rank adaptation (Hu et al. 2021): linears that learn a small difference to frozen weights.

Adapters are saved in the layout of peft: `adapter_config.json` and `adapter_model.safetensors` with
`base_model.model.NAME.lora_A.weight [r, in]` and `lora_B.weight [out, r]`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common.errors import ConfigError, DataError
from common.storage import atomic_folder
from models.initialize import fan_in_normal

PREFIX = "base_model.model."


@dataclass(kw_only=True)
class LoRAConfig:
    """Which linears are adapted, and how."""

    rank: int = 16
    alpha: float = 16.0
    """The difference is `alpha / rank` times the product of the two small matrices."""
    targets: list[str] = field(
        default_factory=lambda: ["blocks.*_attention.[qkv]", "blocks.*_attention.out"]
    )
    """Patterns of linears' names, `*` for anything."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"lora.rank must be at least 1, got {self.rank}")
        if not self.targets:
            raise ConfigError("lora.targets is empty: name the linears to adapt")


class LoRALinear(nn.Module):
    """`base(x) + scale * up(down(x))`; only `down [r, in]` and `up [out, r]` learn."""

    def __init__(self, base: nn.Linear, config: LoRAConfig) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = config.alpha / config.rank
        weight = base.weight
        self.down = nn.Parameter(weight.new_zeros(config.rank, base.in_features))
        self.up = nn.Parameter(weight.new_zeros(base.out_features, config.rank))

    def forward(self, x: Tensor) -> Tensor:
        low = nn.functional.linear(x, self.down.to(x.dtype))
        return self.base(x) + self.scale * nn.functional.linear(low, self.up.to(x.dtype))

    def merged(self) -> nn.Linear:
        """One linear that does the same."""
        with torch.no_grad():
            self.base.weight += self.scale * (self.up @ self.down).to(self.base.weight.dtype)
        return self.base


def targeted(network: nn.Module, config: LoRAConfig) -> list[str]:
    """The linears that a target names. Raises `ConfigError` for a target that names none."""
    linears = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear)}
    for target in config.targets:
        if not any(fnmatchcase(name, target) for name in linears):
            raise ConfigError(
                f"lora.targets: {target} names no linear; there are, for example, "
                + ", ".join(list(linears)[:8])
            )
    return [n for n in linears if any(fnmatchcase(n, target) for target in config.targets)]


def add_lora(network: nn.Module, config: LoRAConfig, seed: int = 0) -> list[str]:
    """Freezes the network and adapts its linears that a target names; returns their names.

    At first the network computes what it did: `up` is zero.

    Raises as `targeted`.
    """
    chosen = targeted(network, config)
    network.requires_grad_(False)
    for name in chosen:
        linear = network.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        adapted = LoRALinear(linear, config)
        with torch.no_grad():
            adapted.down.copy_(fan_in_normal(f"{name}.lora", adapted.down, seed))
        network.set_submodule(name, adapted)
    return chosen


def merge_lora(network: nn.Module) -> None:
    """Puts the differences into the weights; what remains is the plain network."""
    for name, adapted in _adapted(network).items():
        network.set_submodule(name, adapted.merged())


def merged(tensors: Mapping[str, Tensor], config: LoRAConfig) -> dict[str, Tensor]:
    """The weights of an adapted network, by name, as those of the plain one."""
    plain = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf in ("up", "down") and f"{module}.base.weight" in tensors:
            continue
        if module.endswith(".base"):
            module = module.removesuffix(".base")
            if leaf == "weight":
                up, down = tensors[f"{module}.up"], tensors[f"{module}.down"]
                difference = config.alpha / config.rank * (up.float() @ down.float())
                tensor = tensor + difference.to(tensor.dtype)
        plain[f"{module}.{leaf}" if module else leaf] = tensor
    return plain


def save_adapter(network: nn.Module, config: LoRAConfig, folder: Path) -> None:
    """Writes the adapters alone, as peft does."""
    tensors: dict[str, Tensor] = {}
    for name, adapted in _adapted(network).items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = adapted.down.detach().contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = adapted.up.detach().contiguous()
    settings = {
        "peft_type": "LORA",
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": sorted(_adapted(network)),
        "bias": "none",
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
    }
    with atomic_folder(folder) as temporary:
        (temporary / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        save_file(tensors, temporary / "adapter_model.safetensors", metadata={"format": "pt"})


def load_adapter(network: nn.Module, folder: Path) -> LoRAConfig:
    """Adapts a plain network as the folder says, which peft or `save_adapter` wrote.

    Raises `DataError` naming what is missing, of another shape or not supported.
    """
    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        config = LoRAConfig(
            rank=settings["r"],
            alpha=settings["lora_alpha"],
            targets=sorted({_target(key) for key in tensors}),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataError(f"{folder} is no adapter that can be read: {error}") from error
    others = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")
    unsupported = [key for key in others if settings.get(key)]
    if unsupported or settings.get("bias", "none") != "none":
        raise DataError(f"{folder}: {', '.join(unsupported) or 'bias'} is not supported")
    add_lora(network, config)
    adapted = _adapted(network)
    expected = {}
    for name, module in adapted.items():
        expected[f"{PREFIX}{name}.lora_A.weight"] = module.down
        expected[f"{PREFIX}{name}.lora_B.weight"] = module.up
    problems = [f"missing: {key}" for key in expected if key not in tensors]
    problems += [
        f"{key}: {tuple(tensors[key].shape)} stored, {tuple(wanted.shape)} in the network"
        for key, wanted in expected.items()
        if key in tensors and tensors[key].shape != wanted.shape
    ]
    if problems:
        raise DataError(f"{folder} does not fit the network:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for key, parameter in expected.items():
            parameter.copy_(tensors[key])
    return config


def _target(key: str) -> str:
    """The linear that a tensor of the file belongs to."""
    name = key.removeprefix(PREFIX)
    for end in (".lora_A.weight", ".lora_B.weight"):
        if key.startswith(PREFIX) and name.endswith(end):
            return name.removesuffix(end)
    raise ValueError(f"{key} is no weight of an adapted linear")


def _adapted(network: nn.Module) -> dict[str, LoRALinear]:
    return {name: m for name, m in network.named_modules() if isinstance(m, LoRALinear)}
