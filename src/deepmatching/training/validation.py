"""How good the network's matches are, while it trains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch

from deepmatching.datasets import Pair
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import match_metrics
from deepmatching.inference import Decoding
from deepmatching.matches import matches_of
from deepmatching.memory import budget_for, plan_decoding
from deepmatching.network import Network
from deepmatching.operators.decoding import Decoded
from deepmatching.training.config import SYNTHETIC, TRAIN, Config
from deepmatching.training.data import (
    Pairs,
    TrainingData,
    fixed_pairs,
    image_files,
    is_manifest,
    open_pairs,
    synthesizer,
)
from deepmatching.training.distributed import World

#: The figures of a validation: acc@T and coverage in %, EPE of the matches in pixels.
FIGURES = ("acc@2", "acc@5", "acc@10", "epe", "coverage")

#: Synthetic pairs to validate on, unless ``validation.limit`` says otherwise.
SYNTHETIC_PAIRS = 32

#: Pairs that are read ahead.
_AHEAD = 4


class Validation:
    """The validation pairs of a config, shared out among the processes."""

    def __init__(self, config: Config, training: TrainingData, world: World) -> None:
        self.world, self.criterion = world, config.validation.criterion.split("+")
        self.radius = None if config.validation.radius == "full" else config.validation.radius
        self.pairs = _pairs(config, training, world)
        total, limit = len(self.pairs), config.validation.limit
        chosen = range(total) if not limit or limit >= total else [n * total // limit for n in range(limit)]
        self.mine = list(chosen)[world.rank :: world.size]
        is_wanted = config.data.overfit or config.validation.data == (TRAIN,)
        self.warning = "" if is_wanted else _warning(self.pairs, chosen, training.pairs)

    def __call__(self, network: Network, is_cancelled: Callable[[], object] = bool) -> dict[str, float] | None:
        """The mean over pairs of each of ``FIGURES``, NaN if it is defined for none; None if it was cancelled."""
        sums = torch.zeros(2, len(FIGURES), dtype=torch.float64)
        with self.world.together("Validating"), _judged(network, self.radius), ThreadPoolExecutor(_AHEAD) as pool:
            # One pool for both ends: pairs that wait to be judged keep new ones from being read.
            read = _ahead(pool, ((self.pairs, index) for index in self.mine))
            judged = []
            for pair in read:
                if self.world.size == 1 and is_cancelled():
                    return None
                judged.append(pool.submit(_figures, *_match(network, pair, self.world.device)))
            for future in judged:
                figures = future.result()
                for n, name in enumerate(FIGURES):
                    if not math.isnan(figures[name]):
                        sums[:, n] += torch.tensor([figures[name], 1.0], dtype=torch.float64)
        totals, counts = self.world.sum(sums).tolist()
        return {name: totals[n] / counts[n] if counts[n] else math.nan for n, name in enumerate(FIGURES)}

    def score(self, figures: dict[str, float]) -> float:
        """What the best checkpoint has the most of."""
        return sum(figures[name] for name in self.criterion)


def _pairs(config: Config, training: TrainingData, world: World) -> Pairs:
    data, validation = config.data, config.validation
    if data.overfit or validation.data == (TRAIN,):
        assert training.pairs is not None
        return training.pairs
    if validation.data == (SYNTHETIC,):
        count = validation.limit or SYNTHETIC_PAIRS
        return fixed_pairs(synthesizer(data, world, "val"), count, config.seed, "validation")
    return open_pairs(validation.data, _roots(config), validation.split or "val", data)


def _roots(config: Config) -> tuple[str, ...]:
    """``validation.root``, or that of the training data: the one for all, or those of the same data sets."""
    data, validation = config.data, config.validation
    if validation.root or len(data.root) < 2:
        return validation.root or data.root
    known = {name.lower(): root for name, root in zip(data.train, data.root, strict=True)}
    for name in validation.data:
        if name.lower() not in known and not is_manifest(name):
            raise DeepMatchingError(
                f"Where is '{name}'? data.root lists the folders of {', '.join(data.train)}: set validation.root."
            )
    return tuple(known.get(name.lower(), "") for name in validation.data)


def _warning(pairs: Pairs, chosen: Iterable[int], training: Pairs | None) -> str:
    """A sentence about the validation pairs that are trained on; empty if there are none."""
    trained, judged = set(image_files(training)) if training is not None else set(), image_files(pairs)
    judged = [judged[n] for n in chosen] if trained and judged else []
    count = sum(files in trained for files in judged)
    if not count:
        return ""
    return (
        f"{count} of the {len(judged)} validation pairs are also trained on, so that their figures promise too much: "
        "keep some pairs back for validation.data."
    )


def _ahead(pool: ThreadPoolExecutor, wanted: Iterable[tuple[Pairs, int]]) -> Iterator[Pair]:
    """Read pairs in threads, a few ahead of their use."""
    waiting: list[Future[Pair]] = []
    wanted = iter(wanted)
    while True:
        for pairs, index in islice(wanted, _AHEAD - len(waiting)):
            waiting.append(pool.submit(pairs.__getitem__, index))
        if not waiting:
            return
        yield waiting.pop(0).result()


@contextlib.contextmanager
def _judged(network: Network, radius: int | None) -> Iterator[None]:
    """While this lasts, the network matches with this radius and as many levels as an image allows."""
    before = network.radius, network.levels, network.training, torch.backends.cudnn.benchmark
    network.radius, network.levels = radius, None
    network.eval()
    torch.backends.cudnn.benchmark = False  # images are of many sizes
    try:
        yield
    finally:
        network.radius, network.levels = before[:2]
        network.train(before[2])
        torch.backends.cudnn.benchmark = before[3]


def _match(network: Network, pair: Pair, device: torch.device) -> tuple[Decoded, Pair]:
    image0, image1 = (image[None].to(device) for image in pair[:2])
    geometry = network.geometry_of(image0, image1)
    plan = plan_decoding(geometry, network.descriptor, 1, device.type, budget_for(device))
    return network.decode(image0, image1, Decoding(strips=plan.strips), geometry), pair


def _figures(decoded: Decoded, pair: Pair) -> dict[str, float]:
    return match_metrics(matches_of(decoded, 0), pair.flow.numpy())[0]["all"]
