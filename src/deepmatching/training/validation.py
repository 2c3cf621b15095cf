"""How good the network's matches are during training."""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from deepmatching.data.datasets import Pair
from deepmatching.data.datasets.opening import is_published
from deepmatching.data.datasets.pairs import PairDataset
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import match_metrics
from deepmatching.evaluation.metrics import area_under_roc
from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.limits import release_freed
from deepmatching.matches import Matches
from deepmatching.network.inference import Decoding
from deepmatching.network.losses import is_right
from deepmatching.network.memory import Work, budget_for, plan_decoding
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded
from deepmatching.settings import THRESHOLDS, Rank, radius_in_pixels
from deepmatching.training.config import SYNTHETIC, TRAIN, Config
from deepmatching.training.data import (
    TrainingData,
    fixed_pairs,
    image_files,
    is_manifest,
    open_pairs,
    root_of_each,
    synthesizer,
)
from deepmatching.training.processes import World

#: acc@T and coverage in %, EPE of the matches in pixels, and the area under the ROC curve of the confidence in %.
METRICS = (*(f"acc@{threshold}" for threshold in THRESHOLDS), "epe", "coverage", "auc")
SYNTHETIC_PAIRS = 32  #: number of synthetic validation pairs, unless ``validation.limit`` is set
_AHEAD = 4  #: number of pairs that are read ahead


class Validation:
    """The validation pairs of a config, distributed over the processes."""

    def __init__(self, config: Config, training: TrainingData, world: World) -> None:
        self.world, self.criterion = world, config.validation.criterion.split("+")
        self.radius, self.rank = radius_in_pixels(config.validation.radius), config.validation.rank
        self.decoding = Decoding(config.validation.reciprocal)
        self.pairs = _pairs(config, training, world)
        total, limit = len(self.pairs), config.validation.limit
        chosen = range(total) if not limit or limit >= total else [n * total // limit for n in range(limit)]
        self.own = list(chosen)[world.rank :: world.size]
        is_intended = config.data.overfit or config.validation.data == (TRAIN,)
        self.warning = "" if is_intended else _overlap_warning(self.pairs, chosen, training.pairs)

    def __call__(self, network: Network, is_cancelled: Callable[[], object] = bool) -> dict[str, float] | None:
        """Return the means over pairs of the ``METRICS`` that the network has; None if it was cancelled."""
        sums = torch.zeros(2, len(METRICS), dtype=torch.float64)
        with self.world.synchronized("Validating"), _evaluation_mode(network, self.radius):
            # One pool for reading and measuring: pairs that wait to be measured keep new ones from being read.
            with ThreadPoolExecutor(_AHEAD) as pool:
                measured = []
                for pair in _read_ahead(pool, self.pairs, self.own):
                    if self.world.size == 1 and is_cancelled():
                        return None
                    matched = _match(network, pair, self.world.device, self.decoding)
                    measured.append(pool.submit(_measure, *matched, self.rank))
            for future in measured:
                for name, value in future.result().items():
                    if name in METRICS and not math.isnan(value):
                        sums[:, METRICS.index(name)] += torch.tensor([value, 1.0], dtype=torch.float64)
        totals, counts = self.world.sum(sums).tolist()
        means = {name: totals[n] / counts[n] if counts[n] else math.nan for n, name in enumerate(METRICS)}
        return {name: mean for name, mean in means.items() if name != "auc" or network.confidence is not None}

    def score(self, metrics: dict[str, float]) -> float:
        """Return the criterion by which the best checkpoint is chosen; larger is better."""
        return sum(metrics.get(name, math.nan) for name in self.criterion)


def _pairs(config: Config, training: TrainingData, world: World) -> PairDataset:
    """Return the validation pairs of a config."""
    data, validation = config.data, config.validation
    if data.overfit or validation.data == (TRAIN,):
        assert training.pairs is not None
        return training.pairs
    if validation.data == (SYNTHETIC,):
        count = validation.limit or SYNTHETIC_PAIRS
        return fixed_pairs(synthesizer(data, world, "val"), count, config.seed, "validation")
    try:
        return open_pairs(validation.data, _roots(config), validation.split or "val", data)
    except DeepMatchingError as error:
        if validation.root or set(validation.data) <= set(data.train):
            raise
        what = f"{str(error).rstrip('.')}; this is validation.data={', '.join(validation.data)}"
        advice = "set validation.root to its own folder, or validation.data= for no validation"
        raise DeepMatchingError(f"{what}, looked for in data.root: {advice}.") from error


def check_folders(config: Config) -> None:
    """Raise if the folder of a data set is not given or does not exist; before models are built or downloaded."""
    sections = [("data", "train", config.data.train, config.data.root)]
    if config.validation.data != (TRAIN,) and not config.data.overfit:
        sections.append(("validation", "data", config.validation.data, _roots(config)))
    for section, field, names, roots in sections:
        for name, root in zip(names, root_of_each(names, roots), strict=True):
            if is_published(name) and not (root and Path(root).is_dir()):
                problem = f"there is no folder '{root}'" if root else "it needs the folder of the data set"
                raise DeepMatchingError(f"{section}.{field}={name}: {problem}; set {section}.root=DIR.")


def _roots(config: Config) -> tuple[str, ...]:
    """Return ``validation.root``, or the training data's: the root of all, or of the data sets of the same names."""
    data, validation = config.data, config.validation
    if validation.root or len(data.root) < 2:
        return validation.root or data.root
    known = {name.lower(): root for name, root in zip(data.train, data.root, strict=True)}
    for name in validation.data:
        if name.lower() not in known and not is_manifest(name):
            others = ", ".join(data.train)
            raise DeepMatchingError(f"The folder of '{name}' is not known (data.root: {others}): set validation.root.")
    return tuple(known.get(name.lower(), "") for name in validation.data)


def _overlap_warning(pairs: PairDataset, chosen: Iterable[int], training: PairDataset | None) -> str:
    """Return a sentence about validation pairs that are also training pairs; empty if there are none."""
    trained, validated = set(image_files(training)) if training is not None else set(), image_files(pairs)
    validated = [validated[n] for n in chosen] if trained and validated else []
    count = sum(files in trained for files in validated)
    what = f"{count} of the {len(validated)} validation pairs are also training pairs"
    return f"{what}, so their metrics are too optimistic: keep some pairs back for validation.data." if count else ""


def _read_ahead(pool: ThreadPoolExecutor, pairs: PairDataset, indices: Iterable[int]) -> Iterator[Pair]:
    """Read pairs in threads, a few ahead of their use."""
    waiting: deque[Future[Pair]] = deque()
    for index in indices:
        waiting.append(pool.submit(pairs.__getitem__, index))
        if len(waiting) == _AHEAD:
            yield waiting.popleft().result()
    yield from (future.result() for future in waiting)


@contextlib.contextmanager
def _evaluation_mode(network: Network, radius: int | None) -> Iterator[None]:
    """Let the network match with this radius and as many levels as an image allows, while the block lasts."""
    before = network.radius, network.levels, network.training, torch.backends.cudnn.benchmark
    network.radius, network.levels = radius, None
    network.eval()
    torch.backends.cudnn.benchmark = False  # images have many sizes
    try:
        yield
    finally:
        network.radius, network.levels = before[:2]
        network.train(before[2])
        torch.backends.cudnn.benchmark = before[3]


@torch.no_grad()
def _match(network: Network, pair: Pair, device: torch.device, decoding: Decoding) -> tuple[Decoded, Pair, Geometry]:
    """Return the matches of a pair."""
    image0, image1 = (image[None].to(device) for image in pair[:2])
    geometry = network.geometry_of(image0, image1)
    tiling = plan_decoding(Work.of(network, geometry, device.type), 1, budget_for(device)).tiling  # in free memory
    decoding = replace(decoding, tiling=tiling, between_strips=release_freed)
    cells = network.describe(image0, image1, geometry)
    return network.decode_descriptors(*cells, geometry, decoding), pair, geometry


def _measure(decoded: Decoded, pair: Pair, geometry: Geometry, rank: Rank) -> dict[str, float]:
    metrics = match_metrics(Matches.from_decoded(decoded)[0], pair.flow.numpy(), rank=rank)[0]["all"]
    if decoded.confidence is not None:
        moved = (decoded.points1 - decoded.points0).cpu()
        right, known = (answer.numpy() for answer in is_right(moved, pair.flow[None], geometry))
        metrics["auc"] = 100 * area_under_roc(decoded.confidence.cpu().numpy()[known], right[known])
    return metrics
