"""Reading a :class:`Config` from a TOML file and ``key=value`` words, and writing it down again."""

from __future__ import annotations

import difflib
import json
import os
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write
from deepmatching.training.config import Config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def shipped_configs() -> list[str]:
    """Names of the configs that come with the package."""
    return sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml"))


def _folder() -> Any:
    return files("deepmatching") / "configs"


def read_config(name: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """The config of a shipped name or a ``.toml`` file, changed by words such as ``optimizer.lr=1e-3``."""
    table = _read_table(name)
    for word in overrides:
        _override(table, word)
    return config_from_dict(table)


def _read_table(name: str | os.PathLike[str]) -> dict[str, Any]:
    path, shipped = Path(name), shipped_configs()
    if str(name) in shipped:
        text = (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    elif path.is_file():
        try:
            text = path.read_text(encoding="utf-8-sig")  # with the mark that Windows puts first, or without
        except (OSError, UnicodeDecodeError) as error:
            raise DeepMatchingError(f"The config '{path}' cannot be read ({error}): check the file.") from error
    else:
        raise DeepMatchingError(f"There is no config '{name}': use {', '.join(shipped)}, or the path of a .toml file.")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeepMatchingError(f"The config '{name}' is not TOML ({error}): correct it.") from error


def _override(table: dict[str, Any], word: str) -> None:
    """Put ``key=value`` into the table; a value that is not TOML is taken as text, so that paths need no quotes."""
    key, equals, text = word.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise DeepMatchingError(f"'{word}' is not of the form key=value, such as optimizer.lr=1e-3.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    wanted = _type_of(keys)
    if wanted is str or (wanted == tuple[str, ...] and not isinstance(value, list)):
        value = value if isinstance(value, str) else text  # out=2024-01-01 is not a date
    for n, part in enumerate(keys[:-1]):
        table = table.setdefault(part, _default_table(keys[: n + 1]))
        if not isinstance(table, dict):
            raise DeepMatchingError(f"'{word}' goes below {'.'.join(keys[: n + 1])}, which is a value.")
    table[keys[-1]] = value


def _default_table(keys: list[str]) -> dict[str, Any]:
    """What a table holds that is not given: ``loss.weights.S0=1`` is to join Q0, not to replace it."""
    if get_origin(_type_of(keys)) is not dict:
        return {}
    section = _type_of(keys[:-1])
    return next(f.default_factory() for f in fields(section) if f.name == keys[-1])  # type: ignore


def _type_of(keys: Sequence[str]) -> Any:
    """The type of a setting or section; None if there is none."""
    kind: Any = Config
    for key in keys:
        kind = get_type_hints(kind).get(key) if is_dataclass(kind) else None
    return kind


def config_from_dict(table: Mapping[str, Any]) -> Config:
    """A checked config; keys that are missing have their defaults."""
    config = _build(Config, table, "")
    assert isinstance(config, Config)
    return config


def _build(kind: type, table: Mapping[str, Any], prefix: str) -> Any:
    types_of = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in types_of:
            raise _unknown_key(".".join([prefix + key, *list(value)[:1]]) if isinstance(value, dict) else prefix + key)
        wanted = types_of[key]
        if is_dataclass(wanted):
            if not isinstance(value, dict):
                raise DeepMatchingError(f"{prefix}{key} is a section of settings, not {value!r}: set {_keys_of(key)}.")
            assert isinstance(wanted, type)
            values[key] = _build(wanted, value, f"{key}.")
        else:
            values[key] = _convert(value, wanted, prefix + key)
    return kind(**values)


def all_keys(kind: type = Config, prefix: str = "") -> list[str]:
    """Every key of a config, dotted."""
    keys = []
    for name, wanted in get_type_hints(kind).items():
        keys += all_keys(wanted, f"{name}.") if is_dataclass(wanted) else [prefix + name]  # type: ignore[arg-type]
    return keys


def _keys_of(section: str) -> str:
    return ", ".join(key for key in all_keys() if key.startswith(f"{section}."))


def _unknown_key(key: str) -> DeepMatchingError:
    keys = all_keys()
    near = difflib.get_close_matches(key, keys, n=3, cutoff=0.6)
    near = near or [k for k in keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
    if near:
        return DeepMatchingError(f"There is no setting '{key}': did you mean {' or '.join(near)}?")
    section = key.partition(".")[0]
    if is_dataclass(_type_of([section])):
        return DeepMatchingError(f"There is no setting '{key}': use one of {_keys_of(section)}.")
    return DeepMatchingError(
        f"There is no setting '{key}': all are listed in docs/training.md, and in the config.toml of every run."
    )


def _convert(value: Any, wanted: Any, key: str) -> Any:
    """A TOML value as the type of its field; a lone value is a list of one, a whole number is a number."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return value
    if origin in (Union, types.UnionType):
        for choice in arguments:
            try:
                return _convert(value, choice, key)
            except DeepMatchingError:
                continue
    elif origin is Literal:
        if value in arguments:
            return value
    elif origin is tuple:
        items = value if isinstance(value, list) else [value] if value != "" else []
        return tuple(_convert(item, arguments[0], key) for item in items)
    elif origin is dict:
        if isinstance(value, dict):
            return {name: _convert(item, arguments[1], f"{key}.{name}") for name, item in value.items()}
    elif wanted is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    raise DeepMatchingError(f"{key} must be {_in_words(wanted)}, not {value!r}.")


def _in_words(wanted: Any) -> str:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return " or ".join(_in_words(choice) for choice in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        return f"a list, each {_in_words(arguments[0])}"
    if origin is dict:
        return "a table such as { name = 1.0 }"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[wanted]


# ---------------------------------------------------------------------- writing


def config_to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values, as TOML and JSON know them."""
    table: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        table[f.name] = (
            config_to_dict(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value
        )
    return table


def write_config(config: Config, path: str | os.PathLike[str]) -> None:
    """Write all settings, defaults included, as TOML."""
    plain, sections = [], []
    for key, value in config_to_dict(config).items():
        if is_dataclass(getattr(config, key)):
            sections.append(f"\n[{key}]\n" + "\n".join(f"{_quoted(k)} = {_toml(v)}" for k, v in value.items()))
        else:
            plain.append(f"{key} = {_toml(value)}")
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join([*plain, *sections]) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{_quoted(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's basic strings escape as JSON
    return json.dumps(value)


def _quoted(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _toml(key)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of the settings in which two configs (as dictionaries) differ."""
    found: list[tuple[str, Any, Any]] = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append((prefix + key, before, after))
    return found
