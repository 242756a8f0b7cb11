"""What a checkpoint carries along so that its network can be built again."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from common.errors import ConfigError, DataError
from models.attention import local_attention
from models.autoregressive import AutoregressiveConfig
from models.encoding import Encoding
from models.family import Network, NetworkConfig, build_network, config_from_json
from models.lora import LoRAConfig
from models.objectives.config import ObjectiveConfig
from models.objectives.log_variance import LogVariance
from models.text.base import TextEncoder
from models.text.choose import TextConfig, make_text_encoder, text_config_from_json
from models.tokenizers.base import VideoTokenizer

DISCRETE = (
    "train one with `vfm tokenizer tokenizer.channels=6 tokenizer.levels=[8,8,8,5,5,5]`, or give "
    "tokenizer.fit.channels=6 tokenizer.fit.levels=[8,8,8,5,5,5]"
)


@dataclass(kw_only=True)
class ModelSpec:
    """Shape of the network, objective, text encoder, and the video it was trained on."""

    model: NetworkConfig
    objective: ObjectiveConfig
    text: TextConfig
    num_frames: int
    width: int
    height: int
    fps: float
    """Frames per second of the training windows."""
    lora: LoRAConfig | None = None
    """The adapters that its linears carry, which are no part of `network`."""
    prefix_lens: list[int] = field(default_factory=lambda: [0])
    """Latent frames (patches along time) that samples began with in training, ascending."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "ModelSpec":
        """Raises `DataError` where a part is missing or unknown."""
        try:
            parts = {
                "model": config_from_json(raw["model"]),
                "objective": ObjectiveConfig(**raw["objective"]),
                "text": text_config_from_json(raw["text"]),
            }
            if raw.get("lora") is not None:
                parts["lora"] = LoRAConfig(**raw["lora"])
            return cls(**{**raw, **parts})
        except (KeyError, TypeError) as error:
            raise DataError(f"the checkpoint's model description is damaged: {error}") from error

    def encoding(
        self, tokenizer: VideoTokenizer, device: torch.device, text: TextEncoder | None = None
    ) -> Encoding:
        """`text`: the encoder of `self.text` where it is loaded already."""
        discrete = isinstance(self.model, AutoregressiveConfig)
        if discrete and not tokenizer.num_codes:
            raise ConfigError(
                "an autoregressive network works on discrete tokens, and this tokenizer gives "
                "continuous latents: " + DISCRETE
            )
        return Encoding(
            tokenizer=tokenizer,
            text=text or make_text_encoder(self.text, device),
            patch=self.model.patch_size,
            sigma_data=self.objective.sigma_data,
            device=device,
            discrete=discrete,
        )

    def network(self, encoding: Encoding, attention: Any = local_attention) -> Network:
        """A network of this shape, on the encoding's device, with weights yet to be filled."""
        with encoding.device:
            network = build_network(
                self.model,
                token_dim=encoding.token_dim,
                text_dim=encoding.text.dim,
                attention=attention,
            )
            if self.objective.log_variance:
                # Learned, saved and averaged with the network.
                network.log_variance = LogVariance()
            return network
