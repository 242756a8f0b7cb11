"""Configuration: Hydra inside, typed dataclasses outside.

`configs/COMMAND.yaml` and the group options it names are composed by Hydra; under them lie the
defaults of the command's dataclass, over them the `KEY=VALUE` words that a person typed. The
result is built as that dataclass, so that nothing past this module knows of Hydra, and every
mistake is one line that names the key, the value and what is possible.

Texts and paths are taken as typed: `prompt=A dog, running` needs no quotes beyond the shell's.
Other values follow Hydra's grammar: `steps=100`, `betas=[0.9,0.95]`, `flags={a:1}`, `x=null`.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import cli.schema as schemas
from common.errors import ConfigError, nearest
from common.storage import write_atomic

if TYPE_CHECKING:
    from common.store_path import Place

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
"""Found beside this package, in a checkout as in an installed wheel."""

FOLDER_FIRST = frozenset({"encode", "refilter", "shard"})
"""Commands that work on one folder: its name may be written without the `folder=` before it."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[T]):
    """A resolved configuration, ready to run."""

    command: str
    config: T
    yaml: str
    """Every key with its value, as saved beside what the run makes."""
    typed: str
    """What the person typed, for a line that says what is run."""
    dry_run: bool = False


def load(
    command: str,
    overrides: Sequence[str],
    schema: type[T],
    *,
    example: str = "",
    base: Mapping[str, Any] | None = None,
) -> Loaded[T]:
    """Composes `configs/COMMAND.yaml` with the overrides and builds it as `schema`.

    Args:
        command: name of the subcommand and of its YAML file.
        overrides: `KEY=VALUE` words; `GROUP=NAME` chooses a file of `configs/GROUP`;
            `dry_run=true` is known to every command, whether or not its schema has the field.
        schema: a keyword-only dataclass, see `cli.schema`.
        example: a command line shown where a needed value is missing.
        base: values over the YAML and under the overrides, such as those of an earlier run.
    Raises:
        ConfigError: one line; several missing keys are named together.
    """
    merged, dry_run = _merge(command, overrides, schema, example, base)
    missing = _missing(OmegaConf.to_container(merged))
    if missing:
        example = example or f"vfm {command} " + " ".join(f"{key}=..." for key in missing)
        have = "has no value" if len(missing) == 1 else "have no values"
        raise ConfigError(f"{' and '.join(missing)} {have}; for example: {example}")
    config = schemas.build(schema, _resolve(merged))
    return Loaded(
        command=command,
        config=config,
        yaml=to_yaml(config),
        typed=shlex.join(overrides),
        dry_run=dry_run,
    )


def settings(words: Sequence[str], schema: type[T], *, example: str = "") -> T:
    """A schema that has no YAML, from its own defaults and `KEY=VALUE` words.

    Raises `ConfigError`, one line, as `load` does.
    """
    merged = OmegaConf.create(schemas.defaults(schema))
    for key, text in (_split(word, example) for word in words):
        OmegaConf.update(merged, key, _typed(key, text, schema, ()), merge=True, force_add=True)
    missing = _missing(OmegaConf.to_container(merged))
    if missing:
        raise ConfigError(f"{' and '.join(missing)} must be given; for example: {example}")
    return schemas.build(schema, _resolve(merged))


def preview(command: str, overrides: Sequence[str], schema: type) -> str:
    """The YAML that `load` would give, also while values are missing: those stay `???`."""
    merged, _ = _merge(command, overrides, schema, "")
    unresolved = OmegaConf.to_container(merged)
    assert isinstance(unresolved, dict)
    if _missing(unresolved):
        # What is there is checked all the same, as far as it stands alone.
        for name, content in unresolved.items():
            if not _missing(content) and "${" not in str(content):
                schemas.build_field(schema, str(name), content)
        return _dump(unresolved)
    return to_yaml(schemas.build(schema, _resolve(merged)))


def folder_of(command: str, overrides: Sequence[str], example: str) -> str:
    """The folder that a command of `FOLDER_FIRST` is to work on, before anything else is read.

    Raises `ConfigError` where there is none.
    """
    return path_of("folder", _with_folder(command, overrides), example)


def path_of(key: str, overrides: Sequence[str], example: str) -> str:
    """The path that `key`, of those of `_Paths`, is given, before anything else is read.

    Raises `ConfigError` where there is none.
    """
    words = (_split(word, example) for word in overrides)
    named = [text for name, text in words if name == key]
    if not named:
        raise ConfigError(f"the {key} is missing; for example: {example}")
    path = schemas.build_field(_Paths, key, named[-1])
    assert isinstance(path, str)
    return path


@dataclass(kw_only=True)
class _Paths:
    folder: str = field(metadata={"url": True})
    checkpoint: str


def to_yaml(config: Any) -> str:
    """A typed configuration as it is saved."""
    return _dump(schemas.plain(config))


def begin(loaded: Loaded[Any], folder: "Place") -> None:
    """Says in one line what is run, and saves the resolved configuration in `folder`.

    To be called once the work is sure to start: what is refused leaves the folder as it was.
    """
    path = folder / "config.yaml"
    write_atomic(path, loaded.yaml.encode())
    print(f"vfm {loaded.command} {loaded.typed}".rstrip() + f"   (all settings: {path})")


def show_plan(loaded: Loaded[Any], plan: Sequence[str] = ()) -> int:
    """What `dry_run=true` does: prints the resolved configuration and the plan. Returns 0."""
    print(loaded.yaml.rstrip())
    print("\n".join(["---", *plan, "dry run: nothing was done"]))
    return 0


def groups_of(command: str) -> dict[str, str | None]:
    """The groups that the command's defaults list names, also through other groups' files, each
    with the option that it takes by itself."""
    chosen = _compose(command, [], with_hydra=True).hydra.runtime.choices
    return {str(g): option for g, option in chosen.items() if not str(g).startswith("hydra/")}


def group_options(group: str) -> list[str]:
    """The names that `GROUP=NAME` accepts."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def _with_folder(command: str, overrides: Sequence[str]) -> list[str]:
    """The words with `folder=` before the first, where that is a folder's name alone."""
    words = list(overrides)
    bare = command in FOLDER_FIRST and words and "=" not in words[0]
    if bare and not words[0].startswith("-"):
        words[0] = f"folder={words[0]}"
    return words


def _merge(
    command: str,
    overrides: Sequence[str],
    schema: type,
    example: str,
    base: Mapping[str, Any] | None = None,
) -> tuple[DictConfig, bool]:
    """Defaults, YAML and overrides laid over each other, unresolved; and whether to run dry."""
    dry_run = False
    values: list[tuple[str, Any]] = []
    choices: dict[str, str] = {}
    groups = groups_of(command)
    for key, text in (_split(word, example) for word in _with_folder(command, overrides)):
        if key == "dry_run":
            dry_run = bool(_parse(key, text, bool))
            if "dry_run" in schemas.keys(schema):
                values.append((key, dry_run))
        elif key in groups:
            # As with values, the last one that is typed counts.
            choices[key] = _choice(key, text, schema, optional=groups[key] is None)
            if text == "null":  # what it is by itself, and no word of Hydra's
                del choices[key]
        else:
            values.append((key, _typed(key, text, schema, [*groups, "dry_run"])))
    try:
        composed = OmegaConf.to_container(_compose(command, list(choices.values())))
        given = OmegaConf.merge(composed, dict(base or {}))  # open for keys of `base`
        assert isinstance(given, DictConfig)
        for key, value in values:
            if key.endswith(".kind"):  # which says what else there is to know
                OmegaConf.update(given, key, value, force_add=True)
        known = schemas.defaults(schema, OmegaConf.to_container(given))
        merged = OmegaConf.merge(known, given)
        assert isinstance(merged, DictConfig)
        for key, value in values:
            OmegaConf.update(merged, key, value, merge=True, force_add=True)
    except OmegaConfBaseException as error:
        raise _refusal(error) from error
    return merged, dry_run


def _resolve(merged: DictConfig) -> Any:
    try:
        return OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise _refusal(error) from error


def _missing(content: Any, prefix: str = "") -> list[str]:
    """The dotted keys whose value is `???`."""
    if not isinstance(content, dict):
        return [prefix.rstrip(".")] if content == schemas.MISSING else []
    return [found for key, item in content.items() for found in _missing(item, f"{prefix}{key}.")]


def _refusal(error: OmegaConfBaseException) -> ConfigError:
    where = f"{error.full_key}: " if error.full_key else ""
    return ConfigError(where + str(error).splitlines()[0])


class _Dumper(yaml.SafeDumper):
    """Block style, but lists on one line, as people write them."""

    def represent_list(self, data: Any) -> yaml.Node:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(list, _Dumper.represent_list)


def _dump(content: Any) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _compose(command: str, choices: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    if not (CONFIGS / f"{command}.yaml").is_file():
        raise ConfigError(f"'{command}' has no configuration: {CONFIGS / command}.yaml is missing")
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3", job_name="vfm"):
            return compose(command, overrides=list(choices), return_hydra_config=with_hydra)
    except HydraException as error:
        raise ConfigError(f"configs/{command}.yaml: {str(error).splitlines()[0]}") from error


def _split(word: str, example: str) -> tuple[str, str]:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"'{word}' holds bytes that are no {sys.getfilesystemencoding()}: give another name, "
            "or set the locale in which it is text, as LC_ALL=C.UTF-8"
        ) from None
    key, equals, text = word.partition("=")
    hint = f"; for example: {example}" if example else ""
    if word.startswith("-") and word.strip("-"):
        name = key.lstrip("-").replace("-", "_")
        raise ConfigError(f"'{word}': settings are written {name}={text or 'VALUE'}{hint}")
    if key.startswith(("+", "~")):
        raise ConfigError(f"'{word}': write KEY=VALUE; keys are neither added nor removed")
    if not equals or not re.fullmatch(r"[^\s=]+", key):
        raise ConfigError(f"'{word}' is not KEY=VALUE{hint}")
    return key, text


def _choice(group: str, name: str, schema: type, *, optional: bool) -> str:
    options = [*group_options(group), *(["null"] if optional else [])]
    if name not in options:
        raise ConfigError(
            f"{group}={name}: there is no such choice{nearest(name, options)}; "
            f"possible: {', '.join(options)}"
            + (f"; or set one key, {group}.KEY=VALUE" if group in schemas.keys(schema) else "")
        )
    return f"{group}={name}"


def _typed(key: str, text: str, schema: type, groups: Iterable[str]) -> Any:
    try:
        hint = schemas.type_at(schema, key)
    except ConfigError:
        raise schemas.unknown(key, schema, groups) from None
    if not schemas.is_text(hint):
        return _parse(key, text, hint)
    if text == "null" and schemas.is_optional(hint):
        return None
    return _literal(text)


def _literal(text: str) -> str:
    """Escapes what OmegaConf would take for an interpolation."""
    return re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + r"\${", text)


def _parse(key: str, text: str, hint: Any) -> Any:
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except (HydraException, ValueError, RecursionError):  # the last two from the parser's depths
        if schemas.may_be_text(hint):
            return _literal(text)
        raise ConfigError(
            f"{key}={text}: cannot be read; {schemas.describe(hint)} is needed "
            "(quote texts inside lists: ['a b','c'])"
        ) from None
    if override.is_sweep_override():
        raise ConfigError(
            f"{key}={text}: {schemas.describe(hint)} is needed (a list is written [a,b])"
        )
    value = override.value()
    if value is None and not schemas.is_optional(hint) and hint is not Any:
        raise ConfigError(f"{key}={text}: {schemas.describe(hint)} is needed")
    # Checked at once, so that the message shows what was typed and not what was merged.
    if not (isinstance(value, str) and "${" in value) and not schemas.is_section(hint):
        schemas.build(hint, value, key)
    return value
