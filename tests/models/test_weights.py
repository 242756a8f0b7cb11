"""Wiring tier: networks of other projects, built by diffusers, against ours with their weights.

diffusers forces some of its own arithmetic into single precision. Where formulas are compared in
double precision, that is lifted while its code runs.
"""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from common.errors import ConfigError, DataError
from models.pack import PackLayout
from models.patch import Patch, patch_of, patchify
from models.weights.folder import NAME, load_folder, save_folder
from tests.models.packs import assert_packs_as_alone, check_close, random_weights

diffusers = pytest.importorskip("diffusers", reason="diffusers, the reference, is not installed")

BATCH = 2


@contextmanager
def in_double():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        yield


class Wan:
    text_dim = 20
    timestep = torch.tensor([37.0, 912.0])
    grid = (3, 2, 4)
    channels = 6

    @staticmethod
    def build(**changes) -> nn.Module:
        settings = {
            "num_attention_heads": 3,
            "attention_head_dim": 16,
            "in_channels": 6,
            "out_channels": 6,
            "text_dim": 20,
            "freq_dim": 32,
            "ffn_dim": 56,
            "num_layers": 2,
        }
        return diffusers.WanTransformer3DModel(**{**settings, **changes})

    @staticmethod
    def run(model: nn.Module, latents: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        return model(latents, timestep, text, return_dict=False)[0]

    fps = 0.0


class Cosmos(Wan):
    timestep = torch.tensor([0.2, 1.4])
    fps = 16.0

    @staticmethod
    def build(**changes) -> nn.Module:
        settings = {
            "in_channels": 6,
            "out_channels": 6,
            "num_attention_heads": 3,
            "attention_head_dim": 16,
            "num_layers": 2,
            "text_embed_dim": 20,
            "adaln_lora_dim": 5,
            "max_size": [8, 16, 16],
            "rope_scale": [2.0, 1.0, 1.5],
        }
        return diffusers.CosmosTransformer3DModel(**{**settings, **changes})

    @staticmethod
    def run(model: nn.Module, latents: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        mask = latents.new_zeros(1, 1, 3, 3)
        return model(latents, timestep, text, fps=16, padding_mask=mask, return_dict=False)[0]


class ImageDiT(Wan):
    timestep = torch.tensor([37, 912])
    grid = (1, 4, 4)
    channels = 4

    @staticmethod
    def build(**changes) -> nn.Module:
        settings = {
            "num_attention_heads": 3,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 2,
            "sample_size": 8,
            "num_embeds_ada_norm": 11,
        }
        return diffusers.DiTTransformer2DModel(**{**settings, **changes})

    @staticmethod
    def run(model: nn.Module, latents: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        return model(latents[:, :, 0], timestep, text, return_dict=False)[0][:, :, None]


CASES = {"wan": Wan, "cosmos": Cosmos, "dit": ImageDiT}
VARIANTS = [
    ("wan", {}),
    ("wan", {"cross_attn_norm": False, "patch_size": [3, 1, 2]}),
    ("cosmos", {"concat_padding_mask": False}),
    ("cosmos", {}),
    ("cosmos", {"extra_pos_embed_type": None, "patch_size": [1, 2, 2], "mlp_ratio": 3.0}),
    ("dit", {}),
    ("dit", {"norm_eps": 1e-6, "out_channels": None}),
]


def reference(name: str, dtype: torch.dtype = torch.float32, **changes) -> Any:
    """With random weights everywhere; what the original DiT has once is the same in all blocks."""
    model = CASES[name].build(**changes).to(dtype).eval()
    random_weights(model)
    if name == "dit":
        first = model.transformer_blocks[0].norm1.emb.state_dict()
        for block in model.transformer_blocks[1:]:
            block.norm1.emb.load_state_dict(first)
    return model


def inputs(name: str, dtype: torch.dtype, patch: Patch) -> tuple[Tensor, Tensor]:
    case = CASES[name]
    torch.manual_seed(0)
    size = [n * p for n, p in zip(case.grid, patch, strict=True)]
    latents = torch.randn(BATCH, case.channels, *size, dtype=dtype)
    if name == "dit":
        return latents, torch.tensor([3, 11])
    return latents, torch.randn(BATCH, 5, case.text_dim, dtype=dtype)


def nearest_resize(mask: Tensor, size: list[int], interpolation: object) -> Tensor:
    return F.interpolate(mask, size, mode="nearest")


def compare(name: str, dtype: torch.dtype, changes: dict, tmp_path: Path, monkeypatch) -> None:
    """Outputs, and gradients by all weights and inputs, of a batch."""
    case = CASES[name]
    if name == "cosmos":
        # Its padding mask is resized by torchvision, which this test does without.
        module = diffusers.models.transformers.transformer_cosmos
        functional = SimpleNamespace(resize=nearest_resize)
        modes = SimpleNamespace(NEAREST="nearest")
        fake = SimpleNamespace(functional=functional, InterpolationMode=modes)
        monkeypatch.setattr(module, "transforms", fake, raising=False)
    theirs = reference(name, dtype, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_folder(tmp_path / "theirs").network.to(dtype)
    patch = patch_of([1, 2, 2] if name == "dit" else theirs.config.patch_size)
    latents, text = inputs(name, dtype, patch)

    given = latents.clone().requires_grad_()
    wanted = case.run(theirs, given, case.timestep, text)
    weight = torch.randn_like(wanted)
    (wanted * weight).sum().backward()
    tokens = patchify(list(latents), patch).requires_grad_()
    lens_text = [0] * BATCH if name == "dit" else [text.shape[1]] * BATCH
    layout = PackLayout.build([case.grid] * BATCH, lens_text, torch.full((BATCH,), case.fps))
    told = text if name == "dit" else text.flatten(0, 1)
    found = ours(tokens, case.timestep, told, layout)
    (found * patchify(list(weight), patch)).sum().backward()

    check_close(found.detach(), patchify(list(wanted.detach()), patch), "output")
    assert given.grad is not None and tokens.grad is not None
    check_close(tokens.grad, patchify(list(given.grad), patch), "gradient of the input")
    # Gradients go through the export as weights do; copies have their gradient in parts.
    with torch.no_grad():
        for parameter in ours.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    save_folder(ours, tmp_path / "gradients")
    exported = load_file(tmp_path / "gradients" / f"{NAME}.safetensors")
    gradients = {n: p.grad for n, p in theirs.named_parameters()}
    for key, gradient in exported.items():
        copies = [n for n in gradients if ".emb." in key and n.endswith(key.split(".emb.")[-1])]
        total = sum(g for n in copies or [key] if (g := gradients[n]) is not None)
        assert isinstance(total, Tensor), key
        check_close(gradient, total, f"gradient of {key}")


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_single_precision(name, changes, tmp_path, monkeypatch):
    compare(name, torch.float32, changes, tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_double_precision(name, changes, tmp_path, monkeypatch):
    with in_double():
        compare(name, torch.float64, changes, tmp_path, monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["wan", "cosmos"])
def test_a_pack_is_its_samples_alone(name, dtype, tmp_path):
    reference(name, dtype).save_pretrained(tmp_path)
    network = load_folder(tmp_path).network.to(dtype)
    grids, lens_text = [(3, 2, 4), (1, 4, 2), (2, 2, 2)], [3, 0, 5]
    torch.manual_seed(0)
    layout = PackLayout.build(grids, lens_text, torch.tensor([24.0, 0.0, 12.0]))
    x = torch.randn(layout.num_tokens, 24, dtype=dtype)
    text = torch.randn(8, 20, dtype=dtype)
    timestep = torch.tensor([20.0, 333.0, 871.0], dtype=dtype)
    assert_packs_as_alone(network, x, timestep, text, layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(CASES))
def test_an_export_is_the_same_file(name, dtype, tmp_path):
    reference(name, dtype).save_pretrained(tmp_path / "theirs")
    imported = load_folder(tmp_path / "theirs")
    assert {p.dtype for p in imported.network.parameters()} == {dtype}
    save_folder(imported.network, tmp_path / "ours", imported.settings)
    file = f"{NAME}.safetensors"
    assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()
    again = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert again == json.loads((tmp_path / "theirs" / "config.json").read_text())


@pytest.mark.parametrize("name", list(CASES))
def test_diffusers_reads_what_is_ours(name, tmp_path):
    theirs = reference(name)
    theirs.save_pretrained(tmp_path / "theirs")
    save_folder(load_folder(tmp_path / "theirs").network, tmp_path / "ours")
    again = type(theirs).from_config(json.loads((tmp_path / "ours" / "config.json").read_text()))
    again.load_state_dict(load_file(tmp_path / "ours" / f"{NAME}.safetensors"), strict=True)
    state = again.state_dict()
    assert all(torch.equal(state[key], value) for key, value in theirs.state_dict().items())


def test_weights_in_several_files(tmp_path):
    theirs = reference("wan")
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="50KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, many = (load_folder(tmp_path / name).network.state_dict() for name in ("one", "many"))
    assert all(torch.equal(many[key], value) for key, value in one.items())


def test_a_mismatch_lists_keys_and_shapes(tmp_path):
    reference("wan", num_layers=1).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "ffn_dim": 40}))
    with pytest.raises(DataError) as error:
        load_folder(tmp_path)
    message = str(error.value)
    assert "does not fit the network in 3 tensors" in message
    assert (
        "blocks.0.ffn.net.0.proj.weight: (56, 48) in the file, (40, 48) in the network" in message
    )
    (tmp_path / "config.json").write_text(json.dumps({**settings, "num_layers": 2}))
    with pytest.raises(DataError, match=r"missing: blocks.1.scale_shift_table \(1, 6, 48\)"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**settings, "num_layers": 0}))
    with pytest.raises(ConfigError, match="num_layers must be at least 1, got 0"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**settings, "cross_attn_norm": False}))
    with pytest.raises(DataError, match=r"unknown: blocks.0.norm2.weight \(48,\)"):
        load_folder(tmp_path)


def test_what_is_not_supported_or_damaged_is_refused(tmp_path):
    with pytest.raises(DataError, match="config.json does not exist: this is no folder of weights"):
        load_folder(tmp_path)
    reference("wan").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())

    def with_config(**changes) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**settings, **changes}))

    with_config(image_dim=1280)
    with pytest.raises(ConfigError, match="image_dim=1280 is not supported, only image_dim=None"):
        load_folder(tmp_path)
    with_config(_class_name="WanTransformer2DModel")
    with pytest.raises(DataError, match="did you mean 'WanTransformer3DModel'"):
        load_folder(tmp_path)
    with_config()
    (tmp_path / f"{NAME}.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read"):
        load_folder(tmp_path)


def test_embedders_that_differ_are_no_original_dit(tmp_path):
    theirs = reference("dit")
    with torch.no_grad():
        theirs.transformer_blocks[1].norm1.emb.timestep_embedder.linear_1.bias += 1
    theirs.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"blocks.1.norm1.emb.timestep_embedder.linear_1.bias dif"):
        load_folder(tmp_path)
