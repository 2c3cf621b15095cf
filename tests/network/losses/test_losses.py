"""The losses against sums written out, and on inputs that could break them."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.models import build_network
from deepmatching.network.losses import Objective, cross_entropy, indicator_distance, structured_hinge, true_cells
from deepmatching.network.network import Network, Pyramid
from deepmatching.network.operators.decoding import mask_off_image

INF = math.inf
LOSSES = {
    "hinge": lambda s, t: structured_hinge(s, t, 0.7),
    "indicator": lambda s, t: indicator_distance(s, t, 0.7),
    "cross-entropy": lambda s, t: cross_entropy(s, t, 0.7, 5.0),
}


def volume(seed: int, h: int = 5, w: int = 6, reachable: float = 0.5) -> tuple[Tensor, Tensor]:
    """Random scores (1, 2, 3, h, w) with −∞ on a part of the cells, and random truths, one of them unknown."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(1, 2, 3, h, w, generator=generator, dtype=torch.float64)
    scores[torch.rand(scores.shape, generator=generator) > reachable] = -INF
    truth = torch.rand(1, 2, 3, 2, generator=generator, dtype=torch.float64) * torch.tensor([h - 1.0, w - 1.0])
    truth[0, 1] = truth[0, 1].round()  # these lie on cells
    truth[0, 0, 0] = math.nan
    return scores, truth


def g(y: float, x: float, truth: Tensor, sigma: float) -> float:
    return math.exp(-((y - float(truth[0])) ** 2 + (x - float(truth[1])) ** 2) / (2 * sigma**2))


def cells_of(map_: Tensor) -> dict[tuple[int, int], float]:
    return {(y, x): float(map_[y, x]) for y, x in map_.isfinite().nonzero().tolist()}


def by_hand(name: str, map_: Tensor, truth: Tensor, sigma: float = 0.7, scale: float = 5.0) -> float | None:
    """Return the loss of a point, None if it has none."""
    cells = cells_of(map_)
    bell = {c: g(*c, truth, sigma) for c in cells}
    far = {c: max(abs(c[axis] - float(truth[axis])) for axis in (0, 1)) for c in cells}
    near = [c for c in cells if (bell[c] > 0.5 if name == "indicator" else far[c] <= (1 if name == "hinge" else 2))]
    if not near:
        return None
    if name == "hinge":
        true = max(near, key=lambda c: bell[c])
        return sum(max(0.0, 1 - bell[c] + s - cells[true]) for c, s in cells.items() if c != true)
    if name == "indicator":
        weights = {c: 0.5 / len(near) if c in near else 0.5 / (len(cells) - len(near)) for c in cells}
        return sum(weights[c] * (s - bell[c]) ** 2 for c, s in cells.items())
    total = sum(math.exp(scale * s) for s in cells.values())
    return -math.log(sum(math.exp(scale * cells[c]) / total * bell[c] for c in near))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), reachable=st.sampled_from([0.1, 0.5, 1.0]))
def test_the_losses_are_the_sums_of_their_formulas(seed: int, reachable: float) -> None:
    scores, truth = volume(seed, reachable=reachable)
    for name, loss in LOSSES.items():
        losses, found = loss(scores, truth)
        for at in product((0,), range(2), range(3)):
            value = None if torch.isnan(truth[at]).any() else by_hand(name, scores[at], truth[at])
            assert bool(found[at]) == (value is not None)
            assert float(losses[at]) == pytest.approx(value or 0.0, abs=1e-9)


def test_the_indicator_is_zero_for_the_indicator_itself_and_balanced() -> None:
    truth = torch.tensor([[[[2.0, 3.0]]]], dtype=torch.float64)
    rows, columns = torch.arange(5.0)[:, None], torch.arange(6.0)[None]
    perfect = torch.exp(-((rows - 2) ** 2 + (columns - 3) ** 2) / (2 * 0.7**2)).double()[None, None, None]
    losses, found = indicator_distance(perfect, truth, 0.7)
    assert found.all()
    assert float(losses.sum()) < 1e-12
    # Missing the one cell with g > ½ weighs as much as one everywhere else.
    for wrong in (perfect > 0.5, perfect <= 0.5):
        assert float(indicator_distance(perfect + wrong, truth, 0.7)[0]) == pytest.approx(0.5)


def test_the_indicator_without_balance_is_the_mean_square() -> None:
    scores, truth = volume(1, reachable=0.9)
    losses, _ = indicator_distance(scores, truth, 0.7, balance=0)
    cells = cells_of(scores[0, 1, 1])
    errors = [(s - g(*c, truth[0, 1, 1], 0.7)) ** 2 for c, s in cells.items()]
    assert float(losses[0, 1, 1]) == pytest.approx(sum(errors) / len(errors))
    geometry = Geometry.for_downscale((16, 16), (16, 16), 1, 8, 1)
    volumes = torch.rand(1, *geometry.grid(0), *geometry.window(0)), torch.zeros(1, *geometry.grid(0), 2)
    plain, balanced = (Objective("indicator", balance=b).loss(*volumes)[0] for b in (0.0, 0.5))
    assert not torch.allclose(plain, balanced)


def test_the_hinge_is_zero_when_the_truth_wins_by_the_margin() -> None:
    scores = torch.zeros(1, 1, 1, 4, 4)
    for score, expected in ((1.0, 0.0), (0.75, 15 * 0.25)):
        scores[..., 1, 2] = score
        losses, _ = structured_hinge(scores, torch.tensor([[[[1.0, 2.0]]]]), sigma=0.1)
        assert float(losses) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name: str) -> None:
    scores, truth = volume(3)
    finite = torch.isfinite(scores)
    values = scores[finite].requires_grad_()

    def total(v: Tensor) -> Tensor:
        return LOSSES[name](torch.full_like(scores, -INF).masked_scatter(finite, v), truth)[0].sum()

    assert torch.autograd.gradcheck(total, (values,))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_finite(name: str) -> None:
    scores, truth = volume(5)
    for case, (some, true) in {
        "nothing reachable": (torch.full_like(scores, -INF), truth),
        "truth unknown": (scores, torch.full_like(truth, math.nan)),
        "all equal": (torch.zeros_like(scores), truth),
        "huge scores": (torch.where(torch.isfinite(scores), 1e4 * scores, -INF), truth),
        "one reachable cell": (torch.full_like(scores, -INF).index_fill(4, torch.tensor([0]), 0.5), truth),
        "truth on the border": (scores, torch.zeros_like(truth)),
    }.items():
        leaf = some.clone().requires_grad_()
        losses, found = LOSSES[name](leaf, true)
        losses.sum().backward()
        assert torch.isfinite(losses).all() and not losses[~found].any(), case
        assert leaf.grad is not None and torch.isfinite(leaf.grad).all(), case


@pytest.mark.parametrize("kind", ["hinge", "indicator", "cross-entropy"])
def test_an_objective_on_all_volumes_reaches_every_parameter(kind: str) -> None:
    network = build_network("compact", radius=16, levels=2, sharpness=10.0)
    weights = {f"{letter}{l}": 0.5 for letter in "SQ" for l in range(3)}
    objective = Objective(kind, weights, subpixel=0.3)  # type: ignore[arg-type]
    images = torch.rand(2, 2, 3, 40, 48)
    loss, metrics = objective(network(*images), torch.full((2, 40, 48, 2), 3.3))
    loss.backward()
    assert set(metrics) == {*weights, "known", "reachable", "subpixel"}
    assert float(loss.detach()) == pytest.approx(
        sum(0.5 * float(metrics[name]) for name in weights) + 0.3 * float(metrics["subpixel"]), rel=1e-5
    )
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


def near_the_border(sharpness: float) -> tuple[Pyramid, Tensor]:
    """Random scores of all cells, on the image or off, and truths of which some lie next to its border."""
    geometry = Geometry.for_downscale((16, 16), (16, 16), 1, 6, 0)
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(1, *geometry.shape(0), generator=generator, dtype=torch.float64).requires_grad_()
    flow = torch.tensor([-3.3, 2.6], dtype=torch.float64).expand(1, 16, 16, 2)
    kappa = torch.tensor(sharpness, dtype=torch.float64, requires_grad=True)
    return Pyramid(geometry, [scores], [scores], kappa), true_cells(flow, geometry)


def test_scores_off_the_image_move_no_match_and_others_have_gradients() -> None:
    pyramid, truth = near_the_border(2.0)

    def distance(scores: Tensor, sharpness: Tensor | None) -> Tensor:
        return Objective().subpixel_error(Pyramid(pyramid.geometry, [scores], [scores], sharpness), truth)

    assert torch.autograd.gradcheck(distance, (pyramid.S[0], pyramid.sharpness))
    masked = mask_off_image(pyramid.S[0], pyramid.geometry)
    assert masked.isinf().any()
    assert distance(masked, pyramid.sharpness) == distance(pyramid.S[0], pyramid.sharpness)


def test_the_pyramid_is_as_it_was_after_the_loss() -> None:
    with torch.no_grad():
        pyramid, _ = near_the_border(5.0)
        pyramid.S[0] = pyramid.S[0].detach()
        before = pyramid.S[0].clone()
        flow = torch.full((1, 16, 16, 2), 2.0)
        _, metrics = Objective(weights={"S0": 1.0}, subpixel=0.3)(pyramid, flow)
    assert torch.equal(pyramid.S[0], before)
    # Nor do cells off the image compete: with a gradient the loss is the same.
    pyramid.S[0] = before.requires_grad_()
    _, again = Objective(weights={"S0": 1.0}, subpixel=0.3)(pyramid, flow)
    assert all(torch.equal(metrics[name], again[name]) for name in metrics)


def a_pyramid() -> tuple[Network, Pyramid]:
    network, image = build_network("hog", radius=8, levels=1), torch.rand(1, 3, 24, 24)
    return network, network(image, image)


def test_no_truth_no_loss() -> None:
    network, pyramid = a_pyramid()
    loss, metrics = Objective()(pyramid, torch.full((1, 24, 24, 2), math.nan))
    loss.backward()
    assert float(loss.detach()) == float(metrics["reachable"]) == 0
    assert network.exponents.grad is not None and not network.exponents.grad.any()


def test_occluded_points_count_only_if_asked() -> None:
    flow, occluded, pyramid = torch.zeros(1, 24, 24, 2), torch.ones(1, 24, 24, dtype=torch.bool), a_pyramid()[1]
    assert Objective()(pyramid, flow, occluded)[0].item() == 0
    assert Objective(occluded=True)(pyramid, flow, occluded)[0].item() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "l2"}, "kind of loss must be"),
        ({"weights": {"T0": 1}}, "no score volume 'T0'"),
        ({"weights": {"Q0": 0}}, "No score volume has a weight"),
        ({"sigma": 0}, "sigma must be a number above 0"),
    ],
)
def test_bad_objectives(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DeepMatchingError, match=message):
        Objective(**arguments)  # type: ignore[arg-type]


def test_a_volume_beyond_the_top_level_is_an_error() -> None:
    with pytest.raises(DeepMatchingError, match="ends at level 1"):
        Objective(weights={"Q3": 1})(a_pyramid()[1], torch.zeros(1, 24, 24, 2))
