"""Training and evaluation of the edge network that ships: not part of the installed package."""
