"""Trained text encoders, through transformers, from a folder or a hub: T5, UMT5, CLIP, Llama-like.

T5 is what Cosmos was trained with, UMT5 Wan, CLIP and Llama-like models are others' second and
first encoders.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from common.errors import ConfigError, DataError
from models.hub_access import check_hub

_CLASSES = {
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "mt5": "MT5EncoderModel",
    "clip": "CLIPTextModel",
    "clip_text_model": "CLIPTextModel",
}
"""By `model_type`; every other model is taken as Llama-like, a decoder whose states are read."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(kw_only=True)
class HubTextConfig:
    """A text encoder of transformers."""

    kind: Literal["hub"] = "hub"
    path: str
    """A folder with weights and tokenizer files as transformers saves them, or a hub id."""
    max_tokens: int = 512
    """The most tokens that a caption keeps."""
    layer: int = -1
    """Which hidden state is read: -1 the last, after its norm; -2 the one before, and so on."""
    precision: Literal["fp32", "bf16"] = "fp32"
    batch_tokens: int = 4096
    """Tokens that go through the encoder at once, about; on a CPU captions go one by one."""
    cache_bytes: int = 1 << 28
    """Memory for embeddings of captions that come again."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"text.{name} must be at least 1, got {getattr(self, name)}")
        if self.layer >= 0:
            raise ConfigError(f"text.layer counts from the end, -1 is the last; got {self.layer}")
        if self.cache_bytes < 0:
            raise ConfigError(f"text.cache_bytes must not be negative, got {self.cache_bytes}")


class HubTextEncoder:
    """See `models.text.base.TextEncoder` for the contract.

    Captions go through the encoder together with those of equal length only: there is no padding,
    so none can be attended, and a caption's embedding does not depend on its neighbours.
    """

    def __init__(self, model: Any, tokenizer: Any, config: HubTextConfig) -> None:
        """Args:
        model: an encoder or decoder of transformers that gives hidden states.
        tokenizer: its tokenizer, `(captions, truncation, max_length)` to `input_ids`.
        """
        self.model = model.to(_DTYPES[config.precision]).eval().requires_grad_(False)
        self.tokenizer, self.config = tokenizer, config
        inner = getattr(model.config, "text_config", model.config)
        self.dim = int(getattr(inner, "d_model", None) or inner.hidden_size)
        # Places that were learned one by one end somewhere.
        self.max_tokens = config.max_tokens
        if model.config.model_type in ("clip", "clip_text_model"):
            self.max_tokens = min(self.max_tokens, int(inner.max_position_embeddings))
        self._cache = _Cache(config.cache_bytes)

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, list[int]]:
        """Captions to `float32 [L, d]` on the CPU, and the tokens of each; blank ones have none."""
        told = [c for c in dict.fromkeys(captions) if c.strip()]
        found = {c: kept for c in told if (kept := self._cache.get(c)) is not None}
        for caption, embedding in self._embed([c for c in told if c not in found]):
            found[caption] = embedding
            self._cache.put(caption, embedding)
        parts = [found[c] if c in found else torch.zeros(0, self.dim) for c in captions]
        whole = torch.cat(parts) if parts else torch.zeros(0, self.dim)
        return whole, [part.shape[0] for part in parts]

    def _embed(self, captions: list[str]) -> list[tuple[str, Tensor]]:
        if not captions:
            return []
        ids = self.tokenizer(captions, truncation=True, max_length=self.max_tokens)["input_ids"]
        alike: dict[int, list[int]] = defaultdict(list)
        for i, tokens in enumerate(ids):
            alike[len(tokens)].append(i)
        embedded: list[tuple[str, Tensor]] = []
        # On a CPU one by one: its products round otherwise for other numbers of rows, and a run
        # that goes on would meet captions in other groups.
        most = 0 if self.model.device.type == "cpu" else self.config.batch_tokens
        for length, members in sorted(alike.items()):
            at_once = max(1, most // length)
            for begin in range(0, len(members), at_once):
                group = members[begin : begin + at_once]
                states = self._states([ids[i] for i in group])
                embedded += [(captions[i], s.clone()) for i, s in zip(group, states, strict=True)]
        return embedded

    @torch.no_grad()
    def _states(self, ids: list[list[int]]) -> Tensor:
        """Token ids of equal length `[n, l]` to `float32 [n, l, d]`."""
        tokens = torch.tensor(ids, device=self.model.device)
        layer = self.config.layer
        out = self.model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            output_hidden_states=layer != -1,
        )
        states = out.last_hidden_state if layer == -1 else out.hidden_states[layer]
        return states.float().cpu()

    @classmethod
    def load(cls, config: HubTextConfig, device: torch.device) -> "HubTextEncoder":
        """Reads weights (safetensors only) and tokenizer.

        Raises:
            ConfigError: where transformers is not installed.
            DataError: naming what is missing or of another kind.
        """
        path = config.path
        try:
            import transformers
        except ImportError as error:
            raise ConfigError(
                f"text.path={path} needs the package transformers ({error}): install it with "
                "`pip install transformers`, or give text.kind=hashed"
            ) from None
        check_hub("text.path", path, "text encoder", ["config.json"])
        try:
            about = transformers.AutoConfig.from_pretrained(path)
            name = _CLASSES.get(about.model_type)
            kind = getattr(transformers, name) if name else transformers.AutoModel
            model = kind.from_pretrained(path, config=about, use_safetensors=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
            raise DataError(
                f"no text encoder can be read from text.path={path}, neither as a folder nor as a "
                f"hub id: {' '.join(str(error).split())[:300]}"
            ) from None
        layers = int(getattr(about, "num_hidden_layers", 0) or 0)
        if layers and -config.layer > layers + 1:
            raise ConfigError(
                f"text.layer={config.layer}, but {path} has {layers} layers: -{layers + 1} to -1"
            )
        return cls(model.to(device), tokenizer, config)


class _Cache:
    """Embeddings by caption; the ones unused for longest go first."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity, self._used = capacity_bytes, 0
        self._kept: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, caption: str) -> Tensor | None:
        found = self._kept.get(caption)
        if found is not None:
            self._kept.move_to_end(caption)
        return found

    def put(self, caption: str, embedding: Tensor) -> None:
        self._kept[caption] = embedding
        self._used += embedding.nbytes
        while self._used > self._capacity:
            self._used -= self._kept.popitem(last=False)[1].nbytes
