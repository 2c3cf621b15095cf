"""JSON and TOML. What Python's parsers accept but no file of ours has, such as 400 digits, is an error here."""

import json
import math
import os
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, read_bytes

_LARGEST_WHOLE = 2**63 - 1  #: whole numbers have 64 bits
_DEEPEST = 100  #: lists in lists, tables in tables


def parse_json(text: str | bytes, allow_nan: bool = False) -> Any:
    """Parse a JSON text or its bytes in UTF-8; raise ValueError with a short reason.

    With ``allow_nan``, the words NaN and Infinity, which Python writes, are accepted.
    """
    constant = float if allow_nan else _refuse_constant
    return _parse(text, partial(json.loads, parse_float=_finite, parse_int=_whole, parse_constant=constant))


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """Parse a TOML text; raise ValueError with a short reason. Numbers are not checked."""
    return _parse(text, tomllib.loads)


def _parse(text: str | bytes, parse: Callable[[str], Any]) -> Any:
    try:
        value = parse(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
        _check_values(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def read_json(path: PathLike, kind: str, advice: str = "write it again") -> Any:
    """Read the value in a JSON file. Error messages call it ``kind``, and end with ``advice``."""
    return _read(path, kind, "JSON", parse_json, advice)


def read_toml(path: PathLike, kind: str) -> dict[str, Any]:
    """Read the table in a TOML file. Error messages call it ``kind``."""
    return _read(path, kind, "TOML", parse_toml, "correct it")


def _read(path: PathLike, kind: str, language: str, parse: Callable[[bytes], Any], advice: str) -> Any:
    data = read_bytes(path, kind)
    try:
        return parse(data)
    except ValueError as error:
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise DeepMatchingError(f"The {kind} '{path}' is not {language} ({reason}); {advice}.") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {_shortened(text)} is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > _LARGEST_WHOLE:
        raise ValueError(f"the number {_shortened(text)} is too large")
    return int(text)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _shortened(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:10]}… of {len(text)} characters"


def _check_values(value: Any) -> None:
    """Raise for nesting and text that no file of ours has."""
    items, depth = [value], 0
    while items:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        parts: list[Any] = []
        for item in items:
            if isinstance(item, dict):
                parts += (*item, *item.values())
            elif isinstance(item, list):
                parts += item
            elif isinstance(item, str):
                try:
                    os.fsencode(item)
                except UnicodeEncodeError:  # such a name cannot be of a file, nor be printed
                    raise ValueError("it has half of a surrogate pair") from None
        items, depth = [part for part in parts if isinstance(part, dict | list | str)], depth + 1  # numbers are many
