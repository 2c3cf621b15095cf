# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inside the matcher
#
# One point on its way through the network: the score maps from fine to coarse, the switches, and the path back. Then
# we train a descriptor on one pair, which takes about a minute.

# %%
import os
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import torch

import deepmatching as dm
from deepmatching.data.datasets.pairs import homography_flow
from deepmatching.network.losses import Objective
from deepmatching.models import build_network

SIDE = int(os.environ.get("NOTEBOOK_SIDE", 256))  # of the pictures, in pixels; tests use smaller ones
STEPS = int(os.environ.get("NOTEBOOK_STEPS", 60))  # of training

matcher = dm.DeepMatcher.from_pretrained(radius=SIDE // 8, device="cpu")
folder = files("deepmatching") / "data" / "demo"
image0, image1 = (
    matcher.load(str(folder / f"bunny_{n}.jpg"))[None, :, 100 : 100 + SIDE, 280 : 280 + SIDE] for n in (0, 1)
)

# %% [markdown]
# ## Score maps
#
# `S[l]` has a score for every reference point and every target: (pair, row, column, target row, target column). With
# each level the patches get twice as large, and the maps half as wide.

# %%
network = matcher.network
with torch.no_grad():
    pyramid = network(image0, image1)
for l, scores in enumerate(pyramid.S):
    print(f"S_{l}: {tuple(scores.shape)}, patches of {8 * 2**l} pixels")

# %% [markdown]
# The maps of one point. Alone, a patch of 8 pixels looks like many others (S_0). Large patches know where they
# belong, but roughly (S_L). On the way back, each level keeps what the coarser one allows (Q_0).

# %%
point = (SIDE // 2, SIDE // 2)
plt.figure(figsize=(12, 6))
plt.imshow(matcher.draw_scores(image0[0], image1[0], point))
plt.axis("off")
# %% [markdown]
# ## Switches and the path
#
# Max pooling notes which of its 3 × 3 cells won: the switch, a number from 0 to 8. With the switches, the way back
# knows where each score came from.

# %%
geometry = pyramid.geometry
with torch.no_grad():
    S, switches = network.fine_to_coarse(pyramid.S[0], geometry)
i, j = geometry.nearest_point(0, point)
plt.figure(figsize=(4, 4))
plt.imshow(switches[0][0, i, j], cmap="tab10", vmin=0, vmax=9)
plt.title("switches of level 0")
plt.axis("off")
# %% [markdown]
# Q_0 of a match is the sum of one score of each level: the best path. Its gradient finds the path, because a maximum
# passes the gradient to the winner alone. So the gradient with respect to each S_l is 1 at one cell and 0 everywhere
# else.

# %%
leaves = [scores.detach().requires_grad_() for scores in S]
Q_0 = network.coarse_to_fine(leaves, switches, geometry)[0]
best = Q_0[0, i, j].max()
best.backward()
total = 0.0
for l, scores in enumerate(leaves):
    ((_, row, column, y, x),) = scores.grad.nonzero().tolist()
    ys, xs = geometry.target_points(l)
    rows, columns = geometry.reference_points(l)
    score = float(scores.detach()[0, row, column, y, x])
    total += score
    print(
        f"level {l}: the patch of {8 * 2**l} px at ({columns[column]:.0f}, {rows[row]:.0f}) goes to "
        f"({xs[column, x]:.0f}, {ys[row, y]:.0f}), score {score:.3f}"
    )
print(f"sum {total:.3f}, Q_0 {best.item():.3f}")
assert abs(total - best.item()) < 1e-3

# %% [markdown]
# ## Learn a descriptor from one pair
#
# Every step has a gradient, so that a loss on Q_0 reaches the descriptor. For a true motion that we know, the second
# picture is the first one, moved by a homography, darker and noisy. The descriptor starts from random weights.

# %%
matrix = np.array([[1.03, 0.04, 3.0], [-0.03, 0.98, 5.0], [0.0, 0.0, 1.0]])
flow = torch.from_numpy(homography_flow(matrix, SIDE, SIDE, SIDE, SIDE))[None]
inverse = torch.from_numpy(np.linalg.inv(matrix)).float()
y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
source = torch.stack([x, y, torch.ones_like(x)], dim=-1).float() @ inverse.T
grid = (source[..., :2] + 0.5) * 2 / SIDE - 1
torch.manual_seed(0)
moved = torch.nn.functional.grid_sample(image0, grid[None], align_corners=False)
moved = (0.6 * moved + 0.05 * torch.randn_like(moved)).clamp(0, 1)


def accuracy(network: dm.Network) -> float:
    """How many of all reference points have a match within 5 pixels of the truth, in percent."""
    points = network.decode(image0, moved)
    truth = flow[0, 4::8, 4::8][: points.points1.shape[1], : points.points1.shape[2]]
    known = ~torch.isnan(truth[..., 0])
    distance = (points.points1[0] - points.points0 - truth).norm(dim=-1)[known]
    return 100 * float((distance < 5).float().mean())


student = build_network("compact", radius=SIDE // 8)
objective = Objective()
optimizer = torch.optim.Adam([*student.parameters(), *objective.parameters()], lr=2e-3)
curve, before = [], accuracy(student)
for _ in range(STEPS):
    loss, _ = objective(student(image0, moved), flow)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    student.keep_positive()
    curve.append(float(loss.detach()))
print(f"matches within 5 pixels: {before:.0f} % with random weights, {accuracy(student):.0f} % after {STEPS} steps")

# %%
plt.figure(figsize=(6, 3))
plt.plot(curve)
plt.xlabel("step")
plt.ylabel("loss")
plt.grid(alpha=0.3)

# %% [markdown]
# One pair teaches one picture. `deepmatching train` does the same with many, and keeps what generalises.
