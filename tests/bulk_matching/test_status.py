"""The status and the record of a run."""

import json
from pathlib import Path

import pytest

import deepmatching as dm
from deepmatching.bulk_matching import Progress, RunFolder, ShardReport, exhaustive_pairs
from deepmatching.bulk_matching import running as running_module
from deepmatching.bulk_matching.status import RECORD, STATUS, Record, read_status
from deepmatching.errors import DeepMatchingError
from helpers.bulk_runs import SETTINGS

LOST = ("wide.png", "lost.png")


def test_the_status_tells_what_was_done_by_whom_and_what_is_left(photos: Path, tmp_path: Path) -> None:
    pairs = [*exhaustive_pairs(photos), LOST]
    done: list[int] = []

    def stop(progress: Progress, _: ShardReport) -> None:
        done.append(progress.done)
        if progress.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dm.bulk(pairs, photos, tmp_path / "run", on_shard=stop, **SETTINGS)
    status = read_status(tmp_path / "run")
    assert (status.state, status.pairs, status.finished) == ("stopped", 11, 4)
    assert [worker.pairs for worker in status.workers.values()] == [4]
    assert status.seconds_left == pytest.approx(7 / status.pairs_per_second)
    run = dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS)
    status = read_status(tmp_path / "run")
    assert (status.state, status.finished, status.failed, status.seconds_left) == ("finished", 11, 1, 0.0)
    assert status.matches == sum(len(pair.matches) for pair in run)


def test_failures_are_known_without_reading_the_shards(photos: Path, tmp_path: Path) -> None:
    pairs = [*exhaustive_pairs(photos), LOST]
    run = dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS)
    assert list(run.failures()) == [LOST]
    (number,) = run.content().failures
    for path in (run.path / "shards").iterdir():
        path.write_bytes(b"not read")
    assert list(run.failures()) == [LOST]
    (run.path / "shards" / f"{number:06d}.npz").unlink()
    assert RunFolder(run.path).failures() == {}  # what is gone has not failed


@pytest.mark.parametrize("damage", ["", "{}", '{"matches": {"0": "x"}}', '{"matches": [1]}'])
def test_a_record_that_is_gone_or_damaged_is_made_again_from_the_shards(
    photos: Path, tmp_path: Path, damage: str
) -> None:
    run = dm.bulk([*exhaustive_pairs(photos), LOST], photos, tmp_path / "run", **SETTINGS)
    expected = json.loads((run.path / RECORD).read_text())
    (run.path / RECORD).write_text(damage)
    assert list(run.failures()) == [LOST]
    dm.bulk([*exhaustive_pairs(photos), LOST], photos, tmp_path / "run", **SETTINGS)
    assert json.loads((run.path / RECORD).read_text()) == expected


def test_a_shard_that_is_matched_again_is_recorded_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the run is killed before it writes its record."""
    pairs = [*exhaustive_pairs(photos), LOST]
    dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS)
    (photos / LOST[1]).write_bytes((photos / "wide.png").read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(running_module._Reporter, "_write", lambda *_: None)  # as if it were killed
        patch.setattr(RunFolder, "content", lambda _: Record())
        dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS)
    assert RunFolder(tmp_path / "run").failures() == {}


def test_a_status_that_cannot_be_written_does_not_hide_why_a_run_ends(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        def fail(*_: object) -> None:
            raise DeepMatchingError("no space is left")

        monkeypatch.setattr(Record, "write", fail)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", on_shard=stop, **SETTINGS)


def test_a_folder_without_a_status_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match=r"no status\.json"):
        read_status(tmp_path)
    (tmp_path / STATUS).write_text('{"state": "asleep"}')
    with pytest.raises(DeepMatchingError, match="state"):
        read_status(tmp_path)


def test_a_restart_forgets_the_record(photos: Path, tmp_path: Path) -> None:
    dm.bulk([*exhaustive_pairs(photos), LOST], photos, tmp_path / "run", **SETTINGS)
    run = dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", restart=True, **SETTINGS)
    assert run.failures() == {} and set(run.content().matches) == run.done
