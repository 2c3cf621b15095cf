"""The Triton kernels on one GPU: agreement with the plain operators, time against the floor, whole cases, RAFT beside.

    PYTHONPATH=src python benchmarks/gpu_kernels.py --json gpu.json

Times are medians by CUDA events. Stages and whole decodings are replayed as CUDA graphs, stages after the cache was
flushed; a stage's floor is the bytes it must read and write over the measured bandwidth of a copy.
"""

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from deepmatching.evaluation.speed import copy_bandwidth
from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.cuda_graphs import record
from deepmatching.kernels.registry import plain_operators
from deepmatching.network import operators
from deepmatching.network.descriptors import HOG, VGG, Descriptor
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators import fused
from deepmatching.network.operators.correlation import full_precision
from deepmatching.network.operators.decoding import Decoded, decode_pooled

SIZE = (436, 1024)
TRAINING_SIZE = (384, 512)
ROWS: list[dict[str, Any]] = []  #: the table


class HalfVGG(VGG):
    """The CNN descriptor with random weights and bfloat16 convolutions."""

    def forward(self, image: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return super().forward(image)


# ---------------------------------------------------------------------- measuring


def require_cuda() -> None:
    """Exit where there is no GPU."""
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA device, and PyTorch finds none: run it on a machine with an NVIDIA GPU.")


def milliseconds(function: Callable[[], object], repeats: int = 30, flush: Tensor | None = None) -> float:
    """Return the median time of a call, by events."""
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        if flush is not None:
            flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def graphed(function: Callable[[], object]) -> Callable[[], object]:
    """Return the call as a CUDA graph."""
    return record(function)[0].replay


def size_of(*tensors: Tensor) -> int:
    """Return the bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def peak_gb(function: Callable[[], object]) -> float:
    """Most memory that a call holds, in 10⁹ bytes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e9


def row(case: str, what: str, **numbers: Any) -> None:
    """Add a line to the table."""
    ROWS.append({"case": case, "what": what, **numbers})
    print(case, "|", what, "|", numbers, flush=True)


def images(batch: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return a smooth random picture, and the same moved by some pixels with noise."""
    coarse = torch.rand(batch, 3, size[0] // 4 + 16, size[1] // 4 + 16, device="cuda")
    big = nn.functional.interpolate(coarse, scale_factor=4, mode="bicubic").clamp(0, 1)
    first = big[:, :, 16 : 16 + size[0], 16 : 16 + size[1]]
    second = big[:, :, 12 : 12 + size[0], 23 : 23 + size[1]]
    return first.contiguous(), (second + 0.02 * torch.randn_like(second)).clamp(0, 1).contiguous()


# ---------------------------------------------------------------------- agreement


def relative_error(a: Tensor, b: Tensor) -> float:
    """Return ‖a − b‖ / ‖b‖ over the finite elements; infinity if they differ in where they are finite."""
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)):
        return float("inf")
    difference = (a[finite].double() - b[finite].double()).norm()
    return float(difference / b[finite].double().norm().clamp(min=1e-300))


def check_inference(radius: int | None, descriptor: Descriptor, size: tuple[int, int], name: str) -> None:
    """Compare every fused operator with its definition, on the same inputs."""
    network = Network(descriptor, radius).cuda().eval()
    with torch.no_grad():
        geometry = network.geometry(size, size)
        cells0, cells1 = network.describe(*images(1, size), geometry)
        patch = descriptor.patch
        pooled, switches = fused.correlate_and_pool(cells0, cells1, geometry, patch, 1.4)
        with plain_operators():
            values, choices = fused.correlate_and_pool(cells0, cells1, geometry, patch, 1.4)
        same = float((switches == choices).float().mean())
        row(name, "correlate_and_pool", error=relative_error(pooled, values), switches=same)
        levels = [(pooled, switches)]
        for l in range(geometry.L - 1):
            mine = fused.aggregate_and_pool(levels[l][0], geometry, l, 1.4)
            with plain_operators():
                values, choices = fused.aggregate_and_pool(levels[l][0], geometry, l, 1.4)
            same = float((mine[1] == choices).float().mean())
            row(name, f"aggregate_and_pool {l}", error=relative_error(mine[0], values), switches=same)
            levels.append(mine)
        top = fused.aggregate(levels[-1][0], geometry, geometry.L - 1, 1.4)
        Q = fused.disaggregate(top, geometry, geometry.L - 1)
        with plain_operators():
            row(name, "disaggregate", error=relative_error(Q, fused.disaggregate(top, geometry, geometry.L - 1)))
        for l in reversed(range(geometry.L - 1)):
            above = (Q, *levels.pop())
            Q = fused.unpool_and_disaggregate(*above, geometry, l)
            with plain_operators():
                row(name, f"unpool {l}", error=relative_error(Q, fused.unpool_and_disaggregate(*above, geometry, l)))
        for reciprocal in ("bins", "exact"):
            decoded = decode_pooled(Q, *levels[0], geometry, reciprocal)  # type: ignore[arg-type]
            with plain_operators():
                plain = decode_pooled(Q, *levels[0], geometry, reciprocal)  # type: ignore[arg-type]
            row(
                name,
                f"decode_pooled {reciprocal}",
                error=relative_error(decoded.scores, plain.scores),
                cells=float((decoded.cells == plain.cells).float().mean()),
                verified=float((decoded.verified == plain.verified).float().mean()),
                matches=int(decoded.verified.sum()),
            )


def check_scores(descriptor: Descriptor, name: str) -> None:
    """Compare S̃_0 of each precision with float64."""
    from deepmatching.kernels.gpu.matching.correlation import correlate

    network = Network(descriptor, 80).cuda().eval()
    with torch.no_grad():
        geometry = network.geometry((96, 256), (96, 256))
        cells0, cells1 = network.describe(*images(1, (96, 256)), geometry)
        exact = operators.correlation(cells0.double(), cells1.double(), geometry, descriptor.patch)
        for what, half in (("three products", False), ("one product", True)):
            scores = correlate(cells0, cells1, geometry, descriptor.patch, half)
            error = (scores - exact).abs()
            row(name, f"scores, {what}", largest_error=float(error.max()), mean_error=float(error.mean()))
        with plain_operators():
            scores = operators.correlation(cells0, cells1, geometry, descriptor.patch)
        row(name, "scores, plain float32", largest_error=float((scores - exact).abs().max()))


def check_gradients(radius: int | None, size: tuple[int, int], channels: int, name: str) -> None:
    """Compare every differentiable operator with its definition, on the same random inputs."""
    g = Geometry.for_downscale(size, size, 1, radius)
    pooling = (g.pool_offset(0), g.pool_reach)
    fine = torch.rand(1, *g.shape(0), device="cuda")
    coarse = torch.rand(1, *g.grid(0), *g.window(1), device="cuda")
    up = torch.rand(1, *g.shape(1), device="cuda")
    _, switches = operators.max_pooling(fine, g.window(1), *pooling)
    cells = [torch.randn(1, channels, n // 2, m // 2, device="cuda") / 4 / channels**0.5 for n, m in (g.used0, g.used1)]
    nu = torch.tensor(1.4, device="cuda")
    cases: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
        "max_pooling": (lambda s: operators.max_pooling(s, g.window(1), *pooling)[0], [fine]),
        "unpooling": (lambda s: operators.unpooling(s, switches, g.window(0), *pooling), [coarse]),
        "aggregation": (lambda s: operators.aggregation(s, g.grid(1), g.links(0)), [coarse]),
        "disaggregation": (lambda s: operators.disaggregation(s, g.grid(0), g.links(0)), [up]),
        "power": (operators.power, [fine - 0.5, nu]),
        "correlation": (lambda a, b: operators.correlation(a, b, g, 4), cells),
    }
    for what, (operator, inputs) in cases.items():
        results: list[list[Tensor]] = []
        upstream: Tensor | None = None
        for mode in (nullcontext(), plain_operators()):
            leaves = [t.clone().requires_grad_() for t in inputs]
            with mode, full_precision():  # cuDNN's own backward would use TF32
                out = operator(*leaves)
                upstream = torch.randn_like(out) if upstream is None else upstream
                out.backward(upstream)
            results.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
        errors = [relative_error(a, b) for a, b in zip(*results, strict=True)]
        row(name, f"{what}, value and gradients", error=max(errors), errors=[float(f"{e:.1e}") for e in errors])


# ---------------------------------------------------------------------- time


def time_stages(descriptor: Descriptor, radius: int, name: str, bandwidth: float) -> None:
    """Time each stage of decoding on its own, with its floor."""
    network = Network(descriptor, radius).cuda().eval()
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    pair = images(1, SIZE)

    def stage(what: str, function: Callable[[], Any], *moved: Tensor) -> Any:
        result = function()
        outputs = [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, Tensor)]
        ms = milliseconds(graphed(function), 20, flush)
        floor = size_of(*moved, *outputs) / bandwidth * 1e3
        row(name, what, ms=ms, floor_ms=floor, ratio=ms / floor)
        return result

    with torch.no_grad():
        geometry = network.geometry_of(*pair)
        cells0, cells1 = stage("describe", lambda: network.describe(*pair, geometry), *pair)
        correlate = partial(fused.correlate_and_pool, cells0, cells1, geometry, descriptor.patch, 1.4)
        levels = [stage("correlate_and_pool", correlate, cells0, cells1)]
        flops = 2 * geometry.cells(0) * descriptor.patch**2 * descriptor.channels
        row(name, "correlate_and_pool", useful_tflop_s=flops / ROWS[-1]["ms"] / 1e9)
        for l in range(geometry.L - 1):
            below = levels[l][0]
            aggregate = partial(fused.aggregate_and_pool, below, geometry, l, 1.4)
            levels.append(stage(f"aggregate_and_pool {l}", aggregate, below))
        last, top = levels[-1][0], geometry.L - 1
        S = stage("aggregate", lambda: fused.aggregate(last, geometry, top, 1.4), last)
        Q = stage("disaggregate", lambda: fused.disaggregate(S, geometry, top), S)
        for l in reversed(range(geometry.L - 1)):
            pooled, switches = levels.pop()
            unpool = partial(fused.unpool_and_disaggregate, Q, pooled, switches, geometry, l)
            Q = stage(f"unpool_and_disaggregate {l}", unpool, Q, pooled, switches)
        pooled, switches = levels.pop()
        stage("decode_pooled", lambda: decode_pooled(Q, pooled, switches, geometry), Q, pooled, switches)


def time_decoding(descriptor: Descriptor, radius: int | None, batch: int, name: str, half: bool = False) -> None:
    """Time images to verified matches: eager, replayed, and the memory of it."""
    network = Network(descriptor, radius).cuda().eval()
    pair = images(batch, SIZE)

    def decode() -> Decoded:
        return network.decode(*pair, Decoding(half=half))

    decode()
    peak = peak_gb(decode)
    eager = milliseconds(decode, 10)
    nu = network.exponents.tolist()
    graph, replayed = record(lambda: network.decode(*pair, Decoding(half=half), exponents=nu))
    graph.replay()
    decoded = decode()
    ms = milliseconds(graph.replay, 30)
    is_equal = all(torch.equal(a, b) for a, b in zip(decoded, replayed, strict=True) if a is not None and b is not None)
    verified = float(decoded.verified.float().mean())
    times = {"ms": ms, "per_pair_ms": ms / batch, "eager_ms": eager}
    row(name, "decode, whole", **times, peak_gb=peak, replay_is_equal=is_equal, verified=verified)


def time_training(descriptor: Descriptor, name: str) -> None:
    """One step: forward, the structured hinge over all reachable cells of Q_0 (the worst one as truth), backward."""
    network = Network(descriptor, 80).cuda().train()
    pair = images(1, TRAINING_SIZE)

    def step() -> None:
        network.zero_grad(set_to_none=True)
        Q = network(*pair).Q[0].flatten(-2)
        reached = torch.isfinite(Q)
        truth = Q.masked_fill(~reached, torch.inf).argmin(dim=-1, keepdim=True)
        there = Q.gather(-1, truth)
        torch.where(reached & torch.isfinite(there), 1 + Q - there, 0).relu().sum().backward()

    step()
    row(name, "training step", peak_gb=peak_gb(step), ms=milliseconds(step, 10))
    row(name, "training step as a graph", ms=milliseconds(graphed(step), 10))


def time_raft(name: str) -> None:
    """Torchvision's RAFT with random weights on a pair of the same size, padded to a multiple of 8."""
    from torchvision.models import optical_flow

    network = getattr(optical_flow, name)(weights=None).cuda().eval()
    first, second = (nn.functional.pad(2 * x - 1, (0, 0, 0, -x.shape[2] % 8)) for x in images(1, SIZE))
    with torch.no_grad():

        def run() -> object:
            return network(first, second, num_flow_updates=12)

        row(name, "12 updates", peak_gb=peak_gb(run), ms=milliseconds(run, 10))


def cases(bandwidth: float) -> dict[str, Callable[[], None]]:
    """Return everything that is run, by name."""
    return {
        "check hog 80": lambda: check_inference(80, HOG(), SIZE, "check hog 80"),
        "check hog full": lambda: check_inference(None, HOG(), (200, 320), "check hog full"),
        "check scores hog": lambda: check_scores(HOG(), "hog"),
        "check scores vgg": lambda: check_scores(VGG(), "vgg"),
        "check gradients": lambda: check_gradients(80, (256, 320), 128, "gradients 80"),
        "check gradients full": lambda: check_gradients(None, (120, 160), 9, "gradients full"),
        "hog 80": lambda: time_decoding(HOG(), 80, 1, "hog 80"),
        "hog 80 x8": lambda: time_decoding(HOG(), 80, 8, "hog 80 x8"),
        "hog 256": lambda: time_decoding(HOG(), 256, 1, "hog 256"),
        "hog full": lambda: time_decoding(HOG(), None, 1, "hog full"),
        "vgg 80": lambda: time_decoding(VGG(), 80, 1, "vgg 80, tf32 convolutions"),
        "vgg 80 bf16": lambda: time_decoding(HalfVGG(), 80, 1, "vgg 80, bf16 convolutions"),
        "hog 80 half": lambda: time_decoding(HOG(), 80, 1, "hog 80, half", half=True),
        "hog 256 half": lambda: time_decoding(HOG(), 256, 1, "hog 256, half", half=True),
        "vgg 80 half": lambda: time_decoding(HalfVGG(), 80, 1, "vgg 80, bf16 convolutions, half", half=True),
        "vgg 80 x8": lambda: time_decoding(HalfVGG(), 80, 8, "vgg 80 bf16 x8"),
        "training": lambda: time_training(VGG(), "training vgg, tf32"),
        "training bf16": lambda: time_training(HalfVGG(), "training vgg, bf16"),
        "stages hog 80": lambda: time_stages(HOG(), 80, "stages hog 80", bandwidth),
        "stages hog 256": lambda: time_stages(HOG(), 256, "stages hog 256", bandwidth),
        "stages vgg 80": lambda: time_stages(HalfVGG(), 80, "stages vgg 80", bandwidth),
        "raft_large": lambda: time_raft("raft_large"),
        "raft_small": lambda: time_raft("raft_small"),
    }


def main() -> None:
    """Run all cases, or those whose name contains --only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    require_cuda()
    bandwidth = copy_bandwidth(torch.device("cuda"))
    row("device", torch.cuda.get_device_name(), torch=torch.__version__, copy_tb_s=bandwidth / 1e12)
    for name, run in cases(bandwidth).items():
        if options.only not in name:
            continue
        try:
            torch.cuda.empty_cache()
            run()
        except Exception as error:  # one broken case must not hide the others
            traceback.print_exc()
            row(name, "FAILED", error=f"{type(error).__name__}: {error}"[:300])
    print("\n" + "\n".join(f"{r['case']:28} {r['what']:30} {_numbers(r)}" for r in ROWS))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(ROWS, file, indent=1)


def _numbers(entry: dict[str, Any]) -> str:
    items = ((k, v) for k, v in entry.items() if k not in ("case", "what"))
    return "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in items)


if __name__ == "__main__":
    main()
