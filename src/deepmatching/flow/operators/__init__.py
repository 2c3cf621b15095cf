"""The arithmetic of interpolation and refinement: one operator a file, plain PyTorch or NumPy."""
