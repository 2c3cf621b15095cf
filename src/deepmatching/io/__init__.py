"""Files: reading and writing images, videos, flow, matches, edge maps and weights."""
