"""Datasets of the fake service (`tests.uploader.service`) and of an emulator that `ci/emulator` started."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ci.first_hour import service as first_hour
from keras_matrix.uploader.warehouse import Options

_numbers = itertools.count()
CLIENT = "google-cloud-bigquery is not installed: extra `bigquery`"


@contextmanager
def emulator_dataset() -> Iterator[str]:
    """The address of a dataset that no other test uses, not created yet; skip if there is no emulator.

    An emulator's dataset is removed at the end: each of its requests takes longer with each table that it has.
    """
    pytest.importorskip("google.cloud.bigquery", reason=CLIENT)
    host = os.environ.get("BIGQUERY_EMULATOR_HOST")
    if not host:
        pytest.skip("no BigQuery emulator: ci/emulator run -- .venv/bin/python -m pytest -m emulator")
    project = os.environ.get("BIGQUERY_EMULATOR_PROJECT", "emulated-project")
    name = f"test_{os.getpid()}_{next(_numbers)}"
    yield f"bigquery://{project}.{name}"
    if host in os.environ.get("BIGQUERY_EMULATOR_HOSTS", "").split(","):  # not a fake, which ends with its tests
        first_hour.opened(project, name, Options()).drop()


@pytest.fixture(
    scope="module",
    params=[pytest.param("fake", marks=pytest.mark.process), pytest.param("emulator", marks=pytest.mark.emulator)],
)
def service(request: pytest.FixtureRequest) -> Iterator[str]:
    """The service at BIGQUERY_EMULATOR_HOST for a module's tests: the fake service, then the emulator."""
    if request.param == "emulator":
        yield "emulator"
        return
    pytest.importorskip("google.cloud.bigquery", reason=CLIENT)
    from tests.uploader.service.server import Server

    with Server() as url, pytest.MonkeyPatch.context() as patched:
        patched.setenv("BIGQUERY_EMULATOR_HOST", url)
        patched.setenv("NO_GCE_CHECK", "true")
        yield "fake"


@pytest.fixture
def emulated(service: str) -> Iterator[str]:
    """The address of a dataset for one test, not created yet."""
    with emulator_dataset() as address:
        yield address
