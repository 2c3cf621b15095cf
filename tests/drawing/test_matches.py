"""Pictures of matches."""

from inspect import unwrap

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from deepmatching.drawing.figure import render
from deepmatching.drawing.matches import NO_MATCH, choose_lines, draw_displacement, draw_match_figure, sorted_matches
from deepmatching.drawing.pictures import flow_to_color
from deepmatching.errors import DeepMatchingError

NONE = np.zeros((0, 2))
BLACK = np.zeros((600, 800, 3), np.uint8)
BLACK.setflags(write=False)

build_match_figure = unwrap(draw_match_figure)


def some_matches(rng: np.random.Generator, height: int, width: int, count: int) -> tuple[np.ndarray, ...]:
    start = rng.uniform(0, (width - 1, height - 1), (count, 2))
    return start, start + rng.normal(0, 6, (count, 2)), rng.random(count)


def panels_of(figure: Figure) -> list[np.ndarray]:
    """Return the pixels of the four panels of a figure."""
    picture = render(figure).astype(int)
    boxes = [axes.get_window_extent() for axes in figure.axes]
    down = len(picture)
    return [picture[down - round(b.y1) : down - round(b.y0), round(b.x0) : round(b.x1)] for b in boxes]


def test_displacement_squares_are_where_the_matches_are() -> None:
    start = np.array([[10.0, 20.0], [40.0, 5.0]])
    picture = draw_displacement(start, start + np.array([6.0, 0.0]), 32, 64, cell=8)
    assert picture.shape == (32, 64, 3)
    colored = (picture != NO_MATCH).any(axis=2)
    expected = np.zeros((32, 64), bool)
    expected[16:24, 6:14] = expected[1:9, 36:44] = True
    np.testing.assert_array_equal(colored, expected)
    np.testing.assert_array_equal(picture[20, 10], flow_to_color(np.array([[[6.0, 0.0]]]))[0, 0])
    legend = draw_displacement(start[:1], start[:1] + 6, 480, 640)[-80:-20, -60:-20]
    assert (legend != NO_MATCH).any(axis=2).mean() > 0.9
    assert (draw_displacement(NONE, NONE, 480, 640) == NO_MATCH).all()  # there is nothing to explain


def test_the_most_confident_match_is_on_top() -> None:
    start = np.array([[8.0, 8.0], [8.0, 8.0]])
    end = start + np.array([[5.0, 0.0], [-5.0, 0.0]])
    for i, scores in enumerate(np.eye(2)):
        alone = draw_displacement(start[:1], end[i : i + 1], 16, 16)
        np.testing.assert_array_equal(draw_displacement(start, end, 16, 16, scores=scores), alone)


@pytest.mark.parametrize("size", [(1, 1), (12, 300), (300, 12), (400, 600), (1500, 2000)])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_figures_of_every_size_are_drawn(size: tuple[int, int], count: int, rng: np.random.Generator) -> None:
    height, width = size
    first = torch.rand(3, height, width)
    second = rng.integers(0, 256, (height + 3, width + 5, 3), np.uint8)
    picture = draw_match_figure(first, second, *some_matches(rng, height, width, count))
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    # Legible whatever the image: neither tiny nor huge.
    assert 560 < max(picture.shape[:2]) <= 2 * 1280 + 250


@pytest.mark.parametrize(
    ("count", "words"), [(0, "no matches"), (1, "1 match"), (3, "3 of 3 matches"), (900, "of 900 matches")]
)
def test_the_title_counts_the_matches(count: int, words: str) -> None:
    start = np.linspace((100, 100), (300, 300), count)
    title = build_match_figure(BLACK, BLACK, start, start + 5, np.ones(count)).axes[0].get_title(loc="left")
    assert title.startswith("Image 0: ") and title.endswith(words)


def test_the_second_row_shows_where_matches_are() -> None:
    image = np.full((600, 800, 3), 128, np.uint8)
    start = np.array([[400.0, 300.0]])
    *_, tinted, field = panels_of(build_match_figure(image, image, start, start + np.array([3.0, 0.0])))
    assert tinted[295, 395, 0] > tinted[295, 395, 1] + 50  # to the right: red, beside the dot of a short displacement
    assert field[300, 400, 0] > field[300, 400, 1] + 50
    assert np.ptp(tinted[100, 100]) == 0 and tinted[100, 100, 0] < 60  # dark elsewhere
    assert field[100, 100].tolist() == list(NO_MATCH)
    for plain in panels_of(build_match_figure(image, image, NONE, NONE))[2:]:
        assert (plain == plain[0, 0]).all()  # without a legend, for there is nothing to explain


def test_an_arrow_points_from_the_start_of_a_match_to_its_end() -> None:
    start, end = np.array([[200.0, 300.0]]), np.array([[400.0, 300.0]])
    tinted = panels_of(build_match_figure(BLACK, BLACK, start, end))[2][:450]  # above the legend
    columns = np.flatnonzero((tinted > 200).all(axis=2).any(axis=0))
    assert abs(columns.min() - 200) < 6 and abs(columns.max() - 400) < 10
    heights = (tinted > 60).all(axis=2).sum(axis=0)
    assert heights[380:400].max() > 2 * heights[250]  # the head is at the end


def test_arrows_and_dots_are_spread_evenly_whatever_the_length_of_the_displacement() -> None:
    y, x = np.mgrid[4:600:8, 4:800:8]
    start = np.stack([x.ravel(), y.ravel()], axis=1).astype(float)
    motion = np.stack([np.where(start[:, 0] < 400, 0.5, 40.0), np.zeros(len(start))], axis=1)
    figure = build_match_figure(BLACK, BLACK, start, start + motion, np.linspace(0, 1, len(start)))
    (arrows,) = figure.axes[2].collections
    counts = np.histogram2d(*np.asarray(arrows.get_offsets()).T, bins=(4, 3), range=((0, 800), (0, 600)))[0]
    assert counts.min() >= 0.6 * counts.max()


def test_no_arrow_is_drawn_over_the_legend() -> None:
    start, end = np.array([[600.0, 560.0]]), np.array([[799.0, 560.0]])  # through the corner of the legend
    across, elsewhere = (panels_of(build_match_figure(BLACK, BLACK, start - n, end - n))[2] for n in (0, 300))
    assert (across[-40:-12, -40:-12] == elsewhere[-40:-12, -40:-12]).all()


def test_a_line_leads_from_a_circle_at_the_start_to_a_square_at_the_end() -> None:
    image = np.full((600, 700, 3), 255, np.uint8)
    start, end = np.array([[100.0, 50.0]]), np.array([[300.0, 400.0]])
    figure = build_match_figure(image, image, start, end)
    left, right, *_ = panels_of(figure)

    def ink(panel: np.ndarray, x: int, y: int) -> int:
        return int((panel[y - 2 : y + 3, x - 2 : x + 3] < 250).any(axis=2).sum())

    assert ink(left, 100, 50) == ink(right, 300, 400) == 25  # filled
    gap = figure.axes[1].get_window_extent().x0 - figure.axes[0].get_window_extent().x0
    along = (400 - 50) / (gap + 300 - 100)
    assert ink(left, 600, round(50 + 500 * along)) > 0 and ink(right, 50, round(50 + (gap - 50) * along)) > 0
    assert ink(left, 600, 500) == ink(left, 100, 400) == ink(right, 300, 50) == 0
    dark = (right[380:421, 280:321] < 60).all(axis=2)  # the outline
    assert dark.any(axis=0).sum() == dark.any(axis=1).sum()
    assert dark[tuple(np.argwhere(dark).min(axis=0))]  # of a square


def test_lines_are_few_and_spread_over_the_image(rng: np.random.Generator) -> None:
    start, end, *_ = sorted_matches(*some_matches(rng, 480, 640, 5000))
    shown = choose_lines(start, end, 40)
    assert 25 <= len(shown) <= 40 and len(set(shown.tolist())) == len(shown)
    difference = start[shown][:, None] - start[shown][None]
    distance = np.hypot(difference[..., 0], difference[..., 1]) + 1e9 * np.eye(len(shown))
    assert distance.min() > 15
    for x in (0, 320):
        for y in (0, 240):
            assert ((start[shown] >= (x, y)) & (start[shown] < (x + 320, y + 240))).all(axis=1).sum() >= 5
    assert np.diff(np.sort((start[shown, 1] + end[shown, 1]) / 2)).min() > 4  # no two lines are one
    assert len(choose_lines(NONE, NONE, 40)) == 0


def test_lines_are_spread_where_few_matches_move_like_most() -> None:
    rng = np.random.default_rng(0)
    start = rng.uniform(0, (1024, 436), (4000, 2))
    is_still = start[:, 0] < 200  # all others move in many ways, as wrong matches do
    motion = np.where(is_still[:, None], 0.0, rng.uniform(-40, 40, (4000, 2)))
    shown = choose_lines(start, start + motion, 40)
    counts = np.histogram(start[shown, 0], bins=4, range=(0, 1024))[0]
    assert len(shown) >= 35 and counts.min() >= 6 and counts.max() <= 14


def test_lines_show_the_object_that_moves() -> None:
    y, x = np.mgrid[4:480:8, 4:640:8]
    start = np.stack([x.ravel(), y.ravel()], axis=1).astype(float)
    is_object = (np.abs(start - (320, 240)) < 60).all(axis=1)  # a twentieth of the image
    shown = choose_lines(start, start + np.where(is_object[:, None], (30, 10), (0, 0)), 40)
    assert is_object[shown].sum() >= 4
    assert (~is_object)[shown].sum() >= 25


def test_the_confidence_is_the_order_if_there_is_one() -> None:
    start = np.array([[8.0, 8.0], [9.0, 9.0], [7.0, 7.0]])
    scores, confidence = np.array([3.0, 2.0, 1.0]), np.array([0.2, 0.9, 0.5])
    by_score, by_confidence = (sorted_matches(start, start, scores, given) for given in (None, confidence))
    np.testing.assert_array_equal(by_score[0], start[[2, 1, 0]])
    np.testing.assert_array_equal(by_confidence[0], start[[0, 2, 1]])
    assert by_score[2] is None
    np.testing.assert_array_equal(by_confidence[2], [0.2, 0.5, 0.9])


def test_lines_of_matches_that_are_no_inliers_are_grey() -> None:
    start = np.array([[200.0, 150.0], [400.0, 450.0]])
    arguments = (BLACK, BLACK, start, start, np.array([2.0, 1.0]))
    for inliers, is_colored in ((None, [True, True]), (np.array([False, True]), [False, True])):
        panel = panels_of(build_match_figure(*arguments, inliers=inliers))[1]
        assert [np.ptp(panel[row - 4 : row + 5], axis=2).max() > 60 for row in (150, 450)] == is_colored
    with pytest.raises(DeepMatchingError, match="each match needs one"):
        draw_match_figure(*arguments, inliers=np.ones(3, bool))


def test_uncertain_matches_are_paler_but_not_invisible() -> None:
    image = np.full((600, 800, 3), 128, np.uint8)
    start = np.array([[200.0, 300.0], [400.0, 300.0], [600.0, 300.0]])
    arguments = (image, image, start, start + np.array([30.0, 0.0]), np.ones(3))
    sure, judged = (panels_of(build_match_figure(*arguments, c))[3] for c in (None, np.array([1.0, 0.4, 0.0])))
    red, pale, palest = (judged[300, x] for x in (200, 400, 600))
    assert red.tolist() == sure[300, 200].tolist() == sure[300, 400].tolist()
    saturation = [int(np.ptp(color)) for color in (red, pale, palest)]
    assert saturation == sorted(saturation, reverse=True) and saturation[1] < 0.6 * saturation[0]
    assert palest.tolist() != list(NO_MATCH)


def test_lines_of_uncertain_matches_are_dashed_and_the_title_says_so() -> None:
    start = np.array([[100.0, 100.0], [300.0, 300.0]])

    def drawn(confidence: np.ndarray | None) -> tuple[str, list[bool], str]:
        axes = build_match_figure(BLACK, BLACK, start, start + 5, np.ones(2), confidence).axes
        dashed = [line.is_dashed() for line in axes[1].lines]
        return axes[0].get_title(loc="left"), dashed, axes[3].get_title(loc="left")

    both = "Image 0: 2 of 2 matches"
    assert drawn(None) == (both, [False, False], "Displacement; grey: no match")
    assert drawn(np.array([0.5, 1.0])) == (both, [False, False], "Displacement; pale: uncertain, grey: no match")
    title, dashed, _ = drawn(np.array([0.9, 0.3]))
    assert title == f"{both}; dashed: confidence below 0.5"
    assert dashed == [False, True]


def test_wild_matches_do_no_harm() -> None:
    image = BLACK[:60, :80]
    start = np.array([[np.nan, 1.0], [-1e12, 1e12], [5.0, 5.0]])
    end = np.array([[1.0, 1.0], [1e30, 0.0], [1e9, -1e9]])
    assert draw_match_figure(image, image, start, end, np.array([np.nan, np.inf, 0.0])).ndim == 3
    assert draw_match_figure(image, image, start, end, np.zeros(3), np.array([0.5, np.nan, np.inf])).ndim == 3
    with pytest.raises(DeepMatchingError, match="each match needs one of each"):
        draw_match_figure(image, image, start, end[:2])


@pytest.mark.parametrize("spacing", [8, 16, 21.3])
def test_matches_of_a_grid_leave_no_gaps_however_coarse_it_is(spacing: float) -> None:
    image = np.full((480, 640, 3), 128, np.uint8)
    y, x = np.mgrid[spacing / 2 : 480 : spacing, spacing / 2 : 640 : spacing]
    start = np.stack([x.ravel(), y.ravel()], axis=1)
    field = panels_of(build_match_figure(image, image, start, start + 5))[3]
    assert not (field[20:-60, 20:-120] == NO_MATCH).all(axis=2).any()


def test_few_scattered_matches_are_small_squares(rng: np.random.Generator) -> None:
    image = np.full((480, 640, 3), 128, np.uint8)
    start = np.stack([np.linspace(50, 350, 7), rng.uniform(50, 400, 7)], axis=1)
    field = panels_of(build_match_figure(image, image, start, start + 5))[3][:, :480]
    assert 0 < (field != NO_MATCH).any(axis=2).sum() <= 7 * 12 * 12


def test_panoramas_are_drawn_below_each_other_with_lines_that_lead_down(rng: np.random.Generator) -> None:
    image = np.full((200, 800, 3), 255, np.uint8)
    start = rng.uniform((20, 20), (760, 160), (500, 2))
    figure = build_match_figure(image, image, start, start + np.array([10.0, 5.0]))
    first, second = (axes.get_window_extent() for axes in figure.axes[:2])
    assert first.y0 > second.y1 and first.x0 == second.x0
    ends = np.array([line.get_xydata() for line in figure.axes[1].lines])
    assert len(ends) == 40
    np.testing.assert_allclose(ends[:, 1, 0] - ends[:, 0, 0], 10, atol=0.01)
    assert np.ptp(ends[:, 1, 1] - ends[:, 0, 1]) < 0.01 and (ends[:, 1, 1] > ends[:, 0, 1] + 200).all()
    assert np.diff(np.sort(ends.mean(axis=1)[:, 0])).min() > 4  # no two lines are one


def test_the_number_of_lines_and_the_range_of_colours_are_chosen(rng: np.random.Generator) -> None:
    start, end, scores = some_matches(rng, 600, 800, 500)
    for lines in (0, 7, 100):
        figure = build_match_figure(BLACK, BLACK, start, end, scores, lines=lines)
        assert 0.7 * lines <= len(figure.axes[1].lines) <= lines
    (red, pale) = (
        panels_of(build_match_figure(BLACK, BLACK, start[:1] * 0 + 300, start[:1] * 0 + (310, 300), max_norm=n))[3]
        for n in (10, 40)
    )
    assert np.ptp(red[300, 300]) > 2 * np.ptp(pale[300, 300]) > 0


def test_uncertain_matches_have_no_arrows_and_do_not_bleach_the_others() -> None:
    start = np.array([[200.0, 150], [300, 150], [200, 300], [300, 300]])
    motion, sure = np.array([[8.0, 0], [8, 0], [90, 0], [90, 0]]), np.array([0.9, 0.8, 0.4, 0.1])
    figure = build_match_figure(BLACK, BLACK, start, start + motion, None, sure)
    (arrows,) = figure.axes[2].collections
    assert np.asarray(arrows.get_offsets())[:, 1].tolist() == [150, 150]
    assert figure.axes[2].get_title(loc="left").endswith("no arrow: confidence below 0.5")
    colors = panels_of(figure)[3]
    only = panels_of(build_match_figure(BLACK, BLACK, start[:2], start[:2] + 8 * np.eye(2)[[0, 0]], None, sure[:2]))[3]
    assert (colors[150, 200] == only[150, 200]).all()
