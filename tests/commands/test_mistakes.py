"""Mistakes of every kind in command lines: each is one sentence with exit code 2, and nothing is written."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepmatching.bulk_matching import bulk, exhaustive_pairs
from deepmatching.io.flow import write_flow
from helpers.fake_datasets import moved, texture, write_image, write_pairs
from helpers.small_training import SMALL
from helpers.synthetic_pictures import moved_noise

DIGITS = "9" * 400

#: Command lines, each with words of its message. ``EMPTY`` stands for an empty text, and ``\\n`` for the end of a line.
MISTAKES = """
match a.png missing.png → missing.png
match a.png folder → folder
match a.png text.png → text.png
match a.png cut.png → cut.png
match a.png empty.png → empty.png
match a.png tiny.png → patch
match no\\nsuch.png b.png → no\\nsuch.png
match a.png b.png --radius 7 → 7
match a.png b.png --radius=-8 → -8
match a.png b.png --radius far → 'far'
match a.png b.png --rotations 0,nan → rotations
match a.png b.png --scales , → scales
match a.png b.png --levels 40 → levels
match a.png b.png --model sift → sift
match a.png b.png --device toaster → toaster
match a.png b.png --memory 1MB → memory
match a.png b.png --memory ٣ → ٣
match a.png b.png --bit-depth -1 -o m.npz → bit_depth
match a.png b.png -o out.csv → out.csv
match a.png b.png -o m.json → m.json
match a.png b.png -o no/such/folder/m.txt → no/such/folder
match a.png b.png -o folder → folder
match a.png b.png -o folder.txt → folder.txt
match a.png b.png --draw m.docx → m.docx
match a.png b.png --draw a.png → a.png
match a.png b.png --min-confidence 1.5 → --min-confidence
match a.png b.png --min-confidence 0.5 --model hog -o m.npz → confidence
match a.png b.png -o notes.txt → exists and is not from deepmatching
match a.png b.png --draw photo.png → exists and is not from deepmatching
match a.png b.png --geometry homography -o notes.json → exists and is not from deepmatching
scores a.png b.png --at 4,4 -o b.png → would be overwritten
scores a.png b.png --at 4,4 -o photo.png → exists and is not from deepmatching
scores a.png b.png --at here -o s.png → --at
scores a.png b.png --at 4,4 --at 4 -o s.png → --at needs two numbers such as 320,240, not '4'
scores a.png b.png --at 4000,4 -o s.png → not in the first image
flow a.png b.png → -o
flow a.png b.png -o f.csv → f.csv
flow a.png b.png -o no/such/f.flo → no/such
flow a.png b.png -o f.flo --draw p.docx → p.docx
flow a.png b.png -o f.flo --confidence c.jpg → c.jpg
flow a.png b.png -o f.png --confidence f.png → f.png
flow a.png b.png -o f.flo --preset best → 'best'
flow a.png b.png -o f.flo --edges wrong.npy → wrong.npy
flow a.png b.png -o f.flo --edges missing.png → missing.png
flow a.png b.png -o f.flo --structured-forest model.yml.gz → model.yml.gz
flow a.png b.png -o f.flo --structured-forest m.txt --edges gradient → --edges and --structured-forest
flow a.png b.png -o f.flo --matches missing.txt → missing.txt
flow a.png b.png -o f.flo --matches m.txt → m.txt
flow a.png b.png -o f.flo --matches m.csv → m.csv
flow a.png b.png -o f.flo --matches none.txt → no matches
flow a.png b.png -o f.flo --matches m.txt --radius 80 → --radius
flow a.png b.png -o f.flo --matches m.txt --model hog → --model
flow a.png b.png -o f.flo --matches m.txt --search → --search
flow a.png b.png -o f.flo --matches m.txt --bit-depth -1 → bit_depth
flow a.png b.png --out flows → --out
flow a.png b.png -o f.flo --restart → --restart
flow a.png b.png -o f.flo --format flo → --format
flow a.png b.png -o a.png → 'a.png'
flow a.png b.png -o f.flo --draw b.png → 'b.png'
flow a.png b.png -o f.flo --draw folder/../b.png → b.png'
flow a.png b.png -o f.flo --confidence wrong.npy --edges wrong.npy → 'wrong.npy'
flow a.png b.png --draw photo.jpg → exists and is not from deepmatching
flow a.png b.png -o photo.png → exists and is not from deepmatching
flow a.png b.png -o notes.flo → exists and is not from deepmatching
flow a.png b.png --confidence photo.png -o f.flo → exists and is not from deepmatching
flow a.png small.png -o f.flo → 96x64 and 80x40
flow frames → --out DIR
flow frames -o f.flo → -o
flow frames --out out --matches m.txt → --matches
flow frames --out out --edges map.png → --edges
flow frames --out frames → frames
flow frames --out truth → frame_0002.flo
flow frames --out out --draw p.png → p.png
flow frames --out out --draw p.mov → use .mp4 or .avi
flow frames --out out --draw out → 'out'
flow frames --out out --draw truth/../out → out'
flow frames --out out --draw earlier → 'earlier'
flow frames --out out --draw frames → frames
flow frames --out out --confidence out → 'out'
flow frames --out out --confidence frames → frames
flow frames/frame_0001.png --out out → frame_0001
flow empty --out out → empty
flow single --out out → single
flow missing.mp4 --out out → missing
flow video.mp4 --out out → video
explore a.png → two images
explore a.png none.png --no-browser → none.png
explore --export page.html → --export
explore a.png b.png --export page.txt → page.txt
explore a.png b.png --export none/page.html → none
explore a.png b.png --export notes.html → exists and is not from deepmatching
explore a.png b.png --export page.html --model hog --model vgg → --model
explore --model hog --model vgg --model compact → --model
explore a.png b.png --device tpu → tpu
explore --model none.safetensors → none.safetensors
explore --host 203.0.113.1 --port 0 → 203.0.113.1
explore --max-size 3 → --max-size
explore --port 99999 → --port
bulk photos --out new → --exhaustive
bulk s3://bucket/photos --exhaustive --out new → s3://
bulk photos --exhaustive --out gs://bucket/run → gs://
bulk photos --exhaustive --sequential 2 --out new → --exhaustive and --sequential
bulk photos --exhaustive --images photos --out new → --images
bulk photos --exhaustive --neighbours 3 --out new → --neighbours
bulk photos --exhaustive --min-matches 20 --out new → --min-matches
bulk photos --exhaustive --out new/run --device toaster → toaster
bulk photos --exhaustive --out photos → photos
bulk photos --exhaustive --out new --batch 0 → batch_size
bulk photos --exhaustive --out new --graph photos/b.png → is an input
bulk photos --sequential 0 --out new → --sequential
bulk pairs.txt --out new → --images
bulk pairs.txt --images photos --out new → pairs.txt
bulk empty --exhaustive --out new → two images
export run → --hloc
export photos --graph g.png → photos
export run --hloc feats.txt matches.h5 → feats.txt
export run --hloc same.h5 same.h5 → same.h5
export run --hloc a.h5 b.h5 --images photos → --images
export run --hloc a.h5 b.h5 --camera-model PINHOLE → --camera-model
export run --hloc a.h5 b.h5 --min-matches 20 → --min-matches
export run --hloc a.h5 b.h5 --max-keypoints 0 → max_keypoints
export run --hloc a.h5 b.h5 --cell 0 → cell
export run --hloc notes.h5 m.h5 → notes.h5
export run --graph g.png --min-matches -1 → --min-matches
export run --graph nowhere/g.png → nowhere
export run --graph photos/a.png → photos/a.png
export run --colmap s.db --camera-params 1,x → --camera-params
export run --colmap s.db --min-matches 2 → --min-matches
export run --colmap s.db --camera-model FISH → FISH
export run --colmap photos/a.png → photos/a.png
export run --colmap run/run.json → run/run.json
export run --colmap notes.db → notes.db
sfm run --out run → run
sfm run --out mine → mine/database.db
sfm run --out model --images nowhere → nowhere
sfm run --out model --max-error 0 → --max-error
sfm run --out s3://bucket/model → s3://
sfm run --out new/model --cell 0 → cell
sfm run --out new/model --camera-model FISH → FISH
evaluate pairs.json --resume → --json FILE
evaluate pairs.json --method sift --model hog → --model and --method
evaluate pairs.json --method magic → 'magic'
evaluate pairs.json --method sift --flow → --flow
evaluate pairs.json --method dis --radius 16 → --radius
evaluate pairs.json --method dis --reciprocal exact → --reciprocal
evaluate pairs.json --method dis --no-subpixel → --no-subpixel
evaluate pairs.json --method dis --pooling soft → --pooling
evaluate pairs.json --method dis --half → --half
evaluate pairs.json --method dis --device cuda → --device
evaluate pairs.json --method dis --flow --preset sintel → --preset
evaluate pairs.json --method dis --flow --edges gradient → --edges
evaluate pairs.json --method dis --flow --max-size 60 → --max-size
evaluate pairs.json --method dis --rank score → --rank
evaluate pairs.json --flow --rank score → --rank
evaluate pairs.json --preset sintel → --preset
evaluate pairs.json --edges gradient → --edges
evaluate pairs.json --structured-forest model.yml.gz → --structured-forest
evaluate pairs.json --flow --structured-forest none.yml.gz → none.yml.gz
evaluate pairs.json --flow --edges gradient --structured-forest x.yml.gz → --edges and --structured-forest
evaluate pairs.json --flow --preset magic → 'magic'
evaluate pairs.json --model none.safetensors → none.safetensors
evaluate pairs.json --root here → root
evaluate pairs.json --only other → 'other'
evaluate pairs.json --json no/such/folder/e.json → no/such/folder
evaluate pairs.json --json ./pairs.json → is an input
evaluate pairs.json --json 0.flo → 0.flo'
evaluate pairs.json --method orb --json 0_a.png → 0_a.png'
evaluate pairs.json --method orb --json notes.txt → notes.txt'
evaluate pairs.json --method orb --pictures notes.txt → notes.txt'
train nonsense → quickstart
train small.toml optimizer.lr=fast → optimizer.lr
train small.toml optimizr.lr=1 → optimizer.lr
train small.toml data.train=missing.json → missing.json
train small.toml data.train=chairs → root
train small.toml data.train=notes.json → notes.json
train small.toml validation.data=missing.json → missing.json
train small.toml model.init=missing.safetensors → missing.safetensors
train small.toml model.init=notes.json → notes.json
train small.toml model.init=vgg → model.descriptor=vgg
train small.toml model.descriptor=sift → sift
train small.toml model.settings.colour=3 → colour
train small.toml device=toaster → toaster
train small.toml out=notes.json → file
train small.toml --resume → no run to resume
train quickstart data.train=none.json out=new/run → none.json
reproduce table1 --root nowhere → nowhere/sintel
reproduce table1 --root . --checkpoint b → a, b, c
reproduce table1 --root . --checkpoint z=file → a, b, c
reproduce table1 --root . --checkpoint =x → a, b, c
reproduce table1 --root . --rows a,z → 'a,z'
reproduce table2 --root . --datasets sintel → --datasets
synthesize http://pairs --photos . → http://
synthesize new/pairs --photos . --count 0 → pairs
export-onnx a.onnx → --size
export-onnx a.onnx --size big → 1024x436, not 'big'
export-onnx a.txt --size 64x64 → a.txt
export-onnx no/a.onnx --size 64x64 → no
export-onnx a.onnx --descriptor --size 64x64 → --size
export-onnx a.onnx --descriptor --radius 8 → --radius
export-onnx a.onnx --size 64x64 --model nothing → nothing
export-onnx a.onnx --size 8x8 → small
export-onnx a.onnx --size 4x64 → patch
export-onnx notes.onnx --descriptor → exists and is not from deepmatching
bench --size large → 1024x436
bench --size 4x4 → patch
bench --size 10000000x10000000 → 1073741824
bench --batch 0 → --batch
bench --repeats 0 → --repeats
bench --json photos/a.png → photos/a.png
bench --json notes.json → exists and is not from deepmatching
demo --out a.png → folder
demo --out mine → exists and is not from deepmatching
demo --out EMPTY → empty
demo --out=EMPTY → empty
demo --out s3://bucket/demo → s3://
demo --out new/folder --device toaster → toaster
sing → sing
match a.png → B
match a.png b.png --colour red → --colour
"""

#: Command lines with a name that no file has, and the suffix of such a file.
NAMED = """
match {} b.png → .png
match a.png {} → .png
match a.png b.png --model {} → .safetensors
match a.png b.png -o {} → .txt
match a.png b.png --draw {} → .png
flow {} b.png → .png
flow a.png b.png --edges {} → .npy
flow a.png b.png --matches {} -o x.flo → .npz
flow a.png b.png --matches {} -o x.flo → .h5
flow a.png b.png --matches {} -o x.flo → .txt
flow a.png b.png --structured-forest {} -o x.flo → .yml
flow {} --out flows →
evaluate {} → .json
train {} → .toml
train quickstart data.train={} → .json
train quickstart data.train=x.json out={} →
train quickstart data.train=x.json model.init={} → .safetensors
synthesize {} pairs →
"""

#: Numbers of many digits.
LARGE = f"""
match a.png b.png --radius {DIGITS} → 1000000
match a.png b.png --radius {"9" * 5000} → radius
match a.png b.png --radius 1e999 → radius
match a.png b.png --levels {DIGITS} → level
match a.png b.png --downscale {DIGITS} → downscale
match a.png b.png --memory {DIGITS}GB → --memory
match a.png b.png --memory {DIGITS} → 9223372036854775807
match a.png b.png --memory {"9" * 5000} → --memory
bench --size 8x{"9" * 5000} → 1073741824
"""

#: What some commands need.
EXTRAS = {"explore": "uvicorn", "export-onnx": "onnxscript", "sfm": "pycolmap", "export run --colmap": "pycolmap"}


def lines(table: str) -> list[tuple[str, str]]:
    cut = (line.partition("→") for line in table.strip().splitlines())
    return [(arguments.strip(), words.strip()) for arguments, _, words in cut]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of every kind: pictures, frames, a run of three photographs, pairs with flow, and others."""
    folder = tmp_path_factory.mktemp("template")
    for name in ("folder", "folder.txt", "empty", "single", "truth", "earlier", "mine", "photos"):
        (folder / name).mkdir()
    first, second = moved_noise()
    pictures = {"a.png": first, "b.png": second, "photos/a.png": first, "photos/b.png": second, "photos/c d.png": first}
    black = np.zeros((8, 8, 3), np.uint8)
    pictures |= {"tiny.png": black[:4, :4], "photo.png": black, "photo.jpg": black, "mine/flow.png": black}
    pictures |= {"small.png": texture()[:40], "single/a.png": texture()}
    for name, picture in pictures.items():
        Image.fromarray(picture).save(folder / name)  # not by us: ours say so
    for number in range(4):
        write_image(folder / "frames" / f"frame_{number + 1:04d}.png", moved(texture(), number))
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:2000])
    np.save(folder / "wrong.npy", np.zeros((10, 10), np.float32))
    write_flow(folder / "truth" / "frame_0002.flo", np.zeros((4, 4, 2), np.float32))
    mine = '{"mine": "do not lose this"}'
    texts = {"text.png": "not a picture", "empty.png": "", "m.txt": "1 2 3\n", "none.txt": "# nothing\n"}
    texts |= {"video.mp4": "no video", "earlier/flow.json": "{}", "mine/database.db": mine}
    texts |= {f"notes.{suffix}": mine for suffix in ("txt", "json", "flo", "html", "onnx", "db", "h5")}
    texts |= {"small.toml": 'out = "trained"\n' + SMALL.replace("[data]", '[data]\ntrain = "pairs.json"')}
    for name, text in texts.items():
        (folder / name).write_text(text)
    write_pairs(folder, 2)
    photos = folder / "photos"
    bulk(exhaustive_pairs(photos), photos, folder / "run", model="hog", radius=16, device="cpu")
    return folder


@pytest.fixture
def is_refused(template: Path, tmp_path: Path, is_refused: Callable[[str, str], None]) -> Callable[[str, str], None]:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return is_refused


@pytest.mark.parametrize(("arguments", "words"), lines(MISTAKES) + lines(LARGE))
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    is_refused: Callable[[str, str], None], arguments: str, words: str
) -> None:
    for beginning, module in EXTRAS.items():
        if arguments.startswith(beginning):
            pytest.importorskip(module)
    is_refused(arguments, words)


@pytest.mark.parametrize("name", [f"{'x' * 300}.png", "loop.png", "loop.png/a.png", "a.png/b.png"])
@pytest.mark.parametrize(("arguments", "suffix"), lines(NAMED))
def test_a_name_that_no_file_has_is_reported(
    tmp_path: Path, is_refused: Callable[[str, str], None], arguments: str, suffix: str, name: str
) -> None:
    (tmp_path / "loop.png").symlink_to("other.png")
    (tmp_path / "other.png").symlink_to("loop.png")
    is_refused(arguments.format(name.replace(".png", suffix, 1) if name.startswith("xxx") else name), "")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_text_can_be_read_and_complained_about(
    tmp_path: Path, is_refused: Callable[[str, str], None]
) -> None:
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    is_refused("match \udcff.png none.png", "none.png")
    is_refused("match \udcfe.png b.png", "image")


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("starlette", "explore", "pip install starlette uvicorn"),
        ("pycolmap", "sfm run --out model", "pip install pycolmap"),
        ("onnx", "export-onnx a.onnx --size 64x64", "pip install onnx"),
    ],
)
def test_without_an_extra_the_command_says_how_to_install_it(
    is_refused: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, module: str, arguments: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    is_refused(arguments, words)


def test_our_own_files_are_replaced(pictures: tuple[Path, Path], tmp_path: Path, command: Callable[..., str]) -> None:
    for options in (
        *("match -o m.txt --draw d.png", "match -o m.npz --draw d.jpg", "match --geometry homography -o g.json"),
        *("flow -o f.png --confidence c.png --draw d.webp", "flow -o f.pfm --confidence c.npy", "match -o m.h5"),
    ):
        name, *words = options.split()
        outputs = [tmp_path / word if "." in word else word for word in words]
        for _ in range(2):
            command(name, *pictures, *outputs, "--model", "hog", "--radius", 16, "--quiet")
