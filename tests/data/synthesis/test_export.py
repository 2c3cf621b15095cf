"""Synthetic pairs as files."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from deepmatching.commands.synthesize import synthesize
from deepmatching.data.datasets import FlyingChairs
from deepmatching.data.synthesis import Photos, Synthesizer
from deepmatching.data.synthesis.export import Export, pair_generator
from deepmatching.errors import DeepMatchingError
from deepmatching.io.flow import read_flow
from helpers.synthetic_pictures import draw_cutout, draw_photo

SIZE = (48, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(24):
        cv2.imwrite(str(folder / f"photo{number}.png"), draw_photo(number, 60, 80))
    cv2.imwrite(str(folder / "cutout.png"), draw_cutout(0, 40, 30))
    return folder


def export(out: Path, folder: Path, count: int, seed: int = 0) -> list[bool]:
    return list(Export(out, folder, count, SIZE, seed).run())


def test_files_hold_what_the_generator_makes(tmp_path: Path, folder: Path) -> None:
    assert export(tmp_path, folder, 2) == [True, True]
    pair = Synthesizer(Photos.load(folder), SIZE).batch(1, pair_generator(0, 2))
    stem = str(tmp_path / "data" / "00002_")
    np.testing.assert_array_equal(read_flow(stem + "flow.flo"), pair.flow[0])
    np.testing.assert_array_equal(cv2.imread(stem + "occ.png", 0), 255 * pair.occluded[0].byte())
    for name, image in (("img1", pair.image0), ("img2", pair.image1)):
        rgb = cv2.imread(stem + name + ".ppm")[:, :, ::-1]
        np.testing.assert_array_equal(rgb, image[0].mul(255).round().permute(1, 2, 0))
    assert (tmp_path / "FlyingChairs_train_val.txt").read_text() == "1\n1\n"


def test_a_second_run_adds_what_is_missing_and_changes_nothing(tmp_path: Path, folder: Path) -> None:
    export(tmp_path, folder, 2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    (tmp_path / "data" / "00001_flow.flo").unlink()
    assert export(tmp_path, folder, 3) == [True, False, True]
    after = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    assert len(after) == 12
    assert all(after[name] == data for name, data in before.items())


@pytest.fixture(scope="module")
def seventeen(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    out = tmp_path_factory.mktemp("seventeen")
    export(out, folder, 17)
    return out


def test_every_sixteenth_pair_shows_photographs_that_no_other_shows(seventeen: Path, folder: Path) -> None:
    assert (seventeen / "FlyingChairs_train_val.txt").read_text().split() == ["1"] * 15 + ["2", "1"]
    assert len(FlyingChairs(seventeen, "train")) == 16
    pair = FlyingChairs(seventeen, "val")[0]
    held_out = Synthesizer(Photos.load(folder, split="val"), SIZE).batch(1, pair_generator(0, 16))
    assert torch.equal(pair.occluded, held_out.occluded[0]) and torch.equal(pair.flow, held_out.flow[0])
    assert torch.allclose(pair.image1, held_out.image1[0], atol=1e-6)


def test_a_smaller_count_leaves_a_folder_that_can_be_read(seventeen: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(seventeen, out)
    (out / "data" / "00017_flow.flo").unlink()  # as if that run had been stopped in the midst of its last pair
    assert export(out, folder, 10) == [False] * 16 + [True]
    before, after = ((root / "FlyingChairs_train_val.txt").read_text() for root in (seventeen, out))
    assert before == after and len(FlyingChairs(out, "train")) == 16 and len(FlyingChairs(out, "val")) == 1


def test_too_few_photographs_to_hold_some_out_are_all_used(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    cv2.imwrite(str(photos / "one.png"), draw_photo(0, 60, 80))
    export(tmp_path / "out", photos, 16)
    assert (tmp_path / "out" / "FlyingChairs_train_val.txt").read_text() == "1\n" * 16


def test_pairs_of_other_settings_or_sources_are_not_mixed(tmp_path: Path, folder: Path) -> None:
    export(tmp_path / "a", folder, 1)
    with pytest.raises(DeepMatchingError, match="seed 0, and now it is 1"):
        export(tmp_path / "a", folder, 1, seed=1)
    (tmp_path / "b" / "data").mkdir(parents=True)
    (tmp_path / "b" / "data" / "00001_img1.ppm").write_bytes(b"somebody's")
    with pytest.raises(DeepMatchingError, match="another source"):
        export(tmp_path / "b", folder, 1)
    assert (tmp_path / "b" / "data" / "00001_img1.ppm").read_bytes() == b"somebody's"


def run(*arguments: object) -> str:
    """Return the output of the command; its exceptions are raised."""
    app = typer.Typer()
    app.command()(synthesize)
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_command_writes_pairs_and_says_so(tmp_path: Path, folder: Path) -> None:
    options = ("--photos", folder, "--size", "64x48", "--preset", "chairs", "--max-displacement", 10, "--device", "cpu")
    assert "wrote 2 pairs" in run(tmp_path, "--count", 2, *options)
    assert "wrote 1 pair to" in run(tmp_path, "--count", 3, *options) and len(list((tmp_path / "data").iterdir())) == 12
    assert "wrote 0 pairs" in (said := run(tmp_path, "--count", 1, *options)) and "; 3 were there already" in said
    flow = read_flow(tmp_path / "data" / "00003_flow.flo")
    assert flow.shape == (48, 64, 2) and np.abs(flow).max() < 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--size", "64"), "--size needs"),
        (("--preset", "nix"), "--preset must be 'default' or 'chairs', not 'nix'"),
        (("--max-displacement", "1e9"), r"1e\+09 pixels is far beyond frames of 512 x 384; set .* to 2560 or less"),
        (("--max-displacement", "inf"), "a number above 0, not inf"),
        (("--photos", "missing"), "no folder of photographs"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path: Path, folder: Path, options: tuple[str, str], message: str) -> None:
    with pytest.raises(DeepMatchingError, match=message):
        run(tmp_path / "out", "--photos", folder, *options)
    assert not (tmp_path / "out").exists()


def test_a_run_without_pairs_blocks_no_other(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*_: object) -> None:
        raise RuntimeError("can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(Synthesizer, "batch", impossible)
        with pytest.raises(RuntimeError, match="allocate"):
            export(tmp_path, folder, 1, seed=1)
    assert export(tmp_path, folder, 1, seed=2) == [True]
    with pytest.raises(DeepMatchingError, match="seed 2, and now it is 1"):
        export(tmp_path, folder, 1, seed=1)
    for file in (tmp_path / "data").iterdir():  # a record without pairs, such as older versions left
        file.unlink()
    assert export(tmp_path, folder, 1, seed=1) == [True]
