"""Shared factories of values, and settings that make the tests quick; nothing here starts a process."""

from __future__ import annotations

import functools
import gc
import gettext
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import (
    SCHEMA_VERSION,
    DeviceProof,
    Evidence,
    Harness,
    Learning,
    Machine,
    Memory,
    Record,
    Resolved,
    Status,
    Surroundings,
    Times,
)
from keras_matrix.records.settings import Settings
from keras_matrix.runner.executors.preflight import installed
from keras_matrix.runner.machine import machine
from tests import backends, for_every_change, gpu_tier, shared, unit_tier
from tests.dashboards import chromium
from tests.golden import Golden


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Golden files in the folder `golden` next to the test's module."""
    return Golden(request.path.parent / "golden", request.config.getoption("--update-golden"))


SETTINGS = Settings(
    backend="jax",
    workload="mnist_mlp",
    params={},
    batch_size=32,
    samples=1000,
    phase="fit",
    epochs=4,
    discard=1,
    steps_per_epoch="auto",
    data="synthetic",
    seed=0,
    device="cpu",
    precision="float32",
    jit="auto",
    eager=False,
    steps_per_execution=1,
    feed="device_resident",
    threads="all",
    compile_cache="cold",
    league="as_shipped",
)
CELL_ID = cell_id(SETTINGS)
NIGHTLY = os.environ.get("NIGHTLY") == "1"
HERE = Path(__file__).parent
STARTED_IN = Path.cwd()
CPUS = os.sched_getaffinity(0)  # before a worker is held to one of them
TIERS = {"process", "alone", "emulator", "browser", "docker", "gpu", "smoke"}
# Google's client leaves its connections for the garbage collector to close.
CLIENT_WARNINGS = (
    "ResourceWarning",
    "pytest.PytestUnraisableExceptionWarning",
    "FutureWarning:google",
    "DeprecationWarning:google",
)
MACHINE = Machine(host_id="0" * 16, cpu_model="a CPU", logical_cpus=2)


def pytest_configure() -> None:
    """Set up a pytest process that shares its CPUs with others."""
    gc.disable()  # until all tests are collected: what is imported and collected stays, and is no garbage
    # Each of the 33 parsers of a command line looks for files of translations, for 3 ms in all.
    vars(gettext)["find"] = functools.cache(gettext.find)
    hypothesis.settings.register_profile("shared-cpus", deadline=None)  # a pause of 0.2 s is no fault of the code
    hypothesis.settings.load_profile("shared-cpus")
    shared.begin()
    unit_tier.prepare()
    machine.DMI = Path(os.devnull)  # on a cloud, too, no test asks the metadata server
    if hosts := os.environ.get("BIGQUERY_EMULATOR_HOSTS"):
        own = emulator_of(os.environ.get("PYTEST_XDIST_WORKER", "gw0"), hosts.split(","))
        os.environ["BIGQUERY_EMULATOR_HOST"] = own
    if "ONE_CPU_PER_PYTEST_WORKER" in os.environ:
        hold_to_one_cpu(os.environ.get("PYTEST_XDIST_WORKER", ""))


def pytest_unconfigure() -> None:
    shared.end()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test that `-m` selects, as far as their text tells: to collect all takes 12 s."""
    if collection_path.suffix != ".py":
        return None
    expression = config.option.markexpr
    if "not process" in expression and is_of_processes(collection_path):
        return True
    marks = marks_asked_for(expression)
    return True if marks and not marks <= words_about(collection_path) else None


def is_of_processes(file: Path) -> bool:
    """Return whether all tests of a file are of the process tier: many such files import a backend."""
    whole_file = re.search(r"^pytestmark = (.*)", file.read_text(), flags=re.MULTILINE)
    return whole_file is not None and "mark.process" in whole_file[1] and "mark.smoke" not in whole_file[1]


def marks_asked_for(expression: str) -> set[str]:
    """Return the marks of every test that an expression selects, if it is names joined with `and`, otherwise none."""
    terms = [term.strip() for term in expression.split(" and ")]
    if not all(re.fullmatch(r"(not )?[a-z_]+", term) for term in terms):
        return set()
    return {term for term in terms if not term.startswith("not ")}


@functools.cache
def words_about(file: Path) -> set[str]:
    """Return the words of a file of tests and of the fixtures of its folders below this one, which can add marks."""
    folders = [folder for folder in file.parents if HERE in folder.parents]
    return set().union(*map(words, [file, *(folder / "conftest.py" for folder in folders)]))


@functools.cache
def words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z_]+", path.read_text())) if path.exists() else frozenset()


def emulator_of(worker: str, hosts: Sequence[str]) -> str:
    """Return the BigQuery emulator of a pytest worker ("gw0", "gw1", ...)."""
    return hosts[int(worker.removeprefix("gw")) % len(hosts)]


def hold_to_one_cpu(worker: str) -> None:
    """Hold a pytest worker ("gw0", "gw1", ...), and the processes its tests start, to one CPU.

    PyTorch's threads spin while they wait: two tests on the same two cores take far longer than one after the other.
    """
    if worker:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(worker.removeprefix("gw")) % len(cpus)]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the groups of tests that one worker runs, since another one would wait for the last of them to end.

    Refuse a mark of ci/process on a test that ci/process would not select: `ci/unit` would run it. Refuse a mark that
    neither the file of its test nor its fixtures name: the file is left out where `-m` asks for the mark.
    """
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    for item in items:
        if item.get_closest_marker("google_client"):
            for warning in CLIENT_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))
        names = {mark.name for mark in item.iter_markers()}
        if "process" not in names and (without := names & {"smoke", "alone"}):
            raise pytest.UsageError(f"{item.nodeid}: marked {without.pop()} but not process; add @pytest.mark.process")
        if "process" in names and isinstance(item, pytest.Function) and "measured_once" not in item.fixturenames:
            item.fixturenames.insert(0, "measured_once")
        if unnamed := names & TIERS - words_about(item.path):
            raise pytest.UsageError(f"{item.nodeid}: its file does not name its mark {unnamed.pop()}; write it there")
    runnable = []
    for item in items:
        if reason := backends.why_not(item):
            item.add_marker(pytest.mark.skip(reason=reason))
        else:
            runnable.append(item)
    for item, reason in [] if NIGHTLY else for_every_change.left_to_the_night(runnable):
        item.add_marker(pytest.mark.skip(reason=f"{reason}: set NIGHTLY=1"))


def pytest_collection_finish() -> None:
    """Have Python's garbage collector pass over all that is there before the first test: a search of it takes 0.4 s."""
    gc.enable()
    unit_tier.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test as soon as it fails: pytest's own list comes at the end of a tier, half an hour later."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid}: {report.when} failed", file=sys.stderr, flush=True)


def pytest_sessionfinish() -> None:
    """Let the interpreter clear up all objects as it ends: libraries report those that are left."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Apply the rules of the unit tier; a test of another tier needs its machine."""
    if item.get_closest_marker("gpu") and (why := why_not_on_gpu(item)):
        pytest.skip(why)
    unit_tier.enter(item.nodeid if TIERS.isdisjoint(mark.name for mark in item.iter_markers()) else None)


def why_not_on_gpu(item: pytest.Item) -> str | None:
    """Return why a test marked `gpu` cannot run here; its parameter `backend`, if any, names the build it needs."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return gpu_tier.why_not(params.get("backend"), installed(), ProcTree())


def make_settings(**changes: Any) -> Settings:
    return replace(SETTINGS, **changes)


def make_record(
    step_time_s: float | None = 0.01, repeat: int = 0, status: Status = Status.OK, **changes: Any
) -> Record:
    """A record of `make_settings(**settings)`; other changes go to the record's own fields."""
    settings = changes.pop("settings", SETTINGS)
    times = Times(step_time_s=step_time_s, epoch_times_s=[step_time_s] * 3) if step_time_s else Times()
    record = Record(
        schema_version=SCHEMA_VERSION,
        run_id="20260101T000000Z-abcdef",
        cell_id=CELL_ID if settings is SETTINGS else cell_id(settings),
        repeat=repeat,
        attempt=0,
        status=status,
        reason=None if status is Status.OK else "a reason",
        warnings=[],
        started_at="2026-01-01T00:00:00+00:00",
        settings=settings,
        resolved=Resolved(50, 32, "fork", "float32", parameters=1000),
        device=DeviceProof("cpu", "cpu:0", 1),
        times=times,
        learning=Learning(),
        memory=Memory(),
        versions={},
        machine=MACHINE,
        surroundings=Surroundings(),
        evidence=Evidence(exit_code=0),
        harness=Harness(),
    )
    return replace(record, **changes)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close what Google's client left open before a test begins that does not ignore its warnings.

    Refuse a test that leaves the process in another folder: the next ones would read its files.
    """
    if (folder := os.path.realpath("/proc/self/cwd")) != str(STARTED_IN):
        os.chdir(STARTED_IN)
        pytest.fail(f"the test leaves the process in {folder}; use monkeypatch.chdir, and no monkeypatch.undo after it")
    if item.get_closest_marker("google_client") and not (nextitem and nextitem.get_closest_marker("google_client")):
        gc.collect()


@pytest.fixture
def measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no block a second time because other tests disturbed it: every process test has this fixture."""
    from keras_matrix.runner.measure import scheduler

    monkeypatch.setattr(scheduler, "MOST_REPLACEMENTS", 0)


@pytest.fixture
def record() -> Record:
    return make_record()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium with a profile of its own."""
    if reason := chromium.missing():
        pytest.skip(reason)
    with chromium.started(tmp_path_factory.mktemp("profile")) as started:
        yield started
