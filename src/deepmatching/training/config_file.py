"""Reads a :class:`Config` from a TOML file and ``key=value`` overrides, and writes it as TOML."""

from __future__ import annotations

import difflib
import math
import os
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write
from deepmatching.io.structured import parse_toml, read_toml
from deepmatching.training.config import SYNTHETIC, Config

_CONFIGS = files("deepmatching") / "configs"


def shipped_configs() -> list[str]:
    """Names of the configs that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _CONFIGS.iterdir() if file.name.endswith(".toml"))


def read_config(name: str | os.PathLike[str], overrides: Sequence[str] = (), overfit: int = 0) -> Config:
    """The config of a shipped name or a ``.toml`` file.

    Args:
        name: a shipped name or the path of a file.
        overrides: changes such as ``optimizer.lr=1e-3``.
        overfit: ``data.overfit``, unless it is 0.
    """
    table = _read_table(name)
    changes = [_parse_override(override) for override in overrides]
    if ["data", "train"] in [keys for keys, _ in changes]:
        _forget_synthesis(table, changes)
    for keys, value in changes:
        _set(table, keys, value)
    if overfit:
        _set(table, ["data", "overfit"], overfit)
    return config_from_dict(table)


def _read_table(name: str | os.PathLike[str]) -> dict[str, Any]:
    path, shipped = Path(name), shipped_configs()
    if str(name) in shipped:
        text = (_CONFIGS / f"{name}.toml").read_text(encoding="utf-8")
        return parse_toml(text)
    if os.path.isfile(path):
        return read_toml(path, "config") if os.path.getsize(path) else {}
    raise DeepMatchingError(f"There is no config '{name}': use {', '.join(shipped)}, or the path of a .toml file.")


def _forget_synthesis(table: dict[str, Any], changes: Sequence[tuple[list[str], Any]]) -> None:
    """Drop what the file says about synthetic pairs if the overrides choose other data."""
    chosen = [value for keys, value in changes if keys == ["data", "train"]][-1]
    data = table.get("data")
    if isinstance(data, dict) and chosen not in (SYNTHETIC, [SYNTHETIC]):
        for key in ("photos", "synthesis"):
            data.pop(key, None)


def _parse_override(override: str) -> tuple[list[str], Any]:
    """Keys and value of ``key=value``; a value that is not TOML is text, so that paths need no quotes."""
    key, equals, text = override.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise DeepMatchingError(f"'{override}' is not of the form key=value, such as optimizer.lr=1e-3.")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        return keys, text
    wanted = _type_of(keys)
    if wanted is str or (wanted == tuple[str, ...] and not isinstance(value, list)):
        value = value if isinstance(value, str) else text  # out=2024-01-01 is not a date
    return keys, value


def _set(table: dict[str, Any], keys: list[str], value: Any) -> None:
    """Put a value into the nested table."""
    for n, part in enumerate(keys[:-1], start=1):
        table = table.setdefault(part, _default_table(keys[:n]))
        if not isinstance(table, dict):
            raise DeepMatchingError(
                f"There is no setting '{'.'.join(keys)}': {'.'.join(keys[:n])} is a value, not a table."
            )
    table[keys[-1]] = value


def _default_table(keys: list[str]) -> dict[str, Any]:
    """The default of a table that is not in the file: ``loss.weights.S0=1`` joins Q0 instead of replacing it."""
    if get_origin(_type_of(keys)) is not dict:
        return {}
    section = _type_of(keys[:-1])
    return next(f.default_factory() for f in fields(section) if f.name == keys[-1])  # type: ignore


def _type_of(keys: Sequence[str]) -> Any:
    """The type of a setting or section; None for unknown keys."""
    kind: Any = Config
    for key in keys:
        kind = get_type_hints(kind).get(key) if is_dataclass(kind) else None
    return kind


def config_from_dict(table: Mapping[str, Any]) -> Config:
    """A checked config; missing keys have their defaults."""
    config = _build(Config, table, "")
    assert isinstance(config, Config)
    return config


def _build(kind: type, table: Mapping[str, Any], prefix: str) -> Any:
    """A dataclass from a table, its sections included."""
    types_of = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in types_of:
            raise _unknown_key(".".join([prefix + key, *list(value)[:1]]) if isinstance(value, dict) else prefix + key)
        wanted = types_of[key]
        if is_dataclass(wanted):
            if not isinstance(value, dict):
                raise DeepMatchingError(f"{prefix}{key} is a section, not a setting: set {_keys_of(key)}.")
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
        f"There is no setting '{key}': docs/training.md and the config.toml of every run list all settings."
    )


def _convert(value: Any, wanted: Any, key: str) -> Any:
    """A TOML value as the type of its field. A single value is a list of one, and an int may stand for a float."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float) and not abs(item) < 2**63:
                raise DeepMatchingError(f"{key} must be a finite number of 64 bits, not {item!r}.")
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
            if abs(value) > sys.float_info.max:
                return math.inf if value > 0 else -math.inf
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


def config_to_dict(config: Any) -> dict[str, Any]:
    """A config or a section of one as nested plain values, as TOML and JSON know them."""
    return asdict(config, dict_factory=lambda items: {k: list(v) if isinstance(v, tuple) else v for k, v in items})


def write_config(config: Config, path: str | os.PathLike[str]) -> None:
    """Write all settings, defaults included, as TOML."""
    with atomic_write(path) as temporary:
        temporary.write_text(tomli_w.dumps(config_to_dict(config)), encoding="utf-8")
