"""The matcher inside other libraries. Each module needs its library, except ``kornia``, whose interface needs none."""
