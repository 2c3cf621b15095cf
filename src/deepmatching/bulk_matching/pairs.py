"""Which pairs to match: from a file, all of a folder, neighbours in a sequence, or the most similar images.

Images are named by their path below the folder of images, with ``/`` on every system. A pair of the same two images is
matched once, in the direction in which it comes first.
"""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from deepmatching.errors import DeepMatchingError, check_number, counted, short_repr
from deepmatching.io.addresses import scheme_of, shown
from deepmatching.io.arrays import open_hdf5
from deepmatching.io.files import PathLike, as_path, is_file, list_names, read_bytes
from deepmatching.io.image_files import PICTURE_SUFFIXES
from deepmatching.io.video import natural_order

Pair = tuple[str, str]

#: What the folder of a run has; see ``deepmatching.bulk_matching.storage``.
MANIFEST, SHARDS = "run.json", "shards"
_HDF5 = (".h5", ".hdf5")  #: Suffixes of files of global descriptors.
BLOCK = 16  #: Images per side of the blocks that pairs are ordered in; see :func:`order_by_image`.


def list_images(folder: PathLike) -> list[str]:
    """Return the names of all images in a folder and the folders in it, in natural order: photo_2 before photo_10.

    Hidden files and folders do not count, nor does what the folders of runs contain, such as pictures of flow.
    """
    if scheme_of(folder):
        return _pictures_below(folder)
    if not os.path.isdir(folder):
        raise DeepMatchingError(f"There is no folder of images '{folder}'; check the path.")
    names = []
    for place, folders, files in os.walk(folder):
        if MANIFEST in files and SHARDS in folders and not os.path.samefile(place, folder):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(place).relative_to(folder)
        names += [
            (below / name).as_posix()
            for name in files
            if Path(name).suffix.lower() in PICTURE_SUFFIXES and not name.startswith(".")
        ]
    return sorted(names, key=natural_order)


def _pictures_below(address: PathLike) -> list[str]:
    """Return the names of all images below an address, as :func:`list_images` does."""
    there = list_names(address)
    if not there:
        raise DeepMatchingError(f"There is nothing below '{shown(address)}'; check the address.")
    runs = tuple(name.removesuffix(MANIFEST) for name in there if name.endswith(f"/{MANIFEST}"))
    names = [name for name in there if Path(name).suffix.lower() in PICTURE_SUFFIXES and not name.startswith(runs)]
    return sorted((name for name in names if not re.search(r"(^|/)\.", name)), key=natural_order)


def exhaustive_pairs(folder: PathLike) -> list[Pair]:
    """Pair every image of a folder with every other."""
    return _enough(list(combinations(list_images(folder), 2)), folder)


def sequential_pairs(folder: PathLike, neighbours: int) -> list[Pair]:
    """Pair every image of a folder with up to ``neighbours`` that follow it in natural order."""
    check_number("--sequential", neighbours, minimum=1, whole=True)
    names = list_images(folder)
    return _enough([(names[n], other) for n in range(len(names)) for other in names[n + 1 :][:neighbours]], folder)


def retrieved_pairs(path: PathLike, folder: PathLike, neighbours: int) -> list[Pair]:
    """Pair every image of a folder with up to ``neighbours`` that are most similar to it.

    The file has lines "query image", best first, as hloc's retrieval writes, or is an HDF5 file with one
    ``global_descriptor`` per image, as hloc's ``extract_features`` writes.
    """
    check_number("--neighbours", neighbours, minimum=1, whole=True)
    if as_path(path).suffix.lower() in _HDF5:
        found = _nearest(path, list_images(folder), neighbours)
    else:
        found, counts = [], dict[str, int]()
        for query, other in _read_lines(path, folder):
            counts[query] = counts.get(query, 0) + 1
            if counts[query] <= neighbours:
                found.append((query, other))
    return _enough(unique_pairs(found), path)


def read_pairs(path: PathLike, folder: PathLike) -> list[Pair]:
    """Read the pairs of a text file with two names on a line, as hloc writes; further words on a line are ignored.

    Names with spaces need a tab between them, or files of both names in ``folder``.
    """
    return _enough(unique_pairs(_read_lines(path, folder)), path)


def unique_pairs(pairs: Iterable[Sequence[str]]) -> list[Pair]:
    """Return the pairs in order, without images with themselves and pairs that came before in either direction."""
    found: dict[Pair, Pair] = {}
    if not isinstance(pairs, Iterable) or isinstance(pairs, bytes):
        raise DeepMatchingError(f"pairs must be the path of a list or pairs of names, not {short_repr(pairs)}.")
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise DeepMatchingError(f"A pair must be two names of images, not {pair!r}.")
        if pair[0] != pair[1]:
            first, second = pair
            found.setdefault((first, second) if first < second else (second, first), (first, second))
    return list(found.values())


def order_by_image(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs in an order that needs few images at a time.

    Images are numbered in natural order. Pairs go by blocks of :data:`BLOCK` images with as many others, and within a
    block to and fro. N² pairs of N images then describe an image N / BLOCK times if 2 · BLOCK of them fit in memory,
    instead of 2 N times.
    """
    names = sorted({name for pair in pairs for name in pair}, key=natural_order)
    number = {name: place for place, name in enumerate(names)}

    def place(pair: Pair) -> tuple[int, int, int, int]:
        row, column = number[pair[0]], number[pair[1]]
        return row // BLOCK, column // BLOCK, row, column if row % 2 == 0 else -column

    return sorted(pairs, key=place)


def _enough(pairs: list[Pair], source: PathLike) -> list[Pair]:
    if not pairs:
        raise DeepMatchingError(f"'{source}' gives no pair of images: it needs at least two images.")
    return pairs


def _read_lines(path: PathLike, folder: PathLike) -> list[Pair]:
    try:
        text = read_bytes(path, "pairs file").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DeepMatchingError(f"The pairs file '{path}' is not text in UTF-8; write two names on a line.") from None
    lines = enumerate(text.splitlines(), 1)
    read = (names_on(line, number, path, folder) for number, line in lines if line.strip() and not line.startswith("#"))
    return [(sys.intern(first), sys.intern(second)) for first, second in read]  # each name is in memory once


def names_on(line: str, number: int, path: PathLike, folder: PathLike) -> Pair:
    """Return the two names on a line. With more than two words, those of files that exist."""
    has_tab = "\t" in line.strip()
    words = [word.strip() for word in line.split("\t") if word.strip()] if has_tab else line.split()
    if len(words) == 2 or (len(words) > 2 and has_tab):
        return words[0], words[1]
    for middle in range(1, len(words)):
        for end in range(len(words), middle, -1):
            first, second = " ".join(words[:middle]), " ".join(words[middle:end])
            if all(is_file(Path(folder, name)) for name in (first, second)):
                return first, second
    raise DeepMatchingError(
        f"Line {number} of '{path}' does not name two images ('{line.strip()[:80]}'); write two names, with a tab "
        "between names that have spaces."
    )


def _nearest(path: PathLike, names: list[str], neighbours: int) -> list[Pair]:
    """Pair every image with those whose global descriptors have the largest product with its own."""
    with open_hdf5(path, "file of global descriptors") as stored:
        if missing := [name for name in names if "global_descriptor" not in stored.get(name, {})]:
            count = f"{counted(len(missing), 'image')}, such as '{missing[0]}'"
            raise DeepMatchingError(f"'{path}' has no global_descriptor of {count}; extract them again.")
        rows = [stored[name]["global_descriptor"].astype(np.float32).reshape(-1) for name in names]
    if len({len(row) for row in rows}) > 1:
        raise DeepMatchingError(f"'{path}' has global descriptors of different lengths; extract them again.")
    table = np.stack(rows) if rows else np.zeros((0, 1), np.float32)
    pairs: list[Pair] = []
    for place, row in enumerate(table):
        best = np.argsort(-(table @ row), kind="stable")
        pairs += [(names[place], names[other]) for other in best[best != place][:neighbours]]
    return pairs
