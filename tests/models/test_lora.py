"""Wiring tier: adapters against their formula, merged, saved and read again."""

import copy
import json
import re

import pytest
import torch
from safetensors.torch import load_file

from common.errors import ConfigError, DataError
from models.dit import DiT, DiTConfig
from models.lora import LoRAConfig, LoRALinear, add_lora, load_adapter, merge_lora, save_adapter
from tests.models.packs import TEXT_DIM, TOKEN_DIM, check_close, make_pack, random_weights


def make_model() -> DiT:
    config = DiTConfig(hidden_size=48, num_layers=2, num_heads=4)
    model = DiT(config, token_dim=TOKEN_DIM, text_dim=TEXT_DIM).double()
    random_weights(model)
    return model


def trained(config: LoRAConfig) -> DiT:
    """Adapted, and away from the start, where the difference is zero."""
    model = make_model()
    add_lora(model, config)
    torch.manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    return model


def test_only_what_is_named_learns_and_nothing_changes_at_first():
    model, plain = make_model(), make_model()
    names = add_lora(model, LoRAConfig(rank=3, targets=["blocks.*.self_attention.[qv]"]))
    assert names == [f"blocks.{i}.self_attention.{part}" for i in (0, 1) for part in "qv"]
    pack = make_pack()
    assert torch.equal(model(*pack), plain(*pack))
    model(*pack).square().sum().backward()
    learning = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learning == {f"{name}.{part}" for name in names for part in ("down", "up")}
    # up is zero, so that only its own gradient is not.
    grads = {
        n: float(p.grad.abs().max()) for n, p in model.named_parameters() if p.grad is not None
    }
    assert all((grads[n] > 0) == n.endswith(".up") for n in grads)


def test_the_difference_is_its_formula_and_merges():
    config = LoRAConfig(rank=4, alpha=6.0)
    model = trained(config)
    pack = make_pack()
    found = model(*pack).detach()
    wanted = make_model()
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, LoRALinear):
                weight = wanted.get_parameter(f"{name}.weight")
                weight += 6.0 / 4 * module.up @ module.down
    expected = wanted(*pack).detach()
    check_close(found, expected, "output")
    merge_lora(model)
    assert model.state_dict().keys() == wanted.state_dict().keys()
    check_close(model(*pack).detach(), expected, "merged output")


def test_an_adapter_comes_back(tmp_path):
    config = LoRAConfig(rank=4, alpha=6.0)
    model = trained(config)
    save_adapter(model, config, tmp_path / "adapter")
    again = make_model()
    assert load_adapter(again, tmp_path / "adapter").alpha == 6.0
    pack = make_pack()
    assert torch.equal(again(*pack), model(*pack))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    shape = {key: tuple(t.shape) for key, t in tensors.items()}
    name = "base_model.model.blocks.1.cross_attention.k"
    assert shape[f"{name}.lora_A.weight"] == (4, 48) and shape[f"{name}.lora_B.weight"] == (48, 4)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 6.0)
    assert "blocks.1.cross_attention.k" in settings["target_modules"]


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"blocks.\*.attn names no linear.*embed"):
        add_lora(make_model(), LoRAConfig(targets=["blocks.*.attn"]))
    with pytest.raises(ConfigError, match="rank must be at least 1, got 0"):
        LoRAConfig(rank=0)
    with pytest.raises(DataError, match="no adapter that can be read"):
        load_adapter(make_model(), tmp_path)
    config = LoRAConfig(rank=4)
    folder = tmp_path / "adapter"
    save_adapter(trained(config), config, folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    wrong = copy.deepcopy(settings)
    wrong["r"] = 5
    (folder / "adapter_config.json").write_text(json.dumps(wrong))
    shapes = re.escape("lora_A.weight: (4, 48) stored, (5, 48) in the network")
    with pytest.raises(DataError, match=shapes):
        load_adapter(make_model(), folder)
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "use_dora": True}))
    with pytest.raises(DataError, match="use_dora is not supported"):
        load_adapter(make_model(), folder)
