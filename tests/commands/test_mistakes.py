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
match: a.png missing.png → missing.png | a.png folder → folder | a.png text.png → text.png | a.png cut.png → cut.png
match: a.png empty.png → empty.png | a.png tiny.png → patch | no\\nsuch.png b.png → no\\nsuch.png | a.png → B
match a.png b.png: --radius 7 → 7 | --radius=-8 → -8 | --radius far → 'far' | --rotations 0,nan → rotations
match a.png b.png: --scales , → scales | --levels 40 → levels | --model sift → sift | --device toaster → toaster
match a.png b.png: --memory 1MB → memory | --memory ٣ → ٣ | --bit-depth -1 -o m.npz → bit_depth | -o out.xml → out.xml
match a.png b.png: -o no/such/folder/m.txt → no/such/folder | -o folder → folder
match a.png b.png: -o folder.txt → folder.txt | --draw m.docx → m.docx | --draw a.png → a.png
match a.png b.png: --min-confidence 1.5 → --min-confidence | --min-confidence 0.5 --model hog -o m.npz → confidence
match a.png b.png: -o notes.txt → exists and is not from deepmatching | --with-confidence --model hog → confidence
match a.png b.png: -o notes.json → exists and is not from deepmatching
match a.png b.png: --draw photo.png → exists and is not from deepmatching
match a.png b.png: --geometry homography -o notes.json → exists and is not from deepmatching | --colour red → --colour
match a.png b.png: --points missing.txt → missing.txt | --points m.npz → m.npz | --points words.txt → words.txt
match a.png b.png: --points p.txt -o p.txt → is an input | --points p.txt -o m.npz → m.npz
match a.png b.png: --points far.txt → (4000, 4) | --points p.txt --geometry homography → --geometry
match a.png b.png: --points p.txt --draw m.png --draw-lines 5 → --draw-lines is for matches of a grid
match a.png b.png: --points p.txt -o notes.csv → exists and is not from deepmatching
match a.png b.png: --camera0 9,9,5,5 → --geometry essential | --threshold 2 → --geometry
match a.png b.png: --geometry essential → --camera0 | --geometry homography --threshold -1 → --threshold
match a.png b.png: --geometry essential --camera0 9,9,5 → FX,FY,CX,CY | --geometry essential --camera0 k.txt → k.txt
match a.png b.png: --geometry essential --camera0 camera.txt -o camera.txt → is an input
match a.png b.png: --geometry essential --camera0 9,9,5,5 -o camera.txt → exists and is not from deepmatching
match a.png b.png: --geometry essential --camera0 words.txt → 3 x 3 | --geometry essential --camera0=0,9,5,5 → --camera0
match a.png b.png: --draw-lines 5 → --draw | --draw m.png --draw-inliers → --geometry
match a.png b.png: --draw m.png --draw-range 0 → --draw-range | --draw-confidence 2 → --draw-confidence
match -: b.png → standard input | -o m.npz → standard input | --draw m.png → standard input
scores a.png b.png: --at 4,4 -o b.png → would be overwritten
scores a.png b.png: --at 4,4 -o photo.png → exists and is not from deepmatching | --at here -o s.png → --at
scores a.png b.png: --at 4,4 --at 4 -o s.png → --at needs two numbers such as 320,240, not '4'
scores a.png b.png: --at 4000,4 -o s.png → not in the first image | --at 4,4 -o s.png --bit-depth 1 → bit_depth
flow a.png b.png: → -o | -o f.csv → f.csv | -o no/such/f.flo → no/such | -o f.png --confidence f.png → f.png
flow a.png b.png: --out flows → --out | -o a.png → 'a.png' | --draw photo.jpg → exists and is not from deepmatching
flow a.png b.png: -o f.flo --min-confidence 0.5 → --matches
flow a.png b.png: -o photo.png → exists and is not from deepmatching
flow a.png b.png: -o notes.flo → exists and is not from deepmatching
flow a.png b.png: --confidence photo.png -o f.flo → exists and is not from deepmatching
flow a.png b.png -o f.flo: --draw p.docx → p.docx | --confidence c.jpg → c.jpg | --preset best → 'best'
flow a.png b.png -o f.flo: --edges wrong.npy → wrong.npy | --edges missing.png → missing.png
flow a.png b.png -o f.flo: --structured-forest model.yml.gz → model.yml.gz
flow a.png b.png -o f.flo: --structured-forest m.txt --edges gradient → --edges and --structured-forest
flow a.png b.png -o f.flo: --matches missing.txt → missing.txt | --matches m.txt → m.txt | --matches m.csv → m.csv
flow a.png b.png -o f.flo: --matches none.txt → no matches | --matches m.txt --radius 80 → --radius
flow a.png b.png -o f.flo: --matches m.txt --model hog → --model | --matches m.txt --search → --search
flow a.png b.png -o f.flo: --matches m.txt --bit-depth -1 → bit_depth | --restart → --restart
flow a.png b.png -o f.flo: --matches m.txt --use-alpha → --use-alpha
flow a.png b.png -o f.flo: --format flo → --format | --draw b.png → 'b.png' | --draw folder/../b.png → b.png'
flow a.png b.png -o f.flo: --confidence wrong.npy --edges wrong.npy → 'wrong.npy'
flow: frames → --out DIR | frames -o f.flo → .mp4
flow: frames --out frames → frames | frames --out truth → frame_0002.flo
flow: frames/frame_0001.png --out out → frame_0001 | empty --out out → empty | single --out out → single
flow: missing.mp4 --out out → missing | video.mp4 --out out → video
flow frames --out out: --matches m.txt → --matches | --edges map.png → --edges | --draw p.png → p.png
flow frames --out out: --draw p.mov → use .mp4 or .avi | --draw out → 'out' | --draw truth/../out → out'
flow frames --out out: --draw earlier → 'earlier' | --draw frames → frames | --confidence out → 'out'
flow frames: --out out --draw video.mp4 → exists and is not from deepmatching
flow frames: -o video.mp4 → exists and is not from deepmatching
track frames: --points p.txt --draw video.mp4 → exists and is not from deepmatching
flow frames --out out: --confidence frames → frames | --use-alpha → --use-alpha
track frames: -o t.csv → --points | --points p.txt → -o | --points p.txt -o t.npz → t.npz
track frames: --points p.txt -o p.txt → is an input | --points far.txt -o t.csv → (4000, 4)
track frames: --points p.txt --draw t.png → t.png | --points p.txt -o notes.csv → exists and is not from deepmatching
track: single --points p.txt -o t.csv → single | none.mp4 --points p.txt -o t.csv → none.mp4
explore: a.png → two images | a.png none.png --no-browser → none.png | --export page.html → --export
explore: --model hog --model vgg --model compact → --model | --model none.safetensors → none.safetensors
explore: --host 203.0.113.1 --port 0 → 203.0.113.1 | --max-size 3 → --max-size | --port 99999 → --port
explore: --mask0 a.png → --mask0
explore a.png b.png: --mask1 cut.png --export page.html → cut.png
explore a.png b.png: --export page.txt → page.txt | --export none/page.html → none
explore a.png b.png: --export notes.html → exists and is not from deepmatching
explore a.png b.png: --export page.html --model hog --model vgg → --model | --device tpu → tpu
bulk: --out new → the pairs | photos → --out | --status photos → status.json
bulk photos: --out new → --exhaustive | --sequential 0 --out new → --sequential
bulk: s3://bucket/photos --exhaustive --out new → s3:// | pairs.txt --out new → --images
bulk: pairs.txt --images photos --out new → pairs.txt | empty --exhaustive --out new → two images
bulk photos --exhaustive: --out gs://bucket/run → gs:// | --sequential 2 --out new → --exhaustive and --sequential
bulk photos --exhaustive: --images photos --out new → --images | --neighbours 3 --out new → --neighbours
bulk photos --exhaustive: --min-matches 20 --out new → --min-matches | --out new/run --device toaster → toaster
bulk photos --exhaustive: --out photos → photos | --out new --batch 0 → batch_size
bulk photos --exhaustive: --out new --graph photos/b.png → is an input
export run: → --hloc | --hloc feats.txt matches.h5 → feats.txt | --hloc same.h5 same.h5 → same.h5
export run: --hloc a.h5 b.h5 --images photos → --images | --hloc a.h5 b.h5 --camera-model PINHOLE → --camera-model
export run: --hloc a.h5 b.h5 --min-matches 20 → --min-matches | --hloc a.h5 b.h5 --max-keypoints 0 → max_keypoints
export run: --hloc a.h5 b.h5 --cell 0 → cell | --hloc notes.h5 m.h5 → notes.h5
export run: --graph g.png --min-matches -1 → --min-matches | --graph nowhere/g.png → nowhere
export run: --graph photos/a.png → photos/a.png | --colmap s.db --camera-params 1,x → --camera-params
export run: --colmap s.db --min-matches 2 → --min-matches | --colmap s.db --camera-model FISH → FISH
export run: --colmap photos/a.png → photos/a.png | --colmap run/run.json → run/run.json | --colmap notes.db → notes.db
export: photos --graph g.png → photos
sfm run: --out run → run | --out mine → mine/database.db | --out model --images nowhere → nowhere
sfm run: --out model --max-error 0 → --max-error | --out s3://bucket/model → s3:// | --out new/model --cell 0 → cell
sfm run: --out new/model --camera-model FISH → FISH
evaluate pairs.json: --resume → --json FILE | --flow --rank score → --rank | --preset sintel → --preset
evaluate pairs.json: --edges gradient → --edges | --structured-forest model.yml.gz → --structured-forest
evaluate pairs.json: --flow --structured-forest none.yml.gz → none.yml.gz
evaluate pairs.json: --flow --edges gradient --structured-forest x.yml.gz → --edges and --structured-forest
evaluate pairs.json: --flow --preset magic → 'magic' | --model none.safetensors → none.safetensors
evaluate pairs.json: --root here → root | --only other → 'other' | --json no/such/folder/e.json → no/such/folder
evaluate pairs.json: --json ./pairs.json → is an input | --json 0.flo → 0.flo'
evaluate pairs.json --method: sift --model hog → --model and --method | magic → 'magic' | sift --flow → --flow
evaluate pairs.json --method: dis --radius 16 → --radius | dis --reciprocal exact → --reciprocal
evaluate pairs.json --method: dis --no-subpixel → --no-subpixel | dis --pooling soft → --pooling | dis --half → --half
evaluate pairs.json --method: dis --device cuda → --device | dis --flow --preset sintel → --preset
evaluate pairs.json --method: dis --flow --edges gradient → --edges | dis --flow --max-size 60 → --max-size
evaluate pairs.json --method: dis --rank score → --rank | orb --json 0_a.png → 0_a.png'
evaluate pairs.json --method: orb --json notes.txt → notes.txt' | orb --pictures notes.txt → notes.txt'
train: nonsense → quickstart | quickstart data.train=none.json out=new/run → none.json
train small.toml: optimizer.lr=fast → optimizer.lr | optimizr.lr=1 → optimizer.lr
train small.toml: data.train=missing.json → missing.json | data.train=chairs → root
train small.toml: data.train=notes.json → notes.json | validation.data=missing.json → missing.json
train small.toml: model.init=missing.safetensors → missing.safetensors | model.init=notes.json → notes.json
train small.toml: model.init=vgg → model.descriptor=vgg | model.descriptor=sift → sift
train small.toml: model.settings.colour=3 → colour | device=toaster → toaster | out=notes.json → file
train small.toml: --resume → no run to resume
reproduce: table1 --root nowhere → nowhere/sintel | table2 --root . --datasets sintel → --datasets
reproduce table1 --root .: --checkpoint b → a, b, c | --checkpoint z=file → a, b, c | --checkpoint =x → a, b, c
reproduce table1 --root .: --rows a,z → 'a,z'
synthesize: http://pairs --photos . → http:// | new/pairs --photos . --count 0 → pairs
export-onnx a.onnx: → --size | --size big → 1024x436, not 'big' | --descriptor --size 64x64 → --size
export-onnx a.onnx: --descriptor --radius 8 → --radius | --size 64x64 --model nothing → nothing | --size 8x8 → small
export-onnx a.onnx: --size 4x64 → patch
export-onnx: a.txt --size 64x64 → a.txt | no/a.onnx --size 64x64 → no
export-onnx: notes.onnx --descriptor → exists and is not from deepmatching
bench: --size large → 1024x436 | --size 4x4 → patch | --size 10000000x10000000 → 1073741824 | --batch 0 → --batch
bench: --repeats 0 → --repeats | --json photos/a.png → photos/a.png
bench: --json notes.json → exists and is not from deepmatching
demo: --out a.png → folder | --out mine → exists and is not from deepmatching | --out EMPTY → empty
demo: --out=EMPTY → empty | --out s3://bucket/demo → s3:// | --out new/folder --device toaster → toaster
sing → sing
"""

#: Command lines with a name that no file has, and the suffix of such a file.
NAMED = """
match: {} b.png → .png | a.png {} → .png
match a.png b.png: --model {} → .safetensors | -o {} → .txt | --draw {} → .png
flow: {} b.png → .png | {} --out flows →
flow a.png b.png -o x.flo: --edges {} → .npy | --structured-forest {} → .yml
flow a.png b.png -o x.flo: --matches {} → .npz | --matches {} → .h5 | --matches {} → .txt
evaluate {} → .json | train {} → .toml | synthesize {} pairs →
train quickstart: data.train={} → .json | data.train=x.json out={} → | data.train=x.json model.init={} → .safetensors
"""

#: Numbers of many digits.
LARGE = f"""
match a.png b.png: --radius {DIGITS} → 1000000 | --radius {"9" * 5000} → radius | --radius 1e999 → radius
match a.png b.png: --levels {DIGITS} → level | --downscale {DIGITS} → downscale | --memory {DIGITS}GB → --memory
match a.png b.png: --memory {DIGITS} → 9223372036854775807 | --memory {"9" * 5000} → --memory
bulk photos --exhaustive --out new --max-size {DIGITS} → max_size | bench --size 8x{"9" * 5000} → 1073741824
"""

#: What some commands need.
EXTRAS = {"explore": "uvicorn", "export-onnx": "onnxscript", "sfm": "pycolmap", "export run --colmap": "pycolmap"}


def lines(table: str) -> list[tuple[str, str]]:
    """Return the cases of a table: "BEGINNING: REST → WORDS | REST → WORDS", where the beginning may be missing."""
    found = []
    for line in table.strip().splitlines():
        beginning, _, cases = line.rpartition(": ")
        halves = [case.partition("→") for case in cases.split(" | ")]
        found += [(f"{beginning} {rest}".strip(), words.strip()) for rest, _, words in halves]
    return found


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with files of every kind: pictures, frames, a run of photographs, pairs with flow, and others."""
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
    texts |= {
        "p.txt": "4 4\n",
        "far.txt": "4000 4\n",
        "words.txt": "x y z\n",
        "camera.txt": "9 0 5 0 9 5 0 0 1\n",
        "notes.csv": mine,
    }
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
