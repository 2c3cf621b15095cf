"""The contents of scenes: what each layer shows, its place in frame 0 and its motion, drawn for a batch on the CPU."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from deepmatching.data.synthesis import motions
from deepmatching.data.synthesis.motions import PLANES, Numbers, Streets, Waves
from deepmatching.data.synthesis.photos import LARGEST_CUTOUT, LEVELS, Photos
from deepmatching.data.synthesis.settings import SynthesisSettings

_SMALLEST, _LARGEST = 0.1, 0.9  # sides of layers, in shorter sides of the frame
_SHARPEST = 1.4  # texels per pixel beyond which a picture is taken at half its size


@dataclass
class Windows(Generic[Numbers]):
    """Square windows cut out of pictures.

    Texel (i, j) of a window, counted from its middle, is texel (⌊row + i·row_step⌋, ⌊column + j·column_step⌋) of its
    picture, which continues beyond its edges with the edge texel where `clamp`, and mirrored otherwise.
    """

    offset: Numbers
    height: Numbers
    width: Numbers
    row: Numbers
    column: Numbers
    row_step: Numbers
    column_step: Numbers
    clamp: Numbers


@dataclass
class Objects:
    """The layers in front of the backgrounds, (n, K) of everything."""

    textures: Windows[np.ndarray]
    masks: Windows[np.ndarray]
    placement: np.ndarray  #: (n, K, 3, 3)
    centre: np.ndarray  #: (n, K, 2) in frame 0
    extent: np.ndarray  #: (n, K) longest side in frame 0, in pixels
    box: np.ndarray  #: (n, K, 2) sides x, y of what is visible of the window, in texels
    is_present: np.ndarray  #: (n, K)


def _level_of(rng: np.random.Generator, density: np.ndarray, settings: SynthesisSettings) -> np.ndarray:
    """Draw the level of a picture whose full size has `density` texels per pixel; out of focus, one level more."""
    level = np.ceil(np.log2(density / _SHARPEST)) + (rng.uniform(size=density.shape) < settings.soft)
    return np.clip(level, 0, LEVELS - 1).astype(np.int64)


def _windows(photos: Photos, index: np.ndarray, level: np.ndarray, clamp: np.ndarray) -> Windows[np.ndarray]:
    offset, height, width = np.moveaxis(photos.table[index, level], -1, 0)
    zero, one = np.zeros(offset.shape), np.ones(offset.shape)
    return Windows(offset, height, width, zero, zero.copy(), one, one.copy(), clamp)


def draw_background(
    rng: np.random.Generator, photos: Photos, size: tuple[int, int], count: int, settings: SynthesisSettings
) -> tuple[Windows[np.ndarray], np.ndarray]:
    """Draw a window of a photograph, enlarged up to twice or reduced to 0.6, turned a little, half of them mirrored."""
    index = rng.integers(0, photos.photograph_count, count)
    sides = photos.table[index, 0, 1:].astype(float)  # rows, columns
    fit = (sides / (np.array(size) + 16)).min(1)  # texels per pixel that show the whole photograph
    density = np.exp(rng.uniform(np.log(0.5), np.log(np.clip(1.1 * fit, 0.55, 1.67))))
    level = _level_of(rng, density, settings)
    window = _windows(photos, index, level, np.zeros(count, bool))
    scale = density / 2.0**level
    angle = np.where(rng.uniform(size=count) < 0.15, rng.uniform(-np.pi, np.pi, count), rng.normal(0, 0.12, count))
    matrix = motions.linear(angle, scale, np.exp(rng.normal(0, 0.08, count)), rng.uniform(0, np.pi, count))
    matrix[:, :, 0] *= rng.choice([-1, 1], (count, 1))
    # The frame is centred where its window fits into the photograph, if it fits anywhere.
    inner = np.stack([window.height, window.width], 1)
    place = inner / 2 + rng.uniform(-0.5, 0.5, (count, 2)) * np.maximum(inner - scale[:, None] * np.array(size), 8)
    window.row, window.column = np.floor(place).T
    texel = (place - np.stack([window.row, window.column], 1))[:, ::-1]
    return window, motions.affine(matrix, np.broadcast_to((np.array(size[::-1]) - 1) / 2, (count, 2)), texel)


def draw_layers(
    rng: np.random.Generator, photos: Photos, size: tuple[int, int], shape: tuple[int, int], settings: SynthesisSettings
) -> Objects:
    """Draw cut-outs, and pieces of photographs cut out along drawn shapes or the silhouettes of cut-outs."""
    is_cutout = (rng.uniform(size=shape) < settings.cutouts) & (photos.cutout_count > 0)
    photo = rng.integers(0, photos.photograph_count, shape)
    cutout = photos.photograph_count + rng.integers(0, max(1, photos.cutout_count), shape)
    outline = photos.first_shape + rng.integers(0, photos.shape_count, shape)
    is_silhouette = (rng.uniform(size=shape) < 0.3) & (photos.cutout_count > 0)
    extent = np.exp(rng.uniform(np.log(_SMALLEST), np.log(_LARGEST), shape)) * min(size)

    framing = np.where(is_cutout | is_silhouette, cutout, outline)  # the picture that determines the layer's size
    density = photos.table[framing, 0, 1:].max(-1) / extent
    level = _level_of(rng, density, settings)
    texture_level = np.where(is_cutout, level, rng.integers(0, 2, shape))
    textures = _windows(photos, np.where(is_cutout, cutout, photo), texture_level, is_cutout)
    # A mask is white; a silhouette is the alpha channel of its picture.
    masks = _windows(photos, np.where(is_cutout, photos.white, framing), level, np.ones(shape, bool))
    for windows in (textures, masks):
        windows.row, windows.column = windows.height // 2, windows.width // 2
    shift = np.rint(rng.uniform(-0.5, 0.5, (2, *shape)) * np.stack([textures.height, textures.width]))
    textures.row, textures.column = np.stack([textures.row, textures.column]) + np.where(is_cutout, 0, shift)

    angle = np.where(is_cutout, rng.normal(0, 0.25, shape), rng.uniform(-np.pi, np.pi, shape))
    stretch = np.exp(rng.normal(0, 0.2, shape))
    matrix = motions.linear(angle, density / 2.0**level, stretch, rng.uniform(0, np.pi, shape))
    matrix[..., :, 0] *= rng.choice([-1, 1], (*shape, 1))
    centre = rng.uniform(-0.05, 1.05, (*shape, 2)) * np.array(size[::-1])
    box = photos.table[framing, level, 2:0:-1].astype(float)
    placement = motions.affine(matrix, centre, np.zeros(2))
    return Objects(textures, masks, placement, centre, extent, box, np.ones(shape, bool))


def lay_planes(rng: np.random.Generator, photos: Photos, objects: Objects, scenes: np.ndarray, street: Streets) -> None:
    """Make the last layers of `scenes` (an index of pairs) the ground and the walls of streets."""
    count, planes = street.is_present.shape
    if count == 0:
        return
    index = rng.integers(0, photos.photograph_count, (count, planes))
    textures = _windows(photos, index, rng.integers(0, 2, (count, planes)), np.zeros((count, planes), bool))
    sides = np.stack([textures.height, textures.width])
    textures.row, textures.column = np.rint(rng.uniform(0, 1, (2, count, planes)) * sides)
    masks = _windows(photos, np.full_like(index, photos.box), np.zeros_like(index), np.ones(index.shape, bool))
    # The middle texel of the 3 × 3 box covers the whole plane.
    masks.column_step, masks.row_step = np.moveaxis(1 / street.box, -1, 0)
    masks.column, masks.row = masks.column + 1.5, masks.row + 1.5
    for mine, theirs in ((objects.textures, textures), (objects.masks, masks)):
        for name, values in vars(theirs).items():
            changed = getattr(mine, name).astype(np.result_type(getattr(mine, name), values))
            changed[scenes, -planes:] = values
            setattr(mine, name, changed)
    objects.placement[scenes, -planes:] = street.placement
    objects.box[scenes, -planes:] = street.box
    objects.is_present[scenes, -planes:] = street.is_present


def to_window(side: int) -> np.ndarray:
    """Return the map from texels, counted from a window's middle ⌊side/2⌋, to coordinates with corner texels at ±1."""
    scale = 2 / (side - 1)
    shift = scale * (side // 2) - 1
    return np.array([[scale, 0, shift], [0, scale, shift], [0, 0, 1]])


def hide(photos: Photos, masks: Windows[np.ndarray], is_hidden: np.ndarray) -> None:
    """Replace masks by the first texel of the box, which is transparent."""
    masks.offset = np.where(is_hidden, photos.table[photos.box, 0, 0], masks.offset)
    masks.height, masks.width = np.where(is_hidden, 1, masks.height), np.where(is_hidden, 1, masks.width)
    masks.clamp = masks.clamp | is_hidden


def support(objects: Objects, size: tuple[int, int]) -> np.ndarray:
    """Return the corners of the rectangle around each layer in frame 0, clipped to the frame, (n, K, 4, 2)."""
    signs = np.array([[-1, -1], [1, -1], [-1, 1], [1, 1]])
    corners = 0.48 * objects.box[..., None, :] * signs
    points = np.clip(motions.apply(np.linalg.inv(objects.placement), corners), 0, np.array(size[::-1]) - 1)
    return np.where(signs < 0, points.min(2, keepdims=True), points.max(2, keepdims=True))


Group = TypeVar("Group", Windows[np.ndarray], Waves[np.ndarray])


@dataclass
class Scene(Generic[Numbers]):
    """K layers, front to back, of n scenes, in front of n backgrounds, which count as layer K.

    A layer is a texture and a mask in a square window of texels. Its placement maps frame 0 to the window, and its
    motion maps frame 0 to frame 1. Coordinates in the window are such that its corner texels are at ±1.
    """

    background: Windows[Numbers]  #: (n,)
    layers: Windows[Numbers]  #: (2, K, n): textures, and masks, which multiply the opacity of the textures
    lookup: Numbers  #: (K + 1, n, 2, 3, 3): from a pixel of either frame to the window, without bending
    motion: Numbers  #: (K + 1, n, 3, 3): from a point of frame 0, after bending, to frame 1
    inverse: Numbers  #: of `motion`
    waves: Waves[Numbers]  #: (K + 1, n, …)
    plain: Numbers  #: (K + 1, n), how much of the detail is missing, from 0 to 1; (0, n) if nothing is plain
    bent: Numbers  #: (m,) indices of the (K + 1) · n layers with nonzero waves
    tile: int  #: side of the layers' windows, in texels
    background_tile: int


def draw_scene(
    rng: np.random.Generator,
    photos: Photos,
    size: tuple[int, int],
    count: int,
    settings: SynthesisSettings,
    wide: np.ndarray | None = None,
) -> Scene[np.ndarray]:
    """Draw `count` scenes for frames of `size` (rows, columns); those with an index in `wide` have a wide baseline."""
    kinds = motions.draw_kinds(rng, count, settings, np.zeros(0, np.int64) if wide is None else wide)
    layers = rng.integers(settings.min_layers, settings.max_layers + 1, count)
    # The largest layer, or the largest cut-out if that is less; for the background, the frame, its motion and turning.
    tile = min(LARGEST_CUTOUT, int(_SHARPEST * _LARGEST * min(size))) // 8 * 8 + 8
    far_tile = int(1.2 * (max(size) + settings.max_displacement)) // 8 * 8 + 8
    street = motions.draw_streets(rng, size, kinds.driving, tile)
    slots = int(max(1, layers.max(), (layers[kinds.driving] + PLANES).max(initial=0)))

    background, far_placement = draw_background(rng, photos, size, count, settings)
    objects = draw_layers(rng, photos, size, (count, slots), settings)
    objects.is_present[...] = np.arange(slots) < layers[:, None]
    lay_planes(rng, photos, objects, kinds.driving, street)
    hide(photos, objects.masks, ~objects.is_present)

    motion = motions.draw_motion(rng, size, kinds, street, objects.centre, support(objects, size), settings)
    # Some layers and backgrounds bend, by waves of about their own size.
    extent = np.concatenate([objects.extent, np.full((count, 1), 0.6 * max(size))], axis=1)
    bends = rng.uniform(size=extent.shape) < settings.nonrigid
    waves = motions.draw_waves(rng, extent, bends * rng.uniform(0.1, 1, extent.shape) ** 2 * settings.bending)
    waves.amplitude[kinds.small] *= 0.3
    waves.amplitude[kinds.driving, -PLANES - 1 :] = 0  # streets are flat
    waves.amplitude[:, :slots][~objects.is_present] = 0

    plain = np.zeros((0, count))
    if settings.plain:
        is_plain = rng.uniform(size=(slots + 1, count)) < settings.plain
        plain = is_plain * rng.uniform(0.85, 1, is_plain.shape)

    inverse = np.linalg.inv(motion)
    lookup = np.concatenate([to_window(tile) @ objects.placement, to_window(far_tile) @ far_placement[:, None]], axis=1)
    lookup = np.stack([lookup, lookup @ inverse], axis=2)
    both = (vars(_layer_first(windows)).values() for windows in (objects.textures, objects.masks))
    return Scene(
        background,
        Windows(*(np.stack(arrays) for arrays in zip(*both, strict=True))),
        lookup.swapaxes(0, 1),
        motion.swapaxes(0, 1),
        inverse.swapaxes(0, 1),
        _layer_first(waves),
        plain,
        np.flatnonzero(waves.amplitude.any(axis=(2, 3)).T),
        tile,
        far_tile,
    )


def _layer_first(values: Group) -> Group:
    """Return the same dataclass with arrays (K, n, …) instead of (n, K, …)."""
    return type(values)(*(array.swapaxes(0, 1) for array in vars(values).values()))
