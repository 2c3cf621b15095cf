"""Damaged files end in one sentence. ``python -m fuzzing`` in tools/ tries many more."""

from pathlib import Path
from random import Random

import pytest

from fuzzing.formats import Format, check_readable, formats, problem

CASES = 100


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzing")


@pytest.fixture(scope="module")
def kinds(place: Path) -> dict[str, Format]:
    found = {kind.name: kind for kind in formats(place)}
    check_readable(list(found.values()), place)
    return found


GROUPS = {
    "arrays": (".flo", ".pfm", ".npy", ".npz", ".h5", ".bin"),
    "pictures": (".png", ".jpg", ".bmp", ".tiff", ".ppm", ".webp"),
    "text": (".txt", ".json", ".toml", ".csv"),
    "weights": (".safetensors",),
}


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_damaged_files_are_one_sentence(group: str, kinds: dict[str, Format], place: Path) -> None:
    chosen = [kind for name, kind in kinds.items() if Path(name).suffix in GROUPS[group]]
    assert len(chosen) >= 5
    for kind in chosen:
        random = Random(f"0 {kind.name}")
        problems = {problem(kind, place, random) for _ in range(CASES)} - {""}
        assert not problems, (kind.name, problems)


def test_every_format_is_in_a_group(kinds: dict[str, Format]) -> None:
    assert {Path(name).suffix for name in kinds} == {suffix for group in GROUPS.values() for suffix in group}
