"""Plain values to dataclasses and back: shapes that the commands' own schemas do not have yet."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.schema import MISSING, build, defaults, describe, is_text, keys, plain, type_at
from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    workers: int = 1


@dataclass(kw_only=True)
class Nested:
    stages: list[Stage] = field(default_factory=lambda: [Stage(name="score", workers=2)])
    named: dict[str, Stage] = field(default_factory=dict)
    extra: Stage | None = None
    size: tuple[int, ...] = (3, 4)
    where: Path | None = None
    anything: Any = None
    count: int | str = 0
    rate: float = 1.0
    note: str = ""
    prompt: str | None = None


@dataclass(kw_only=True)
class Needs:
    stage: Stage


def test_defaults_and_plain_are_the_same_view() -> None:
    assert defaults(Nested) == plain(Nested())
    assert defaults(Needs) == {"stage": {"name": MISSING, "workers": 1}}, "sections are opened"


def test_round_trip() -> None:
    value = Nested(
        named={"a": Stage(name="x")}, extra=Stage(name="y"), where=Path("a b"), count="many"
    )
    assert build(Nested, plain(value)) == value


def test_containers_of_sections() -> None:
    built = build(Nested, {"stages": [{"name": "a"}, {"name": "b", "workers": 3}]})
    assert built.stages == [Stage(name="a"), Stage(name="b", workers=3)]
    assert build(Nested, {"extra": {"name": "z"}}).extra == Stage(name="z")
    assert build(Nested, {"extra": None}).extra is None
    assert build(Nested, {"where": "~/x"}).where == Path.home() / "x"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"stages": [{"nme": "a"}]}, "unknown key 'stages.0.nme' (did you mean 'name'?)"),
        ({"stages": [{}]}, "stages.0.name: a value is needed"),
        ({"extra": 3}, "extra=3: this is a section; set its keys one by one, extra.name"),
        ({"named": {"a": {"name": 3}}}, "named.a.name=3: text is needed"),
        ({"size": [1, "x"]}, "size.1=x: a whole number is needed"),
        ({"count": 1.5}, "count=1.5: a whole number or text is needed"),
        ({"count": 2**63}, f"count={2**63}: a whole number within 64 bits is needed, -2^63 to"),
        ({"count": -1e19}, "count=-1e+19: a whole number within 64 bits"),
        ({"count": 10**5000}, "count=(a number of more than 40 digits): a whole number within"),
        ({"rate": float("nan")}, "rate=nan: a finite number is needed"),
        ({"rate": float("-inf")}, "rate=-inf: a finite number is needed"),
        ({"rate": 10**400}, "rate=(a number of more than 40 digits): a finite number"),
        ({"where": ""}, "where= is empty: give a value, or null"),
        ({"extra": {"name": ""}}, "extra.name= is empty: give a value"),
        ({"extra": {"name": " \t"}}, "extra.name= \t is empty: give a value"),
    ],
)
def test_refusals_name_the_whole_key(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(Nested, value)
    assert str(error.value).startswith(message)


def test_the_ends_of_64_bits_are_numbers() -> None:
    assert build(Nested, {"count": -(2**63)}).count == -(2**63)
    assert build(Nested, {"count": 2**63 - 1}).count == 2**63 - 1


def test_own_words_may_be_empty_and_start_with_anything() -> None:
    assert build(Nested, {"prompt": "", "note": ""}) == Nested(prompt="")
    assert build(Nested, {"prompt": "~/x"}).prompt == "~/x"


def test_the_home_is_found_where_the_shell_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """bash replaces it in `output=~/run`; zsh, fish and sh do not, and `~` would be made."""
    monkeypatch.setenv("HOME", "/h")
    assert build(Stage, {"name": "~/a b"}).name == "/h/a b"
    assert build(Stage, {"name": "~x"}).name == "~x"


def test_keys_and_types() -> None:
    assert keys(Needs) == ["stage", "stage.name", "stage.workers"]
    assert type_at(Needs, "stage.workers") is int
    assert type_at(Nested, "extra.name") is str, "through an optional section"
    assert type_at(Nested, "named.x.workers") is int, "through a dictionary"
    assert type_at(Nested, "stages.0.workers") is int, "through a list"
    with pytest.raises(ConfigError, match=r"unknown key 'stage\.nam'.*stage\.name"):
        type_at(Needs, "stage.nam")


def test_texts_are_texts() -> None:
    assert is_text(str)
    assert is_text(Path | None)
    assert not is_text(int | str), "a number is possible, so it is parsed"
    assert describe(bool) == "true or false"


@dataclass(kw_only=True)
class Checked:
    depth: int = 1

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError(f"depth is {self.depth}, must be at least 1")


@dataclass(kw_only=True)
class Outer:
    inner: Checked = field(default_factory=Checked)


def test_what_a_section_refuses_itself_is_named_whole_too() -> None:
    with pytest.raises(ConfigError, match=r"^inner\.depth is 0, must be at least 1$"):
        build(Outer, {"inner": {"depth": 0}})
    with pytest.raises(ConfigError, match=r"^depth is 0"):
        build(Checked, {"depth": 0})
