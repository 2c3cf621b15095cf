"""Tests of edges run in one thread."""

from helpers.threads import one_thread as one_thread
