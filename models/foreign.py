"""Networks of other projects as `vfm pretrain` and `vfm finetune` train them.

They keep their own names of weights, and so of files; they are told no frame rate (Wan), no prefix
and no action.
"""

from typing import Any

from torch import Tensor

from common.errors import ConfigError
from models.attention import local_attention
from models.cosmos import Cosmos, CosmosConfig
from models.layers import Linears
from models.pack import PackLayout
from models.wan import Wan, WanConfig


class TrainedWan(Wan):
    """Wan under flow matching: `c_noise` is its time from 0 to 1 (`objective=flow`)."""

    def __init__(
        self,
        config: WanConfig,
        *,
        token_dim: int,
        text_dim: int,
        attention: Any = local_attention,
        linears: Linears | None = None,
    ) -> None:
        _check(config, config.channels, token_dim, text_dim)
        super().__init__(config, attention=attention, linears=linears)

    def forward(self, x: Tensor, c_noise: Tensor, text: Tensor, layout: PackLayout) -> Tensor:
        """`x [N, p]`, `c_noise [n]`, `text [L, d]` to `[N, p]`."""
        return super().forward(x, 1000.0 * c_noise, text, layout)


class TrainedCosmos(Cosmos):
    """Cosmos-Predict1 under EDM, Predict2 under flow matching: what their timesteps are is
    `c_noise` of those targets."""

    def __init__(
        self,
        config: CosmosConfig,
        *,
        token_dim: int,
        text_dim: int,
        attention: Any = local_attention,
        linears: Linears | None = None,
    ) -> None:
        _check(config, config.channels_in, token_dim, text_dim)
        _check(config, config.channels_out, token_dim, text_dim)
        super().__init__(config, attention=attention, linears=linears)


def _check(config: WanConfig | CosmosConfig, channels: int, token_dim: int, text_dim: int) -> None:
    """Raises `ConfigError` where tokenizer or text encoder give something else than it takes."""
    pt, ph, pw = config.patch
    if channels * pt * ph * pw != token_dim:
        raise ConfigError(
            f"model.kind={config.kind} takes and gives latents of {channels} channels, this "
            f"tokenizer has {token_dim // (pt * ph * pw)}: give the one it was made for, or other "
            "channels"
        )
    if config.text_dim != text_dim:
        raise ConfigError(
            f"model.text_dim={config.text_dim}, but this text encoder gives {text_dim} features: "
            f"give model.text_dim={text_dim}, or the encoder that the network was made for"
        )
