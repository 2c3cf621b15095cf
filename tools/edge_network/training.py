"""Trains the edge network on BSDS500: ``python -m edge_network.training --data BSDS500 --out edges.safetensors``.

All photographs stay in the device's memory, and every step cuts new views from them. The loss is the cross-entropy to
each annotator's map, averaged over the annotators. The learning rate follows the length of the run, given in
minutes (or steps): a slower machine takes fewer steps rather than more time. The result is a moving average of the
weights.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges import save_edge_network
from deepmatching.flow.edges.edge_network import EdgeNetwork
from deepmatching.io.files import check_writable, write_file
from deepmatching.kernels.cuda_graphs import record
from deepmatching.training.optimization import MovingAverage, cosine
from edge_network.augmentation import random_views
from edge_network.bsds import read_split
from edge_network.cutouts import load_cutouts

POSITIVE_WEIGHT = 10.0  #: weight of a boundary pixel in the loss: only one pixel in fifty is on a boundary
SIDE_WEIGHT = 0.25  #: weight of the coarser scales in the loss, against 1 for the finest
_WEIGHT_DECAY = 0.02  # of the kernels
_WARM_UP = 0.02  # fraction of the run over which the learning rate rises
_LARGEST_DECAY = 0.999  # of the moving average
_REPORT_EVERY = 20  # steps


def load_photographs(root: Path, splits: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return all photographs (N, 3, H, W) and the consensus of annotators (N, 1, H, W), both uint8, all landscape."""
    images, consensus = [], []
    for split in splits:
        for photograph in read_split(root, split):
            image, agreement = photograph.image, np.rint(255 * photograph.consensus()).astype(np.uint8)
            if image.shape[0] > image.shape[1]:
                image, agreement = np.rot90(image), np.rot90(agreement)
            images.append(torch.from_numpy(image.transpose(2, 0, 1).copy()))
            consensus.append(torch.from_numpy(agreement[None].copy()))
    return torch.stack(images).to(device), torch.stack(consensus).to(device)


def boundary_loss(logits: Tensor, consensus: Tensor, known: Tensor) -> Tensor:
    """Return the mean over annotators and known pixels of −w y log p − (1 − y) log(1 − p), p = sigmoid(logit).

    The loss is linear in y, so its mean over annotators is the loss at their mean, the consensus. All (B, 1, H, W).
    """
    weight = torch.full((), POSITIVE_WEIGHT, device=logits.device)
    losses = F.binary_cross_entropy_with_logits(logits.float(), consensus, pos_weight=weight, reduction="none")
    return (losses * known).sum() / known.sum().clamp(min=1)


class Trainer:
    """Makes the steps: views, loss, gradient, AdamW, moving average.

    On CUDA a step is recorded as a graph, which reads the learning rate from a tensor.

    Args:
        photographs: the result of :func:`load_photographs`.
        batch, size: views in a step, and their side in pixels.
        cutouts: the result of :func:`~edge_network.cutouts.load_cutouts`.
        graph: False to launch every kernel by itself on CUDA too.
    """

    def __init__(
        self,
        photographs: tuple[Tensor, Tensor],
        batch: int,
        size: int,
        cutouts: Tensor | None = None,
        graph: bool = True,
    ) -> None:
        self.device = photographs[0].device
        self.photographs, self.batch, self.size, self.cutouts = photographs, batch, size, cutouts
        on_cuda = self.device.type == "cuda"
        self.network = EdgeNetwork(normalise=True).to(self.device)
        self.average = MovingAverage(self.network)
        kernels = [p for p in self.network.parameters() if p.ndim > 1]
        others = [p for p in self.network.parameters() if p.ndim <= 1]
        groups = [{"params": kernels, "weight_decay": _WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        rate = torch.zeros((), device=self.device)
        self.optimizer = torch.optim.AdamW(groups, lr=rate, fused=on_cuda, capturable=on_cuda)
        self._step: Callable[[], Tensor] = self._work
        if on_cuda and graph:
            torch.backends.cudnn.benchmark = True
            with torch.cuda.device(self.device):
                recorded, loss = record(self._work)

            def replay() -> Tensor:
                recorded.replay()
                return loss.clone()  # the next replay overwrites it

            self._step = replay

    def step(self, rate: float, decay: float) -> Tensor:
        """Make a step with this learning rate and decay of the moving average; returns the loss, on the device."""
        for group in self.optimizer.param_groups:
            group["lr"].fill_(rate)
        loss = self._step()
        self.average.update(decay)
        return loss

    def _work(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        views, consensus, known = random_views(*self.photographs, self.batch, self.size, self.cutouts)
        views = views.contiguous(memory_format=torch.channels_last)
        # Without the cache: a recorded graph must cast the weights anew at every replay.
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda", cache_enabled=False):
            finest, *coarser = self.network.scales(views)
        loss = boundary_loss(finest, consensus, known)
        sides = [boundary_loss(logits, consensus, known) for logits in coarser]
        (loss + SIDE_WEIGHT * torch.stack(sides).sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def schedule(progress: float, peak: float) -> float:
    """Return the learning rate when this fraction of the run is done: a short rise, then half a cosine down to zero."""
    if progress < _WARM_UP:
        return peak * progress / _WARM_UP
    return peak * cosine((progress - _WARM_UP) / (1 - _WARM_UP))


def train(options: argparse.Namespace) -> None:
    """Train for the given minutes or steps; weights and log are written every half minute."""
    for path in (options.out, options.out.with_suffix(".json")):
        check_writable(path)
    torch.manual_seed(options.seed)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    photographs = load_photographs(options.data, options.splits, device)
    cutouts = load_cutouts(options.cutouts, device) if options.cutouts else None
    trainer = Trainer(photographs, options.batch, options.size, cutouts, not options.no_graph)
    log: list[dict[str, float]] = []
    losses: list[Tensor] = []
    steps, start = 0, time.monotonic()
    saved = start
    progress = 0.0
    while progress < 1:
        # The average follows the last thousand steps, or the later half of all steps while there are fewer.
        losses.append(trainer.step(schedule(progress, options.rate), min(_LARGEST_DECAY, steps / (steps + 2))))
        steps += 1
        minutes = (time.monotonic() - start) / 60
        progress = steps / options.steps if options.steps else minutes / options.minutes
        if steps % _REPORT_EVERY == 0:
            loss = torch.stack(losses).mean().item()  # waits for the device, so that the clock is right
            losses.clear()
            log.append({"step": steps, "minutes": round(minutes, 3), "loss": round(loss, 5)})
            if steps % (10 * _REPORT_EVERY) == 0:
                print(f"step {steps}  {log[-1]['minutes']:.2f} min  loss {loss:.4f}", flush=True)
        if time.monotonic() - saved > 30 or progress >= 1:
            save_edge_network(
                trainer.average.network.folded(), options.out, steps=str(steps), training_data=data_of(options)
            )
            write_file(options.out.with_suffix(".json"), json.dumps({"settings": settings_of(options), "log": log}))
            saved = time.monotonic()
    print(f"{steps} steps in {(time.monotonic() - start) / 60:.2f} min: {options.out}", flush=True)


def data_of(options: argparse.Namespace) -> str:
    """Return the training data, for the metadata of the model."""
    return f"BSDS500 {' and '.join(options.splits)}" + (", with cut-outs pasted in" if options.cutouts else "")


def settings_of(options: argparse.Namespace) -> dict[str, object]:
    """Return the options as JSON values."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of BSDS500")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors to write; the log goes beside it")
    parser.add_argument("--cutouts", type=Path, help="a folder of RGBA pictures to paste into the photographs")
    parser.add_argument("--splits", nargs="+", default=["train", "val"])
    parser.add_argument("--minutes", type=float, default=4.0, help="length of the run")
    parser.add_argument("--steps", type=int, help="length of the run in steps instead of minutes")
    parser.add_argument("--batch", type=int, default=32, help="views in a step")
    parser.add_argument("--size", type=int, default=320, help="side of a view in pixels")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--device", help="cpu or cuda (default: cuda if available)")
    parser.add_argument("--no-graph", action="store_true", help="do not record the step as a CUDA graph")
    parser.add_argument("--seed", type=int, default=0)
    try:
        train(parser.parse_args())
    except DeepMatchingError as error:
        parser.exit(2, f"deepmatching: {error}\n")


if __name__ == "__main__":
    main()
