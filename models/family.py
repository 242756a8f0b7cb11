"""The networks that can be chosen, by the `kind` of their configuration."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from models.attention import Attention, local_attention
from models.autoregressive import Autoregressive, AutoregressiveConfig
from models.cosmos import CosmosConfig
from models.dit import DiT, DiTConfig
from models.flops import Flops, count_flops
from models.foreign import TrainedCosmos, TrainedWan
from models.layers import Linears
from models.moviegen import MovieGen, MovieGenConfig
from models.pack import Grid
from models.patch import patch_of
from models.stdit import STDiT, STDiTConfig
from models.wan import WanConfig

NetworkConfig = (
    DiTConfig | MovieGenConfig | STDiTConfig | AutoregressiveConfig | WanConfig | CosmosConfig
)
Network = DiT | MovieGen | STDiT | Autoregressive | TrainedWan | TrainedCosmos

_NETWORKS: dict[type, Any] = {
    DiTConfig: DiT,
    MovieGenConfig: MovieGen,
    STDiTConfig: STDiT,
    AutoregressiveConfig: Autoregressive,
    WanConfig: TrainedWan,
    CosmosConfig: TrainedCosmos,
}


def build_network(
    config: NetworkConfig,
    *,
    token_dim: int,
    text_dim: int,
    attention: Attention | list[Attention] | list[dict[str, Attention]] = local_attention,
    linears: Linears | None = None,
) -> Network:
    """A network of this shape, on the current device, with weights yet to be filled."""
    return _NETWORKS[type(config)](
        config, token_dim=token_dim, text_dim=text_dim, attention=attention, linears=linears
    )


def config_from_json(raw: dict[str, Any]) -> NetworkConfig:
    """The configuration that `dataclasses.asdict` gave. Raises `KeyError` or `TypeError` for what
    is no such thing."""
    by_kind = {config.__dataclass_fields__["kind"].default: config for config in _NETWORKS}
    return by_kind[raw["kind"]](**raw)


def told_prefix(config: NetworkConfig) -> bool:
    """Whether the network can be told that the first latent frames are given."""
    return isinstance(config, DiTConfig | MovieGenConfig | STDiTConfig) and config.prefix


def action_dim(config: NetworkConfig) -> int:
    """Numbers of an action that the network is told; 0 for none."""
    told = isinstance(config, DiTConfig | MovieGenConfig | STDiTConfig)
    return config.action_dim if told else 0


def reach_of(config: NetworkConfig) -> Grid | None:
    """Patches (t, h, w) that a sample may have at most; None where positions are not learned."""
    if isinstance(config, STDiTConfig | AutoregressiveConfig | WanConfig):
        return None
    if isinstance(config, CosmosConfig) and not config.learned_positions:
        return None
    if isinstance(config, DiTConfig) and config.absolute_positions != "learned":
        return None
    return patch_of(config.max_grid)


def network_flops(
    config: NetworkConfig,
    *,
    grids: Sequence[Grid],
    lens_text: Sequence[int],
    token_dim: int,
    text_dim: int,
) -> Flops:
    """Operations of a pack, see `models.flops`. `token_dim`: features of a token, or its codes."""
    if isinstance(config, AutoregressiveConfig | WanConfig | CosmosConfig):
        return config.flops(
            grids=grids, lens_text=lens_text, token_dim=token_dim, text_dim=text_dim
        )
    return count_flops(
        config.widths(text_dim),
        grids=grids,
        lens_text=lens_text,
        token_dim=token_dim,
        text_dim=text_dim,
    )


def num_parameters(config: NetworkConfig, *, token_dim: int, text_dim: int) -> int:
    """Weights of the network, counted on a network without storage."""
    with torch.device("meta"):
        network: nn.Module = build_network(config, token_dim=token_dim, text_dim=text_dim)
    return sum(parameter.numel() for parameter in network.parameters())
