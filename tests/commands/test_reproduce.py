"""The paper's tables on miniature data sets."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from deepmatching.commands.reproduce import reproduce
from deepmatching.data.datasets import KITTI2012
from deepmatching.data.datasets.published import MINI_VAL
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import flow_metrics, match_metrics, running
from deepmatching.evaluation.paper_tables import METHODS
from deepmatching.matcher import DeepMatcher
from deepmatching.models import load_network, save_network
from deepmatching.network.descriptors import VGG
from helpers.fake_datasets import FLOW, SIZE, write_kitti, write_sintel


def run(table: Literal["table1", "table2"], root: Path, **options: Any) -> None:
    reproduce(table, root, radius="16", device="cpu", **options)


def rows(output: str) -> list[list[str]]:
    return [
        re.split(r"\s{2,}", line.strip()) for line in output.splitlines() if re.search(r"(paper|ours) +[\d–]", line)
    ]


@pytest.fixture
def hog_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no trained model had come with the package."""
    for table, methods in METHODS.items():
        untrained = tuple(row if row.model == "hog" else replace(row, model=None) for row in methods)
        monkeypatch.setitem(METHODS, table, untrained)


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Record the calls of a flow that takes no time, a quarter pixel off, and 10 pixels off in rows 10 to 14."""
    calls = []

    def flow(self: DeepMatcher, image0: Any, image1: Any, preset: str, **options: Any) -> SimpleNamespace:
        settings = f"{preset}, radius {self.network.radius}"
        calls.append(SimpleNamespace(settings=settings, image0=image0, **options))
        field = np.full((*SIZE, 2), (FLOW[0] + 0.25, FLOW[1]), np.float32)
        field[10:15] = FLOW[0] + 10, FLOW[1]
        return SimpleNamespace(flow=field)

    monkeypatch.setattr(DeepMatcher, "flow", flow)
    return calls


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_sintel(tmp_path / "sintel", dict.fromkeys(MINI_VAL, 2))
    write_kitti(tmp_path / "kitti2012")
    return tmp_path


@pytest.mark.usefixtures("hog_alone")
def test_table1_prints_ours_beside_the_papers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("table1", data)
    printed = rows(capsys.readouterr().out)
    paper, ours = (row for row in printed[:2])
    assert paper[:3] == ["a", "HOG", "–"] and paper[3:7] == ["paper", "84.52", "91.89", "94.36"]
    assert ours[0] == "ours" and all(float(value) > 50 for value in ours[1:4])
    others = [row for row in printed[2:] if "ours" in row]
    assert len(others) == 6 and all(set(row[row.index("ours") + 1 :]) == {"–"} for row in others)


@pytest.mark.usefixtures("hog_alone")
def test_a_checkpoint_fills_its_row(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = load_network("hog", 16)
    save_network(network, tmp_path / "b.safetensors")
    run("table1", data, checkpoint=[f"b={tmp_path / 'b.safetensors'}"], limit=2, out=data / "out")
    ours = [row for row in rows(capsys.readouterr().out) if "ours" in row]
    assert [row[row.index("ours") + 1] != "–" for row in ours[:3]] == [True, True, False]
    assert ours[1][0] == "yours"  # what it was trained on
    kept = json.loads((data / "out" / "table1-sintelmini-b-matches.json").read_text())
    assert kept["settings"]["model"] == str(tmp_path / "b.safetensors") and len(kept["pairs"]) == 2


@pytest.mark.usefixtures("hog_alone")
def test_table2_has_three_data_sets_and_keeps_its_metrics(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("table2", data, out=data / "out")
    output = capsys.readouterr().out
    for name in ("kitti2012", "sintel-final", "sintel-clean"):
        assert name in output
        assert (data / "out" / f"table2-{name}-hog-matches.json").is_file()
    assert "DM (original)" in output and "FlowNet S+v" in output and "FlowNet C+v" in output
    run("table2", data, out=data / "out")  # nothing is measured again
    assert capsys.readouterr().out == output


@pytest.mark.usefixtures("hog_alone")
def test_a_data_set_that_is_missing_is_left_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "kitti2012").rename(data / "elsewhere")
    run("table2", data, limit=1)
    captured = capsys.readouterr()
    assert "kitti2012 is left out" in captured.err
    ours = [row for row in rows(captured.out) if "ours" in row]
    assert ours[0][-1] == "–" and sum(any(cell != "–" for cell in row[1:]) for row in ours if row[0] == "ours") == 2


@pytest.mark.usefixtures("hog_alone")
def test_with_a_limit_part_of_a_data_set_is_enough(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next((data / "sintel" / "training" / "flow").rglob("*.flo")).unlink()
    with pytest.raises(DeepMatchingError, match="incomplete"):
        run("table1", data)
    run("table1", data, limit=1)
    assert "note: left out 1 pair of sintelmini-val for lack of files" in capsys.readouterr().err


@pytest.mark.usefixtures("hog_alone")
def test_flow_is_made_with_epicflows_settings_for_each_data_set(
    data: Path, capsys: pytest.CaptureFixture[str], flows: list[SimpleNamespace]
) -> None:
    """And the occluded rows of KITTI do not count in the last two columns."""
    run("table2", data, limit=1, out=data / "out")
    assert {call.settings for call in flows} == {"kitti, radius 16", "sintel, radius 16"}
    kitti = next(row for row in rows(capsys.readouterr().out) if "ours" in row)
    known, occluded = SIZE[0] - 10, 5
    wrong = occluded / known
    assert kitti[-4:] == [f"{10 * wrong + 0.25 * (1 - wrong):.2f}", f"{100 * wrong:.2f}", "0.25", "0.00"]
    settings = json.loads((data / "out" / "table2-kitti2012-hog-flow.json").read_text())["settings"]
    assert (settings["preset"], settings["radius"]) == ("kitti", 16)


@pytest.mark.usefixtures("hog_alone")
def test_our_default_flow_is_a_line_of_its_own(
    data: Path, capsys: pytest.CaptureFixture[str], flows: list[SimpleNamespace]
) -> None:
    run("table1", data, limit=1, default_flow=True, out=data / "out")
    assert {call.settings for call in flows} == {"sintel, radius 16", "default, radius 160"}
    line = next(line for line in capsys.readouterr().out.splitlines() if "ours, default flow" in line)
    assert line.split()[-6:-2] == ["–"] * 4 and line.split()[-2] != "–"
    assert (data / "out" / "table1-sintelmini-a-default-flow.json").is_file()


@pytest.mark.usefixtures("hog_alone", "flows")
def test_the_papers_cnn_takes_vggs_published_weights(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    weights = {name: tensor.numpy() for name, tensor in VGG().state_dict().items()}
    np.savez(data / "vgg16.npz", **weights)
    run("table1", data, checkpoint=[f"c={data / 'vgg16.npz'}"], limit=1, out=data / "out")
    ours = [row for row in rows(capsys.readouterr().out) if "ours" in row]
    assert ours[2][:2] == ["ImageNet", "ours"] and float(ours[2][4]) > 50
    kept = json.loads((data / "out" / "table1-sintelmini-c-matches.json").read_text())["settings"]
    assert kept["model"] == str(data / "vgg16.npz") and kept["sha256"] and kept["radius"] == 16
    with pytest.raises(DeepMatchingError, match=r"none\.npz"):
        run("table1", data, checkpoint=["c=none.npz"])


@pytest.mark.usefixtures("hog_alone", "flows")
def test_without_masks_all_known_pixels_count_and_the_table_says_so(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("table2", data, limit=1, out=data / "out")
    assert "without masks" not in capsys.readouterr().out
    for folder in ("sintel/training/occlusions", "sintel/training/invalid", "kitti2012/training/flow_noc"):
        shutil.rmtree(data / folder)
    with pytest.raises(DeepMatchingError, match="--no-masks"):
        run("table2", data, limit=1)
    with pytest.raises(DeepMatchingError, match="without masks, and now it is false"):
        run("table2", data, limit=1, masks=False, out=data / "out")
    run("table2", data, limit=1, masks=False)
    output = capsys.readouterr().out
    assert "Table 2 of the paper; ours without masks: all pixels with ground truth" in output
    kitti = next(row for row in rows(output) if "ours" in row)
    assert kitti[-4] != "–" and kitti[-2:] == ["–", "–"]


def trained(path: Path, validation: list[str], score: str | None) -> str:
    """Write a row's model as training writes it: with its config and, if it is the best one, its score."""
    config = {"data": {"train": ["sintelmini"], "overfit": 0}, "validation": {"data": validation}}
    card = {"config": json.dumps(config), **({} if score is None else {"score": score})}
    save_network(load_network("hog", 16), path, **card)  # type: ignore[arg-type]
    return f"b={path}"


@pytest.mark.usefixtures("hog_alone", "flows")
@pytest.mark.parametrize(
    ("validation", "score", "warns"),
    [
        (["sintelmini"], "250.0", True),
        (["train"], "250.0", True),
        (["sintel-final"], "250.0", True),
        (["chairs"], "250.0", False),
        (["sintelmini"], None, False),
    ],
)
def test_a_model_chosen_on_the_pairs_it_is_reported_on_is_called_so(
    data: Path, capsys: pytest.CaptureFixture[str], validation: list[str], score: str | None, warns: bool
) -> None:
    run("table1", data, limit=1, checkpoint=[trained(data / "b.safetensors", validation, score)])
    captured = capsys.readouterr()
    assert ("note: row b is the best checkpoint on pairs of" in captured.err) == warns
    assert ("last.safetensors" in captured.err) == warns
    ours = [row for row in rows(captured.out) if "ours" in row][1]
    assert ours[:2] == ["sintelmini, last" if score is None else "sintelmini, best", "ours"]


@pytest.mark.usefixtures("hog_alone", "flows")
@pytest.mark.parametrize("config", ["", "3", "{}", '{"data": 1}', "not JSON"])
def test_a_model_with_a_card_of_others_is_simply_yours(
    data: Path, capsys: pytest.CaptureFixture[str], config: str
) -> None:
    save_network(load_network("hog", 16), data / "b.safetensors", config=config, score="1")
    run("table1", data, limit=1, checkpoint=[f"b={data / 'b.safetensors'}"])
    assert [row for row in rows(capsys.readouterr().out) if "ours" in row][1][0] == "yours"


@pytest.mark.usefixtures("flows")
def test_matches_are_verified_ranked_and_lie_on_cells_as_in_the_paper(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Q_0, verified by the first footnote (`exact`), and not sub-pixel; the table says what was used."""

    def settings_of(row: str) -> tuple[str, bool, bool]:
        kept = json.loads((data / "out" / f"table1-sintelmini-{row}-matches.json").read_text())["settings"]
        return kept["reciprocal"], kept["subpixel"], "rank" in kept

    used = []
    monkeypatch.setattr(running, "match_metrics", lambda *a: used.append(a[-1]) or match_metrics(*a))
    exact, by_score, ours = ("exact", False, False), ("exact", False, True), ("exact", True, False)
    learned = {"reciprocal": "bins", "subpixel": True, "rank": "confidence"}
    in_words = "sub-pixel matches where the model has learned them, ranked by conf"
    for options, words, expected in (
        (learned, f"bins, {in_words}", [("bins", True, False)] * 3),
        ({"subpixel": False, "rank": "score"}, "exact, matches on cells, ranked by score", [exact, by_score, by_score]),
        ({}, "exact, matches on cells, sub-pixel matches in row h, ranked by score, by conf", [exact, by_score, ours]),
    ):
        shutil.rmtree(data / "out", ignore_errors=True)
        used.clear()
        run("table1", data, limit=1, out=data / "out", default_flow=not options, **options)
        assert f"ours: radius 16, reciprocal {words}" in " ".join(capsys.readouterr().out.split())
        assert [settings_of(row) for row in "agh"] == expected
    assert used == ["score", "score", "confidence"]
    default_flow = json.loads((data / "out" / "table1-sintelmini-g-default-flow.json").read_text())["settings"]
    assert (default_flow["reciprocal"], default_flow["subpixel"], default_flow["radius"]) == ("bins", True, 160)


@pytest.mark.usefixtures("flows")
def test_rows_and_data_sets_can_be_selected(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("table2", data, limit=1, rows="vgg, hog,flownet-s", datasets="sintel-final,kitti2012", out=data / "out")
    printed = capsys.readouterr().out
    assert [row[0] for row in rows(printed) if "paper" in row] == ["flownet-s", "hog", "vgg"] * 2
    place = next(n for n, row in enumerate(rows(printed)) if row[0] == "vgg")  # what both models were trained on
    assert [rows(printed)[n][k] for n, k in ((place, 2), (place + 1, 0))] == ["Chairs", "synthetic"]
    assert printed.index("kitti2012") < printed.index("sintel-final") and "sintel-clean" not in printed
    written = {path.name for path in (data / "out").iterdir()}
    pairs = [("kitti2012", "hog"), ("kitti2012", "vgg"), ("sintel-final", "hog"), ("sintel-final", "vgg")]
    assert written == {f"table2-{name}-{row}-{kind}.json" for name, row in pairs for kind in ("matches", "flow")}


@pytest.mark.usefixtures("hog_alone")
def test_each_pair_is_matched_once_and_its_matches_become_the_flow(
    data: Path, monkeypatch: pytest.MonkeyPatch, flows: list[SimpleNamespace]
) -> None:
    matched, match = [], DeepMatcher.match

    def counting(self: DeepMatcher, image0: Any, image1: Any) -> Any:
        matched.append(match(self, image0, image1))
        return matched[-1]

    monkeypatch.setattr(DeepMatcher, "match", counting)
    run("table1", data, out=data / "out")
    once = len(MINI_VAL) + 1  # the first one twice, to warm up
    assert len(matched) == once and [id(call.matches) for call in flows] == [id(matches) for matches in matched]
    counts = []
    for removed in ((), ("flow",), ("matches",)):
        for kind in removed:
            (data / "out" / f"table1-sintelmini-a-{kind}.json").unlink()
        run("table1", data, out=data / "out")
        counts.append((len(matched), len(flows)))
    assert counts == [(once, once), (2 * once, 2 * once), (3 * once, 2 * once + 1)]  # the last one to warm up


@pytest.mark.slow
@pytest.mark.usefixtures("hog_alone")
def test_the_flow_of_a_table_is_that_of_its_matches(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("table2", data, limit=1, datasets="kitti2012", out=data / "out")
    kept = json.loads((data / "out" / "table2-kitti2012-hog-flow.json").read_text())["means"]["kitti2012"]["all"]
    matcher = DeepMatcher.from_pretrained("hog", radius=16, device="cpu", reciprocal="exact", subpixel=False)
    pair = KITTI2012(data / "kitti2012")[0]
    flow = matcher.flow(pair.image0, pair.image1, "kitti").flow
    assert kept["epe"] == pytest.approx(flow_metrics(flow, pair.flow.numpy())["all"]["epe"])


@pytest.mark.usefixtures("hog_alone")
def test_edges_and_kittis_images_can_be_chosen(
    data: Path, capsys: pytest.CaptureFixture[str], flows: list[SimpleNamespace]
) -> None:
    write_kitti(data / "kitti2012", "colored_0")
    model = data / "model.yml.gz"
    model.touch()
    only: dict[str, Any] = {"limit": 1, "datasets": "kitti2012", "rows": "hog"}
    run("table2", data, **only, kitti_images="color", structured_forest=model, out=data / "out")
    assert {call.edges.keywords["model"] for call in flows} == {model}
    assert all((call.image0 != call.image0[:1]).any() for call in flows)
    assert "edges: structured forest" in capsys.readouterr().out
    kept = json.loads((data / "out" / "table2-kitti2012-hog-flow.json").read_text())["settings"]
    assert (kept["edges"], kept["dataset"]) == ("structured forest", "kitti2012-color")
    run("table2", data, **only, kitti_images="grey", edges="gradient")
    assert flows[-1].edges == "gradient" and not (flows[-1].image0 != flows[-1].image0[:1]).any()
    assert "edges: gradient" in capsys.readouterr().out


def test_a_model_that_is_missing_is_reported(data: Path) -> None:
    with pytest.raises(DeepMatchingError, match=r"none\.safetensors"):
        run("table1", data, checkpoint=["b=none.safetensors"])
