"""Which transformations a pair needs: candidates at a reduced size, fitted, checked, and compared with none at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from deepmatching.geometry.homographies import jacobians
from deepmatching.network.network import Network
from deepmatching.search.candidates import Candidate, try_all, try_tilted
from deepmatching.search.transformations import FIRST, Transformation, check, fit

#: Candidates that are looked at, and the least agreement of one; the second, if a transformation has been found or the
#: candidate is a plane seen from the side. After so many that lead nowhere, those that agree less are not looked at.
CANDIDATES, AGREEMENT, MORE_AGREEMENT, IN_VAIN = 6, 0.03, 0.04, 3

#: A transformation of less support has not been found. If none is, planes seen from the side are tried, too, turned by
#: at most this many degrees: with all rotations, a search of unrelated images of 512×384 pixels would take longer than
#: three matches.
WEAK, UPRIGHT = 0.25, 45.0

#: A candidate counts if the ones before leave this share of its matches unexplained.
LEFT = 0.3

#: Times that a transformation is checked and fitted to the matches that it gives; once, if its support is this high.
ROUNDS, HIGH = 2, 0.9

#: The least support of a candidate at the first look, and the least sum of its matches' confidences.
FIRST_SUPPORT, FIRST_FEWEST = 0.04, 2.0

#: The least support of a transformation, and the least sum of its matches' confidences.
SUPPORT, FEWEST = 0.15, 8.0

#: A transformation is used beside others if it adds this share of the first image, and this share of its own area.
GAIN, OWN_GAIN = 0.05, 0.25

#: Transformations that are used for a pair.
MOST = 3

#: Plain matching copes with derivatives that differ from the identity by this much, and displacements of this share of
#: its radius.
TILT, REACH = 0.15, 0.6


@torch.no_grad()
def find_models(
    images: tuple[np.ndarray, np.ndarray],
    network: Network,
    transformations: Sequence[tuple[float, float]],
    radius: int | None,
) -> list[Transformation]:
    """The transformations that the pair needs, the one that explains most first; the identity may be among them.

    A transformation that explains little more than the identity does not count.

    Args:
        images: (H, W, C) each.
        transformations: rotations and zooms to try.
        radius: of plain matching.
    """
    identity = check(images, network, np.eye(3), radius)
    found = [] if identity is None else [identity]
    if identity is not None and images[0].shape[:2] == images[1].shape[:2] and identity.support >= 1 - GAIN:
        return found  # no transformation can explain as much more as it must
    _add(found, try_all(images, network, transformations), images, network, AGREEMENT)
    if all(model.support < WEAK for model in found):
        turns = {rotation for rotation, zoom in transformations if zoom == 1}
        rotations = sorted(turn for turn in turns if abs((turn + 180) % 360 - 180) <= UPRIGHT)
        _add(found, try_tilted(images, network, rotations), images, network, MORE_AGREEMENT)
    return choose(found, images[0][..., 0].size, radius)


def _add(
    found: list[Transformation],
    candidates: list[Candidate],
    images: tuple[np.ndarray, np.ndarray],
    network: Network,
    agreement: float,
) -> None:
    """Append the models of the best candidates that the ones before do not explain."""
    in_vain = 0
    for candidate in candidates[:CANDIDATES]:
        is_found = any(model.support >= WEAK for model in found)
        if candidate.agreement < (MORE_AGREEMENT if is_found else agreement):
            break
        left = np.ones(len(candidate.points0))
        for model in found:
            left = np.minimum(left, 1 - explained(candidate, model))
        if (candidate.weights * left).sum() < LEFT * candidate.weights.sum():
            continue
        new = left >= 0.5
        matrix = fit(candidate.points0[new], candidate.points1[new], candidate.spacing, planar=False)
        refined = None if matrix is None else refine(images, network, matrix)
        if refined is not None:
            found.append(refined)
        else:
            in_vain += 1
        if in_vain == IN_VAIN:
            break


def refine(images: tuple[np.ndarray, np.ndarray], network: Network, matrix: np.ndarray) -> Transformation | None:
    """Look at a transformation, fit it to the matches that it gives, and so on while they become more."""
    look = check(images, network, matrix, times=FIRST)
    if look is None or look.support < FIRST_SUPPORT or look.weights.sum() < FIRST_FEWEST:
        return None
    fitted = fit(look.points0, look.points1, max(1.0, look.within))
    best = None
    for _ in range(ROUNDS):
        model = check(images, network, matrix if fitted is None else fitted)
        if model is None or (best is not None and model.area <= best.area):
            break
        grown = best is None or model.area > 1.02 * best.area
        best = model
        fitted = fit(model.points0, model.points1, max(1.0, model.within))
        if fitted is not None and model.support >= HIGH:  # another round would find no more
            best = replace(model, matrix=fitted)
            break
        if fitted is None or not grown or model.weights.sum() < FEWEST / 2:
            break
    return best if best is not None and best.support >= SUPPORT and best.weights.sum() >= FEWEST else None


def explained(candidate: Candidate, model: Transformation) -> np.ndarray:
    """How confident a model's matches are that agree with those of a candidate nearby, (N,); 0 if they do not agree."""
    near, distance = _nearest(candidate.points0, model.points0)
    if not len(model.points0):
        return np.zeros(len(candidate.points0))
    steps = candidate.points0 - model.points0[near]
    expected = model.points1[near] + (jacobians(model.matrix, model.points0[near]) @ steps[..., None])[..., 0]
    off = np.hypot(*(expected - candidate.points1).T)
    return np.where((distance <= 2 * model.spacing) & (off <= candidate.spacing), model.weights[near], 0)


def choose(found: list[Transformation], pixels: int, radius: int | None) -> list[Transformation]:
    """The models that are needed, the one that explains most first.

    Models that plain matching copes with count as the identity.
    """
    plain = [model for model in found if is_plain(model, radius)]
    others = sorted((model for model in found if not is_plain(model, radius)), key=lambda model: -model.area)
    identity = found[:1] if found and np.array_equal(found[0].matrix, np.eye(3)) else []
    chosen: list[Transformation] = []
    ranked = others + identity
    if identity and (not others or gain(others[0], plain + identity) < max(GAIN * pixels, OWN_GAIN * others[0].area)):
        ranked = identity + others
    for model in ranked[: MOST + 1]:
        if not chosen or gain(model, chosen) >= max(GAIN * pixels, OWN_GAIN * model.area):
            chosen.append(model)
    return chosen[:MOST]


def is_plain(model: Transformation, radius: int | None) -> bool:
    """Whether plain matching copes with a transformation."""
    if not len(model.points0):
        return True
    tilts = np.linalg.norm(jacobians(model.matrix, model.points0) - np.eye(2), ord=2, axis=(1, 2))
    moved = np.abs(model.points1 - model.points0).max(axis=1)
    return bool(np.median(tilts) <= TILT and (radius is None or np.median(moved) <= REACH * radius))


def gain(model: Transformation, others: list[Transformation]) -> float:
    """Pixels of the first image that a model explains and others do not."""
    weights = model.weights.copy()
    for other in others:
        if len(other.points0):
            near, distance = _nearest(model.points0, other.points0)
            there = np.where(distance <= other.spacing, other.weights[near], 0)
            weights = np.minimum(weights, np.maximum(model.weights - there, 0))
    return float(weights.sum()) * model.spacing**2


def _nearest(points: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each point, the index of the nearest of others, and the largest coordinate difference to it."""
    if not len(among):
        return np.zeros(len(points), int), np.full(len(points), np.inf)
    apart = np.abs(points[:, None] - among[None]).max(axis=2)
    near = apart.argmin(axis=1)
    return near, apart[np.arange(len(points)), near]
