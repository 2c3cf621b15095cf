import pytest
import torch

from edge_network.augmentation import random_views


@pytest.fixture
def photographs() -> tuple[torch.Tensor, torch.Tensor]:
    """Two photographs, dark with a bright disc, whose outline is the boundary."""
    y, x = torch.meshgrid(torch.arange(120), torch.arange(180), indexing="ij")
    distance = ((y - 60) ** 2 + (x - 90) ** 2).float().sqrt()
    image = torch.where(distance < 40, 220, 40).to(torch.uint8).expand(2, 3, -1, -1)
    return image, (255 * ((distance - 40).abs() < 0.7)).to(torch.uint8).expand(2, 1, -1, -1)


def test_views_are_in_range(photographs: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    view, consensus, known = random_views(*photographs, 12, 64)
    assert view.shape == (12, 3, 64, 64) and consensus.shape == known.shape == (12, 1, 64, 64)
    for tensor in (view, consensus, known):
        assert tensor.min() >= 0 and tensor.max() <= 1 and tensor.isfinite().all()
    assert set(known.unique().tolist()) <= {0.0, 1.0}


def test_boundaries_move_with_the_picture(photographs: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    view, consensus, known = random_views(*photographs, 40, 96)
    grey = view.mean(dim=1, keepdim=True)
    down, right = grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1], grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2]
    slope = torch.stack([down, right]).norm(dim=0)
    boundary, known = consensus[..., 1:-1, 1:-1] == 1, known[..., 1:-1, 1:-1] == 1
    beside = torch.nn.functional.max_pool2d(boundary.float(), 9, 1, 4) == 0
    for k in range(40):
        if (boundary[k] & known[k]).sum() > 20:
            assert slope[k][boundary[k] & known[k]].mean() > 2.5 * slope[k][beside[k] & known[k]].mean()


def test_boundaries_are_not_torn(photographs: tuple[torch.Tensor, torch.Tensor]) -> None:
    """A closed outline still separates its inside from its outside in every view."""
    cv2 = pytest.importorskip("cv2")
    torch.manual_seed(1)
    _, consensus, _ = random_views(*photographs, 20, 320)
    for k in range(20):
        assert cv2.connectedComponents((consensus[k, 0] == 0).numpy().astype("uint8"), connectivity=4)[0] - 1 >= 2


def test_outside_of_the_photograph_is_not_known(photographs: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    _, consensus, known = random_views(*photographs, 8, 400)
    assert (known.mean(dim=(1, 2, 3)) < 0.5).all()
    assert consensus[known == 0].max() == 0
