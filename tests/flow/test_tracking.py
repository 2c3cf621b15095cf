"""Points through the frames of a sequence, by flows that are made up."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from deepmatching.flow.result import FlowResult
from deepmatching.flow.tracking import rows_of, track_points

SIZE = (8, 40)


def flow_of(motion: float, hidden: tuple[int, int] = (0, 0), sure: float = 1.0) -> FlowResult:
    """Return a flow to the right, in which these columns are hidden."""
    flow, occlusion = np.zeros((*SIZE, 2), np.float32), np.zeros(SIZE, np.float32)
    flow[..., 0], occlusion[:, slice(*hidden)] = motion, 1
    return FlowResult(flow, np.full(SIZE, sure, np.float32), occlusion=occlusion)


def test_points_move_with_the_flow_and_the_first_frame_has_them_where_they_were_given() -> None:
    tracks = list(track_points(range(4), np.array([[3.5, 2], [20, 7]]), lambda a, b: flow_of(1.5 * (b - a))))
    assert [track.points[0].tolist() for track in tracks] == [[3.5, 2], [5, 2], [6.5, 2], [8, 2]]
    assert all(track.visible.all() and (track.points0 == tracks[0].points).all() for track in tracks)
    assert list(rows_of(2, tracks[2]))[1] == (2, 1, 23, 7, 1, True)


def test_errors_do_not_add_up_where_the_first_frame_is_matched() -> None:
    """Each step is half a pixel off, however far apart the frames are."""
    *_, last = track_points(range(9), np.array([[3.0, 2]]), lambda a, b: flow_of(b - a + 0.5))
    assert last.points[0, 0] == 11.5


def test_a_point_that_the_first_frame_no_longer_shows_goes_on_from_frame_to_frame() -> None:
    *_, last = track_points(
        range(5), np.array([[3.0, 2]]), lambda a, b: flow_of(b - a) if b == a + 1 else flow_of(9, sure=0.6)
    )
    assert last.points[0, 0] == 7 and last.visible.all()


def test_a_hidden_point_is_found_again() -> None:
    """Everything moves by 2 pixels a frame; in frames 2 and 3, something hides what started left of column 15."""

    def flow(first: int, second: int) -> FlowResult:
        return flow_of(2 * (second - first), (0, 15 + 2 * first) if second in (2, 3) else (0, 0))

    tracks = list(track_points(range(6), np.array([[4.0, 2], [25, 7]]), flow))
    assert [track.visible[0] for track in tracks] == [True, True, False, False, True, True]
    assert all(track.visible[1] for track in tracks)
    assert [track.points[0, 0] for track in tracks[4:]] == [12, 14]


def test_what_hides_a_point_is_not_taken_for_it() -> None:
    """After the point was lost, the steps are sure: they are those of the surface in front of it."""
    tracks = list(track_points(range(5), np.array([[4.0, 2]]), lambda a, b: flow_of(3, (0, 0) if a else (0, 40))))
    assert [track.visible.item() for track in tracks] == [True, False, False, False, False]


@pytest.mark.parametrize(("sure", "expected"), [(0.4, False), (0.6, True)])
def test_a_point_is_lost_where_the_flow_is_not_sure(sure: float, expected: bool) -> None:
    *_, last = track_points(range(2), np.array([[4.0, 2]]), lambda a, b: flow_of(1, sure=sure))
    assert last.visible.item() is expected and last.confidence.item() == pytest.approx(sure)


def test_frames_are_taken_one_at_a_time_and_three_are_held() -> None:
    alive: set[int] = set()

    class Picture:
        def __init__(self, number: int) -> None:
            self.number = number
            alive.add(number)

        def __del__(self) -> None:
            alive.discard(self.number)

    def pictures() -> Iterator[Picture]:
        for number in range(6):
            assert len(alive) <= 2
            yield Picture(number)

    tracks = track_points(pictures(), np.array([[1.0, 3]]), lambda a, b: flow_of(b.number - a.number))
    assert [track.points[0, 0] for track in tracks] == [1, 2, 3, 4, 5, 6]


def test_no_frames_have_no_tracks() -> None:
    never: Callable[[int, int], FlowResult] = lambda a, b: pytest.fail("there is no pair")  # noqa: E731
    assert list(track_points([], np.zeros((1, 2)), never)) == []
