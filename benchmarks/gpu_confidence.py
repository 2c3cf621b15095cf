"""The confidence of matches on a GPU: what it adds to matching, and how far half precision is from float32.

    PYTHONPATH=src python benchmarks/gpu_confidence.py [--models compact vgg] [--radius 80] [--variants]

Times are medians by CUDA events of recorded graphs, for a pair of 1024×436 pixels. ``--variants`` also times other
block sizes, float32 convolutions and cuDNN's search for the fastest algorithms, and lists the kernels by their time.
"""

import argparse
import traceback
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import deepmatching as dm
from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded
from deepmatching.kernels.cuda_graphs import record
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators.correlation import full_precision
from deepmatching.network.operators.evidence import gather_evidence
from deepmatching.network.operators.subpixel import scores_around
from deepmatching.settings import RADIUS
from gpu_kernels import SIZE, graphed, images, milliseconds, require_cuda, row


class Judged:
    """A pair matched by one model, and the parts of judging its matches."""

    def __init__(self, name: str, radius: int) -> None:
        self.name = name
        self.network: Network = dm.DeepMatcher.from_pretrained(name, radius=radius, device="cuda").network
        self.images = images(1, SIZE)
        self.geometry: Geometry = self.network.geometry_of(*self.images)
        self.cells: tuple[Tensor, Tensor] = self.network.describe(*self.images, self.geometry)
        self.decoded: Decoded = self.network.decode_descriptors(*self.cells, self.geometry, Decoding(confidence=False))
        patch, exponent = self.network.descriptor.patch, float(self.network.exponents[0])
        self.around = scores_around(self.decoded, *self.cells, self.geometry, patch, exponent)

    def evidence(self) -> Tensor:
        """Return the evidence of all matches."""
        patch = self.network.descriptor.patch
        return gather_evidence(self.decoded, self.around, *self.cells, self.geometry, patch)

    def logits(self, evidence: Tensor, dtype: torch.dtype | None = torch.float16) -> Tensor:
        """Return the network's answer, from convolutions of this type."""
        confidence = self.network.confidence
        assert confidence is not None
        return confidence(evidence, self.decoded.points1, *self.cells, self.geometry, dtype)

    def both(self) -> Tensor:
        """Return everything that the confidence adds to matching."""
        return self.network.estimate_confidence(self.decoded, self.around, *self.cells, self.geometry).sigmoid()

    # ------------------------------------------------------------------ what is measured

    def ratio(self) -> None:
        """Time whole decodings with and without the confidence."""
        times, nu = [], self.network.exponents.tolist()
        for decoding in (Decoding(confidence=False), Decoding()):
            graph, _ = record(partial(self.network.decode, *self.images, decoding, exponents=nu))
            times.append(milliseconds(graph.replay))
        without, judged = times
        row(self.name, "decode", without_ms=without, with_ms=judged, added_ms=judged - without, ratio=judged / without)

    def agreement(self) -> None:
        """Compare kernels and half precision with the definitions in float32."""
        torch.cuda.empty_cache()
        for size in (2**18, 2**24):  # free memory that holds no numbers, which kernels must not read
            [torch.full((size,), torch.nan, device="cuda") for _ in range(32)]
        evidence, found = self.evidence(), self.both()
        with plain_operators(), full_precision():
            expected = self.evidence()
            logits = self.logits(expected, None)
        error = (evidence - expected).abs()
        probabilities = (found - logits.sigmoid()).abs()
        row(
            self.name,
            "agreement",
            is_finite=bool(found.isfinite().all()),
            evidence_error=float(error.max()),
            worst_channel=int(error.amax((0, 2, 3)).argmax()),
            points_off=int((error.amax(1) > 1e-3).sum()),
            probability_error=float(probabilities.max()),
            mean_probability_error=float(probabilities.mean()),
        )

    def stages(self) -> None:
        """Time the evidence and the network, each on its own."""
        evidence = self.evidence()
        self.time("evidence", self.evidence)
        self.time("network", lambda: self.logits(evidence))
        self.time("evidence and network", self.both)

    def time(self, what: str, function: Callable[[], object]) -> None:
        """Time one call, recorded."""
        row(self.name, what, ms=milliseconds(graphed(function)))

    # ------------------------------------------------------------------ variants

    def windows(self) -> None:
        """Contexts with other blocks, and by cuDNN."""
        from deepmatching.kernels.gpu.matching import contexts
        from deepmatching.network.convolutions import converted_to

        confidence = self.network.confidence
        assert confidence is not None
        converted = converted_to(torch.float16, confidence)
        self.time("conversion of the weights", lambda: converted_to(torch.float16, confidence))
        chosen = contexts.WINDOWS, contexts.WARPS
        for contexts.WINDOWS, contexts.WARPS in ((32, 4), (32, 2), (16, 2), (64, 4), (64, 8)):
            what = f"contexts, {contexts.WINDOWS} windows, {contexts.WARPS} warps"
            self.time(what, lambda: confidence.describe(self.cells, converted))
        contexts.WINDOWS, contexts.WARPS = chosen
        with plain_operators():
            self.time("contexts by cuDNN", lambda: confidence.describe(self.cells, converted))

    def float32(self) -> None:
        """Run the network with float32 convolutions (TF32)."""
        evidence = self.evidence()
        self.time("network, float32 convolutions", lambda: self.logits(evidence, None))

    def definitions(self) -> None:
        """Without kernels."""
        with plain_operators():
            evidence = self.evidence()
            self.time("evidence, plain", self.evidence)
            self.time("network, plain", lambda: self.logits(evidence, None))

    def kernels(self) -> None:
        """Print the kernels by their time."""
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            self.both()
            torch.cuda.synchronize()
        for event in sorted(profile.key_averages(), key=lambda e: -e.device_time_total)[:30]:
            print(f"  {event.device_time_total:8.1f} us {event.count:4d} x {event.key[:110]}", flush=True)

    def search(self) -> None:
        """Run the network with the algorithms that cuDNN finds fastest."""
        evidence = self.evidence()
        with torch.backends.cudnn.flags(benchmark=True):
            self.time("network, cuDNN searched", lambda: self.logits(evidence))


@torch.no_grad()
def main() -> None:
    """All models; a part that fails does not hide the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["compact", "vgg"])
    parser.add_argument("--radius", type=int, default=RADIUS)
    parser.add_argument("--variants", action="store_true")
    options = parser.parse_args()
    require_cuda()
    row("device", torch.cuda.get_device_name(), torch=torch.__version__, cudnn=torch.backends.cudnn.version())
    parts = [Judged.ratio, Judged.agreement, Judged.stages]
    if options.variants:
        parts += [Judged.kernels, Judged.windows, Judged.float32, Judged.definitions, Judged.search]
    models: list[Judged] = []
    for name in options.models:
        try:
            models.append(Judged(name, options.radius))
        except Exception:
            traceback.print_exc()
    for part in parts:  # what matters most comes first, for every model
        for model in models:
            try:
                part(model)
            except Exception:
                traceback.print_exc()
                row(model.name, f"FAILED: {part.__name__}")


if __name__ == "__main__":
    main()
