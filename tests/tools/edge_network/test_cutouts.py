from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import edge_network.cutouts as module
from deepmatching.errors import DeepMatchingError
from edge_network.cutouts import load_cutouts, paste

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Draw a red bar, larger than a cut-out may be, opaque all over."""
    picture = np.zeros((100, 400, 4), np.uint8)
    picture[..., 2] = picture[..., 3] = 255  # BGRA
    cv2.imwrite(str(tmp_path / "bar.png"), picture)
    return tmp_path


def test_cutouts_are_shrunk_into_a_square(folder: Path) -> None:
    (cutout,) = load_cutouts(folder, CPU)
    assert cutout.shape == (4, 192, 192) and cutout.dtype == torch.uint8
    opaque = cutout[3] == 255
    assert opaque.any(dim=0).sum() == 190 and abs(int(opaque.any(dim=1).sum()) - 48) <= 1
    assert (cutout[0][opaque] == 255).all() and (cutout[1:3, opaque] == 0).all()


def test_what_is_no_cutout(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no cut-outs"):
        load_cutouts(tmp_path, CPU)
    cv2.imwrite(str(tmp_path / "opaque.png"), np.zeros((10, 10, 3), np.uint8))
    with pytest.raises(DeepMatchingError, match="is not RGBA"):
        load_cutouts(tmp_path, CPU)


def test_an_object_brings_its_outline_and_hides_what_is_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PASTED", 1.0)
    torch.manual_seed(0)
    batch, size = 16, 96
    behind = torch.full((batch, 1, size, size), 0.25)
    view, consensus, known = paste(
        torch.zeros(batch, 3, size, size), behind, torch.ones_like(behind), load_cutouts(folder, CPU)
    )
    red = view[:, :1] > 0.3
    assert red.any(dim=(1, 2, 3)).all()
    near = torch.nn.functional.max_pool2d(red.float(), 5, 1, 2) - -torch.nn.functional.max_pool2d(-red.float(), 5, 1, 2)
    outline = consensus == 0.5
    assert outline.any(dim=(1, 2, 3)).all() and (near[outline] > 0).all()
    assert set(consensus.unique().tolist()) == {0.0, 0.25, 0.5}
    assert (known[~red & (near == 0)] == 1).all() and known[outline].min() == 1
    assert (known == 0).any() and red[known == 0].all()


def test_some_views_stay_as_they_are(folder: Path) -> None:
    torch.manual_seed(0)
    view = torch.rand(20, 3, 32, 32)
    consensus, known = torch.zeros(20, 1, 32, 32), torch.ones(20, 1, 32, 32)
    pasted, *_ = paste(view, consensus, known, load_cutouts(folder, CPU))
    assert 5 <= (pasted != view).any(dim=(1, 2, 3)).sum() <= 17
