"""Configuration from overrides: what is accepted as typed, and each refusal (wiring only)."""

import enum
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.config import Loaded, begin, load, preview, show_plan
from common.errors import ConfigError


class Precision(enum.Enum):
    BF16 = 1
    FP32 = 2


@dataclass(frozen=True, kw_only=True)
class Model:
    dim: int = 4
    heads: int = 1
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Train:
    input: str
    output: Path
    model: Model = field(default_factory=Model)
    steps: int = 100
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    stages: list[str] = field(default_factory=lambda: ["score", "shard"])
    limits: dict[str, float] = field(default_factory=dict)
    precision: Precision = Precision.FP32
    mode: Literal["fast", "exact"] = "fast"
    prompt: str | None = None
    seed: int | None = 0
    resume: bool = True
    name: str = ""


NEEDED = ["input=a", "output=b"]


def train(*overrides: str) -> Train:
    return load("train", [*NEEDED, *overrides], Train).config


def refusal(*overrides: str, needed: bool = True) -> str:
    with pytest.raises(ConfigError) as error:
        load("train", [*(NEEDED if needed else []), *overrides], Train, example="vfm train input=x")
    assert "\n" not in str(error.value), "one line"
    return str(error.value)


def test_defaults_lie_under_yaml_and_yaml_under_overrides(configs: Path) -> None:
    config = train("model.heads=3")
    assert config.steps == 100, "the dataclass"
    assert config.model == Model(dim=8, heads=3), "the group's file, then the override"
    assert config.name == "run-8", "interpolated"


def test_groups_and_experiments(configs: Path) -> None:
    assert train("model=large").model == Model(dim=64, heads=4)
    quick = train("experiment=quick")
    assert (quick.model.dim, quick.steps, quick.name) == (64, 3, "run-64")
    assert train("experiment=quick", "model=small", "steps=5").steps == 5
    assert train("experiment=quick", "model=small").model.dim == 8
    assert train("experiment=quick", "experiment=null").steps == 100, "off by itself, so null is"
    assert train("model=large", "model=small").model.dim == 8, "the last one counts"


@pytest.mark.parametrize(
    "text",
    [
        "A dog, running",
        "../a b/c,d",
        "x=y=z",
        'it\'s "quoted" {braces} [brackets] (parens)',
        "Ein Hund läuft, 犬が走る 🐕",
        "${oc.env:HOME} and \\${x} and \\",
        "100% $HOME #1: a|b; ~/x & !",
        " leading and trailing ",
        "",
        "true",
        "12",
        "@file *star ?",
    ],
)
def test_texts_are_taken_as_typed(configs: Path, text: str) -> None:
    loaded = load("train", [f"input=x{text}", "output=b", f"prompt={text}"], Train)
    assert loaded.config.input == "x" + text
    assert loaded.config.prompt == text
    assert yaml.safe_load(loaded.yaml)["prompt"] == text


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(
        lambda t: t not in ("???", "null")  # a missing value, and none
    )
)
def test_any_text_is_taken_as_typed(configs: Path, text: str) -> None:
    assert load("train", [*NEEDED, f"prompt={text}"], Train).config.prompt == text


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("steps=1e3", "steps", 1000),
        ("lr=3", "lr", 3.0),
        ("betas=[0.8,1]", "betas", (0.8, 1.0)),
        ("stages=[a b,'c,d']", "stages", ["a b", "c,d"]),
        ("stages=[]", "stages", []),
        ("limits={blur:3,motion:0.5}", "limits", {"blur": 3.0, "motion": 0.5}),
        ("limits.blur=3", "limits", {"blur": 3.0}),
        ("precision=BF16", "precision", Precision.BF16),
        ("mode=exact", "mode", "exact"),
        ("prompt=null", "prompt", None),
        ("seed=null", "seed", None),
        ("resume=false", "resume", False),
        ("output=a/b c.mp4", "output", Path("a/b c.mp4")),
    ],
)
def test_values(configs: Path, override: str, name: str, value: Any) -> None:
    assert getattr(train(override), name) == value


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stepps=3", ["'stepps'", "'steps'"]),
        ("model.dimm=3", ["'model.dimm'", "'model.dim'"]),
        ("dim=3", ["'dim'", "'model.dim'"]),
        ("experimnt=quick", ["'experimnt'", "'experiment'"]),
        ("qqqq=3", ["'qqqq'", "known keys", "input"]),
        ("steps=abc", ["steps=abc", "a whole number"]),
        ("steps=1.5", ["steps=1.5", "a whole number"]),
        ("steps=inf", ["steps=inf", "a whole number"]),
        ("steps=true", ["steps=True", "a whole number"]),
        ("steps=null", ["steps=null", "a whole number"]),
        ("lr=fast", ["lr=fast", "a number"]),
        ("lr=1,2", ["lr=1,2", "a number"]),
        ("stages=a,b", ["stages=a,b", "[a,b]"]),
        ("stages=[a", ["stages=[a", "cannot be read"]),
        ("betas=[1,2,3]", ["betas=[1, 2, 3]", "2 values"]),
        ("betas=[1,x]", ["betas.1=x", "a number"]),
        ("precision=fp8", ["precision=fp8", "BF16", "FP32"]),
        ("mode=slow", ["mode=slow", "fast", "exact"]),
        ("resume=maybe", ["resume=maybe", "true or false"]),
        ("model=lage", ["model=lage", "'large'", "small", "model.KEY=VALUE"]),
        ("experiment=slow", ["experiment=slow", "quick"]),
        ("lr=nan", ["lr=nan", "a finite number"]),
        ("lr=1e999", ["lr=inf", "a finite number"]),
        ("steps=99999999999999999999", ["steps=99999999999999999999", "64 bits"]),
        ("steps=" + "9" * 5000, ["steps=", "cannot be read", "a whole number"]),
        ("betas=" + "[" * 9999, ["betas=", "cannot be read", "a list"]),
        ("input=s3://bucket/x", ["input=s3://bucket/x", "give a path"]),
        ("input=\udcff", ["input=\udcff", "no utf-8", "LC_ALL=C.UTF-8"]),
        ("--", ["'--'", "KEY=VALUE"]),
        ("model=null", ["model=null", "small"]),
        ("model=", ["model=", "small"]),
        ("output=", ["output= is empty"]),
        ("input=", ["input= is empty"]),
        ("name= ", ["name=  is empty"]),
        ("dry_run=perhaps", ["dry_run=perhaps", "true or false"]),
        ("--steps=3", ["'--steps=3'", "steps=3"]),
        ("--dry-run", ["'--dry-run'", "dry_run=VALUE"]),
        ("steps", ["'steps'", "KEY=VALUE", "vfm train input=x"]),
        ("+steps=3", ["'+steps=3'", "KEY=VALUE"]),
        ("~steps", ["'~steps'", "KEY=VALUE"]),
        ("=3", ["'=3'", "KEY=VALUE"]),
        ("lr=${nothing}", ["lr", "nothing"]),
        ("steps.x=3", ["'steps.x'"]),
    ],
)
def test_refusals_name_the_key_the_value_and_what_is_possible(
    configs: Path, override: str, words: list[str]
) -> None:
    message = refusal(override)
    assert [w for w in words if w not in message] == [], message


def test_missing_values_are_named_together(configs: Path) -> None:
    assert refusal(needed=False) == (
        "input and output have no values; for example: vfm train input=x"
    )
    assert refusal("input=a", needed=False).startswith("output has no value")


def test_yaml_of_a_wrong_key_is_refused(configs: Path) -> None:
    (configs / "model/small.yaml").write_text("dim: 8\nhaeds: 2\n")
    assert "model.haeds" in refusal()


def test_a_command_without_a_file_is_refused(configs: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml is missing"):
        load("nothing", [], Train)


def test_saved_yaml_gives_the_same_configuration(configs: Path, tmp_path: Path) -> None:
    loaded = load("train", [*NEEDED, "prompt=ä, b", "precision=BF16", "limits.x=1"], Train)
    begin(loaded, tmp_path / "run")
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert saved["prompt"] == "ä, b"
    assert saved["stages"] == ["score", "shard"]
    assert "betas: [0.9, 0.95]\n" in loaded.yaml, "as people write it"
    (configs / "again.yaml").write_text((tmp_path / "run/config.yaml").read_text())
    assert load("again", [], Train).config == loaded.config


def test_begin_says_what_is_run(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(load("train", NEEDED, Train), tmp_path)
    out = capsys.readouterr().out
    assert "vfm train input=a output=b" in out
    assert str(tmp_path / "config.yaml") in out


def test_dry_run_is_known_to_every_command(
    configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: Loaded[Train] = load("train", [*NEEDED, "dry_run=true"], Train)
    assert loaded.dry_run
    assert not load("train", NEEDED, Train).dry_run
    assert show_plan(loaded, ["3 clips"]) == 0
    out = capsys.readouterr().out
    assert "steps: 100" in out
    assert "3 clips" in out


def test_dry_run_reaches_a_schema_that_has_the_field(configs: Path) -> None:
    @dataclass(kw_only=True)
    class Dry:
        dry_run: bool = False

    (configs / "dry.yaml").write_text("{}")
    loaded = load("dry", ["dry_run=true"], Dry)
    assert loaded.dry_run
    assert loaded.config.dry_run


def test_preview_shows_what_is_missing(configs: Path) -> None:
    assert yaml.safe_load(preview("train", [], Train))["input"] == "???"
    assert yaml.safe_load(preview("train", [*NEEDED, "lr=1"], Train))["lr"] == 1.0


def test_preview_refuses_what_is_there_and_impossible(configs: Path) -> None:
    @dataclass(kw_only=True)
    class Positive:
        value: int = 1

        def __post_init__(self) -> None:
            if self.value < 1:
                raise ConfigError(f"part.value must be positive, got {self.value}")

    @dataclass(kw_only=True)
    class Whole:
        output: str
        input: str = "x"
        part: Positive = field(default_factory=Positive)

    (configs / "whole.yaml").write_text("output: ???\n")
    assert yaml.safe_load(preview("whole", ["part.value=2"], Whole))["part"] == {"value": 2}
    with pytest.raises(ConfigError, match="got 0"):
        preview("whole", ["part.value=0"], Whole)
    with pytest.raises(ConfigError, match="output= is empty"):
        preview("whole", ["output=", "part.value=2"], Whole)
    with pytest.raises(ConfigError, match="input= is empty"):
        preview("whole", ["input="], Whole)


def test_hydra_leaves_no_trace(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = list(logging.getLogger().handlers)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    train()
    assert list(empty.iterdir()) == []
    assert logging.getLogger().handlers == handlers
    assert not GlobalHydra.instance().is_initialized()
