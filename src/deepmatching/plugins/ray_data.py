"""Matching for ``map_batches`` of Ray Data.

>>> pairs = order_by_image(exhaustive_pairs("photos"))  # of deepmatching.bulk_matching.pairs: neighbours together
>>> rows = [{"image0": f"photos/{a}", "image1": f"photos/{b}"} for a, b in pairs]
>>> arguments = {"fn_constructor_kwargs": {"radius": 320}, "batch_size": 256, "concurrency": 4, "num_cpus": 4}
>>> ray.data.from_items(rows).map_batches(Match, **arguments).write_parquet("matches")

Images are described once for the pairs of a batch, and kept for the next batches as far as memory allows.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from deepmatching.bulk_matching.arrow import arrow_table, load_pyarrow
from deepmatching.bulk_matching.describing import DescribedImages
from deepmatching.bulk_matching.engine import ShardMatcher
from deepmatching.bulk_matching.pairs import order_by_image
from deepmatching.io.files import read_bytes
from deepmatching.matcher import DeepMatcher
from deepmatching.settings import MODEL


class _Images(DescribedImages):
    """Images by path, by address, or by a digest of contents that are known."""

    contents: Mapping[str, bytes] = {}

    def content(self, name: str) -> bytes:
        return self.contents[name] if name in self.contents else read_bytes(name, "image")


class Match:
    """Matches the pairs of a batch: a table of Arrow, or a dictionary of columns.

    The columns ``image0`` and ``image1`` are paths, addresses such as ``s3://bucket/a.jpg``, or the contents of files.
    The result is an Arrow table with the other columns, the paths, and those of ``deepmatching.bulk_matching.arrow``.
    A pair that cannot be matched has a ``failure``.

    Args:
        model: name or file of the model.
        batch_size: pairs of equal sizes that are matched at once; None for 1 on a CPU and 16 on a GPU.
        min_confidence: keep only matches with at least this confidence; None for all.
        settings: of the matcher, such as ``radius=256``.
    """

    def __init__(
        self,
        model: str = MODEL,
        batch_size: int | None = None,
        min_confidence: float | None = None,
        **settings: Any,
    ) -> None:
        load_pyarrow()
        matcher = DeepMatcher.from_pretrained(model, **settings)
        self._engine = ShardMatcher(matcher, "", "", batch_size, min_confidence=min_confidence)
        self._engine.images.close()
        self._engine.images = self._images = _Images(matcher, "", matcher.settings.searches)

    @property
    def described(self) -> int:
        """The number of images that were described, each time it was necessary."""
        return self._images.described

    def __call__(self, batch: Any) -> Any:
        """Return the table of the batch's pairs, in order."""
        arrow = load_pyarrow()
        table = batch if isinstance(batch, arrow.Table) else arrow.table(dict(batch))
        sides = [table[f"image{side}"].to_pylist() for side in (0, 1)]
        contents: dict[str, bytes] = {}
        names = [[_name(value, contents) for value in values] for values in sides]
        self._images.contents = contents
        pairs = list(zip(*names, strict=True))
        ordered = order_by_image(list(dict.fromkeys(pairs)))
        found = {pair.names: pair for pair in self._engine.start(ordered)()}
        matched = arrow_table([found[pair] for pair in pairs])
        for side, values in enumerate(sides):
            if any(isinstance(value, bytes) for value in values):
                matched, table = (each.drop_columns([f"image{side}"]) for each in (matched, table))
        for place, name in enumerate(name for name in table.column_names if name not in matched.column_names):
            matched = matched.add_column(place, table.schema.field(name), table[name])
        return matched


def _name(value: str | bytes, contents: dict[str, bytes]) -> str:
    """Return the name of an image: its path, or a digest of its content, which is kept under it."""
    if isinstance(value, str):
        return value
    name = hashlib.blake2b(value, digest_size=16).hexdigest()
    contents[name] = bytes(value)
    return name
