"""Plain values (what YAML and overrides give) to typed dataclasses, strictly.

A schema is a keyword-only dataclass whose fields are numbers, texts, paths, enums, `Literal`s,
optionals, lists, tuples, dicts and other such dataclasses. A field may be one of several
dataclasses, each with a `kind: Literal["name"] = "name"` to choose it by. Nothing is guessed: a
value of another kind is an error that names the key, the value and what is possible.
"""

import dataclasses
import enum
import functools
import math
import operator
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from common.errors import ConfigError, nearest

MISSING = "???"

FREE_TEXTS = frozenset({"prompt"})
"""Fields that hold a person's own words, which may be none. Every other text is a path, a name or a
choice: it is not empty, since an empty path means the current folder, and `~/` is the home."""


def defaults(schema: type, given: Any = None) -> dict[str, Any]:
    """The schema's defaults as plain values; `???` where a field has none.

    Of a field that is one of several sections, those of the one whose `kind` is `given`.
    """
    result = {}
    for field in dataclasses.fields(schema):
        inner = given.get(field.name) if isinstance(given, dict) else None
        chosen = _of_kind(_hints(schema)[field.name], inner)
        if chosen is not None:
            result[field.name] = defaults(chosen, inner)
            continue
        if field.default is not dataclasses.MISSING:
            result[field.name] = plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            result[field.name] = plain(field.default_factory())
        else:
            hint = _hints(schema)[field.name]
            section = None if is_optional(hint) else _section(hint)
            result[field.name] = MISSING if section is None else defaults(section)
    return result


def plain(value: Any) -> Any:
    """A typed value as YAML can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.name
    return str(value) if isinstance(value, Path) else value


def keys(schema: type, prefix: str = "") -> list[str]:
    """Every dotted key of a schema, sections included."""
    result = []
    for name, hint in _hints(schema).items():
        result.append(prefix + name)
        for section in _sections(hint):
            result += keys(section, f"{prefix}{name}.")
    return list(dict.fromkeys(result))


def type_at(schema: type, key: str) -> Any:
    """The type of a dotted key. Raises `ConfigError` with the nearest keys where there is none."""
    hint: Any = schema
    for part in key.split("."):
        found = [_hints(s)[part] for s in _sections(hint) if part in _hints(s)]
        if found:
            hint = functools.reduce(operator.or_, found)
        elif get_origin(hint) is dict:
            hint = get_args(hint)[1]
        elif get_origin(hint) is list and part.isdecimal():
            hint = get_args(hint)[0]
        else:
            raise unknown(key, schema)
    return hint


def unknown(key: str, schema: type, extra: typing.Iterable[str] = ()) -> ConfigError:
    """The error for a key that the schema has not. `extra` are more names that are possible."""
    known = list(dict.fromkeys([*keys(schema), *extra]))
    last = key.rsplit(".", 1)[-1]
    same_name = [k for k in known if k.rsplit(".", 1)[-1] == last]
    section = key.rpartition(".")[0]
    inside = [k for k in known if k.startswith(f"{section}.")] if section else []
    hint = f" (did you mean '{same_name[0]}'?)" if same_name else nearest(key, inside or known)
    if not hint:
        hint = f"; known keys: {', '.join(k for k in known if '.' not in k)}"
    return ConfigError(f"unknown key '{key}'{hint}")


def is_text(hint: Any) -> bool:
    """Whether values of this type are texts and nothing else, `null` apart."""
    return all(m in (str, Path, type(None)) for m in _members(hint))


def may_be_text(hint: Any) -> bool:
    return str in _members(hint)


def is_optional(hint: Any) -> bool:
    return type(None) in _members(hint)


def is_section(hint: Any) -> bool:
    return _section(hint) is not None


def build(schema: Any, value: Any, key: str = "") -> Any:
    """Plain values to an instance of the schema.

    Raises `ConfigError` that names the key for an unknown key, a wrong type or a missing value.
    """
    sections = _sections(schema)
    if sections and not (value is None and is_optional(schema)):
        chosen = _of_kind(schema, value) or sections[0]
        if len(sections) > 1 and isinstance(value, dict):
            kind = value.get("kind", _kind(sections[0]))
            if kind != _kind(chosen):
                known = [_kind(s) for s in sections]
                raise ConfigError(f"{key}.kind={kind}: one of {', '.join(known)} is needed")
        return _build_section(chosen, value, key)
    members = _members(schema)
    for member in members:
        built = _build_one(member, value, key)
        if built is not _NO:
            return built
    raise ConfigError(f"{key}={value!s}: {describe(schema)} is needed")


def build_field(section: type, name: str, value: Any, prefix: str = "") -> Any:
    """The value of one field of a section, as `build` gives it and with its refusals."""
    hint, key = _hints(section)[name], prefix + name
    if name not in FREE_TEXTS and is_text(hint) and isinstance(value, str):
        url = _takes_urls(section, name)
        if value != defaults(section)[name]:
            value = _path_or_name(hint, value, key, url=url)
    return build(hint, value, key)


def describe(hint: Any) -> str:
    """A type in words, for messages: `a whole number`, `one of slow, fast`."""
    simple = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        Path: "a path",
        type(None): "null",
    }
    members = _members(hint)
    if len(members) > 1:
        return " or ".join(describe(m) for m in members)
    if hint in simple:
        return simple[hint]
    origin = get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(str(v) for v in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(e.name for e in hint)
    if origin in (list, tuple):
        inner = [a for a in get_args(hint) if a is not Ellipsis]
        if origin is tuple and Ellipsis not in get_args(hint):
            return f"a list of {len(inner)} values such as [{','.join('a' * len(inner))}]"
        return f"a list such as [a,b], each {describe(inner[0])}"
    section = _section(hint)
    if section is not None:
        return f"a section with {', '.join(_hints(section))}"
    return "a dictionary such as {a:1,b:2}" if origin is dict else "another kind of value"


_NO = object()


def _build_one(hint: Any, value: Any, key: str) -> Any:
    """The value as this one type, or `_NO` where it is of another kind."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if hint is type(None):
        return None if value is None else _NO
    if hint is bool or hint is str:
        return value if isinstance(value, hint) else _NO
    if hint is int or hint is float:
        return _number(hint, value, key)
    if hint is Path:
        return Path(value).expanduser() if isinstance(value, str) and value else _NO
    if origin is Literal:
        return next((c for c in get_args(hint) if c == value and type(c) is type(value)), _NO)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint[value] if value in hint.__members__ else _NO
    if origin is list and isinstance(value, list):
        return [build(get_args(hint)[0], item, f"{key}.{i}") for i, item in enumerate(value)]
    if origin is tuple and isinstance(value, list):
        return _build_tuple(get_args(hint), value, key)
    if origin is dict and isinstance(value, dict):
        return {k: build(get_args(hint)[1], item, f"{key}.{k}") for k, item in value.items()}
    return _NO


def _number(hint: type, value: Any, key: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _NO
    if hint is float:
        if abs(value) > sys.float_info.max or math.isnan(value):
            raise ConfigError(f"{key}={_short(value)}: a finite number is needed")
        return float(value)
    # 1e3 is a float to the parser, and a fine number of steps.
    if isinstance(value, float) and not value.is_integer():
        return _NO
    if not -(2**63) <= value < 2**63:
        raise ConfigError(
            f"{key}={_short(value)}: a whole number within 64 bits is needed, -2^63 to 2^63-1"
        )
    return int(value)


def _short(value: Any) -> str:
    """A number of any size in a line."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"{'-' if value < 0 else ''}(a number of more than 40 digits)"
    return str(value)


def _build_tuple(inner: tuple[Any, ...], value: list[Any], key: str) -> Any:
    if Ellipsis in inner:
        inner = (inner[0],) * len(value)
    if len(inner) != len(value):
        return _NO
    pairs = zip(inner, value, strict=True)
    return tuple(build(hint, item, f"{key}.{i}") for i, (hint, item) in enumerate(pairs))


def _build_section(section: type, value: Any, key: str) -> Any:
    prefix = f"{key}." if key else ""
    if not isinstance(value, dict):
        raise ConfigError(
            f"{key}={value}: this is a section; set its keys one by one, "
            f"{', '.join(prefix + name for name in _hints(section))}"
        )
    hints, known = _hints(section), defaults(section)
    for name in value:
        if name not in hints:
            near = nearest(name, hints) or f"; known keys: {', '.join(hints)}"
            raise ConfigError(f"unknown key '{prefix}{name}'{near}")
    absent = [prefix + n for n, v in known.items() if v == MISSING and n not in value]
    if absent:
        raise ConfigError(f"{', '.join(absent)}: a value is needed")
    fields = {name: build_field(section, name, v, prefix) for name, v in value.items()}
    try:
        return section(**fields)
    except ConfigError as error:
        # A section does not know where it stands; its own names become whole keys here.
        first = re.split(r"\W", str(error), maxsplit=1)[0]
        raise (ConfigError(f"{prefix}{error}") if prefix and first in hints else error) from None


def _takes_urls(section: type, name: str) -> bool:
    return any(f.name == name and f.metadata.get("url") for f in dataclasses.fields(section))


def _path_or_name(hint: Any, text: str, key: str, *, url: bool) -> str:
    """A text that is not free, with the home for its `~/`.

    Args:
        url: whether it may be a URL too, which a field says by its metadata `{"url": True}`.
    """
    if not text.strip():
        null = ", or null" if is_optional(hint) else ""
        raise ConfigError(f"{key}={text} is empty: give a value{null}")
    if "://" in text:
        from common.remote import SCHEMES, is_url  # a tenth of a second, for those who need it

        if url and is_url(text):
            return text
        kinds = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        why = f"no URL of {kinds}" if url else "what is meant must lie on this machine"
        raise ConfigError(f"{key}={text}: {why}; give a path")
    return str(Path(text).expanduser()) if text.startswith("~/") else text


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _sections(hint: Any) -> list[type]:
    return [m for m in _members(hint) if isinstance(m, type) and dataclasses.is_dataclass(m)]


def _section(hint: Any) -> type | None:
    found = _sections(hint)
    return found[0] if found else None


def _kind(section: type) -> str:
    """What chooses this section among several."""
    return str(defaults(section)["kind"])


def _of_kind(hint: Any, value: Any) -> type | None:
    """The section that `value` chooses by its `kind`; None where there is nothing to choose."""
    sections = _sections(hint)
    if len(sections) < 2 or not isinstance(value, dict):
        return None
    return next((s for s in sections if _kind(s) == value.get("kind")), None)


def _hints(schema: type) -> dict[str, Any]:
    hints = typing.get_type_hints(schema)
    return {f.name: hints[f.name] for f in dataclasses.fields(schema) if f.init}
