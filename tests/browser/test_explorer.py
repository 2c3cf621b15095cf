"""The explorer as a user meets it, in Chromium."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

from helpers.browser import at, choose, has_result, open_point, picture, says, show
from helpers.explorer import Server, png
from helpers.synthetic_pictures import moved_noise

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


def test_images_of_two_sizes_are_warped(server: Server, new_page: NewPage, tmp_path: Path) -> None:
    """The second image is larger to the right and below, where nothing is matched."""
    first, second = moved_noise()
    larger = np.pad(second, ((0, 16), (0, 40), (0, 0)))
    paths = tmp_path / "first.png", tmp_path / "larger.png"
    for path, pixels in zip(paths, (first, larger), strict=True):
        path.write_bytes(png(pixels))
    page = new_page(server.address)
    choose(page, paths)
    says(page, "pair-name", "larger.png")
    page.wait_for_selector("#views input[value=warped]:not([disabled])", state="attached")
    shown = []
    for view in ("pictures", "warped"):
        data = np.frombuffer(base64.b64decode(show(page, view).split(",")[1]), np.uint8)
        shown.append(cv2.imdecode(data, cv2.IMREAD_COLOR).astype(float))
    rows, columns = shown[0].shape[:2]
    inner = slice(rows // 4, rows * 3 // 4), slice(columns // 4, columns * 3 // 4)
    assert np.abs(shown[0] - shown[1])[inner].mean() < 8


def test_a_confidence_hides_what_is_less_certain_and_counts_the_rest(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    assert page.is_disabled("#least")  # HOG does not judge its matches
    page.select_option("#model-0", "compact")
    page.click("#run")
    page.wait_for_selector("#least:not([disabled])")
    whole = picture(page, "#panel-first")
    page.fill("#least", "99")
    says(page, "facts-body", "shown")
    assert picture(page, "#panel-first") != whole
    found = re.search(r"(\d+) shown, (\d+) of 96", page.inner_text("#facts-body"))
    assert found and int(found[1]) < int(found[2])
    again = new_page(page.url)
    assert again.input_value("#least") == "99"


def test_long_names_are_cut_in_the_middle_but_not_where_they_differ(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    cut = "async (names) => (await import('/static/js/dom.js')).shortened(...names)"
    first, second = (f"left_view_of_the_scene_00{number}_as_it_was.png" for number in "12")
    assert [len(page.evaluate(cut, pair)) for pair in ([first, second], [second, first], [first, first])] == [22] * 3
    assert "…1_as" in page.evaluate(cut, [first, second])
    assert page.evaluate(cut, ["short.png", second]) == "short.png"


def test_pictures_come_first_on_a_phone_and_fill_a_desktop(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    boxes = "(ids) => ids.map((id) => document.getElementById(id).getBoundingClientRect().toJSON())"
    page.set_viewport_size({"width": 390, "height": 844})
    picture(page, "#panel-first")
    first, second, settings = page.evaluate(boxes, ["panel-first", "panel-second", "settings"])
    assert first["width"] > 340 and first["bottom"] < second["top"] < second["bottom"] < settings["top"]
    page.set_viewport_size({"width": 1900, "height": 1000})
    picture(page, "#panel-first")
    first, second = page.evaluate(boxes, ["panel-first", "panel-second"])
    assert first["right"] < second["left"] and first["width"] > 780 and first["bottom"] < 1000


def test_a_search_and_another_size_are_settings_of_a_run(server: Server, new_page: NewPage) -> None:
    page = new_page(server.address)
    page.check("#search-0")
    page.fill("#max-size", "48")
    page.click("#run")
    says(page, "facts-body", "48×32 of 96×64")
    has_result(page)
    assert "radius 16, search" in page.inner_text("#facts-body")
    assert "A search has no score maps" in page.inner_text("#inspector")
    page.wait_for_function("() => location.hash.includes('search')")
    again = new_page(page.url)
    assert again.is_checked("#search-0") and again.input_value("#max-size") == "48"
    again.fill("#max-size", "")
    again.uncheck("#search-0")
    again.click("#run")
    says(again, "facts-body", "of 96")
    has_result(again)


def test_masks_are_opened_kept_in_the_link_and_taken_away(server: Server, new_page: NewPage, tmp_path: Path) -> None:
    page = new_page(server.address)
    mask = np.full((64, 96, 3), 255, np.uint8)
    mask[:, 48:] = 0
    for name, pixels in (("half.png", mask), ("small.png", mask[:9])):
        (tmp_path / name).write_bytes(png(pixels))
    whole = picture(page, "#panel-first")
    page.set_input_files("#mask-file-0", tmp_path / "half.png")
    says(page, "facts-body", "half.png")
    has_result(page)
    assert page.inner_text("#mask-name-0") == "half.png" and picture(page, "#panel-first") != whole
    assert "with masks have no score maps" in page.inner_text("#inspector")
    assert page.inner_text("#readout") == "Point at the first image."
    page.set_input_files("#mask-file-1", tmp_path / "small.png")
    says(page, "message-text", "small.png")
    page.wait_for_function("() => location.hash.includes('%2B')")
    again = new_page(page.url)
    assert again.inner_text("#mask-name-0") == "half.png"
    again.click("#no-masks")
    says(again, "mask-name-0", "None")
    has_result(again)
    assert picture(again, "#panel-first") == whole


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
