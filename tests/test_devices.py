"""Apple's GPUs, which have no kernels and no float64; simulated, so that every machine can tell."""

from pathlib import Path

import numpy as np
import pytest
import torch

from deepmatching import DeepMatcher
from deepmatching.commands.messages import match_summary, search_summary
from deepmatching.kernels.registry import plain_operators
from helpers.fake_mps import DEVICE, simulate
from helpers.synthetic_pictures import draw_photo


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    picture = torch.from_numpy(draw_photo(3, 96, 128)).permute(2, 0, 1) / 255
    return picture, picture.roll((2, -3), (1, 2))


def test_the_simulated_device_refuses_what_the_real_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulate(monkeypatch):
        there = torch.ones(3).to(DEVICE)
        for refused in (there.double, there.numpy, lambda: there + torch.ones(3)):
            with pytest.raises((TypeError, RuntimeError)):
                refused()
        assert (there + 1).sum().item() == 6 and (there + 1).device == DEVICE


@pytest.mark.slow
@pytest.mark.parametrize("model", ["hog", "compact", "vgg"])
def test_an_apple_gpu_gives_the_matches_of_the_cpu(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with plain_operators():
        expected = DeepMatcher.from_pretrained(model, radius=16, device="cpu").match(*pair())
    with simulate(monkeypatch):
        matcher = DeepMatcher.from_pretrained(model, radius=16, device="mps", memory=10**9)
        found = matcher.match(*pair())
        assert found.keypoints1.device == DEVICE
        assert f"{len(found)} matches" in match_summary(found, 1.0, matcher)
        found.draw(*pair(), tmp_path / "matches.png")
        found.save(tmp_path / "matches.npz")
    np.testing.assert_allclose(found.numpy()[1], expected.numpy()[1], atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["hog", "compact"])
def test_an_apple_gpu_gives_the_flow_of_the_cpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = DeepMatcher.from_pretrained(model, radius=16, device="cpu").flow(*pair())
    with simulate(monkeypatch):
        found = DeepMatcher.from_pretrained(model, radius=16, device="mps", memory=10**9).flow(*pair()).read()
    np.testing.assert_allclose(found.flow, expected.flow, atol=0.05)
    np.testing.assert_allclose(found.confidence, expected.confidence, atol=0.05)
    assert found.agreement == pytest.approx(expected.agreement, abs=0.01)


@pytest.mark.slow
def test_an_apple_gpu_finds_a_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = pair()[0]
    with simulate(monkeypatch):
        matcher = DeepMatcher.from_pretrained(radius=16, device="mps", memory=10**9, rotations=4)
        found = matcher.match(picture, picture.rot90(-1, (1, 2)))
        assert "turned by 90 degrees" in search_summary(found)
        square = picture[:, :, :96]
        flow = matcher.flow(square, square.rot90(-1, (1, 2)))
    y, x = 20, 70
    assert flow.flow[y, x] == pytest.approx((95 - y - x, x - y), abs=1)
