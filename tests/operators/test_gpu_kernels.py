"""The Triton kernels against the plain operators: on a GPU where there is one, else interpreted on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
tl = pytest.importorskip("triton.language")
assert DEVICE == "cuda" or type(tl.zeros).__name__ == "InterpretedFunction", "Triton was not told to interpret"

from deepmatching import decoding, operators  # noqa: E402
from deepmatching.descriptors import HOG  # noqa: E402
from deepmatching.geometry import Geometry  # noqa: E402
from deepmatching.operators import fused, gpu  # noqa: E402
from deepmatching.operators.kernels import plain_operators  # noqa: E402


@pytest.fixture(autouse=True)
def _definitions() -> Iterator[None]:
    """The operators that the kernels are compared with are the plain ones."""
    with plain_operators():
        yield


def geometry(size0: tuple[int, int], size1: tuple[int, int], radius: int | None, levels: int = 2) -> Geometry:
    return Geometry.for_downscale(size0, size1, 1, radius, levels)


GEOMETRIES = {
    "relative, even R": geometry((16, 16), (16, 16), 8),
    "relative, odd R, two sizes": geometry((17, 16), (16, 24), 10),
    "relative, wide reach": Geometry((16, 16), (16, 16), 8, 4, 2, 8, 4, 8, 1),
    "absolute": geometry((16, 16), (16, 24), None),
    "absolute, one level": geometry((16, 8), (17, 16), None, levels=1),
}
everywhere = pytest.mark.parametrize("g", GEOMETRIES.values(), ids=GEOMETRIES.keys())


def eighths(shape: tuple[int, ...], lowest: int = 0) -> Tensor:
    """Scores k/8: sums and means are exact in any order, and many are equal."""
    return (torch.randint(lowest, 9, shape, device=DEVICE) / 8).float()


def volume(g: Geometry, points: int, cells: int, lowest: int = 0) -> Tensor:
    """Scores on the grid of level ``points`` with the window of level ``cells``; one pair or two."""
    return eighths((2 if g.relative else 1, *g.grid(points), *g.window(cells)), lowest)


def agree(kernel: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor], scores: Tensor) -> None:
    """Same values and, for a random gradient in eighths, the same gradient, to the last bit."""
    results = []
    for function in (kernel, plain):
        leaf = scores.clone().requires_grad_()
        out = function(leaf)
        if not results:
            upstream = eighths(tuple(out.shape), lowest=-8)
        out.backward(upstream)
        results.append((out.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def minus_infinity_in(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.rand_like(scores) < 0.2, -torch.inf)


@everywhere
def test_max_pooling(g: Geometry) -> None:
    scores = volume(g, 0, 0, lowest=-2)
    window = (g.window(1), g.pool_offset(0), g.pool_reach)
    kernel, plain = gpu.differentiable_max_pooling, operators.max_pooling
    agree(lambda s: kernel(s, *window)[0], lambda s: plain(s, *window)[0], scores)
    sparse = minus_infinity_in(scores)
    torch.testing.assert_close(kernel(sparse, *window), plain(sparse, *window), rtol=0, atol=0)


@everywhere
def test_unpooling(g: Geometry) -> None:
    window = (g.pool_offset(0), g.pool_reach)
    _, switches = operators.max_pooling(volume(g, 0, 0), g.window(1), *window)
    scores = volume(g, 0, 1)
    kernel, plain = gpu.differentiable_unpooling, operators.unpooling
    for some in (scores, minus_infinity_in(scores)):
        agree(
            lambda s: kernel(s, switches, g.window(0), *window),
            lambda s: plain(s, switches, g.window(0), *window),
            some,
        )


@everywhere
def test_aggregation_and_disaggregation(g: Geometry) -> None:
    for l in range(g.L):
        down, up = g.grid(l), g.grid(l + 1)
        agree(
            lambda s, up=up, l=l: gpu.differentiable_aggregation(s, up, g.links(l)),
            lambda s, up=up, l=l: operators.aggregation(s, up, g.links(l), g.children(l + 1)),
            volume(g, l, l + 1),
        )
        agree(
            lambda s, down=down, l=l: gpu.differentiable_disaggregation(s, down, g.links(l)),
            lambda s, down=down, l=l: operators.disaggregation(s, down, g.links(l)),
            minus_infinity_in(volume(g, l + 1, l + 1)),
        )


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.4])
def test_power(exponent: float) -> None:
    scores = (torch.randn(3, 5000, device=DEVICE) * torch.rand(5000, device=DEVICE)).round(decimals=3)
    results = []
    for function in (gpu.differentiable_power, operators.power):
        leaf, nu = scores.clone().requires_grad_(), torch.tensor([exponent], device=DEVICE, requires_grad=True)
        out = function(leaf, nu)
        out.backward(torch.cos(torch.arange(out.numel(), device=DEVICE)).view_as(out))
        results.append((out.detach(), leaf.grad, nu.grad))
    torch.testing.assert_close(results[0], results[1], rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(gpu.differentiable_power(scores, exponent), results[0][0], rtol=0, atol=0)


def descriptors(g: Geometry, patch: int, channels: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    extra = 1 if patch == 1 else 0
    sizes = [[n // g.gamma + extra for n in used] for used in (g.used0, g.used1)]
    cells0, cells1 = (torch.randn(batch, channels, *size, device=DEVICE) for size in sizes)
    return cells0 / (patch * channels**0.5), cells1 * 100


@everywhere
@pytest.mark.parametrize(("patch", "channels", "batch"), [(1, 20, 2), (4, 3, 1)])
def test_correlation_and_its_gradient(g: Geometry, patch: int, channels: int, batch: int) -> None:
    results = []
    cells = descriptors(g, patch, channels, batch)
    for function in (gpu.differentiable_correlation, operators.correlation):
        leaves = [c.clone().requires_grad_() for c in cells]
        scores = function(*leaves, g, patch)
        if not results:
            upstream = torch.randn_like(scores) * 1e-3
        scores.backward(upstream)
        results.append((scores.detach() / 100, leaves[0].grad, leaves[1].grad))
    for kernel, plain in zip(*results, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=1e-5, atol=2e-6 * float(plain.abs().max()))


def test_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    g = geometry((72, 16), (24, 24), 4, levels=1)
    monkeypatch.setattr("deepmatching.operators.gpu.correlation.CHUNK_BYTES", 2**10)  # eight rows of points, then one
    cells0, cells1 = descriptors(g, 4, 2, batch=1)
    values, _ = gpu.correlate_and_pool(cells0, cells1, g, 4, 1.4)
    torch.testing.assert_close(values, fused.correlate_and_pool(cells0, cells1, g, 4, 1.4)[0], rtol=1e-4, atol=1e-4)


def test_correlation_in_one_half_product() -> None:
    g = GEOMETRIES["relative, even R"]
    cells0, cells1 = descriptors(g, 4, 3)
    with gpu.half_precision_scores():
        fast = gpu.differentiable_correlation(cells0, cells1, g, 4)
    exact = operators.correlation(cells0, cells1, g, 4)
    assert 0 < float((fast - exact).norm() / exact.norm()) < 1e-3


@everywhere
def test_correlate_and_pool(g: Geometry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair at a time, strided cells, and ties: descriptors of eighths give exact scores."""
    monkeypatch.setattr("deepmatching.operators.gpu.correlation.CHUNK_BYTES", 2**10)
    cells0, cells1 = (eighths((2, used[0] // 2, used[1] // 2, 5)).permute(0, 3, 1, 2) for used in (g.used0, g.used1))
    values, switches = gpu.correlate_and_pool(cells0, cells1, g, 4, 1.4)
    expected, choice = fused.correlate_and_pool(cells0, cells1, g, 4, 1.4)
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)
    # Rectified scores are rounded, so a tie of two different products may go either way: compare what was chosen.
    scores = operators.power(operators.correlation(cells0, cells1, g, 4), 1.4)
    chosen = operators.unpooling(torch.zeros_like(values), switches, g.window(0), g.pool_offset(0), g.pool_reach)
    again = operators.max_pooling(scores + chosen, g.window(1), g.pool_offset(0), g.pool_reach)[0]
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=1e-6)
    assert float((switches == choice).float().mean()) > 0.99


@everywhere
def test_levels_of_inference(g: Geometry) -> None:
    for l in range(g.L):
        scores = volume(g, l, l + 1)
        torch.testing.assert_close(
            gpu.aggregate(scores, g, l, 1.4), fused.aggregate(scores, g, l, 1.4), rtol=1e-5, atol=1e-6
        )
        coarse = minus_infinity_in(volume(g, l + 1, l + 1))
        expected = fused.disaggregate(coarse, g, l)
        torch.testing.assert_close(gpu.disaggregate(coarse, g, l), expected, rtol=0, atol=0)
    for l in range(g.L - 1):
        scores = volume(g, l, l + 1)
        pooled, switches = gpu.aggregate_and_pool(scores, g, l, 1.4)
        values, choices = fused.aggregate_and_pool(scores, g, l, 1.4)
        torch.testing.assert_close(pooled, values, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(switches, choices, rtol=0, atol=0)
        arguments = (volume(g, l + 1, l + 2), volume(g, l + 1, l + 2), choices, g, l)
        torch.testing.assert_close(
            gpu.unpool_and_disaggregate(*arguments),
            fused.unpool_and_disaggregate(*arguments),
            rtol=0,
            atol=0,
        )


@everywhere
@pytest.mark.parametrize("reciprocal", ["bins", "exact", "none"])
def test_decoding(g: Geometry, reciprocal: decoding.Reciprocal) -> None:
    pooled, switches = operators.max_pooling(volume(g, 0, 0), g.window(1), g.pool_offset(0), g.pool_reach)
    for coarse in (minus_infinity_in(volume(g, 0, 1)), volume(g, 0, 1) - torch.inf):
        scores, cells, verified = gpu.decode_pooled(coarse, pooled, switches, g, reciprocal)
        plain = decoding.decode_pooled(coarse, pooled, switches, g, reciprocal)
        torch.testing.assert_close(scores, plain.scores, rtol=0, atol=0)
        reached = torch.isfinite(scores)
        torch.testing.assert_close(cells[reached], plain.cells[reached])
        torch.testing.assert_close(verified, plain.verified)


@pytest.mark.parametrize("radius", [6, None])
def test_strips(radius: int | None) -> None:
    """A part of the rows of reference points, see ``Geometry.strip``."""
    g = geometry((40, 8), (24, 24), radius, levels=2)
    minus, plus = g.child_shifts(0)
    part = g.strip((max(0, 2 + minus), 4 + plus), (2, 4))  # two rows of level 1 and all their children
    cells0, cells1 = descriptors(g, 4, 2, batch=1)
    pooled, switches = gpu.correlate_and_pool(cells0, cells1, part, 4, 1.4)
    expected = fused.correlate_and_pool(cells0, cells1, part, 4, 1.4)[0]
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-4)
    above = gpu.aggregate_and_pool(pooled, part, 0, 1.4)
    torch.testing.assert_close(above[0], fused.aggregate_and_pool(pooled, part, 0, 1.4)[0], rtol=1e-5, atol=1e-5)

    part = g.strip((2, 4), (2 - plus, 4 - minus))  # two rows of level 0 and all their parents
    pooled, switches = operators.max_pooling(volume(part, 0, 0), g.window(1), g.pool_offset(0), g.pool_reach)
    coarse = (volume(part, 1, 2), volume(part, 1, 2))
    m = operators.max_pooling(volume(part, 1, 1), g.window(2), g.pool_offset(1), g.pool_reach)[1]
    Q = gpu.unpool_and_disaggregate(*coarse, m, part, 0)
    torch.testing.assert_close(Q, fused.unpool_and_disaggregate(*coarse, m, part, 0), rtol=0, atol=0)
    for reciprocal in ("bins", "exact"):
        best = gpu.best_pooled(Q, pooled, switches, part, reciprocal)
        expected = decoding.best_pooled(Q, pooled, switches, part, reciprocal)  # type: ignore[arg-type]
        torch.testing.assert_close(best, tuple(expected), rtol=0, atol=0)


@pytest.mark.parametrize(("downscale", "channels", "size"), [(1, 3, (6, 10)), (0, 1, (5, 7))])
def test_hog(downscale: int, channels: int, size: tuple[int, int]) -> None:
    image = torch.rand(1, channels, *size, device=DEVICE)
    hog = HOG(downscale).to(DEVICE)
    cells = gpu.hog_cells(image, hog.directions, hog.stride, hog.sigmas, hog.slope, hog.ninth)
    torch.testing.assert_close(cells, hog(image), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("radius", [6, None])
def test_half_precision_is_storage_only(radius: int | None) -> None:
    """Scores rounded to half precision on their way to memory; all arithmetic and the switches in float32."""
    g = geometry((24, 16), (24, 24), radius, levels=2)
    pooled = volume(g, 0, 1)
    above, switches = gpu.aggregate_and_pool(pooled.half(), g, 0, 1.4)
    expected, choices = gpu.aggregate_and_pool(pooled.half().float(), g, 0, 1.4)
    assert above.dtype == torch.float16
    torch.testing.assert_close(above, expected.half())
    torch.testing.assert_close(switches, choices, rtol=0, atol=0)
    coarse = volume(g, 1, 2)
    torch.testing.assert_close(
        gpu.unpool_and_disaggregate(coarse, above, switches, g, 0),
        gpu.unpool_and_disaggregate(coarse, above.float(), switches, g, 0),
        rtol=0,
        atol=0,
    )
    m = operators.max_pooling(volume(g, 0, 0), g.window(1), g.pool_offset(0), g.pool_reach)[1]
    fine = volume(g, 0, 1)
    halves = gpu.best_pooled(fine, pooled.half(), m, g, "bins")
    for a, b in zip(halves, gpu.best_pooled(fine, pooled.half().float(), m, g, "bins"), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
