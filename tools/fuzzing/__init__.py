"""Mutated files for every reader of the package. ``python -m fuzzing`` runs them for minutes, the tests for seconds."""
