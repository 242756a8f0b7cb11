"""Wan 2.1 in the layout of diffusers (`WanTransformer3DModel`)."""

from typing import Any

from models.wan import Wan, WanConfig
from models.weights.mapping import (
    Rule,
    channel_first_order,
    half_order,
    reordered,
    reshaped,
    same,
)
from models.weights.settings import Settings

NETWORK = Wan
CLASS_NAME = "WanTransformer3DModel"
LEAVES = ("weight", "bias")


def config_of(settings: Settings) -> WanConfig:
    """Raises `ConfigError` for what this network cannot do."""
    settings.require("image_dim", None)
    settings.require("added_kv_proj_dim", None)
    settings.require("pos_embed_seq_len", None)
    settings.require("qk_norm", "rms_norm_across_heads")
    if settings["out_channels"] is not None:
        settings.require("out_channels", settings["in_channels"])
    return WanConfig(
        hidden_size=settings["num_attention_heads"] * settings["attention_head_dim"],
        num_layers=settings["num_layers"],
        num_heads=settings["num_attention_heads"],
        ffn_size=settings["ffn_dim"],
        channels=settings["in_channels"],
        text_dim=settings["text_dim"],
        time_features=settings["freq_dim"],
        patch=list(settings["patch_size"]),
        cross_attention_norm=settings["cross_attn_norm"],
        eps=settings["eps"],
    )


def settings_of(config: WanConfig) -> dict[str, Any]:
    """The inverse of `config_of`."""
    return {
        "patch_size": config.patch,
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.hidden_size // config.num_heads,
        "in_channels": config.channels,
        "out_channels": config.channels,
        "text_dim": config.text_dim,
        "freq_dim": config.time_features,
        "ffn_dim": config.ffn_size,
        "num_layers": config.num_layers,
        "cross_attn_norm": config.cross_attention_norm,
        "qk_norm": "rms_norm_across_heads",
        "eps": config.eps,
        "image_dim": None,
        "added_kv_proj_dim": None,
        "rope_max_seq_len": 1024,
        "pos_embed_seq_len": None,
    }


def rules(config: WanConfig) -> list[Rule]:
    h, heads = config.hidden_size, config.num_heads
    kernel = (h, config.channels, *config.patch)
    out_order = channel_first_order(config.channels, config.patch, (1, 2, 3, 0))
    found = [
        reshaped("embed.weight", "patch_embedding.weight", (h, config.token_dim), kernel),
        same("embed.bias", "patch_embedding.bias"),
        reshaped("table", "scale_shift_table", (2, h), (1, 2, h)),
        reordered("project.weight", "proj_out.weight", out_order),
        reordered("project.bias", "proj_out.bias", out_order),
    ]
    embedder = "condition_embedder"
    for ours, theirs in {
        "time.0": f"{embedder}.time_embedder.linear_1",
        "time.1": f"{embedder}.time_embedder.linear_2",
        "time.2": f"{embedder}.time_proj",
        "text.0": f"{embedder}.text_embedder.linear_1",
        "text.1": f"{embedder}.text_embedder.linear_2",
    }.items():
        found += [same(f"{ours}.{leaf}", f"{theirs}.{leaf}") for leaf in ("weight", "bias")]
    # Their rotation pairs neighbours, ours halves of a head: rows of q and k change places.
    pairs = half_order(heads, h // heads)
    for i in range(config.num_layers):
        name = f"blocks.{i}"
        found.append(reshaped(f"{name}.table", f"{name}.scale_shift_table", (6, h), (1, 6, h)))
        linears = {"mlp.up": "ffn.net.0.proj", "mlp.down": "ffn.net.2"}
        if config.cross_attention_norm:
            linears["norm_cross"] = "norm2"
        for ours, theirs in (("self_attention", "attn1"), ("cross_attention", "attn2")):
            linears[f"{ours}.v"] = f"{theirs}.to_v"
            linears[f"{ours}.out"] = f"{theirs}.to_out.0"
            turned = ours == "self_attention"
            for part in "qk":
                names = [(f"{ours}.{part}.{leaf}", f"{theirs}.to_{part}.{leaf}") for leaf in LEAVES]
                names.append((f"{ours}.norm_{part}.weight", f"{theirs}.norm_{part}.weight"))
                for a, b in names:
                    a, b = f"{name}.{a}", f"{name}.{b}"
                    found.append(reordered(a, b, pairs) if turned else same(a, b))
        for ours, theirs in linears.items():
            found += [same(f"{name}.{ours}.{x}", f"{name}.{theirs}.{x}") for x in LEAVES]
    return found
