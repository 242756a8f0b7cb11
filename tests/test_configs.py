"""Every shipped configuration is composed and built as its command's dataclass (wiring only)."""

import shlex
from pathlib import Path

import pytest
import yaml

import cli.config
from cli.config import CONFIGS, group_options, load
from cli.main import command, command_names
from cli.schema import keys

COMMANDS = [name for name in command_names() if hasattr(command(name), "schema")]


def examples(name: str) -> list[list[str]]:
    """The overrides of each example in the command's help: those must work as they stand."""
    lines = [line.strip() for line in command(name).HELP.splitlines()]
    found = [shlex.split(line)[2:] for line in lines if line.startswith(f"vfm {name} ")]
    assert found, f"the help of {name} has no example"
    return found


def choices(name: str) -> list[tuple[str, str]]:
    return [(g, o) for g in sorted(cli.config.groups_of(name)) for o in group_options(g)]


CASES = [(name, group, option) for name in COMMANDS for group, option in choices(name)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_composes_as_its_help_says(name: str) -> None:
    schema = command(name).schema()
    for overrides in examples(name):
        assert isinstance(load(name, overrides, schema).config, schema)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_resolved_yaml_holds_every_key(name: str) -> None:
    schema = command(name).schema()
    loaded = load(name, examples(name)[0], schema)
    assert set(yaml.safe_load(loaded.yaml)) == {k for k in keys(schema) if "." not in k}


@pytest.mark.parametrize(("name", "group", "option"), CASES)
def test_every_choice_composes(name: str, group: str, option: str) -> None:
    schema = command(name).schema()
    assert isinstance(load(name, [*examples(name)[0], f"{group}={option}"], schema).config, schema)


def test_no_file_is_left_out() -> None:
    """Every YAML file is a command's own or an option of a group that some command uses."""
    used = {f"{name}.yaml" for name in COMMANDS} | {f"{g}/{o}.yaml" for _, g, o in CASES}
    shipped = {p.relative_to(CONFIGS).as_posix() for p in CONFIGS.rglob("*.yaml")}
    assert shipped == used


def test_configs_hold_values_only() -> None:
    others = [p for p in CONFIGS.rglob("*") if p.is_file() and p.suffix not in (".yaml", ".pyc")]
    assert others == [CONFIGS / "__init__.py"]
    assert "import" not in (CONFIGS / "__init__.py").read_text()


def test_every_choice_is_told_to_users() -> None:
    root = Path(__file__).parents[1]
    told = (root / "docs" / "models.md").read_text()
    choices = sorted((root / "configs").glob("*/*.yaml"))
    assert choices
    assert [path.stem for path in choices if f"{path.stem}`" not in told] == [], "not in models.md"
