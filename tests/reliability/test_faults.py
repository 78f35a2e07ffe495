"""Every fault has a test, every marker names a fault and a mutation, and the page of the faults lists them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.reliability.faults import BY_NAME, FAULTS
from tests.scripts import script

SOURCE = '''\
"""A module of tests."""

import pytest

pytestmark = [pytest.mark.process]


@pytest.fixture(params=[pytest.param("fake", marks=pytest.mark.emulator)])
def service(request):
    return request.param


@pytest.fixture
def dataset(service):
    return service


@pytest.mark.fault("F7", mutation="the limit is ignored")
@pytest.mark.fault("F14", mutation="a | b", recorded=True)
def test_several():
    pass


CRASHED = pytest.mark.fault("F1", mutation="signals are ignored")


@pytest.mark.parametrize("end", [pytest.param(1, marks=CRASHED), pytest.param(2, marks=CRASHED), 3])
def test_parameters(end):
    pass


@pytest.mark.fault("F37", mutation="keys are not read")
def test_of_a_service(dataset):
    pass


def test_without_a_marker():
    pass
'''


@pytest.fixture(scope="module")
def reliability() -> ModuleType:
    return script("reliability")


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_example.py").write_text(SOURCE)
    return tmp_path / "tests"


def test_page_has_every_fault_with_the_tests_that_show_it(reliability: ModuleType) -> None:
    rows = [line.split(" | ", 3) for line in reliability.page().splitlines() if line.startswith("| F")]
    assert [(name, title, promise) for name, title, promise, _ in rows] == [
        (f"| {fault.name}", fault.title, fault.promise) for fault in FAULTS
    ]
    marked = reliability.shown()
    assert len(marked) > 200
    assert sum(tests.count("`test_") for *_, tests in rows) == len(marked)
    tests_of = {name.removeprefix("| "): tests for name, *_, tests in rows}
    assert all(f"`{one.test}` ({one.tiers[0]}" in tests_of[one.fault] for one in marked)


def test_every_fault_has_a_test_and_every_marker_a_fault_and_a_mutation(reliability: ModuleType) -> None:
    assert reliability.problems(reliability.shown()) == []


def test_faults_are_numbered_from_1_to_40() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 41))
    assert list(BY_NAME) == [f"F{number}" for number in range(1, 41)]


def test_markers_are_found_with_their_tiers(reliability: ModuleType, example: Path) -> None:
    found = [(one.test, one.fault, one.mutation, one.recorded, one.tiers) for one in reliability.shown(example)]
    assert found == [
        ("test_several", "F7", "the limit is ignored", False, ("process",)),
        ("test_several", "F14", "a | b", True, ("process",)),
        ("test_parameters", "F1", "signals are ignored", False, ("process",)),
        ("test_of_a_service", "F37", "keys are not read", False, ("process", "emulator")),
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"F7"', '"F41"', "tests/test_example.py: test_several: no fault is named 'F41'"),
        ('"F7", ', "", "tests/test_example.py: test_several: no fault is named ''"),
        ('mutation="the limit is ignored"', "", "tests/test_example.py: test_several: F7: mutation is missing"),
        ('"the limit is ignored"', "LIMIT", "tests/test_example.py: test_several: F7: mutation is missing"),
        ('"F1"', '"F7"', "F1: no test shows it"),
    ],
)
def test_problems_of_markers_are_found(
    reliability: ModuleType, example: Path, old: str, new: str, problem: str
) -> None:
    shown = [BY_NAME[name] for name in ("F1", "F7", "F14", "F37")]
    assert reliability.problems(reliability.shown(example), shown) == []
    (example / "test_example.py").write_text(SOURCE.replace(old, new))
    assert problem in reliability.problems(reliability.shown(example), shown)


def test_page_counts_the_faults_and_tests_and_names_tier_and_mutation(reliability: ModuleType, example: Path) -> None:
    page = reliability.page(reliability.shown(example))
    assert (
        "\n\n4 of 40 faults have a test. 3 tests show them, 1 of these from recorded messages.\n\n| | fault |" in page
    )
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in page.splitlines() if row.startswith("| F")}
    assert rows["F1"].endswith("`test_parameters` (process): signals are ignored |")
    assert rows["F14"].endswith("`test_several` (process, recorded): a \\| b |")
