"""A running explorer, and pages of a real browser. Skipped with a word where Playwright or Chromium is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.explorer import QUICK_SERVER, Server, png
from helpers.processes import started
from helpers.synthetic_pictures import moved_noise

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: As root, Chromium needs --no-sandbox; the others keep it from calling its maker.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

#: Milliseconds after which something that never happens is a failure. Nothing waits as long as this.
LIMIT = 1_200_000


def chromium() -> str | None:
    """Return the browser: that of the variable CHROMIUM, else the first one on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, names) if path), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install 'deepmatching[browser]'"
    )
    pytest.importorskip("uvicorn", reason="the extra 'explore' is not installed")
    if (path := chromium()) is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started_playwright:
        opened = started_playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def pair_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Noise, and the same moved by (+6, −4) pixels."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = folder / "noise_0.png", folder / "noise_1.png"
    for path, image in zip(paths, moved_noise(), strict=True):
        path.write_bytes(png(image))
    return paths


@pytest.fixture(scope="session")
def server(browser: Browser, pair_files: tuple[Path, Path]) -> Iterator[Server]:
    """Start an explorer with a pair."""
    with started("explore", *pair_files, *QUICK_SERVER) as process:
        yield Server(process)


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages. An error in the console of one, or a request to another machine, fails the test."""
    contexts, problems = [], []

    def open_(address: str, **settings: object) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True, **settings)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: _check_address(request.url, problems))
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not problems


def _check_address(url: str, problems: list[str]) -> None:
    if not url.startswith(("http://127.0.0.1:", "data:", "blob:", "file:")):
        problems.append(f"the page asked for {url}")
