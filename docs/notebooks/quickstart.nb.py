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
# # Quickstart
#
# Two frames of a film come with the package. Matching them takes half a second on two cores.

# %%
from importlib.resources import files

import matplotlib.pyplot as plt

import deepmatching as dm

folder = files("deepmatching") / "data" / "demo"
a, b = str(folder / "bunny_0.jpg"), str(folder / "bunny_1.jpg")
matcher = dm.DeepMatcher.from_pretrained()
matches = matcher.match(a, b)
matches

# %% [markdown]
# The colours say how far and in which direction each point moved. The matches themselves are tensors, in pixels:

# %%
matches.keypoints0[:3], matches.keypoints1[:3], matches.confidence[:3]

# %% [markdown]
# The confidence is the probability that a match is less than 3 pixels off. So the number of right matches is about
# its sum:

# %%
good = matches.filter(0.9)
print(f"{len(matches)} matches, about {matches.confidence.sum():.0f} right; {len(good)} almost certainly right")

# %%
plt.figure(figsize=(12, 5))
plt.imshow(good.draw(a, b))
plt.axis("off")
# %% [markdown]
# Flow fills the gaps between the matches, up to the edges of objects:

# %%
result = matcher.flow(a, b)
result

# %% [markdown]
# It comes with a confidence of its own, and with the places that the second frame does not show:

# %%
figure, axes = plt.subplots(1, 2, figsize=(12, 4))
for axis, values, title in zip(axes, (result.confidence, result.occlusion), ("confidence", "hidden"), strict=True):
    axis.imshow(values, vmin=0, vmax=1)
    axis.set_title(title)
    axis.axis("off")

# %% [markdown]
# Files: `matches.save("ab.npz")` (or `.txt`, `.h5`) and `result.save("ab.flo")` (or `.png`, `.pfm`, `.npy`).
