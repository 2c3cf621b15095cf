"""What tests in a browser share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def at(page: Page, canvas: str, x: float, y: float) -> tuple[float, float]:
    """Return a place of a picture that fills its canvas, given as fractions, on the screen."""
    page.locator(canvas).scroll_into_view_if_needed()
    box = page.locator(canvas).bounding_box()
    assert box is not None
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def has_result(page: Page) -> None:
    """Wait until the pair that was opened last is matched."""
    page.wait_for_selector("#run:not([disabled])")
    page.wait_for_selector("#facts:not([hidden])")


def says(page: Page, id: str, words: str) -> None:
    """Wait until the text of an element contains these words."""
    page.wait_for_function("([id, words]) => document.getElementById(id).textContent.includes(words)", arg=[id, words])


def choose(page: Page, paths: tuple[Path, Path]) -> None:
    """Choose the files of both pictures, and wait until they are matched."""
    for number, path in enumerate(paths):
        page.set_input_files(f"#file-{number}", path)
        says(page, f"slot-name-{number}", path.name)
    has_result(page)


def show(page: Page, view: str) -> str:
    """Choose a view; return what the first panel then shows."""
    page.check(f"#views input[value={view}]", force=True)
    page.wait_for_function("(view) => location.hash.includes(`view=${view}`)", arg=view)
    return picture(page, "#panel-first")


def picture(page: Page, canvas: str) -> str:
    """Return what a canvas shows, after all that was changed has been drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return str(page.eval_on_selector(canvas, "(canvas) => canvas.toDataURL()"))


def open_point(page: Page, x: float = 0.5, y: float = 0.5) -> None:
    page.mouse.click(*at(page, "#panel-first", x, y))
    page.wait_for_selector("#levels tr")
