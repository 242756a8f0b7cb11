"""From a configuration to the parts of a run: tokenizer, spec."""

from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import ConfigError
from common.storage import atomic_folder
from common.store_path import place_of
from dataloading.config import Compression, LoaderConfig
from dataloading.loader import PackedLoader
from dataloading.schema import read_manifest
from inference.loading import read_weights
from models.autoregressive import AutoregressiveConfig
from models.cosmos import CosmosConfig
from models.family import (
    NetworkConfig,
    action_dim,
    build_network,
    reach_of,
    told_prefix,
)
from models.lora import targeted
from models.spec import DISCRETE, ModelSpec
from models.tokenizers.base import VideoTokenizer
from models.tokenizers.fit import fit_tokenizer
from models.tokenizers.load import load_tokenizer
from models.tokenizers.recipe import RecipeConfig
from models.wan import WanConfig
from models.weights.own import is_own, load_own
from parallel import checkpoint
from training.config import TrainConfig

_FOR_THIS_MACHINE = ("batch_tokens", "cache_bytes")
"""Settings of a text encoder that do not change what it gives."""
OnStep = Callable[[int, float], None]


def tokenizer_path(config: TrainConfig) -> str | None:
    """Where the tokenizer lies that the run must have: the one that is given, or that encoded the
    data; none where one is to be fitted.

    Raises:
        ConfigError: where the data was encoded by another tokenizer or text encoder than is given.
        DataError: where data or tokenizer are missing or damaged.
    """
    given = config.tokenizer.path
    folder = place_of(config.data.path)
    with_ = read_manifest(folder / "shards").encoded
    if with_ is None:
        return given
    said = with_.text or {}
    unlike = [
        f"text.{name} is {value}, it was encoded with {said.get(name)}"
        for name, value in asdict(config.text).items()
        if name not in _FOR_THIS_MACHINE and said.get(name) != value
    ]
    if unlike:
        raise ConfigError(
            f"{folder} holds captions of another text encoder: {'; '.join(unlike)}. Give that "
            "one, or run vfm encode with this"
        )
    if not isinstance(folder, Path):
        if given is None:
            raise ConfigError(
                f"tokenizer.path has no value; give a copy of {folder / 'tokenizer'}, which "
                "encoded this data"
            )
        return given
    kept = folder / "tokenizer"
    if given is not None and not load_tokenizer(given).equals(load_tokenizer(kept)):
        raise ConfigError(
            f"tokenizer.path={given} holds another tokenizer than the one that encoded {folder}; "
            "leave it out, or run vfm encode with this one"
        )
    return str(kept)


def compression_of(config: TrainConfig, resume_from: Path | None = None) -> Compression:
    """How frames become tokens, before the tokenizer itself is there.

    Raises:
        ConfigError: where the run goes on, and `tokenizer.path` holds another tokenizer.
        DataError: where a tokenizer is missing or damaged.
    """
    stored = load_tokenizer(resume_from / "tokenizer") if resume_from else None
    path = tokenizer_path(config)
    given = load_tokenizer(path, precision=config.tokenizer.precision) if path is not None else None
    if stored is not None and given is not None and not stored.equals(given):
        raise ConfigError(
            f"tokenizer.path={path} holds another tokenizer than the one that the run in "
            f"{config.output} was trained with; leave it out, or give another output folder"
        )
    loaded = stored or given
    settings = config.tokenizer.fit if loaded is None else loaded
    return Compression(
        temporal=settings.temporal, spatial=settings.spatial, patch=config.model.patch_size
    )


def get_tokenizer(
    config: TrainConfig,
    folder: Path,
    resume_from: Path | None,
    device: torch.device,
    on_step: OnStep | None = None,
) -> VideoTokenizer:
    """The tokenizer of the checkpoint, or the given one, or one fitted now; kept in `folder`.

    Without a checkpoint nothing in `folder` is trusted: a run that was killed before its first
    may have had other settings. A fit is a function of configuration and data alone, so the same
    settings make the same one again.
    """
    if resume_from is not None:
        return load_tokenizer(resume_from / "tokenizer", device)
    path = tokenizer_path(config)
    if path is not None:
        tokenizer = load_tokenizer(path, precision=config.tokenizer.precision)
    else:
        steps = config.tokenizer.fit_steps
        tokenizer = fit_tokenizer(
            config.tokenizer.fit,
            first_windows(config.data, compression_of(config), config.tokenizer.fit_videos),
            RecipeConfig(steps=steps, lr=4e-3, l1=0.0, l2=1.0, perceptual=0.0, kl=0.0),
            seed=config.seed,
            on_step=on_step,
        )
    with atomic_folder(folder) as temporary:
        tokenizer.save(temporary)
    return load_tokenizer(folder, device)


def first_windows(data: LoaderConfig, compression: Compression, count: int) -> list[Tensor]:
    """The first `count` windows of the training order."""
    videos: list[Tensor] = []
    with PackedLoader(data, compression, split="train") as loader:
        for batch in loader:
            videos += batch.frames or []
            if len(videos) >= count:
                break
    return videos[:count]


def check_discrete(config: TrainConfig) -> None:
    """Raises `ConfigError` where network, objective and tokenizer do not all work on discrete
    tokens, or all on continuous ones."""
    discrete = isinstance(config.model, AutoregressiveConfig)
    objective = config.objective
    if discrete != (objective.target == "next_token"):
        raise ConfigError(
            f"objective.target={objective.target} and model.kind={config.model.kind} do not go "
            "together: an autoregressive network learns by objective=next_token, and no other does"
        )
    if not discrete:
        return
    for one in fields(objective):
        value = getattr(objective, one.name)
        if one.name != "target" and value != one.default:
            raise ConfigError(
                f"objective.{one.name}={value} says nothing to objective.target=next_token: leave "
                "it out"
            )
    if config.tokenizer.path is None and not config.tokenizer.fit.levels:
        raise ConfigError(
            "model.kind=autoregressive works on discrete tokens, and tokenizer.fit makes "
            "continuous latents: " + DISCRETE
        )


def check_lora(config: TrainConfig) -> None:
    """Raises `ConfigError` for a target of `lora.targets` that names no linear of the network."""
    model = config.model
    if config.lora is None:
        return
    # Names do not depend on the sizes of tokens and text, which some networks check.
    channels, text_dim = 1, 1
    if isinstance(model, WanConfig):
        channels, text_dim = model.channels, model.text_dim
    elif isinstance(model, CosmosConfig):
        channels, text_dim = model.channels_in, model.text_dim
    pt, ph, pw = model.patch_size
    with torch.device("meta"):
        network = build_network(model, token_dim=channels * pt * ph * pw, text_dim=text_dim)
    targeted(network, config.lora)


def check_reach(model: NetworkConfig, loader: PackedLoader) -> None:
    """Raises `ConfigError` where a sample would lie beyond the network's learned positions."""
    reach, largest = reach_of(model), loader.largest_grid()
    if reach is not None and any(n > most for n, most in zip(largest, reach, strict=True)):
        needed = [max(n, most) for n, most in zip(largest, reach, strict=True)]
        raise ConfigError(
            f"model.max_grid={list(reach)} is too small for samples of up to {list(largest)} "
            f"patches (t, h, w); give model.max_grid={needed}, or take shorter "
            "data.num_frames or a smaller data.size"
        )


def settings_of(path: str) -> dict[str, Any]:
    """What a run that goes on from these weights takes from them, as values of `TrainConfig`.

    Raises `DataError` naming what is missing or damaged.
    """
    if is_own(Path(path)):
        # What these networks were trained with: Wan and Predict2 flow matching, Predict1 EDM.
        config: Any = load_own(Path(path)).network.config
        first = isinstance(config, CosmosConfig) and config.learned_positions
        objective = {"target": "edm"} if first else {"target": "flow", "sigma_data": 1.0}
        return {"model": asdict(config), "objective": objective}
    folder = checkpoint.resolve(Path(path))
    config = checkpoint.read_state(folder)["config"]
    shapes = ("token_budget", "num_frames", "size", "resize", "fps")
    return {
        **{name: config[name] for name in ("model", "objective", "text", "prefix")},
        "data": {name: config["data"][name] for name in shapes},
        "tokenizer": {"path": str(folder / "tokenizer")},
    }


def start_from(network: nn.Module, path: Path) -> None:
    """Gives the network the averaged weights of a run or checkpoint, adapters included, or those
    that `vfm convert` made.

    What only this network has, to be told of given frames, of actions, or of how hard a noise level
    is, keeps its own beginning.

    Raises `DataError` that lists what is missing, unknown or of another shape.
    """
    known = {"log_variance": False}
    own = is_own(path)
    if not own:
        folder = checkpoint.resolve(path)
        spec = ModelSpec.from_json(checkpoint.read_state(folder)["spec"])
        known = {
            "prefix": told_prefix(spec.model),
            "actions": action_dim(spec.model) > 0,
            "log_variance": spec.objective.log_variance,
        }
    expected = {
        name: parameter
        for name, parameter in network.named_parameters()
        if known.get(name.split(".")[0], True)
    }
    if own:
        tensors: dict[str, Tensor] = dict(load_own(path).network.named_parameters())
        checkpoint.check_fit(tensors, expected, str(path))
    else:
        tensors = read_weights(folder, "ema", spec, expected)
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(tensors[name])


def make_spec(config: TrainConfig, loader: PackedLoader) -> ModelSpec:
    """What a checkpoint must carry; generation defaults to what training mostly saw."""
    shape = loader.typical_shape()
    return ModelSpec(
        model=config.model,
        objective=config.objective,
        text=config.text,
        lora=config.lora,
        prefix_lens=config.prefix.lens,
        **shape._asdict(),
    )
