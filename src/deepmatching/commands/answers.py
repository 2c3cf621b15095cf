"""Pairs of images that come line by line, and a line of JSON for each: ``deepmatching match -``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deepmatching.errors import DeepMatchingError, explain, short_repr

_NAMES = ("image0", "image1", "output", "mask0", "mask1", "id")  #: of what a request may say; ``id`` may be anything


def answers(lines: Iterable[bytes], match: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[str]:
    """Yield a line of JSON for each line: the request, with what ``match`` returns for it or its ``error``."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        request: dict[str, Any] = {"line": number}
        try:
            request |= parse_request(line, number)
            answer = match(request)
        except Exception as error:
            sentence = str(error) if isinstance(error, DeepMatchingError) else explain(error)
            if not sentence:
                raise
            answer = {"error": sentence}
        yield json.dumps({**request, **answer}) + "\n"


def parse_request(line: bytes, number: int) -> dict[str, Any]:
    """Return ``image0``, ``image1`` and perhaps other ``_NAMES`` of a line: a JSON object, or two names."""
    from deepmatching.bulk_matching.pairs import names_on
    from deepmatching.io.structured import parse_json

    if not line.lstrip().startswith(b"{"):
        first, second = names_on(os.fsdecode(line).strip(), number, "-", ".")
        return {"image0": first, "image1": second}
    try:
        request = parse_json(line)
    except ValueError as error:
        raise DeepMatchingError(f"Line {number} is not JSON ({error}): write an object, or two names.") from None
    if unknown := [name for name in request if name not in _NAMES]:
        raise DeepMatchingError(f"Line {number} has '{unknown[0]}': a pair has {', '.join(_NAMES)}.")
    for name in _NAMES[:-1]:
        if not isinstance(value := request.get(name), str) and (name in _NAMES[:2] or name in request):
            raise DeepMatchingError(f"Line {number} needs a path as {name}, not {short_repr(value)}.")
    return dict(request)
