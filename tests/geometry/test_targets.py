"""What is known at reference points, beside where their matches lie."""

import torch

from deepmatching.geometry.targets import Decoded, at_pixels


def decoded(confidence: torch.Tensor | None, occluded: torch.Tensor | None, scores: torch.Tensor) -> Decoded:
    points = torch.zeros(*scores.shape[1:], 2)
    return Decoded(points, points[None], scores, scores.long(), scores > 0, confidence, occluded)


def test_points_are_unmatched_that_are_visible_and_have_a_wrong_match() -> None:
    confidence, occluded = torch.tensor([[[0.1, 0.9, 0.1, 0.1]]]), torch.tensor([[[0.2, 0.2, 1.0, 0.2]]])
    scores = torch.tensor([[[1.0, 1.0, 1.0, -torch.inf]]])  # the last one is masked
    found = decoded(confidence, occluded, scores).unmatched(0)
    torch.testing.assert_close(found, torch.tensor([[0.72, 0.08, 0.0, 0.0]]))
    assert decoded(confidence, None, scores).unmatched(0) is None
    assert decoded(None, None, scores).unmatched(0) is None


def test_values_of_points_are_linear_between_them_and_constant_beyond() -> None:
    found = at_pixels(torch.tensor([[0.0, 8.0, 16.0], [80.0, 88.0, 96.0]]), (17, 25))  # points at 3.5, 11.5 and 19.5
    assert found.shape == (17, 25)
    y, x = torch.meshgrid(torch.arange(17.0), torch.arange(25.0), indexing="ij")
    torch.testing.assert_close(found, (x - 3.5).clamp(0, 16) + 10 * (y - 3.5).clamp(0, 8))
