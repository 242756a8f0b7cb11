"""The original DiT in the layout of diffusers (`DiTTransformer2DModel`).

That layout gives each block its own copy of the embedders of timestep and class, though the network
has one of each.
"""

from typing import Any

from models.image_dit import ImageDiT, ImageDiTConfig
from models.weights.mapping import (
    Rule,
    channel_first_order,
    reordered,
    repeated,
    reshaped,
    same,
)
from models.weights.settings import Settings

NETWORK = ImageDiT
CLASS_NAME = "DiTTransformer2DModel"
LEAVES = ("weight", "bias")


def config_of(settings: Settings) -> ImageDiTConfig:
    """Raises `ConfigError` for what this network cannot do."""
    settings.require("attention_bias", True)
    settings.require("activation_fn", "gelu-approximate")
    settings.require("norm_elementwise_affine", False)
    settings.require("norm_type", "ada_norm_zero")
    channels = settings["in_channels"]
    return ImageDiTConfig(
        hidden_size=settings["num_attention_heads"] * settings["attention_head_dim"],
        num_layers=settings["num_layers"],
        num_heads=settings["num_attention_heads"],
        channels_in=channels,
        channels_out=settings["out_channels"] or channels,
        patch_px=settings["patch_size"],
        num_classes=settings["num_embeds_ada_norm"],
        eps_mlp=settings["norm_eps"],
    )


def settings_of(config: ImageDiTConfig) -> dict[str, Any]:
    """The inverse of `config_of`, but for the image size, which this network does not fix."""
    return {
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.hidden_size // config.num_heads,
        "in_channels": config.channels_in,
        "out_channels": config.channels_out,
        "num_layers": config.num_layers,
        "patch_size": config.patch_px,
        "attention_bias": True,
        "activation_fn": "gelu-approximate",
        "num_embeds_ada_norm": config.num_classes,
        "norm_type": "ada_norm_zero",
        "norm_elementwise_affine": False,
        "norm_eps": config.eps_mlp,
    }


def rules(config: ImageDiTConfig) -> list[Rule]:
    h, p, c = config.hidden_size, config.patch_px, config.channels_in
    out_order = channel_first_order(config.channels_out, (1, p, p), (1, 2, 3, 0))
    blocks = [f"transformer_blocks.{i}" for i in range(config.num_layers)]

    def copies(name: str) -> list[str]:
        return [f"{block}.norm1.emb.{name}" for block in blocks]

    found = [
        reshaped("embed.weight", "pos_embed.proj.weight", (h, c * p * p), (h, c, p, p)),
        same("embed.bias", "pos_embed.proj.bias"),
        repeated("classes.table", copies("class_embedder.embedding_table.weight")),
    ]
    for leaf in LEAVES:
        found += [
            repeated(f"time.0.{leaf}", copies(f"timestep_embedder.linear_1.{leaf}")),
            repeated(f"time.1.{leaf}", copies(f"timestep_embedder.linear_2.{leaf}")),
            same(f"final.modulation.{leaf}", f"proj_out_1.{leaf}"),
            reordered(f"final.project.{leaf}", f"proj_out_2.{leaf}", out_order),
        ]
    names = {
        "modulation.dense": "norm1.linear",
        "mlp.up": "ff.net.0.proj",
        "mlp.down": "ff.net.2",
        "self_attention.q": "attn1.to_q",
        "self_attention.k": "attn1.to_k",
        "self_attention.v": "attn1.to_v",
        "self_attention.out": "attn1.to_out.0",
    }
    for i, block in enumerate(blocks):
        found += [
            same(f"blocks.{i}.{ours}.{leaf}", f"{block}.{theirs}.{leaf}")
            for ours, theirs in names.items()
            for leaf in LEAVES
        ]
    return found
