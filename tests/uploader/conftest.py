"""The emulator tier: datasets on an emulator that `ci/emulator` started."""

from __future__ import annotations

import itertools
import os

import pytest

_numbers = itertools.count()


def emulator_dataset() -> str:
    """Return the address of a dataset that no other test uses; skip where there is no emulator."""
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    if not os.environ.get("BIGQUERY_EMULATOR_HOST"):
        pytest.skip("no BigQuery emulator: ci/emulator run -- .venv/bin/python -m pytest -m emulator")
    project = os.environ.get("BIGQUERY_EMULATOR_PROJECT", "emulated-project")
    return f"bigquery://{project}.test_{os.getpid()}_{next(_numbers)}"


@pytest.fixture
def emulated() -> str:
    """A dataset of one test's own, not made yet."""
    return emulator_dataset()
