"""From a run of bulk matching to hloc, COLMAP and a model of the scene."""
