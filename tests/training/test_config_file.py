"""Configs: what can be set, and what is said about what cannot."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepmatching.errors import DeepMatchingError
from deepmatching.training.config import SETTINGS, Config
from deepmatching.training.config_file import config_to_dict, read_config, shipped_configs, write_config

REQUIRED = ("data.photos=photographs",)  # what the shipped configs leave to the user
QUICKSTART = ("data.train=pairs.json",)


def test_the_shipped_configs_can_be_read_and_written(tmp_path: Path) -> None:
    assert {"compact", "paper", "quickstart", "vgg"} <= set(shipped_configs())
    for name in shipped_configs():
        config = read_config(name, {"quickstart": QUICKSTART, "paper": ()}.get(name, REQUIRED))
        write_config(config, tmp_path / "config.toml")
        assert read_config(tmp_path / "config.toml") == config


def test_quickstart_does_not_guess_where_the_pairs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.json").write_text("[]")
    with pytest.raises(DeepMatchingError, match=r"set data\.train to a manifest \(data\.train=pairs\.json\)"):
        read_config("quickstart")


def test_the_paper_config_is_the_papers_recipe() -> None:
    config = read_config("paper")
    assert (config.optimizer.name, config.optimizer.momentum > 0, config.data.batch) == ("sgd", True, 1)
    assert (config.loss.kind, config.loss.weights) == ("hinge", {"Q0": 1.0})
    assert (config.model.descriptor, config.model.radius, config.model.levels) == ("vgg", 80, 6)
    assert not config.model.learn_nu0  # "learning values ν_l, l = 1, …, L specific for each layer"
    assert read_config("paper", ["data.root=x", "data.split=val", "validation.split=val"]).data.split == "val"
    assert read_config("vgg", ["data.photos=x"]).model.learn_nu0  # our own recipes learn ν_0 too


text = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1)


@given(text, text.filter(lambda name: name.strip()), st.floats(1e-6, 1e6), st.integers(0, 10**9))
def test_any_text_and_number_survives_a_file(
    tmp_path_factory: pytest.TempPathFactory, name: str, key: str, rate: float, seed: int
) -> None:
    data = {"train": ["synthetic"], "photos": name, "synthesis": {key: rate}}
    config = Config(out=name, seed=seed, data=data, optimizer={"lr": rate}, model={"settings": {key: [1, 2]}})
    path = tmp_path_factory.mktemp("config") / "c.toml"
    write_config(config, path)
    assert read_config(path) == config


def test_words_change_settings(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[data]\ntrain = "a.json"\n[loss]\nweights = { Q0 = 1.0 }\n')
    words = ["optimizer.lr=1e-3", "out=runs/with = sign", "data.train=['a.json', 'b.json']", "data.crop=[64, 96]"]
    config = read_config(path, [*words, "loss.weights.S0=0.25", "model.radius=full", "minutes=3", "data.flips=false"])
    assert (config.optimizer.lr, config.out, config.model.radius) == (1e-3, "runs/with = sign", "full")
    assert (config.data.train, config.data.crop) == (("a.json", "b.json"), (64, 96))
    assert config.loss.weights == {"Q0": 1.0, "S0": 0.25}
    assert config.minutes == 3.0 and isinstance(config.minutes, float) and config.data.flips is False
    # A word joins the default weights, and a table replaces them.
    assert read_config("quickstart", [*QUICKSTART, "loss.weights.S0=0.5"]).loss.weights == {"Q0": 1.0, "S0": 0.5}
    assert read_config("quickstart", [*QUICKSTART, "loss.weights={S0=0.5}"]).loss.weights == {"S0": 0.5}


#: A bad word, and what the message must name: the key and the value, limit or remedy.
BAD = [
    ("optimiser.lr=1", "optimizer.lr"),
    ("data.trian=x", "data.train"),
    ("optimizer.lr=fast", "optimizer.lr must be .* number, not 'fast'"),
    ("optimizer.lr=-1", "optimizer.lr must be .* 0, not -1"),
    ("optimizer.lr=inf", "optimizer.lr must be .*, not inf"),
    ("steps=1.5", "steps must be .*, not 1.5"),
    ("steps=0", "set steps or minutes"),
    ("amp=fp16", "amp must be 'off' or 'bf16', not 'fp16'"),
    ("out=''", "set out"),
    ("seed=99999999999999999999999", "seed must be .* 9223372036854775807"),
    ("foo=1", "docs/training.md"),
    ("data.zzz=1", "use one of data.train, "),
    ("data=3", "section"),
    ("out.name=x", "out is a value"),
    ("steps", "key=value"),
    ("self=1", "'self'"),
    ("data.flips=1", "data.flips must be .*, not 1"),
    ("model.radius=half", "model.radius must be .* or 'full', not 'half'"),
    ("model.learn=nothing", "exponents"),
    ("data.crop=[3]", r"\[rows, columns\]"),
    ("data.train=synthetic", "data.photos"),
    ("data.train=['synthetic', 'x.json']", "cannot mix"),
    ("data.root=['a', 'b']", "one for each"),
    ("data.passes=final", "data.passes is for sintel"),
    ("data.split_file=split.txt", "data.split_file is for chairs"),
    ("data.split=train", "data.split is for sintelmini and chairs"),
    ("validation.split=val", "validation.split is for sintelmini and chairs"),
    ("data.photos=photos", "data.photos is for data.train='synthetic'"),
    ("data.synthesis.preset=default", "data.synthesis is for data.train='synthetic'"),
    ("optimizer.lr=" + "9" * 400, "optimizer.lr must be .* number, not 999"),
    ("model.settings.dimensions=1" + "0" * 400, "model.settings.dimensions must be a finite number"),
    ("data.crop=" + "[" * 100_000, "data.crop must be"),
    ("validation.criterion=loss", "acc@2"),
    ("validation.data=['train', 'x.json']", "cannot mix"),
    ("validation.data=synthetic", "validation.data"),
    ("loss.kind=l1", "'hinge'"),
    ("loss.sigma=1e-30", "loss.sigma must be .*, not 1e-30"),
    ("loss.weights.Q0=-1", "loss.weights.Q0 must be .* 0, not -1"),
    ("loss.weights.Q0=0", "No score volume has a weight"),
    ("loss.weights.R0=1", "R0"),
    ("loss.weights=3", "loss.weights must be .*, not 3"),
    ("loss.flow_positions=mean", "loss.flow_positions must be 'peak' or 'soft', not 'mean'"),
    ("loss.flow_positions=soft", "loss.flow_positions is for loss.flow"),
    ("model.subpixel=0", "model.subpixel"),
    ("model.subpixel=-1", "model.subpixel must be .* 'auto', not -1"),
]


@pytest.mark.parametrize(("word", "says"), BAD, ids=[word[:40] for word, _ in BAD])
def test_bad_settings_are_named(word: str, says: str) -> None:
    with pytest.raises(DeepMatchingError, match=says) as raised:
        read_config("quickstart", [*QUICKSTART, word])
    assert word != "foo=1" or not set(SETTINGS) & set(str(raised.value).split())  # only close settings are suggested
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600


def test_the_confidence_needs_a_trained_model() -> None:
    with pytest.raises(DeepMatchingError, match=r"model\.learn=confidence .* set model\.init"):
        read_config("quickstart", [*QUICKSTART, "model.learn=confidence", "model.init="])


def test_other_data_replace_the_synthetic_pairs_of_a_config() -> None:
    config = read_config("compact", ["data.train=pairs.json", "validation.data=train"])
    assert config.data.train == ("pairs.json",) and not config.data.synthesis
    synthetic = read_config("compact", ["data.train=synthetic", "data.photos=photos"])
    assert synthetic.data.synthesis["max_displacement"] == 64


@pytest.mark.parametrize("word", ["2024-01-01", "1e5", "true", "12:30:00", "{a=1}"])
def test_text_need_not_look_like_text(word: str) -> None:
    config = read_config("quickstart", [f"out={word}", f"data.train={word}", f"model.init={word}"])
    assert (config.out, config.data.train, config.model.init) == (word, (word,), word)
    assert read_config("quickstart", [f"out='{word}'", f'data.train=["{word}"]']).out == word


def test_bad_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("steps = ")
    for name, says in (("broken.toml", "not TOML"), ("missing.toml", "quickstart")):
        with pytest.raises(DeepMatchingError, match=says):
            read_config(tmp_path / name)


def test_the_page_on_training_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {key: row[2].strip() for row in rows for key in re.findall(r"`([\w.]+)`", row[1])}
    assert set(SETTINGS) <= set(listed)
    defaults = config_to_dict(Config(**{"data": {"photos": "photographs"}}))
    for key in ("steps", "optimizer.lr", "optimizer.warmup", "data.batch", "validation.every", "loss.scale"):
        section, _, name = key.rpartition(".")
        assert float(listed[key]) == (defaults[section] if section else defaults)[name]
