"""Reads a :class:`Config` from a TOML file and ``key=value`` overrides, and writes it as TOML."""

import os
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, get_origin

import tomli_w

from deepmatching.errors import DeepMatchingError, check_number, check_type
from deepmatching.io.files import as_path, write_file
from deepmatching.io.structured import parse_toml, read_toml
from deepmatching.training.config import SETTINGS, SYNTHETIC, Config, Section

_CONFIGS = files("deepmatching") / "configs"


def shipped_configs() -> list[str]:
    """Return the names of the configs that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _CONFIGS.iterdir() if file.name.endswith(".toml"))


def read_config(name: str | os.PathLike[str], overrides: Sequence[str] = (), overfit: int = 0) -> Config:
    """Return the config of a shipped name or a ``.toml`` file, with changes such as ``optimizer.lr=1e-3``.

    ``overfit`` is ``data.overfit``, unless it is 0.
    """
    check_number("overfit", overfit, minimum=0, whole=True)
    check_type("overrides", overrides, Sequence)
    table = _read_table(name)
    changes = [_parse_override(override) for override in overrides]
    chosen = [value for keys, value in changes if keys == ["data", "train"]]
    if chosen and chosen[-1] not in (SYNTHETIC, [SYNTHETIC]) and isinstance(table.get("data"), dict):
        for key in ("photos", "synthesis"):  # what the file says about synthetic pairs
            table["data"].pop(key, None)
    for keys, value in changes + [(["data", "overfit"], overfit)] * bool(overfit):
        _set(table, keys, value)
    return Config(**table)


def _read_table(name: str | os.PathLike[str]) -> dict[str, Any]:
    path, shipped = as_path(name), shipped_configs()
    if str(name) in shipped:
        return parse_toml((_CONFIGS / f"{name}.toml").read_text(encoding="utf-8"))
    if os.path.isfile(path):
        return read_toml(path, "config") if os.path.getsize(path) else {}
    raise DeepMatchingError(f"There is no config '{name}': use {', '.join(shipped)}, or the path of a .toml file.")


def _parse_override(override: str) -> tuple[list[str], Any]:
    """Return keys and value of ``key=value``; a value that is not TOML is text, so that paths need no quotes."""
    check_type("An override", override, str)
    key, equals, text = override.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise DeepMatchingError(f"'{override}' is not of the form key=value, such as optimizer.lr=1e-3.")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        return keys, text
    field = SETTINGS.get(".".join(keys))
    wanted = field.annotation if field else None
    if wanted is str or (wanted == tuple[str, ...] and not isinstance(value, list)):
        value = value if isinstance(value, str) else text  # out=2024-01-01 is not a date
    return keys, value


def _set(table: dict[str, Any], keys: list[str], value: Any) -> None:
    """Put a value into the nested table. ``loss.weights.S0=1`` joins the default weights instead of replacing them."""
    for n, part in enumerate(keys[:-1], start=1):
        field = SETTINGS.get(".".join(keys[:n]))
        is_dict = field is not None and get_origin(field.annotation) is dict
        table = table.setdefault(part, dict(field.default) if field and is_dict else {})
        if not isinstance(table, dict):
            key, outer = ".".join(keys), ".".join(keys[:n])
            raise DeepMatchingError(f"There is no setting '{key}': {outer} is a value, not a table.")
    table[keys[-1]] = value


def config_to_dict(config: Section) -> dict[str, Any]:
    """Return a config or a section of one as nested plain values, as TOML and JSON know them."""
    return config.model_dump(mode="json")


def write_config(config: Config, path: str | os.PathLike[str]) -> None:
    """Write all settings, defaults included, as TOML."""
    write_file(path, tomli_w.dumps(config_to_dict(config)))
