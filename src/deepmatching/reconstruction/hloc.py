"""Keypoints and matches in the HDF5 layout of hloc (Hierarchical Localization).

The file of features has a group per image with ``keypoints`` (N, 2) float32, measured at pixel centres of the stored
image, and ``scores`` (N,). The attribute ``uncertainty`` of the keypoints is a pixel of the size at which the image was
matched, in pixels of the file; hloc's geometric verification allows for it.

The file of matches has a group per pair, ``NAME0/NAME1`` with ``-`` for ``/`` in names. It holds ``matches0`` (N0,)
int32, the number of the matching keypoint of the second image or −1, and ``matching_scores0`` (N0,) float16. Failed
pairs have a group without matches: hloc ends with an error if a pair of its list is missing.
"""

from __future__ import annotations

import io
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from deepmatching.bulk_matching.pairs import Pair
from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, check_suffix, write_file
from deepmatching.io.image_files import stored_size, to_stored
from deepmatching.reconstruction.keypoints import SharedKeypoints, SharedMatches

if TYPE_CHECKING:
    import h5py

SUFFIXES = (".h5", ".hdf5")


def names_to_pair(names: Pair) -> str:
    """Return hloc's name for a pair: the path of its group in the file of matches."""
    return "/".join(name.replace("/", "-") for name in names)


def check_hloc_suffix(path: PathLike) -> str:
    """Return the suffix in lower case; raise unless it is one of HDF5."""
    return check_suffix(path, SUFFIXES, "features or matches")


def write_hloc(keypoints: SharedKeypoints, features: PathLike, matches: PathLike) -> int:
    """Write both files; return the number of matches."""
    import h5py

    known: dict[str, str] = {}  # by the name in the file of matches
    for name in keypoints.run.plan.names:
        if (other := known.setdefault(name.replace("/", "-"), name)) != name:
            raise DeepMatchingError(
                f"hloc cannot tell the images '{other}' and '{name}' apart: rename one of them, and match them again."
            )
    # In memory: on a full disk, the HDF5 library ends the process.
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name in known.values():
            _write_features(file.create_group(name), name, keypoints)
    write_file(features, stream.getbuffer())
    stream, count = io.BytesIO(), 0
    nothing = np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
    failed = (SharedMatches(names, *nothing) for names in keypoints.run.failures())
    with h5py.File(stream, "w") as file:
        for pair in chain(keypoints.matches(), failed):
            image = keypoints.images.get(pair.names[0])
            number = 0 if image is None else len(image.points)
            matches0, scores0 = np.full(number, -1, np.int32), np.zeros(number, np.float16)
            matches0[pair.indices[:, 0]] = pair.indices[:, 1]
            scores0[pair.indices[:, 0]] = pair.scores
            group = file.create_group(names_to_pair(pair.names))
            group.create_dataset("matches0", data=matches0)
            group.create_dataset("matching_scores0", data=scores0)
            count += len(pair.indices)
    write_file(matches, stream.getbuffer())
    return count


def _write_features(group: h5py.Group, name: str, keypoints: SharedKeypoints) -> None:
    """Write the keypoints of an image; none if all its pairs failed."""
    image = keypoints.images.get(name)
    if image is None:
        group.create_dataset("keypoints", data=np.zeros((0, 2), np.float32))
        group.create_dataset("scores", data=np.zeros(0, np.float32))
        return
    points = to_stored(image.points, image.size, image.orientation)
    stored = group.create_dataset("keypoints", data=points.astype(np.float32))
    stored.attrs["uncertainty"] = keypoints.scale(name)
    group.create_dataset("scores", data=image.scores)
    rows, columns = stored_size(image.size, image.orientation)
    group.create_dataset("image_size", data=np.array([columns, rows], np.int64))
