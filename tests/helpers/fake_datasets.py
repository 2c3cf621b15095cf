"""Miniature data sets in the published layouts: textures that move by whole pixels."""

import json
from pathlib import Path

import cv2
import numpy as np

from deepmatching.io.flow import write_flow

SIZE = (64, 80)
FLOW = (6.0, -4.0)


def texture(size: tuple[int, int] = SIZE, seed: int = 0) -> np.ndarray:
    """Draw smooth noise that wraps around, uint8 RGB."""
    noise = np.random.default_rng(seed).uniform(0, 255, (*size, 3))
    for axis in (0, 1):
        noise = (noise + np.roll(noise, 1, axis) + np.roll(noise, -1, axis)) / 3
    stretched = (noise - noise.min()) / (noise.max() - noise.min())
    return (255 * stretched).astype(np.uint8)


def moved(image: np.ndarray, times: int = 1) -> np.ndarray:
    """Return the image moved by ``times`` times FLOW."""
    return np.roll(image, (times * int(FLOW[1]), times * int(FLOW[0])), axis=(0, 1))


def write_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image[:, :, ::-1] if image.ndim == 3 else image)


def constant_flow(size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.full((*size, 2), FLOW, np.float32)


def write_field(path: Path, flow: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_flow(path, flow)


def mask(rows: slice = slice(0), columns: slice = slice(None), size: tuple[int, int] = SIZE) -> np.ndarray:
    values = np.zeros(size, np.uint8)
    values[rows, columns] = 255
    return values


def write_sintel(root: Path, scenes: dict[str, int]) -> Path:
    """Write scenes by name with their number of frames; the first 8 columns are occluded, the last 3 rows invalid."""
    training = root / "training"
    for seed, (scene, frames) in enumerate(scenes.items()):
        for number in range(1, frames + 1):
            image, frame = moved(texture(seed=seed), number), f"frame_{number:04d}"
            for passes, pixels in (("clean", image), ("final", image // 2)):
                write_image(training / passes / scene / f"{frame}.png", pixels)
            if number < frames:
                write_field(training / "flow" / scene / f"{frame}.flo", constant_flow())
                write_image(training / "occlusions" / scene / f"{frame}.png", mask(slice(None), slice(8)))
                write_image(training / "invalid" / scene / f"{frame}.png", mask(slice(-3, None)))
    return root


def touch_sintel(root: Path, scenes: dict[str, int]) -> Path:
    """Write empty files with the right names."""
    training = root / "training"
    for scene, frames in scenes.items():
        for folder, last in (("clean", frames), *((name, frames - 1) for name in ("flow", "occlusions", "invalid"))):
            (training / folder / scene).mkdir(parents=True, exist_ok=True)
            suffix = "flo" if folder == "flow" else "png"
            for number in range(1, last + 1):
                (training / folder / scene / f"frame_{number:04d}.{suffix}").touch()
    return root


def write_chairs(root: Path, labels: str = "1 2 1", masks: bool = False) -> Path:
    for number, _ in enumerate(labels.split(), 1):
        image = texture(seed=number)
        write_image(root / "data" / f"{number:05d}_img1.ppm", image)
        write_image(root / "data" / f"{number:05d}_img2.ppm", moved(image))
        write_field(root / "data" / f"{number:05d}_flow.flo", constant_flow())
        if masks:
            write_image(root / "data" / f"{number:05d}_occ.png", mask(slice(5)))
    (root / "FlyingChairs_train_val.txt").write_text("\n".join(labels.split()) + "\n")
    return root


def write_kitti(root: Path, images: str = "image_0", count: int = 2) -> Path:
    """Write KITTI: the first 10 rows have no truth, the next 5 are occluded; image_0 is grey."""
    for number in range(count):
        image, name = texture(seed=number), f"{number:06d}"
        for frame, pixels in (("10", image), ("11", moved(image))):
            stored = pixels.mean(axis=2).astype(np.uint8) if images == "image_0" else pixels
            write_image(root / "training" / images / f"{name}_{frame}.png", stored)
        for folder, known in (("flow_occ", 10), ("flow_noc", 15)):
            flow = constant_flow()
            flow[:known] = np.nan
            write_field(root / "training" / folder / f"{name}_10.png", flow)
    return root


def write_manifest(root: Path, entries: list[dict[str, str]]) -> Path:
    path = root / "pairs.json"
    path.write_text(json.dumps(entries))
    return path


def write_pairs(root: Path, count: int = 2, **keys: str) -> Path:
    """Write a manifest of ``count`` pairs with flow; ``keys`` go into every entry."""
    entries = []
    for number in range(count):
        image = texture(seed=number)
        write_image(root / f"{number}_a.png", image)
        write_image(root / f"{number}_b.png", moved(image))
        write_field(root / f"{number}.flo", constant_flow())
        entries.append({"image0": f"{number}_a.png", "image1": f"{number}_b.png", "flow": f"{number}.flo", **keys})
    return write_manifest(root, entries)
