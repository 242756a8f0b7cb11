"""Every shipped configuration is composed and built as its command's dataclass (wiring only)."""

import pytest
import yaml

import cli.config
from cli.config import CONFIGS, group_options, load
from cli.main import command, command_names
from cli.schema import MISSING, keys

COMMANDS = [name for name in command_names() if hasattr(command(name), "schema")]


def needed(name: str) -> list[str]:
    """Overrides that give every value which has no default."""
    content = yaml.safe_load(cli.config.preview(name, [], command(name).schema()))

    def absent(section: dict, prefix: str) -> list[str]:
        found = []
        for key, value in section.items():
            if isinstance(value, dict):
                found += absent(value, f"{prefix}{key}.")
            elif value == MISSING:
                found.append(f"{prefix}{key}=some/where")
        return found

    return absent(content, "")


def choices(name: str) -> list[tuple[str, str]]:
    return [(g, o) for g in sorted(cli.config.groups_of(name)) for o in group_options(g)]


CASES = [(name, group, option) for name in COMMANDS for group, option in choices(name)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_composes_with_its_defaults(name: str) -> None:
    schema = command(name).schema()
    loaded = load(name, needed(name), schema)
    assert isinstance(loaded.config, schema)
    assert set(yaml.safe_load(loaded.yaml)) == {k for k in keys(schema) if "." not in k}


@pytest.mark.parametrize(("name", "group", "option"), CASES)
def test_every_choice_composes(name: str, group: str, option: str) -> None:
    schema = command(name).schema()
    assert isinstance(load(name, [*needed(name), f"{group}={option}"], schema).config, schema)


def test_no_file_is_left_out() -> None:
    """Every YAML file is a command's own or an option of a group that some command uses."""
    used = {f"{name}.yaml" for name in COMMANDS} | {f"{g}/{o}.yaml" for _, g, o in CASES}
    shipped = {p.relative_to(CONFIGS).as_posix() for p in CONFIGS.rglob("*.yaml")}
    assert shipped == used


def test_configs_hold_values_only() -> None:
    others = [p for p in CONFIGS.rglob("*") if p.is_file() and p.suffix not in (".yaml", ".pyc")]
    assert others == [CONFIGS / "__init__.py"]
    assert "import" not in (CONFIGS / "__init__.py").read_text()
