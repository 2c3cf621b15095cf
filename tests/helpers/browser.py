"""What tests in a browser share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def at(page: Page, canvas: str, x: float, y: float) -> tuple[float, float]:
    """Return a place of a picture that fills its canvas, given as fractions, on the screen."""
    box = page.locator(canvas).bounding_box()
    assert box is not None
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def has_result(page: Page) -> None:
    """Wait until the pair that was opened last is matched."""
    page.wait_for_selector("#run:not([disabled])")
    page.wait_for_selector("#facts:not([hidden])")


def picture(page: Page, canvas: str) -> str:
    """Return what a canvas shows, after all that was changed has been drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return str(page.eval_on_selector(canvas, "(canvas) => canvas.toDataURL()"))


def open_point(page: Page, x: float = 0.5, y: float = 0.5) -> None:
    page.mouse.click(*at(page, "#panel-first", x, y))
    page.wait_for_selector("#levels tr")
