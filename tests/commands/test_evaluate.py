"""``deepmatching evaluate``, without a process of its own."""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import cv2
import numpy as np
import pytest
import torch

from deepmatching.commands.evaluate import evaluate
from deepmatching.data.datasets.opening import NAMES
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import match_metrics, running
from deepmatching.evaluation.baselines import DENSE, KEYPOINTS
from deepmatching.flow import PRESETS
from deepmatching.io.flow import write_flow
from deepmatching.matcher import DeepMatcher
from deepmatching.models import load_network, save_network
from helpers import fake_datasets
from helpers.fake_datasets import FLOW, SIZE, moved, texture, write_image, write_pairs
from helpers.volumes import blobs


def run(dataset: Path | str, **options: Any) -> None:
    ours = {} if "method" in options else {"radius": "16", "model": "hog"}
    evaluate(str(dataset), **{"device": "cpu", **ours, **options})


@pytest.mark.slow
def test_means_go_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(write_pairs(tmp_path, 2, dataset="mine", scene="street"), json_file=tmp_path / "e.json")
    output = capsys.readouterr().out
    assert "hog, radius 16" in output and "acc@10" in output
    row = next(line.split() for line in output.splitlines() if line.strip().startswith("mine"))
    assert row[:3] == ["mine", "all", "2"]
    content = json.loads((tmp_path / "e.json").read_text())
    means = content["means"]["mine"]["all"]
    assert row[3:6] == [f"{means[name]:.2f}" for name in ("acc@2", "acc@5", "acc@10")]
    assert means["acc@2"] > 75
    assert [pair["name"] for pair in content["pairs"]] == ["street/0_a-0_b", "street/1_a-1_b"]


def test_a_pixel_takes_the_best_match_by_score_or_by_confidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, used = write_pairs(tmp_path, 1), []
    monkeypatch.setattr(running, "match_metrics", lambda *a: used.append(a[-1]) or match_metrics(*a))
    for rank in (None, "confidence", "score"):
        run(pairs, model="compact", rank=rank, json_file=tmp_path / f"{rank}.json")
        title = capsys.readouterr().out.splitlines()[0].strip()
        assert title == "compact, radius 16" + (", ranked by score" if rank == "score" else "")
    assert used == ["confidence", "confidence", "score"]
    with pytest.raises(DeepMatchingError, match="rank"):  # other results are not continued
        run(pairs, model="compact", json_file=tmp_path / "score.json", resume=True)


@pytest.mark.slow
def test_pairs_that_fail_are_searched_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = np.ascontiguousarray((blobs(3, 1, 3, 192, 192)[0] * 255).byte().permute(1, 2, 0).numpy())
    turned = np.array([[0.0, 1, 0], [-1, 0, 191], [0, 0, 1]])  # (x, y) is at (y, 191 − x)
    cv2.imwrite(str(tmp_path / "a.png"), picture)
    cv2.imwrite(str(tmp_path / "b.png"), np.rot90(picture))
    np.savetxt(tmp_path / "turned.txt", turned)
    entry = {"dataset": "mine", "image0": "a.png", "image1": "b.png", "homography": "turned.txt"}
    (tmp_path / "pairs.json").write_text(json.dumps([entry]))
    found = {}
    for auto in (False, True):
        run(tmp_path / "pairs.json", model="compact", radius=None, auto=auto, json_file=tmp_path / f"{auto}.json")
        title = capsys.readouterr().out.splitlines()[0].strip()
        assert title == "compact, radius 80" + (", auto" if auto else "")
        found[auto] = json.loads((tmp_path / f"{auto}.json").read_text())["pairs"][0]["two_view"]["auc@10"]
    assert found[False] < 20 and found[True] > 80


def test_matches_of_little_confidence_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = write_pairs(tmp_path, 1)
    for least in (None, 0.0, 1.0):
        run(pairs, model="compact", min_confidence=least, json_file=tmp_path / f"{least}.json")
    assert "confidence at least 1.0" in capsys.readouterr().out
    files = [json.loads((tmp_path / f"{least}.json").read_text()) for least in ("None", "0.0", "1.0")]
    accuracy = [file["means"]["pairs"]["all"]["acc@10"] for file in files]
    assert accuracy[0] == accuracy[1] > 75 and accuracy[2] == 0
    for refused in ({"flow": True}, {"method": "sift"}, {"model": "hog"}):
        with pytest.raises(DeepMatchingError, match="confidence"):
            run(pairs, min_confidence=0.5, **refused)


@pytest.mark.slow
def test_pooling_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = write_pairs(tmp_path, 1)
    for pooling in ("hard", "soft"):
        run(pairs, pooling=pooling, json_file=tmp_path / f"{pooling}.json")
        assert f"hog, radius 16, {pooling} pooling" in capsys.readouterr().out
    hard, soft = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("hard", "soft"))
    assert hard["settings"]["pooling"] == "hard" and hard["pairs"] != soft["pairs"]


def test_sub_pixel_matches_can_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, errors = write_pairs(tmp_path, 1, dataset="mine"), {}
    for subpixel in (True, False):
        file = tmp_path / f"{subpixel}.json"
        run(pairs, model="compact", subpixel=subpixel, reciprocal="exact", json_file=file)
        title = capsys.readouterr().out.splitlines()[0].strip()
        assert title == "compact, radius 16, reciprocal exact" + ("" if subpixel else ", matches on cells")
        matcher = DeepMatcher.from_pretrained(radius=16, device="cpu", reciprocal="exact", subpixel=subpixel)
        matches = matcher.match(tmp_path / "0_a.png", tmp_path / "0_b.png")
        errors[subpixel] = json.loads(file.read_text())["means"]["mine"]["all"]["epe"]
        wrong = matches.displacements - torch.tensor(FLOW)
        assert errors[subpixel] == pytest.approx(wrong.norm(dim=1).mean().item(), rel=1e-5)
    assert errors[True] != errors[False]


@pytest.mark.slow
def test_the_edges_of_the_flow_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The structured forest is the paper's; a stand-in shows that its edges arrive."""
    seen: list[Any] = []

    def edges_of(image: torch.Tensor, model: Path) -> np.ndarray:
        seen.append(model)
        return np.zeros(tuple(image.shape[1:]), np.float32)

    monkeypatch.setattr("deepmatching.flow.edges.structured_forest_edges", edges_of)
    model = tmp_path / "model.yml.gz"
    model.touch()
    pairs = write_pairs(tmp_path, 1, dataset="mine")
    titles, kept = [], []
    for options in ({}, {"edges": "gradient"}, {"structured_forest": model}):
        run(pairs, flow=True, json_file=tmp_path / "e.json", **options)
        titles.append(capsys.readouterr().out.splitlines()[0].strip())
        kept.append(json.loads((tmp_path / "e.json").read_text())["settings"].get("edges"))
    assert titles == ["hog, radius 16" + more for more in ("", ", edges: gradient", ", edges: structured forest")]
    assert kept == [None, "gradient", "structured forest"]
    assert set(seen) == {model}


def test_occluded_pixels_pairs_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, folder = fake_datasets.write_kitti(tmp_path), tmp_path / "deep" / "pictures"
    run("kitti2012", root=root, per_pair=True, pictures=folder, limit=1)
    output = capsys.readouterr().out
    assert output.count("noc") == output.count("occ") == 2  # once for the pair and once for the mean
    pictures = list(folder.iterdir())
    assert [path.name for path in pictures] == ["00000_kitti2012_000000.jpg"]
    assert cv2.imread(str(pictures[0])) is not None


@pytest.mark.parametrize("name", ["sintel [final]", "[/red]", "[bold]x[/bold]", ":tree: \\\\", "$x_{"])
def test_names_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    pairs = write_pairs(tmp_path, 1, dataset=name, scene=f"scene of {name}")
    for flow in (False, True):
        run(pairs, method="dis", flow=flow, per_pair=True, pictures=tmp_path / "pictures", only=[name])
        output = capsys.readouterr().out
        assert output.count(name) == 3 and f"scene of {name}" in output


def test_baselines_and_their_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_pairs(tmp_path, 1)
    run(path, method="sift")
    assert "sift" in capsys.readouterr().out
    run(path, method="dis", flow=True, json_file=tmp_path / "e.json", pictures=tmp_path / "pictures")
    output = capsys.readouterr().out
    assert "s10-40" in output and "pixels" in output
    assert json.loads((tmp_path / "e.json").read_text())["kind"] == "flow"
    assert len(list((tmp_path / "pictures").iterdir())) == 1


def test_photographs_are_measured_by_their_geometry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads(write_pairs(tmp_path, 1).read_text())[0]
    (tmp_path / "p.txt").write_text("10 10 16 6\n40 30 46 26\n60 20 66 16\n")
    np.savetxt(tmp_path / "h.txt", np.array([[1, 0, FLOW[0]], [0, 1, FLOW[1]], [0, 0, 1]]))
    images = {name: entry[name] for name in ("image0", "image1")}
    truths = {"marked": {"points": "p.txt"}, "planar": {"homography": "h.txt"}}
    entries = [{**images, "dataset": name, **truth} for name, truth in truths.items()]
    path = fake_datasets.write_manifest(tmp_path, entries)
    for options in ({}, {"method": "sift-8000"}, {"max_size": 60}, {"method": "sift", "max_size": 60}):
        run(path, json_file=tmp_path / "e.json", pictures=tmp_path / "pictures", per_pair=True, **options)
        output = capsys.readouterr().out
        rows = {line.split()[0]: line.split() for line in output.partition("AUC@5")[2].splitlines() if line.split()}
        content = json.loads((tmp_path / "e.json").read_text())
        means = content["means"]["planar"]["two_view"]
        assert rows["planar"][1:4] == ["1", f"{means['auc@5']:.1f}", f"{means['auc@10']:.1f}"] and means["auc@10"] > 80
        assert rows["mean"][:6] == ["mean", "of", "2", "data", "sets", "2"] and "acc@2" in output
        assert content["settings"].get("max_size") == options.get("max_size")
    assert len(list((tmp_path / "pictures").iterdir())) == 2


def test_passes_groups_and_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = fake_datasets.write_sintel(tmp_path, {"cave_2": 2})
    run("sintel", root=root, passes="final")
    output = capsys.readouterr().out
    assert "sintel-final" in output and "noc" in output
    run("sintel", root=root, masks=False, only=["sintel-clean"])
    assert "noc" not in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_pairs_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = write_pairs(tmp_path, 4), tmp_path / "e.json"
    original, calls = DeepMatcher.match, []

    def match(self: DeepMatcher, *images: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # the first warms up
            raise KeyboardInterrupt
        return original(self, *images)

    monkeypatch.setattr(DeepMatcher, "match", match)
    with pytest.raises(KeyboardInterrupt):
        run(path, json_file=file)
    assert "2 of 4 pairs are kept" in capsys.readouterr().err.replace("\n", " ")
    assert len(json.loads(file.read_text())["pairs"]) == 2
    calls[:] = [1] * 10
    run(path, json_file=file, resume=True)
    assert len(calls) == 10 + 1 + 2
    resumed = json.loads(file.read_text())
    run(path, json_file=tmp_path / "whole.json")
    whole = json.loads((tmp_path / "whole.json").read_text())
    metrics = [[pair["all"] for pair in content["pairs"]] for content in (resumed, whole)]
    assert metrics[0] == metrics[1]
    calls.clear()
    run(path, json_file=file, resume=True)
    assert not calls  # nothing is left to do


def test_a_changed_model_is_not_continued(tmp_path: Path) -> None:
    path, file = write_pairs(tmp_path, 1), tmp_path / "e.json"
    network = load_network("hog", 16)
    save_network(network, tmp_path / "m.safetensors")
    run(path, json_file=file, model=str(tmp_path / "m.safetensors"))
    run(path, json_file=file, model=str(tmp_path / "m.safetensors"), resume=True)
    network.exponents.data[0] = 1.0
    save_network(network, tmp_path / "m.safetensors")
    before = file.read_text()
    with pytest.raises(DeepMatchingError, match="sha256"):
        run(path, json_file=file, model=str(tmp_path / "m.safetensors"), resume=True)
    for changed in ({"radius": "24"}, {"limit": 1}, {"masks": False}, {"method": "orb"}):
        with pytest.raises(DeepMatchingError, match=re.escape(str(file))):
            run(path, json_file=file, resume=True, **changed)
    assert file.read_text() == before


def test_pairs_without_known_truth_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_pairs(tmp_path, 9, dataset="mine")
    unknown = np.full((*SIZE, 2), np.nan, np.float32)
    for number in range(1, 8):
        write_flow(tmp_path / f"{number}.flo", unknown)
    run(path, method="dis-fast", flow=True, json_file=tmp_path / "e.json")
    captured = capsys.readouterr()
    assert "left out 7 of 9 pairs" in captured.err
    assert "1_a-1_b, 2_a-2_b, 3_a-3_b, 4_a-4_b, 5_a-5_b and 2 more" in captured.err
    row = next(line.split() for line in captured.out.splitlines() if "mine" in line)
    assert row[:4] == ["mine", "all", "pairs", "2"]
    for number in (0, 8):
        write_flow(tmp_path / f"{number}.flo", unknown)
    with pytest.raises(DeepMatchingError, match="ground truth"):
        run(path, json_file=tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_a_pair_that_cannot_be_done_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = write_pairs(tmp_path, 3), tmp_path / "e.json"
    write_image(tmp_path / "1_b.png", texture((4, 4)))
    with pytest.raises(DeepMatchingError, match=r"^Pair 2 of 3 \('1_a-1_b' of pairs\): "):
        run(path, flow=True, json_file=file)
    assert "1 of 3 pairs are kept" in (said := capsys.readouterr().err)
    assert "fix the error below, then go on with --resume" in said
    with pytest.raises(DeepMatchingError, match=r"^Pair 2 of 3"):
        run(path, flow=True, json_file=file, resume=True)
    assert "kept" not in capsys.readouterr().err
    write_image(tmp_path / "1_b.png", moved(texture(seed=1)))
    run(path, flow=True, json_file=file, resume=True)
    write_image(tmp_path / "0_b.png", texture((4, 4)))  # the pair that warms up
    with pytest.raises(DeepMatchingError, match=r"^Pair 1 of 3 \('0_a-0_b' of pairs\): "):
        run(path, flow=True)


def test_the_help_names_every_data_set_method_and_preset() -> None:
    hints = get_type_hints(evaluate, include_extras=True)
    for option, names in (("dataset", NAMES), ("method", (*KEYPOINTS, *DENSE)), ("preset", PRESETS)):
        words = re.findall(r"[\w-]+", hints[option].__metadata__[0].help)
        assert set(names) <= set(words), option
