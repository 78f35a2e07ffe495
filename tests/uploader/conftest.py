"""The emulator tier: a dataset of its own for each test, on an emulator that `ci/emulator` started."""

from __future__ import annotations

import itertools
import os

import pytest

_numbers = itertools.count()


@pytest.fixture
def emulated() -> str:
    """Return the address of a dataset that no other test uses."""
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    if not os.environ.get("BIGQUERY_EMULATOR_HOST"):
        pytest.skip("no BigQuery emulator: ci/emulator run -- .venv/bin/python -m pytest -m emulator")
    project = os.environ.get("BIGQUERY_EMULATOR_PROJECT", "emulated-project")
    return f"bigquery://{project}.test_{os.getpid()}_{next(_numbers)}"
