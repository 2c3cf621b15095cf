"""The soft arg-max of Q_0: its limits, and its gradients down to the exponents."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import positions
from deepmatching.network.descriptors import HOG
from deepmatching.network.network import Network
from deepmatching.network.operators.soft_argmax import highest_peaks, soft_argmax
from deepmatching.network.operators.subpixel import soft_offsets, surroundings
from helpers.volumes import random_volume, small_pairs, with_gaps


def on_cells(peaks: Tensor, width: int) -> Tensor:
    """Return (row, column) of raster indices."""
    return torch.stack([peaks // width, peaks % width], dim=-1).double()


def test_it_is_the_mean_of_the_peaks_weighted_by_their_scores() -> None:
    Q_0 = torch.full((1, 1, 1, 7, 7), -torch.inf)
    Q_0[..., 0, 0], Q_0[..., 1, 1], Q_0[..., 6, 4] = 3.0, 2.9, 2.0  # the second is on the first one's slope
    scores, peaks = highest_peaks(Q_0, 3)
    assert scores.flatten().tolist() == [3.0, 2.0, -torch.inf] and peaks[0, 0, 0, :2].tolist() == [0, 6 * 7 + 4]
    weight = 1 / (1 + math.exp(-5 * (3 - 2)))
    found = soft_argmax(scores, on_cells(peaks, 7), 5.0)[0, 0, 0]
    assert found.tolist() == pytest.approx([6 * (1 - weight), 4 * (1 - weight)], rel=1e-5)


@settings(max_examples=25)
@given(geometry=small_pairs(), gaps=st.booleans(), sharpness=st.sampled_from([0.1, 10.0, 300.0]))
def test_it_lies_among_the_peaks_and_tends_to_the_highest(geometry: Geometry, gaps: bool, sharpness: float) -> None:
    """On maps of all sizes, also smaller than the square of a peak, with peaks on the border, and without any."""
    Q_0 = with_gaps(random_volume(geometry, 0)) if gaps else random_volume(geometry, 0)
    scores, peaks = highest_peaks(Q_0)
    cells, known = on_cells(peaks, Q_0.shape[-1]), scores.isfinite()
    some = known[..., 0]
    assert torch.equal(peaks[..., 0], Q_0.flatten(-2).max(dim=-1).indices)
    assert torch.equal(scores.sort(dim=-1, descending=True).values, scores)
    apart = (cells[..., :, None, :] - cells[..., None, :, :]).abs().amax(-1)
    pairs = (known[..., :, None] & known[..., None, :]).triu(1)
    assert (apart[pairs] > 2).all()

    found = soft_argmax(scores, cells, sharpness)
    low, high = (torch.where(known[..., None], cells, fill) for fill in (torch.inf, -torch.inf))
    assert (found >= low.amin(-2) - 1e-9)[some].all() and (found <= high.amax(-2) + 1e-9)[some].all()
    assert torch.equal(found[~some], cells[..., 0, :][~some])
    torch.testing.assert_close(soft_argmax(scores, cells, 1e9), cells[..., 0, :])


@pytest.mark.parametrize("size", [(2, 3), (7, 8)])
@pytest.mark.parametrize("gaps", [False, True])
def test_gradients(size: tuple[int, int], gaps: bool) -> None:
    values = torch.rand(1, 2, 1, *size, dtype=torch.float64, requires_grad=True)
    missing = torch.isinf(with_gaps(values.detach())) & gaps
    sharpness = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    places = torch.randn(1, 2, 1, 4, 2, dtype=torch.float64, requires_grad=True)

    def position(values: Tensor, places: Tensor, sharpness: Tensor) -> Tensor:
        return soft_argmax(highest_peaks(values.masked_fill(missing, -torch.inf))[0], places, sharpness)

    assert gradcheck(position, (values, places, sharpness))


@pytest.mark.parametrize("pooling", ["hard", "soft"])
def test_the_exponents_of_all_levels_have_a_gradient_that_the_peak_alone_has_not(pooling: str) -> None:
    """Between the cells, the position of a peak depends on S_0 and so on ν_0, and on no other exponent."""
    network = Network(HOG(), 16, 2, pooling=pooling, temperature=20.0).double()  # type: ignore[arg-type]
    image0, image1 = torch.rand(2, 1, 3, 24, 32, dtype=torch.float64)
    exponents = network.exponents.detach().clone().requires_grad_()

    def moved(exponents: Tensor, is_soft: bool) -> Tensor:
        pyramid = torch.func.functional_call(network, {"exponents": exponents}, (image0, image1))
        scores, peaks = highest_peaks(pyramid.Q[0])
        places = [
            positions(cells, pyramid.geometry)[1] / 2 + soft_offsets(surroundings(pyramid.S[0], cells), 9.0).flip(-1)
            for cells in peaks.unbind(-1)
        ]
        return soft_argmax(scores, torch.stack(places, dim=-2), 10.0) if is_soft else places[0]

    assert gradcheck(lambda nu: moved(nu, True), (exponents,), fast_mode=True)
    for is_soft in (False, True):
        (gradient,) = torch.autograd.grad(moved(exponents, is_soft).square().sum(), exponents)
        assert gradient[0] != 0 and (gradient[3:] == 0).all()
        assert (gradient[1:3] != 0).all() if is_soft else (gradient[1:3] == 0).all()
