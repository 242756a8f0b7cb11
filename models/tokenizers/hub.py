"""Autoencoders of Cosmos and Wan, through diffusers, from a folder or a hub.

Cosmos (Agarwal et al. 2025), continuous, and Wan 2.1 and 2.2 (Wan Team 2025). Weights are read from
safetensors only. What a checkpoint keeps of them is where they came from and their fingerprint.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from common.errors import ConfigError, DataError
from models.hub_access import check_hub
from models.tokenizers.base import VideoTokenizer
from models.tokenizers.causal import to_bytes, to_pixels
from models.tokenizers.pieces import latent_pieces, pieces

Precision = Literal["fp32", "bf16"]
CLASSES = ("AutoencoderKLCosmos", "AutoencoderKLWan")
KIND = "diffusers"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class HubTokenizer:
    """See `models.tokenizers.base.VideoTokenizer` for the contract.

    Latents are the means of the posterior, brought to zero mean and unit variance by the statistics
    in the autoencoder's configuration. Wan streams with the caches of its own layers; Cosmos looks
    at all frames at once, so its streams collect the whole video first (`streams` says which).
    """

    num_codes = 0

    def __init__(self, model: Any, source: str, precision: Precision = "fp32") -> None:
        """Args:
            model: an autoencoder of `CLASSES`.
            source: the folder or hub id that `load` takes, for `save`.
        Raises `DataError` for statistics or factors that do not fit the model.
        """
        self.model = model.to(_DTYPES[precision]).eval().requires_grad_(False)
        self.source, self.precision = source, precision
        self.name = type(model).__name__
        config = model.config
        self.streams = self.name == "AutoencoderKLWan"
        if self.streams:
            self.channels = int(config.z_dim)
            self.temporal = 2 ** sum(map(bool, config.temperal_downsample))
            self.spatial = 2 ** (len(config.dim_mult) - 1) * (config.patch_size or 1)
            stated = (config.scale_factor_temporal, config.scale_factor_spatial)
        else:
            self.channels = int(config.latent_channels)
            self.temporal = int(config.temporal_compression_ratio)
            self.spatial = int(config.spatial_compression_ratio)
            stated = (self.temporal, self.spatial)
        if (self.temporal, self.spatial) != stated:
            raise DataError(
                f"{source}: its layers compress {self.temporal}x{self.spatial}x{self.spatial}, its "
                f"config.json says {stated[0]}x{stated[1]}x{stated[1]}"
            )
        if self.streams and self.temporal != 4:
            raise DataError(
                f"{source}: Wan's own loop takes 4 frames at a time, not {self.temporal}"
            )
        self.mean, self.deviation = self._statistics()

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Each `float32 [C, 1 or more]`: of every latent frame, the last going on for ever."""
        config = self.model.config
        mean, deviation = config.latents_mean, config.latents_std
        if mean is None or deviation is None:
            mean, deviation = [0.0] * self.channels, [1.0 / config.scaling_factor] * self.channels
        if len(mean) != len(deviation) or len(mean) % self.channels:
            raise DataError(
                f"{self.source}: {len(mean)} means and {len(deviation)} deviations for "
                f"{self.channels} channels"
            )
        pair = (torch.tensor(list(v), dtype=torch.float32) for v in (mean, deviation))
        mean, deviation = (v.view(self.channels, -1) for v in pair)
        return mean, deviation

    def to(self, device: torch.device) -> "HubTokenizer":
        self.model.to(device)
        self.mean, self.deviation = self.mean.to(device), self.deviation.to(device)
        return self

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def encode(self, frames: Tensor) -> Tensor:
        """`uint8 [T, H, W, 3]` to `float32 [C, t, h, w]`."""
        return torch.cat(list(self.encode_stream([frames])), dim=1)

    def decode(self, latents: Tensor) -> Tensor:
        """`float32 [C, t, h, w]` to `uint8 [T, H, W, 3]`."""
        return torch.cat(list(self.decode_stream([latents])))

    @torch.no_grad()
    def encode_stream(self, frames: Iterable[Tensor]) -> Iterator[Tensor]:
        """See `VideoTokenizer`; where `streams` is false the whole is held."""
        model = self.model
        parts = pieces(frames, self.temporal, self.spatial, 1)
        if not self.streams:
            raw = model.encode(self._pixels(torch.cat(list(parts)))).latent_dist.mode()
            yield self._normed(raw[0], 0)
            return
        model.clear_cache()
        for i, part in enumerate(parts):
            x = self._pixels(part)
            if model.config.patch_size is not None:
                x = _patchify(x, model.config.patch_size)
            out = model.encoder(x, feat_cache=model._enc_feat_map, feat_idx=[0])
            mean, _ = model.quant_conv(out).chunk(2, dim=1)
            yield self._normed(mean[0], i)
        model.clear_cache()

    @torch.no_grad()
    def decode_stream(self, latents: Iterable[Tensor]) -> Iterator[Tensor]:
        """See `VideoTokenizer`; where `streams` is false the whole is held."""
        model = self.model
        if not self.streams:
            whole = torch.cat(list(latents), dim=1)
            video = model.decode(self._raw(whole, 0)[None]).sample
            yield to_bytes(video[0].float())
            return
        model.clear_cache()
        for i, part in enumerate(latent_pieces(latents, 1)):
            x = model.post_quant_conv(self._raw(part, i)[None])
            first = {"first_chunk": True} if i == 0 else {}
            video = model.decoder(x, feat_cache=model._feat_map, feat_idx=[0], **first)
            if model.config.patch_size is not None:
                video = _unpatchify(video, model.config.patch_size)
            yield to_bytes(video[0].float())
        model.clear_cache()

    def codes(self, latents: Tensor) -> Tensor:
        raise ValueError(f"{self.source}: the latents of a {self.name} are continuous")

    def from_codes(self, codes: Tensor) -> Tensor:
        raise ValueError(f"{self.source}: the latents of a {self.name} are continuous")

    def _pixels(self, frames: Tensor) -> Tensor:
        return to_pixels(frames.to(self.device))[None].to(_DTYPES[self.precision])

    def _normed(self, raw: Tensor, begin: int) -> Tensor:
        mean, deviation = self._at(begin, raw.shape[1])
        return (raw.float() - mean) / deviation

    def _raw(self, latents: Tensor, begin: int) -> Tensor:
        mean, deviation = self._at(begin, latents.shape[1])
        return (latents.to(mean) * deviation + mean).to(_DTYPES[self.precision])

    def _at(self, begin: int, count: int) -> tuple[Tensor, Tensor]:
        """Statistics of latent frames from `begin` on, `[C, count, 1, 1]`."""
        frame = torch.arange(begin, begin + count, device=self.device)
        frame = frame.clamp(max=self.mean.shape[1] - 1)
        return self.mean[:, frame, None, None], self.deviation[:, frame, None, None]

    # On the disk

    def fingerprint(self) -> str:
        """Changes when any weight, statistic or the precision does."""
        digest = hashlib.sha256(f"{self.name} {self.precision}".encode())
        state = {**self.model.state_dict(), "mean": self.mean, "deviation": self.deviation}
        for name, tensor in sorted(state.items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def equals(self, other: VideoTokenizer) -> bool:
        """Whether both have the same weights, statistics and precision."""
        return isinstance(other, HubTokenizer) and self.fingerprint() == other.fingerprint()

    def save(self, folder: Path) -> None:
        """Writes where the weights came from and their fingerprint, not the weights."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = {
            "kind": KIND,
            "source": self.source,
            "precision": self.precision,
            "fingerprint": self.fingerprint(),
        }
        (folder / "config.json").write_text(json.dumps(kept, indent=1) + "\n")

    @classmethod
    def load(cls, source: str, precision: Precision = "fp32") -> "HubTokenizer":
        """From a folder that diffusers wrote (or one that holds such a `vae/`), or a hub id.

        Raises:
            ConfigError: where diffusers is not installed.
            DataError: naming what is missing or of another kind.
        """
        try:
            import diffusers
        except ImportError as error:
            raise ConfigError(
                f"tokenizer.path={source} needs the package diffusers ({error}): install it with "
                "`pip install diffusers`, or leave tokenizer.path out for vfm's own tokenizer"
            ) from None
        check_hub("tokenizer.path", source, "tokenizer", ["vae/config.json", "config.json"])
        local = Path(source).expanduser()
        where = str(local.resolve()) if local.is_dir() else source
        # A hub id may be that of a pipeline, or of an autoencoder alone.
        folders = ["vae" if (local / "vae").is_dir() else ""] if local.is_dir() else ["vae", ""]
        model, problem = None, None
        for subfolder in folders:
            try:
                model = _read(diffusers, source, where, subfolder or None)
                break
            except (OSError, ValueError, RuntimeError) as error:
                problem = error
        if model is None:
            raise DataError(
                f"no tokenizer can be read from tokenizer.path={source}, neither as a folder nor "
                f"as a hub id: {' '.join(str(problem).split())[:300]}"
            )
        return cls(model, where, precision)

    @classmethod
    def again(cls, folder: Path, kept: dict[str, Any]) -> "HubTokenizer":
        """From what `save` wrote in `folder`. Raises `DataError` where the weights changed."""
        try:
            tokenizer = cls.load(str(kept["source"]), kept["precision"])
            expected = kept["fingerprint"]
        except KeyError as error:
            raise DataError(f"the tokenizer in {folder} is damaged: {error} is missing") from None
        if tokenizer.fingerprint() != expected:
            raise DataError(
                f"{kept['source']} holds another tokenizer than {folder} was made with; put the "
                "old weights back there"
            )
        return tokenizer


def _read(diffusers: Any, source: str, where: str, subfolder: str | None) -> Any:
    """The autoencoder there. Raises what diffusers raises where there is none."""
    config = diffusers.AutoencoderKLWan.load_config(where, subfolder=subfolder)
    name = config.get("_class_name")
    if name not in CLASSES:
        raise DataError(f"tokenizer.path={source} holds a {name}; known are {', '.join(CLASSES)}")
    kind = getattr(diffusers, name)
    return kind.from_pretrained(where, subfolder=subfolder, use_safetensors=True)


def _patchify(x: Tensor, size: int) -> Tensor:
    """Wan 2.2's: `[B, C, T, H, W]` to `[B, C*size*size, T, H/size, W/size]`."""
    from diffusers.models.autoencoders import autoencoder_kl_wan

    return autoencoder_kl_wan.patchify(x, patch_size=size)


def _unpatchify(x: Tensor, size: int) -> Tensor:
    from diffusers.models.autoencoders import autoencoder_kl_wan

    return autoencoder_kl_wan.unpatchify(x, patch_size=size)
