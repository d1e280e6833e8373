"""What all tests share: one cluster per run, and hypothesis without chance, so that red stays red."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests import clusters

settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        clusters.begin_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        clusters.end_run()
