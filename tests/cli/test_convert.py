"""Wiring tier: weights of other projects' networks through `vfm convert`, and back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cli.main import main
from models.weights.folder import NAME
from models.weights.own import load_own
from tests.models.test_weights import Wan, reference


@pytest.fixture(params=["wan", "cosmos", "dit"])
def folder(request, tmp_path) -> Path:
    reference(request.param).save_pretrained(tmp_path / "theirs" / "transformer")
    return tmp_path / "theirs"


def test_there_and_back_is_the_same_file(folder, tmp_path, capsys):
    own, back = tmp_path / "own", tmp_path / "back"
    assert main(["convert", f"input={folder}", f"output={own}", "dry_run=true"]) == 0
    assert not own.exists()
    assert main(["convert", f"input={folder}", f"output={own}"]) == 0
    assert "weights, in our names" in capsys.readouterr().out
    imported = load_own(own)
    assert set(load_file(own / "model.safetensors")) == {
        name for name, _ in imported.network.named_parameters()
    }
    assert main(["convert", f"input={own}", f"output={back}"]) == 0
    assert "in the layout of diffusers" in capsys.readouterr().out
    theirs = folder / "transformer"
    before, after = (load_file(f / f"{NAME}.safetensors") for f in (theirs, back))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    configs = [json.loads((f / "config.json").read_text()) for f in (theirs, back)]
    assert configs[0] == configs[1]


def test_what_does_not_fit_is_listed_with_shapes(tmp_path, capsys):
    theirs: Any = Wan.build()
    theirs.save_pretrained(tmp_path / "wan")
    own = tmp_path / "own"
    assert main(["convert", f"input={tmp_path / 'wan'}", f"output={own}"]) == 0
    for folder, file, name in (
        (tmp_path / "wan", f"{NAME}.safetensors", "proj_out.bias"),
        (own, "model.safetensors", "project.bias"),
    ):
        tensors = load_file(folder / file)
        tensors["stray"] = torch.zeros(2, 3)
        size = len(tensors[name])
        tensors[name] = tensors[name][:1]
        save_file(tensors, folder / file)
        assert main(["convert", f"input={folder}", f"output={tmp_path / 'new'}"]) == 2
        said = capsys.readouterr().err
        assert "does not fit the network in 2 tensors" in said
        assert "unknown: stray (2, 3)" in said
        assert f"{name}: (1,) in the file, ({size},) in the network" in said
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["input=nowhere", "output=out"], "input=nowhere is no folder"),
        (["input=HERE", "output=out"], "config.json does not exist: this is no folder of weights"),
        (["input=HERE", "output=HERE"], "is there already; give another folder"),
    ],
)
def test_what_cannot_be_is_one_line(words, said, tmp_path, capsys):
    words = [word.replace("HERE", str(tmp_path)) for word in words]
    assert main(["convert", *words]) == 2
    assert said in capsys.readouterr().err
