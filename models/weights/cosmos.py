"""Cosmos-Predict in the layout of diffusers (`CosmosTransformer3DModel`)."""

from typing import Any

from models.cosmos import Cosmos, CosmosConfig
from models.weights.mapping import Rule, channel_first_order, reordered, same, stacked
from models.weights.settings import Settings

NETWORK = Cosmos
CLASS_NAME = "CosmosTransformer3DModel"


def config_of(settings: Settings) -> CosmosConfig:
    """Raises `ConfigError` for what this network cannot do."""
    settings.require("use_crossattn_projection", False)
    settings.require("controlnet_block_every_n", None)
    settings.require("img_context_dim_in", None)
    patch = settings["patch_size"]
    return CosmosConfig(
        hidden_size=settings["num_attention_heads"] * settings["attention_head_dim"],
        num_layers=settings["num_layers"],
        num_heads=settings["num_attention_heads"],
        mlp_ratio=settings["mlp_ratio"],
        adaln_rank=settings["adaln_lora_dim"],
        channels_in=settings["in_channels"],
        channels_out=settings["out_channels"],
        padding_mask=settings["concat_padding_mask"],
        text_dim=settings["text_embed_dim"],
        patch=list(patch),
        max_grid=[size // p for size, p in zip(settings["max_size"], patch, strict=True)],
        rope_extrapolation=list(settings["rope_scale"]),
        learned_positions=settings["extra_pos_embed_type"] == "learnable",
    )


def settings_of(config: CosmosConfig) -> dict[str, Any]:
    """The inverse of `config_of`."""
    return {
        "in_channels": config.channels_in,
        "out_channels": config.channels_out,
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.hidden_size // config.num_heads,
        "num_layers": config.num_layers,
        "mlp_ratio": config.mlp_ratio,
        "text_embed_dim": config.text_dim,
        "adaln_lora_dim": config.adaln_rank,
        "max_size": [n * p for n, p in zip(config.max_grid, config.patch, strict=True)],
        "patch_size": config.patch,
        "rope_scale": config.rope_extrapolation,
        "concat_padding_mask": config.padding_mask,
        "extra_pos_embed_type": "learnable" if config.learned_positions else None,
        "use_crossattn_projection": False,
        "controlnet_block_every_n": None,
        "img_context_dim_in": None,
    }


def rules(config: CosmosConfig) -> list[Rule]:
    # Their features of a token leave in the order (ph pw pt c).
    out_order = channel_first_order(config.channels_out, config.patch, (2, 3, 1, 0))
    found = [
        same("embed.weight", "patch_embed.proj.weight"),
        same("time.up.weight", "time_embed.t_embedder.linear_1.weight"),
        same("time.shared.weight", "time_embed.t_embedder.linear_2.weight"),
        same("time.norm.weight", "time_embed.norm.weight"),
        same("final.modulation.0.weight", "norm_out.linear_1.weight"),
        same("final.modulation.1.weight", "norm_out.linear_2.weight"),
        reordered("final.project.weight", "proj_out.weight", out_order),
    ]
    if config.learned_positions:
        found += [
            same(f"learned_positions.{axis}", f"learnable_pos_embed.pos_emb_{axis}")
            for axis in "thw"
        ]
    for i in range(config.num_layers):
        ours, theirs = f"blocks.{i}", f"transformer_blocks.{i}"
        found += [
            same(f"{ours}.mlp.up.weight", f"{theirs}.ff.net.0.proj.weight"),
            same(f"{ours}.mlp.down.weight", f"{theirs}.ff.net.2.weight"),
            stacked(
                f"{ours}.modulation.down.weight",
                [f"{theirs}.norm{part}.linear_1.weight" for part in (1, 2, 3)],
            ),
        ]
        for part in range(3):
            up = f"{theirs}.norm{part + 1}.linear_2.weight"
            found.append(same(f"{ours}.modulation.up.{part}.weight", up))
        for a, b in (("self_attention", "attn1"), ("cross_attention", "attn2")):
            names = {"q": "to_q", "k": "to_k", "v": "to_v", "out": "to_out.0"}
            names |= {"norm_q": "norm_q", "norm_k": "norm_k"}
            found += [
                same(f"{ours}.{a}.{x}.weight", f"{theirs}.{b}.{y}.weight") for x, y in names.items()
            ]
    return found
