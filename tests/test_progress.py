"""Who listens to a computation, and who does not."""

import threading

from deepmatching.progress import listening, tell


def test_a_listener_hears_the_block_only_and_the_outer_one_again() -> None:
    outer, inner = list[tuple[str, int, int]](), list[tuple[str, int, int]]()
    tell("strip", 1, 2)  # nobody listens
    with listening(lambda *told: outer.append(told)):
        with listening(lambda *told: inner.append(told)):
            tell("strip", 1, 2)
        tell("strip", 2, 2)
    tell("strip", 3, 3)
    assert (outer, inner) == ([("strip", 2, 2)], [("strip", 1, 2)])


def test_other_threads_are_not_heard() -> None:
    heard = list[int]()
    with listening(lambda _, number, __: heard.append(number)):
        thread = threading.Thread(target=tell, args=("strip", 1, 1))
        thread.start()
        thread.join()
    assert heard == []
