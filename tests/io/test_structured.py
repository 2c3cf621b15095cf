"""JSON and TOML: what Python's parsers let through, and no file of ours has."""

from pathlib import Path

import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.structured import parse_json, parse_toml, read_json, read_toml


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("9" * 400, "too large"),
        ("9" * 5000, "too large"),
        ("[1e999]", "1e999 is too large"),
        ("-1e999", "too large"),
        ("NaN", "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ('["\\ud800"]', "surrogate"),
        ('{"\\udc00x": 1}', "surrogate"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("", "Expecting value"),
        (b"\xff\xfe", "decode"),
    ],
)
def test_json_that_is_not_ours_is_a_value_error(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        parse_json(text)
    assert len(str(raised.value)) < 200


def test_json_is_read_as_python_reads_it() -> None:
    assert parse_json('{"a": [1, 2.5, null, true, "\\ud83d\\ude00ä"]}') == {"a": [1, 2.5, None, True, "😀ä"]}
    assert parse_json(b"\xef\xbb\xbf[9223372036854775807]") == [2**63 - 1]
    assert parse_json("[NaN]", allow_nan=True)[0] != parse_json("[1]")[0]


def test_names_that_are_not_utf_8_are_kept() -> None:
    """Python has such names of files with half surrogates, and writes them to our records."""
    assert parse_json('["\\udcff.png"]') == [b"\xff.png".decode(errors="surrogateescape")]


@pytest.mark.parametrize(
    ("text", "says"),
    [("a = " + "[" * 100_000, "nested"), ("a." * 3000 + "a = 1", "nested"), ("a =", "value"), (b"\xff", "decode")],
)
def test_toml_that_is_not_ours_is_a_value_error(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_toml(text)


@pytest.mark.parametrize(("read", "name"), [(read_json, "a.json"), (read_toml, "a.toml")])
def test_errors_of_files_are_one_sentence_with_their_name(tmp_path: Path, read: object, name: str) -> None:
    path = tmp_path / name
    assert callable(read)
    with pytest.raises(DeepMatchingError, match="There is no list"):
        read(path, "list")
    for data, says in ((b"]", "is not"), (b"\xff", "not text in UTF-8"), (b"", "is an empty file")):
        path.write_bytes(data)
        with pytest.raises(DeepMatchingError, match=says) as raised:
            read(path, "list")
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)
