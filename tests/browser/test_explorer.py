"""The explorer as a user meets it, in Chromium."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.browser import at, choose, has_result, open_point, picture, says, show
from helpers.explorer import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

    NewPage = Callable[..., Page]

pytestmark = pytest.mark.slow


def test_the_pair_of_the_command_line_is_matched_when_the_page_opens(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    assert page.inner_text("#pair-name") == "noise_0.png → noise_1.png"
    assert "of 96" in page.inner_text("#facts-body")
    assert page.is_hidden("#welcome") and page.is_hidden("#message")


def test_dropped_pictures_are_matched(server: Server, new_page: NewPage, pair_files: tuple[Path, Path]) -> None:
    page = new_page(server.address)
    files = [{"name": path.name, "data": base64.b64encode(path.read_bytes()).decode()} for path in pair_files[::-1]]
    page.evaluate(
        """(files) => {
            const transfer = new DataTransfer();
            for (const { name, data } of files) {
                const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
                transfer.items.add(new File([bytes], name, { type: "image/png" }));
            }
            document.querySelector("main").dispatchEvent(
                new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }""",
        files,
    )
    says(page, "pair-name", "noise_1.png → noise_0.png")
    has_result(page)
    page.mouse.move(*at(page, "#panel-first", 0.5, 0.5))
    says(page, "readout", "moved −6.0, +4.0")
    page.click("#swap")
    says(page, "pair-name", "noise_0.png → noise_1.png")


def test_chosen_files_and_settings_are_run_again(
    server: Server, new_page: NewPage, pair_files: tuple[Path, Path]
) -> None:
    page = new_page(server.address)
    page.fill("#levels-0", "1")
    page.click("#run")
    has_result(page)
    says(page, "facts-body", "levels 1")
    choose(page, pair_files)


def test_the_sample_can_be_opened(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    page.fill("#levels-0", "0")  # quick
    page.click("#sample")
    says(page, "pair-name", "bunny_0.jpg")
    page.wait_for_selector("#facts-body .credit")
    assert "Blender Foundation" in page.inner_text("#facts-body")


def test_hovering_shows_the_match_and_its_score(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    before = picture(page, "#panel-second")
    page.mouse.move(*at(page, "#panel-first", 0.5, 0.5))
    says(page, "readout", "moved +6.0, −4.0 (7.2 px)")
    assert re.search(r"\(\d+\.5, \d+\.5\) → \(\d+\.5, \d+\.5\).* score \d\.\d{3} of 4", page.inner_text("#readout"))
    assert picture(page, "#panel-second") != before


def test_a_click_opens_the_maps_the_path_and_the_numbers(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    before = [picture(page, canvas) for canvas in ("#panel-first", "#panel-second")]
    open_point(page)
    assert page.locator(".map").count() == 8
    assert [page.locator(".map-name").nth(n).inner_text() for n in (0, 3, 4, 7)] == ["S₀", "S₃", "Q₀", "Q₃"]
    rows = page.locator("#levels tr")
    assert rows.count() == 4
    assert [rows.nth(0).locator("th,td").nth(n).inner_text() for n in (0, 1, 2)] == ["0", "8 px", "6, -4"]
    sums = [float(rows.nth(n).locator("td").nth(2).inner_text()) for n in range(4)]
    total = float(rows.nth(0).locator("td").nth(3).inner_text())
    assert sum(sums) == pytest.approx(total, abs=3e-4)
    assert "Second-best peak" in page.inner_text("#peaks")
    after = [picture(page, canvas) for canvas in ("#panel-first", "#panel-second")]
    assert before[0] != after[0] and before[1] != after[1]  # patches in both images


def test_the_numbers_under_the_cursor_are_those_of_the_maps(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    open_point(page)
    readout = page.inner_text("#readout")
    found = re.search(r"→ \((\d+\.\d), (\d+\.\d)\)", readout)
    assert found
    x, y = ((float(value) + 0.5) / side for value, side in zip(found.groups(), (96, 64), strict=True))
    page.mouse.move(*at(page, "#panel-second", x, y))
    first = page.locator("#levels tr").nth(0).locator("td")
    page.wait_for_function("() => document.querySelector('#levels tr').cells[6].textContent !== ''")
    assert first.nth(4).inner_text() == first.nth(2).inner_text()  # S
    assert first.nth(5).inner_text() == first.nth(3).inner_text()  # Q
    page.mouse.move(*at(page, "#panel-second", 0.99, 0.99))
    page.wait_for_function("() => document.querySelector('#levels tr').cells[5].textContent === 'outside'")


def test_levels_and_letters_change_the_map_over_the_second_image(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    open_point(page)
    seen = {picture(page, "#panel-second")}
    for selector in (".map[data-letter=S][data-level='0']", ".map[data-letter=S][data-level='3']"):
        page.click(selector)
        page.wait_for_selector(f"{selector}[aria-pressed=true]")
        seen.add(picture(page, "#panel-second"))
    assert len(seen) == 3
    page.click("#play")
    page.wait_for_selector(".map[data-letter=Q][data-level='0'][aria-pressed=true]")


def test_every_view_shows_something_else(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    views = ("pictures", "matches", "displacement", "confidence", "flow", "edges", "warped")
    assert len({show(page, view) for view in views}) == len(views)
    assert page.is_disabled("#views input[value=occlusion]")  # HOG does not judge its matches
    assert "does not judge" in str(page.locator("#views label.off").get_attribute("title"))


def test_slider_and_blink_show_the_first_image_beside_the_view(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    whole = show(page, "flow")
    page.check("#mixes input[value=slider]", force=True)
    says(page, "mix-label", "Split")
    half = picture(page, "#panel-first")
    page.fill("#mix", "20")
    page.wait_for_function("() => location.hash.includes('slider,0.20')")
    assert len({whole, half, picture(page, "#panel-first")}) == 3
    page.check("#mixes input[value=blink]", force=True)
    page.evaluate("() => (window.shown = new Set())")
    page.wait_for_function(
        "() => window.shown.add(document.getElementById('panel-first').toDataURL()).size === 2", polling=50
    )


def test_zoom_and_pan_are_linked(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    before = [picture(page, canvas) for canvas in ("#panel-first", "#panel-second")]
    page.mouse.move(*at(page, "#panel-first", 0.25, 0.25))
    page.mouse.wheel(0, -600)
    says(page, "zoom-value", "246 %")
    zoomed = [picture(page, canvas) for canvas in ("#panel-first", "#panel-second")]
    assert before[0] != zoomed[0] and before[1] != zoomed[1]
    page.mouse.down()
    page.mouse.move(*at(page, "#panel-first", 0.1, 0.2), steps=4)
    page.mouse.up()
    panned = [picture(page, canvas) for canvas in ("#panel-first", "#panel-second")]
    assert panned[0] != zoomed[0] and panned[1] != zoomed[1]
    assert page.locator("#levels").count() == 0  # a drag is not a click
    page.click("#zoom-fit")
    says(page, "zoom-value", "100 %")


def test_two_settings_are_compared(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    page.check("#compare")
    page.fill("#radius-1", "4")  # too small for this motion
    page.click("#run")
    page.wait_for_selector(".fact h3.side-1")
    has_result(page)
    assert page.is_visible("#panel-other")
    assert page.inner_text("#caption-other") == "B: hog, radius 4"
    page.mouse.move(*at(page, "#panel-first", 0.5, 0.5))
    page.wait_for_function("() => document.querySelectorAll('#readout > span').length === 2")
    first, second = page.locator("#readout > span").all_inner_texts()
    assert "moved +6.0, −4.0" in first and "moved +6.0, −4.0" not in second
    open_point(page)
    page.check("#inspect-side input[value='1']", force=True)
    page.wait_for_function("() => location.hash.endsWith(',1')")
    again = new_page(page.url)
    assert again.is_checked("#compare") and again.input_value("#radius-1") == "4"
    again.wait_for_selector("#levels tr")


def test_a_link_reopens_the_view(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    show(page, "flow")
    page.mouse.move(*at(page, "#panel-first", 0.5, 0.5))
    page.mouse.wheel(0, -300)
    open_point(page, 0.4, 0.6)
    page.click(".map[data-letter=S][data-level='1']")
    page.wait_for_function("() => location.hash.includes(',1,S')")
    other = new_page(page.url)
    other.wait_for_selector(".map[data-letter=S][data-level='1'][aria-pressed=true]")
    assert other.is_checked("#views input[value=flow]")
    assert other.inner_text("#zoom-value") == page.inner_text("#zoom-value") != "100 %"
    assert other.inner_text("#levels") == page.inner_text("#levels")


def test_the_keyboard_is_enough(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    page.focus("#panel-first")
    page.keyboard.press("ArrowRight")
    says(page, "status", "moved +6.0, −4.0")
    page.keyboard.press("Enter")
    page.wait_for_selector("#levels tr")
    page.keyboard.press("]")
    page.wait_for_selector(".map[data-letter=Q][data-level='1'][aria-pressed=true]")
    page.keyboard.press("x")
    page.wait_for_selector(".map[data-letter=S][data-level='1'][aria-pressed=true]")
    page.keyboard.press("5")
    page.wait_for_selector("#views input[value=flow]:checked", state="attached")
    page.keyboard.press("+")
    says(page, "zoom-value", "150 %")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#keys:not([open])", state="attached")
    page.focus("#panel-first")
    page.keyboard.press("Escape")
    page.wait_for_selector("#levels", state="detached")


def test_the_focus_stays_on_the_tabs_that_change_the_view(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    page.focus("#views input[value=matches]")
    for view in ("displacement", "confidence", "flow"):
        page.keyboard.press("ArrowRight")
        page.wait_for_function("(view) => location.hash.includes(`view=${view}`)", arg=view)
        assert page.evaluate("() => document.activeElement.value") == view


def test_a_link_to_pictures_that_are_gone_is_reported_and_others_can_be_opened(
    server: Server, new_page: NewPage, pair_files: tuple[Path, Path]
) -> None:
    page = new_page(f"{server.address}#pair=0123456789abcdef&view=flow")
    assert page.inner_text("#message-text") == "The explorer no longer has this pair: open the pictures again."
    assert page.is_visible("#welcome")
    choose(page, pair_files)
    page.wait_for_function("() => /pair=[0-9a-f]{32}&/.test(location.hash)")


def test_light_and_dark_follow_the_system_and_the_button(server: Server, new_page: NewPage) -> None:
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = new_page(server.address, color_scheme="light").evaluate(background)
    page = new_page(server.address, color_scheme="dark")
    dark = page.evaluate(background)
    assert light != dark
    page.click("#theme")
    assert page.evaluate(background) == light
    page.click("#theme")
    assert page.evaluate(background) == dark
    assert page.get_attribute("#theme", "aria-label") == "Colours: dark"


def test_nothing_overlaps_or_sticks_out_of_a_narrow_window(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    open_point(page)
    for width in (1280, 800, 400):
        page.set_viewport_size({"width": width, "height": 800})
        picture(page, "#panel-first")  # drawn again
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
