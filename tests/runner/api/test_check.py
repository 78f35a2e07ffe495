"""The fixture `keras_matrix`: its outcomes in another project, what it refuses, and what it costs other projects."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis.comparison.versus import CellComparison, Versus, versus
from keras_matrix.analysis.regression.gate import GateOutcome, outcome_of
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.identity import run_id
from keras_matrix.records.schema import Resolved, Status
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.api.measuring import Checker
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.plan.session import Session
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import cell_rows, check
from keras_matrix.runner.service.check import Checked, CheckOutcome, CheckRequest
from tests.conftest import make_record
from tests.golden import Golden
from tests.messages import check_messages, refusal

ROOT = Path(__file__).parents[3]
CONFTEST = 'pytest_plugins = ["keras_matrix.pytest_plugin"]\n'
# Other plugins import NumPy, and an environment that was set up by an older version names this one twice.
ALONE = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
NETS = """
import keras
import numpy as np

def net(width):
    layers = [keras.Input((64,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(width)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    x = np.random.default_rng(0).standard_normal((128, 64), dtype="float32")
    return model, x, x[:, :1]

def small():
    return net(8)

def large():
    return net(2000)
"""
TESTS = """
from pathlib import Path
import nets
OPTIONS = {"backend": "jax", "settings": {"epochs": 2, "discard": 1, "steps_per_epoch": 8}}

def test_faster(keras_matrix):
    keras_matrix.check(nets.small, faster_than="nets:large", repeats=5, **OPTIONS)

def test_slower(keras_matrix):
    keras_matrix.check(nets.large, faster_than=1e-9, repeats=5, **OPTIONS)

def test_undecided(keras_matrix):
    keras_matrix.check(nets.small, faster_than=nets.small, repeats=2, **OPTIONS)

def test_stored(keras_matrix):
    speed = Path("speed")
    keras_matrix.check(nets.small, faster_than=10.0, repeats=5, results=speed, **OPTIONS)
    keras_matrix.check(nets.large, faster_than=speed, repeats=5, results=speed, **OPTIONS)
"""


@pytest.mark.process
@pytest.mark.nightly
def test_a_projects_own_test_passes_fails_or_skips(tmp_path: Path) -> None:
    """Mutation: what is undecided passes."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "test_speed.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    folders = ["--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "t")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q", *folders]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=ALONE)
    assert "1 failed, 1 passed, 2 skipped" in done.stdout, done.stdout
    assert "PASSED test_speed.py::test_faster" in done.stdout
    assert "the model is slower than the limit: " in done.stdout
    assert ": undecided: no interval from 2 blocks in common: needs 5; set repeats=5" in done.stdout
    assert ": undecided: no interval across these sessions, which needs 5 more stored runs" in done.stdout
    assert done.stdout.count("(not comparable: parameters differ") == 1


@pytest.mark.process
def test_collecting_another_projects_tests_imports_neither_numpy_nor_this_project(tmp_path: Path) -> None:
    """Mutation: the plugin imports `keras_matrix.runner` at its top."""
    (tmp_path / "test_other.py").write_text("import keras_matrix.records.text\n\ndef test_nothing():\n    pass\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    script = (
        "import sys, pytest\n"
        "code = pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider'])\n"
        "heavy = {'keras_matrix', 'numpy', 'keras', 'yaml'}\n"
        "modules = {name: module for name, module in sys.modules.items() if name.split('.')[0] in heavy}\n"
        "print(int(code), sorted(modules))\n"
        "print(sorted(name for name, m in modules.items() if 'Rewrit' in type(m.__spec__.loader).__name__))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=ALONE)
    imported = [f"keras_matrix{name}" for name in ("", ".pytest_plugin", ".records", ".records.text")]
    assert done.stdout.splitlines()[-2:] == [f"0 {imported}", "['keras_matrix.pytest_plugin']"]


def test_the_distribution_has_no_entry_point_for_pytest() -> None:
    """With one, pytest would rewrite every module of it in every project's tests, as `assert` is rewritten."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pytest11" not in project.get("entry-points", {})
    assert CONFTEST in (ROOT / "docs" / "python.md").read_text()


@pytest.mark.parametrize(
    ("outcome", "exception"),
    [
        (CheckOutcome.FASTER, None),
        (CheckOutcome.SLOWER, pytest.fail.Exception),
        (CheckOutcome.UNDECIDED, pytest.skip.Exception),
    ],
)
def test_outcome_of_a_check_is_that_of_the_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: CheckOutcome, exception: type[BaseException] | None
) -> None:
    monkeypatch.setattr(check, "checked", lambda request, display: Checked(outcome, "a sentence"))
    checker = Checker("t", tmp_path)
    if exception is None:
        checker.check("nets:small", faster_than=1.0)
        return
    with pytest.raises(exception, match="a sentence"):
        checker.check("nets:small", faster_than=1.0)


def compared(outcome: GateOutcome, ratio: Estimate | None, **more: Any) -> Versus:
    values = {"adjusted_p": None, "more_blocks": None, "reason": None} | more
    comparison = CellComparison("c", None, None, (), ratio, outcome, **values)
    return Versus((comparison,), {}, None, outcome, True, ())


@pytest.mark.parametrize(
    ("outcome", "low", "high", "expected", "sentence"),
    [
        (
            GateOutcome.NO_WORSE,
            0.5,
            0.9,
            CheckOutcome.FASTER,
            "the model is faster than the baseline: 0.70x [0.50 0.90] of",
        ),
        (
            GateOutcome.REGRESSED,
            1.2,
            1.4,
            CheckOutcome.SLOWER,
            "the model is slower than the baseline: 1.30x [1.20 1.40] of",
        ),
        (
            GateOutcome.UNDECIDED,
            0.9,
            1.1,
            CheckOutcome.UNDECIDED,
            "undecided: about 4 more repeats would decide it: 1.00x",
        ),
    ],
)
def test_verdict_of_the_gate_decides(
    outcome: GateOutcome, low: float, high: float, expected: CheckOutcome, sentence: str
) -> None:
    versus = compared(outcome, Estimate((low + high) / 2, low, high, 5), more_blocks=4)
    decided = check._decided(versus, check.Rule(threshold=0.0))
    assert (decided.outcome, decided.sentence[: len(sentence)]) == (expected, sentence)


@pytest.mark.parametrize("baseline", ["limit", "baseline"])
@pytest.mark.parametrize(
    ("low", "high", "outcome", "words"),
    [
        (0.80, 0.90, CheckOutcome.FASTER, "the model is faster than the"),
        (1.02, 1.04, CheckOutcome.FASTER, "the model is at most 5.0 % slower than the"),
        (1.02, 1.08, CheckOutcome.UNDECIDED, "undecided: "),
        (1.06, 1.08, CheckOutcome.SLOWER, "the model is slower than the"),
    ],
)
def test_what_is_within_the_tolerance_passes(
    monkeypatch: pytest.MonkeyPatch, baseline: str, low: float, high: float, outcome: CheckOutcome, words: str
) -> None:
    """Mutation: a limit has no tolerance; a model that is slower within the tolerance is called faster."""
    centre = (low + high) / 2
    if baseline == "limit":
        cell = SimpleNamespace(step_time_s=centre / 100, step_time_low_s=low / 100, step_time_high_s=high / 100)
        monkeypatch.setattr(cell_rows, "cells_of", lambda table: [cell])
        monkeypatch.setattr(check, "read_table", lambda run: SimpleNamespace(table=None))
        decided = check._against_limit(Session({"new": Run(Path("r"))}, 0, [], []), 0.01, 0.05)
    else:
        verdict = outcome_of(Estimate(centre, low, high, 5), 0.001, 0.05, 0.05)
        assert verdict is not None
        decided = check._decided(compared(verdict, Estimate(centre, low, high, 5)), check.Rule(threshold=0.05))
    assert (decided.outcome, words in decided.sentence) == (outcome, True), decided.sentence
    assert "tolerance 0.05" in decided.sentence


def test_a_side_that_was_not_measured_is_no_outcome() -> None:
    versus = compared(GateOutcome.NOT_MEASURED, None, reason="not measured in new: error: it broke")
    with pytest.raises(InfrastructureError, match="check: not measured in new: error: it broke"):
        check._decided(versus, check.Rule(threshold=0.0))


OTHER = {"resolved": Resolved(50, 32, "fork", "float32", parameters=7)}  # another model


def stored_run(results: Results, day: int, cell_id: str, step_s: float, arm: str = "new", **more: Any) -> Run:
    """Store a run of five processes of one cell."""
    name = run_id(datetime(2026, 1, day, tzinfo=UTC), f"{day:016x}")
    run = results.create(name, {"run_id": name, "version": 1, "session": name, "arm": arm, "runs": {arm: name}})
    for repeat in range(5):
        noisy_s = step_s * (1 + 0.001 * (repeat + day))
        run.publish(make_record(noisy_s, repeat, cell_id=cell_id, run_id=name, **more))
    return run


def check_request(tmp_path: Path, **changes: Any) -> CheckRequest:
    options: dict[str, Any] = {"backend": "jax", "results": tmp_path / "speed"} | changes
    return CheckRequest("test_a", "nets:small", options["results"], tmp_path / "t", **options)


def cell_of(request: CheckRequest) -> str:
    return check._run_request(request).choice.load()[1][0].cell_id


def test_the_baseline_is_the_newest_run_of_this_check_among_those_of_others(tmp_path: Path) -> None:
    """Mutation: the newest run of the folder is taken; a run of a baseline is taken."""
    request, results = check_request(tmp_path), Results(tmp_path / "speed")
    expected = [stored_run(results, day, cell_of(request), 0.01) for day in (1, 2)][-1]
    stored_run(results, 3, "another", 0.01)
    stored_run(results, 4, cell_of(request), 0.01, arm="base")
    stored_run(results, 5, cell_of(request), 0.01, status=Status.ERROR)
    assert check.stored_baseline(request, results.root).folder == expected.folder
    assert check.stored_baseline(request, expected.folder).folder == expected.folder.resolve()


def test_without_earlier_results_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "measured", None)
    request = check_request(tmp_path)
    stored_run(Results(tmp_path / "speed"), 1, "another", 0.01)
    expected = r"faster_than: .*speed has no earlier results of this check, checked_test_a:build on jax with these "
    for settings in ({}, {"epochs": 9}):
        with pytest.raises(UsageError, match=expected):
            check.checked(replace(request, settings=settings), TerminalDisplay(quiet=True))


@pytest.mark.parametrize(
    ("step_s", "earlier", "outcome"),
    [(0.02, 6, CheckOutcome.SLOWER), (0.005, 6, CheckOutcome.FASTER), (0.02, 1, CheckOutcome.UNDECIDED)],
)
def test_other_work_than_that_of_a_stored_run_is_decided_too(
    tmp_path: Path, step_s: float, earlier: int, outcome: CheckOutcome
) -> None:
    """Mutation: `findings` alone decides, which compares no different work across sessions."""
    request, results = check_request(tmp_path), Results(tmp_path / "speed")
    runs = [stored_run(results, day, cell_of(request), 0.01) for day in range(1, 1 + earlier)]
    new = stored_run(results, 20, cell_of(request), step_s, **OTHER)
    session = Session({"new": new}, 0, [], [])
    compared = check._against_stored(request, runs[-1], session, TerminalDisplay(quiet=True))
    decided = check._decided(compared, check.Rule(threshold=0.0))
    assert (decided.outcome, "(not comparable: parameters differ" in decided.sentence) == (outcome, True)


def test_a_model_that_fails_more_often_than_its_baseline_does_not_pass(tmp_path: Path) -> None:
    """Mutation: what has a reason is judged by the processes that ended well."""
    base, new = ([make_record(step_s + repeat * 1e-5, repeat) for repeat in range(6)] for step_s in (0.02, 0.01))
    new[0] = make_record(None, 0, Status.CRASH)
    compared_sides = versus(base, new, check.Rule(threshold=0.0))
    with pytest.raises(InfrastructureError, match="check: not measured in new: crash in 1 of 6 repeats"):
        check._decided(compared_sides, check.Rule(threshold=0.0))


class Model:
    """Stands for `keras.Model`."""

    def save(self, path: Path) -> None:
        path.write_text("a model")


def with_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(Model=Model, backend=SimpleNamespace(backend=lambda: "torch"))
    monkeypatch.setitem(sys.modules, "keras", fake)


@pytest.mark.parametrize(
    "data", [{"a": np.ones(3)}, ([[1], [2, 3]],), ([np.ones(3)] * 2, np.ones(3)), (np.ones(3), {"a": 1}), iter("a"), 3]
)
def test_data_that_no_file_of_arrays_can_keep_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: object
) -> None:
    """Mutation: it is pickled, which the process of the model then refuses to load."""
    with_keras(monkeypatch)
    with pytest.raises(UsageError, match="data must be an array of numbers or a tuple of arrays, got builtins"):
        check._source(Model(), data, tmp_path)


def test_a_keras_model_is_measured_on_its_own_backend_with_its_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Mutation: the first backend that is installed is taken."""
    with_keras(monkeypatch)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    request = check_request(tmp_path, backend=None)
    for models, backend in ((("m:f", 1.0), "jax"), ((Model(), 1.0), "torch"), (("m:f", Model()), "torch")):
        changed = replace(request, model=models[0], faster_than=models[1])
        assert check._run_request(changed).choice.load()[1][0].settings.backend == backend
    check._source(Model(), (np.ones((3, 2)), [1, 2, 3]), tmp_path)
    with np.load(tmp_path / "data.npz") as arrays:
        assert [arrays[name].shape for name in arrays] == [(3, 2), (3,)]


def unimportable() -> None: ...


unimportable.__qualname__ = "made.<locals>.unimportable"
REFUSED: dict[str, tuple[object, object, dict[str, float]]] = {
    "a name of no function": ("no function", 1.0, {}),
    "a function inside another one": (unimportable, 1.0, {}),
    "a number": (3, 1.0, {}),
    "a limit of no time": ("m:f", 0.0, {}),
    "a limit that is a truth value": ("m:f", True, {}),
    "an infinite limit": ("m:f", float("inf"), {}),
    "a negative limit": ("m:f", np.float32(-1), {}),
    "a negative tolerance": ("m:f", 1.0, {"tolerance": -0.1}),
    "an unknown option": ("m:f", 1.0, {"tolerence": 0.1}),
}


def test_everything_that_cannot_be_checked_has_its_message(tmp_path: Path, golden: Golden) -> None:
    messages = {
        title: refusal(UsageError, partial(Checker("t", tmp_path).check, model, faster_than=limit, **options))
        for title, (model, limit, options) in REFUSED.items()
    }
    check_messages(golden, "check_refused.txt", messages)
