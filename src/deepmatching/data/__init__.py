"""Pairs of images: data sets with ground truth, and synthetic ones."""
