"""Downloads, exported pages, and what goes wrong, in Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deepmatching.io.flow import read_flow
from deepmatching.matches import Matches
from helpers.browser import at, choose, open_point, says, show
from helpers.explorer import QUICK_SERVER, Server
from helpers.processes import started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    NewPage = Callable[..., Page]

pytestmark = pytest.mark.slow


def test_results_can_be_downloaded(server: Server, new_page: NewPage, tmp_path: Path) -> None:
    page = new_page(server.address)
    for words, name in (
        ("Matches, NumPy", "matches.npz"),
        ("Flow, .flo", "flow.flo"),
        ("This view, PNG", "matches.png"),
    ):
        if not page.is_visible("#download-list"):
            page.click("#downloads summary")
        with page.expect_download() as download:
            page.click(f"#download-list >> text={words}")
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
    assert len(Matches.load(tmp_path / "matches.npz")) > 50
    assert read_flow(tmp_path / "flow.flo").shape == (64, 96, 2)
    assert (tmp_path / "matches.png").read_bytes().startswith(b"\x89PNG")


def test_an_exported_page_works_from_disk(server: Server, new_page: NewPage, tmp_path: Path) -> None:
    page = new_page(server.address)
    page.click("#downloads summary")
    with page.expect_download() as download:
        page.click("#download-list >> text=Page for sharing")
    path = tmp_path / "page.html"
    download.value.save_as(path)

    alone = new_page(path.as_uri())
    assert alone.is_hidden("#message")
    assert alone.locator("#settings").count() == 0
    alone.mouse.move(*at(alone, "#panel-first", 0.5, 0.5))
    says(alone, "readout", "moved +6.0, −4.0")
    open_point(alone)
    assert alone.locator("#levels tr").nth(0).locator("td").nth(1).inner_text() == "6, -4"
    assert len({show(alone, view) for view in ("pictures", "displacement", "flow", "warped")}) == 4
    again = new_page(alone.url)
    again.wait_for_selector("#levels tr")


def test_a_bad_upload_is_reported_and_the_page_goes_on(
    server: Server, new_page: NewPage, tmp_path: Path, pair_files: tuple[Path, Path]
) -> None:
    page = new_page(server.address)
    bad = tmp_path / "broken.png"
    bad.write_bytes(pair_files[0].read_bytes()[:200])
    page.set_input_files("#file-0", bad)
    page.wait_for_selector("#message:not([hidden])")
    assert "'broken.png'" in page.inner_text("#message-text")
    page.click("#message-close")
    choose(page, pair_files)
    assert page.is_hidden("#message")


def test_settings_that_do_not_work_are_reported(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    page.fill("#levels-0", "9")
    page.click("#run")
    page.wait_for_selector("#message:not([hidden])")
    assert "levels=9" in page.inner_text("#message-text")
    page.wait_for_selector("#run:not([disabled])")


def test_a_run_can_be_cancelled_and_another_tab_is_not_disturbed(server: Server, new_page: NewPage) -> None:
    page, other = new_page(server.address), new_page(server.address)
    cancelled = []

    def answer(route: object) -> None:
        """Of one tab, the run seems to go on for ever, until it is cancelled."""
        request = route.request  # type: ignore[attr-defined]
        if request.method == "DELETE":
            cancelled.append(request.url)
            route.continue_()  # type: ignore[attr-defined]
            return
        run = {"id": request.url.rsplit("/", 1)[1], "state": "running", "stage": "matches", "seconds": 1.5}
        about = {**run, "fraction": 0.2, "share": 0.35, "settings": {"model": "hog", "radius": 14, "levels": None}}
        route.fulfill(body=json.dumps(about), content_type="application/json")  # type: ignore[attr-defined]

    page.route(re.compile("/api/runs/[0-9a-f]+$"), answer)
    page.fill("#radius-0", "14")
    page.click("#run")
    page.wait_for_selector("#progress-text:has-text('Matching… 1.5 s')")
    assert page.is_disabled("#run")
    other.fill("#radius-0", "12")
    other.click("#run")
    says(other, "facts-body", "radius 12")
    page.click("#cancel")
    page.wait_for_selector("#run:not([disabled])")
    page.wait_for_selector("#cancel", state="hidden")
    assert len(cancelled) == 1
    assert "radius 16" in page.inner_text("#facts-body")
    assert "radius 12" in other.inner_text("#facts-body")


def test_a_page_of_another_site_is_refused(server: Server, browser: Browser) -> None:
    page = browser.new_page()
    page.route("http://evil.example/", lambda route: route.fulfill(body="<p>hello</p>", content_type="text/html"))
    page.goto("http://evil.example/")
    statuses: list[int] = []
    page.on("response", lambda response: statuses.append(response.status))
    outcome = page.evaluate(
        """async (address) => {
            const results = [];
            for (const options of [{}, { method: "POST", body: "{}" }, { mode: "no-cors" }]) {
                results.push(await fetch(address + "api/about", options).then(() => "answered", () => "refused"));
            }
            return results;
        }""",
        server.address,
    )
    page.close()
    assert outcome == ["refused"] * 3
    assert set(statuses) <= {403}


def test_a_server_that_is_gone_is_reported(new_page: NewPage, pair_files: tuple[Path, Path]) -> None:
    with started("explore", *pair_files, *QUICK_SERVER) as process:
        server = Server(process)
        page = new_page(server.address)
        server.kill()
        page.mouse.click(*at(page, "#panel-first", 0.5, 0.5))
        page.wait_for_selector("#message:not([hidden])")
        assert "server does not answer" in page.inner_text("#message-text")
        page.click("#message-close")
        page.click("#run")
        page.wait_for_selector("#message:not([hidden])")
        page.wait_for_selector("#run:not([disabled])")
