"""Tests of training run in one thread."""

from helpers.threads import one_thread as one_thread
