"""The files of the page, and the page in one file."""

import base64
import json
import re
import zlib
from dataclasses import replace
from typing import Any

import pytest

from deepmatching.explorer import page
from deepmatching.explorer.results import Result, Traces
from helpers.explorer import unpack

JS = sorted(name for name in page.assets() if name.startswith("js/"))


def text(name: str) -> str:
    return page.assets()[name].decode()


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for name in page.assets():
        if name != "icon.svg":
            assert not re.search(r"https?://|//cdn|@import|eval\(", text(name)), name


def test_every_module_is_imported_and_every_import_exists() -> None:
    imported = {name for module in JS for _, name in page._IMPORT.findall(text(module))}
    assert {f"js/{name}" for name in imported} == set(JS) - {"js/main.js"}
    for module in JS:
        statements = re.findall(r"^import |^} from ", text(module), re.MULTILINE)
        assert len(statements) == len(page._IMPORT.findall(text(module)))


def test_every_id_that_the_modules_use_is_in_the_page_or_made_by_them() -> None:
    known = set(re.findall(r'id="([\w-]+)"', text("index.html")))
    made = {name for module in JS for name in re.findall(r'\bid: ["`]([\w-]+)["`]', text(module))}
    for module in JS:
        used = set(re.findall(r'byId\("([\w-]+)"\)', text(module))) - {"embedded"}
        assert used <= known | made, module


def test_every_control_of_the_page_has_a_name() -> None:
    html = text("index.html")
    for tag in re.findall(r"<canvas [^>]*>", html):
        assert "aria-labelledby" in tag
    for button in re.findall(r"<button[^>]*>[^<]*", html):
        assert "aria-label" in button or button.split(">")[1].strip() or "theme" in button
    for tag in re.findall(r'<input type="(?:range|number)"[^>]*>', html):
        assert html[: html.index(tag)].rstrip().endswith("</span>")  # within its label


@pytest.fixture(scope="module")
def exported(result: Result, traces: Traces) -> str:
    return page.exported_page(result, traces)


def embedded(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="embedded">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_an_exported_page_has_all_points_of_a_small_pair(exported: str, result: Result) -> None:
    data = embedded(exported)
    rows, columns = result.geometry.grid(0)
    points = data["points"]
    assert data["step"] == 1
    assert set(points) == {f"{row},{column}" for row in range(rows) for column in range(columns)}
    meta, arrays = unpack(zlib.decompress(base64.b64decode(points["1,2"])))
    assert meta["index"] == [1, 2] and "Q0" in arrays


def test_an_exported_page_has_no_link_to_the_server(exported: str) -> None:
    outside = re.sub(r'<script type="(importmap|application/json)".*?</script>', "", exported, flags=re.DOTALL)
    assert "/static/" not in outside and "/api/" not in outside and "<!-- live" not in outside
    modules = re.search(r'<script type="importmap">(.*?)</script>', exported, re.DOTALL)
    assert modules
    for url in json.loads(modules[1])["imports"].values():
        assert '"./' not in base64.b64decode(url.split(",")[1]).decode()


def test_fewer_points_are_exported_when_room_is_short(
    result: Result, traces: Traces, monkeypatch: pytest.MonkeyPatch, exported: str
) -> None:
    least = len(exported) - sum(len(block) for block in embedded(exported)["points"].values())
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", least + 60_000)
    smaller = page.exported_page(result, traces)
    assert len(smaller) <= least + 60_000 < len(exported)
    assert embedded(smaller)["step"] > 1


def test_a_name_cannot_break_out_of_an_exported_page(result: Result, traces: Traces) -> None:
    hostile = "</script><script>alert(1)</script>"
    html = page.exported_page(replace(result, pair=replace(result.pair, names=(hostile, "b"))), traces)
    assert hostile not in html
    assert embedded(html)["pair"]["names"][0] == hostile
