"""External commands as real processes: all ways to end, with no process left."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results
from keras_matrix.records.task import MetricSpec, Task
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.tasks import watch
from keras_matrix.runner.executors.tasks.watch import Written, metrics_of
from tests.runner.executors.tasks.metrics.test_match import SEED_LOG
from tests.runner.matrix.test_cfg import SEED

pytestmark = [pytest.mark.process, pytest.mark.alone]

FAULTS = r"""
version: 1
defaults: {repeats: 1, timeout_s: 1}
tasks:
  - {task: missing, command: [no-such-program]}
  - {task: not_executable, command: [./plain.txt]}
  - task: exits
    command: [/bin/sh, -c, "echo speed 3; echo oops; exit 3"]
    metrics: {s: 'speed (\S+)'}
  - task: daemon
    command: ["{python}", daemon.py]
    metrics: {s: 'speed (\S+)'}
  - task: stubborn
    command: [/bin/sh, -c, "trap '' TERM; echo speed 3; while true; do sleep 60.5; done"]
    metrics: {s: 'speed (\S+)'}
  - {task: segfault, command: [/bin/sh, -c, "kill -SEGV $$"]}
  - task: partly
    command: [/bin/sh, -c, "printf 'speed 3\\nspeed \\377 5'"]
    metrics: {s: {pattern: 'speed (\d+)', unit: m/s}, t: 'time (\S+)'}
  - task: reports
    command: ["{python}", reports.py]
    wrap: [/usr/bin/env, "WRAPPED={outputs}"]
    metrics: {m: {compute: max}}
  - task: grandchild
    command: ["{python}", grandchild.py]
    timeout_s: 60
  - {task: gpus, command: ["true"], gpus: 64}
  - task: nan
    command: [/bin/sh, -c, "echo loss nan"]
    metrics: {loss: 'loss (\S+)'}
  - task: environment
    command: [/usr/bin/env]
    environment: {ASKED: "{python}"}
    inherit: [KEPT]
    metrics: {uid: 'SECRET=(.)'}
    primary: uptime_in_seconds
  - {task: no_folder, command: ["true"], folder: nowhere}
"""
DAEMON = """
import os, sys
if os.fork():
    sys.exit(0)
os.setsid()
os.execlp("sleep", "sleep", "60.5")
"""
REPORTS = """
import json, os
with open(os.environ["KERAS_BENCHMARK_METRICS"], "w") as pipe:
    for value in range(20_000):
        pipe.write(json.dumps({"metric": "m", "value": value, "unit": "ms"}) + "\\n")
    pipe.write('junk\\n{"metric": "unasked", "value": 7}\\n')
with open(os.path.join(os.environ["WRAPPED"], "counts.txt"), "w") as file:
    file.write("of the wrapper")
"""
GRANDCHILD = """
import subprocess, sys
held = "import time; held = bytearray(300 << 20); time.sleep(0.7)"
child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}], check=True)"
subprocess.run([sys.executable, "-c", child], check=True)
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "matrix.yaml").write_text(FAULTS)
    (folder / "plain.txt").write_text("not a program")
    (folder / "daemon.py").write_text(DAEMON)
    (folder / "reports.py").write_text(REPORTS)
    (folder / "grandchild.py").write_text(GRANDCHILD)
    os.environ["SECRET"] = os.environ["KEPT"] = "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_matrix.runner.executors.tasks.watch.GRACE_S", 0.3)
        assert main(["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results"), "--json"]) == 1
    del os.environ["SECRET"], os.environ["KEPT"]
    run = Results(folder / "results").latest()
    assert run is not None
    assert not list((run.folder / "work").glob("*"))
    return {record.task.name: record for record in run.load()[0] if record.task}


def values(record: Record) -> dict[str, float | None]:
    assert record.task is not None
    return {metric.name: metric.value for metric in record.task.metrics if metric.name != "uptime_in_seconds"}


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("missing", Status.ERROR, "command: there is no program 'no-such-program' on its PATH"),
        ("not_executable", Status.ERROR, "command: ./plain.txt is not executable"),
        ("exits", Status.ERROR, "exit code 3: oops"),
        ("daemon", Status.ERROR, "metric s: no_match: no line of the output matches; processes outlived the command"),
        ("stubborn", Status.TIMEOUT, "the time limit of 1 s passed (timeout_s); the process was ended"),
        ("segfault", Status.CRASH, "ended by signal 11"),
        ("gpus", Status.DEVICE_MISMATCH, "gpus: must be at most "),
        ("nan", Status.DIVERGED, "metric loss: not_finite: 1 of 1 values are nan or infinite"),
        ("no_folder", Status.ERROR, "folder: there is no folder "),
        ("partly", Status.OK, "None"),
        ("reports", Status.OK, "None"),
        ("grandchild", Status.OK, "None"),
        ("environment", Status.OK, "None"),
    ],
)
def test_each_end_has_its_status(faults: dict[str, Record], name: str, status: Status, reason: str) -> None:
    assert (faults[name].status, str(faults[name].reason)[: len(reason)]) == (status, reason)


def test_no_process_of_a_command_remains(faults: dict[str, Record]) -> None:
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"60.5" in _read(path)]
    assert left == []
    assert faults["daemon"].task is not None
    assert faults["daemon"].task.outlived == 1


def test_missing_metric_does_not_affect_others(faults: dict[str, Record]) -> None:
    assert values(faults["partly"]) == {"s": 3.0, "t": None}
    assert [warning.partition(";")[0] for warning in faults["partly"].warnings if "metric" in warning] == [
        "metric_missing: t: no_match: no line of the output matches"
    ]


def test_metrics_are_read_from_a_pipe_and_outputs_of_a_wrapper_stored(faults: dict[str, Record]) -> None:
    task = faults["reports"].task
    assert task is not None
    assert values(faults["reports"]) == {"m": 19_999.0, "unasked": 7.0}
    assert task.metrics[0].unit == "ms"
    assert task.files == ["counts.txt"]
    assert task.command[0] == "/usr/bin/env"
    assert any(warning.startswith("reports: 1 lines on the pipe") for warning in faults["reports"].warnings)


def test_memory_includes_the_full_process_tree(faults: dict[str, Record]) -> None:
    peak = faults["grandchild"].memory.peak_host_memory_bytes
    assert peak is not None
    assert 300 << 20 < peak < 400 << 20
    usage = faults["grandchild"].usage
    assert usage is not None
    assert usage.host_source == "processes"
    assert usage.host_anonymous is not None
    assert usage.host_anonymous.peak_bytes is not None
    assert 300 << 20 <= usage.host_anonymous.peak_bytes <= (300 + 3 * 8) << 20  # three interpreters
    assert usage.host_anonymous.samples >= 5


def test_command_sees_only_default_and_inherited_variables(faults: dict[str, Record]) -> None:
    assert values(faults["environment"]) == {"uid": None}


def test_backtracking_pattern_affects_only_its_own_metric(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a" * 60 + " b\nspeed 3\n")
    asked = [MetricSpec("first", r"speed (\d)"), MetricSpec("bad", r"(a+a+)+b"), MetricSpec("last", r"speed (\d)")]
    found, caveat = metrics_of(Task("t", ["true"], asked), Written(log, tmp_path / "none"), limit_s=1.0)
    assert [metric.value for metric in found] == [3.0, None, 3.0]
    assert str(found[1].problem).startswith("time_limit: the pattern was not matched within 1 s")
    assert caveat is None


def test_command_with_endless_output_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.watch.LOG_LIMIT_BYTES", 1 << 20)
    text = "version: 1\ntasks:\n  - {task: flood, command: ['yes'], repeats: 1, timeout_s: 60}\n"
    (tmp_path / "matrix.yaml").write_text(text)
    assert main(["--matrix", str(tmp_path / "matrix.yaml"), "--results", str(tmp_path / "results"), "--json"]) == 1
    run = Results(tmp_path / "results").latest()
    assert run is not None
    record = max(run.load()[0], key=lambda one: one.attempt)  # a disturbed one is measured again
    assert (record.status, str(record.reason)[:10]) == (Status.ERROR, "log_limit:")
    assert len(record.evidence.output_tail) <= 8000


def record_of(folder: Path, task: str, script: str = "") -> Record:
    """Return the record of a task that runs once, with a script of this text in its folder."""
    (folder / "script.py").write_text(script)
    (folder / "matrix.yaml").write_text(
        f"version: 1\ndefaults: {{repeats: 1, timeout_s: 60}}\ntasks:\n  - {{{task}}}\n"
    )
    main(["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results"), "--json"])
    run = Results(folder / "results").latest()
    assert run is not None
    return max(run.load()[0], key=lambda one: one.attempt)  # a disturbed one is measured again


def test_command_is_killed_only_if_it_fills_the_disk_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.watch.free_bytes", lambda _: 1 << 20)
    flood = record_of(tmp_path, "task: flood, command: ['yes']")
    assert (flood.status, str(flood.reason)[:10]) == (Status.ERROR, "disk_full:")
    quiet = record_of(tmp_path, "task: quiet, command: ['{python}', script.py]", "import time; time.sleep(0.4)")
    assert quiet.status == Status.OK
    assert quiet.task is not None
    (uptime,) = quiet.task.metrics
    assert (uptime.name, 0.4 <= (uptime.value or 0) < 10) == ("uptime_in_seconds", True)


def test_record_lists_a_limited_number_of_outputs(tmp_path: Path) -> None:
    script = "import sys, pathlib; [(pathlib.Path(sys.argv[1]) / f'{n:03}').touch() for n in range(120)]"
    record = record_of(tmp_path, "task: many, command: ['{python}', script.py, '{outputs}']", script)
    assert record.task is not None
    assert record.task.files == [f"{number:03}" for number in range(100)]
    assert len(list((tmp_path / "results").glob("2*/outputs/*/*"))) == 120


def test_command_gets_sigterm_and_a_grace_period_after_its_time_limit(tmp_path: Path) -> None:
    script = """
import signal, sys, time
def ending(*_):
    time.sleep(0.3)
    print("put away")
    sys.exit(0)
signal.signal(signal.SIGTERM, ending)
time.sleep(60)
"""
    record = record_of(tmp_path, "task: polite, command: ['{python}', script.py], timeout_s: 1", script)
    assert (record.status, record.evidence.output_tail) == (Status.TIMEOUT, "put away\n")


def test_command_is_pinned_to_as_many_cpus_as_threads(tmp_path: Path) -> None:
    script = "import os; print(len(os.sched_getaffinity(0)), 'CPUs', os.environ['OMP_NUM_THREADS'], 'threads')"
    asked = "metrics: {cpus: '(.*) CPUs', threads: 'CPUs (.*) threads'}"
    record = record_of(tmp_path, f"task: held, command: ['{{python}}', script.py], threads: 1, {asked}", script)
    assert values(record) == {"cpus": 1.0, "threads": 1.0}
    assert list((tmp_path / "results").glob("*/outputs/*")) == []  # it left nothing, and nothing is kept


def test_endless_reports_are_cut_without_blocking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.watch.REPORT_LIMIT_BYTES", 1 << 17)
    script = """
import os
with open(os.environ["KERAS_BENCHMARK_METRICS"], "w") as pipe:
    for value in range(20_000):
        pipe.write('{"metric": "m", "value": %d}\\n' % value)
"""
    record = record_of(
        tmp_path, "task: reports, command: ['{python}', script.py], metrics: {m: {compute: first}}", script
    )
    assert (record.status, values(record)) == (Status.OK, {"m": 0.0})
    assert any("the pipe had more than" in warning for warning in record.warnings)


def test_killed_matching_process_affects_one_metric_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text("speed 3\n")
    monkeypatch.setattr("keras_matrix.runner.executors.tasks.watch.sys.executable", "/bin/false")
    found, _ = metrics_of(Task("t", ["true"], [MetricSpec("m", r"speed (\d)")]), Written(log, tmp_path / "none"))
    assert [(one.value, str(one.problem)[:13]) for one in found] == [(None, "match_failed:")]


def test_example_of_the_driver_has_the_figures_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The section of its document runs unchanged, against a script that prints the log of its document."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image_classification").mkdir()
    script = (
        "import sys, time\ntime.sleep(0.3)\n"  # so that its memory is looked at after its first instruction, too
        f"assert sys.argv[5:] == ['--epochs', '20', '--log-interval', '50']\nprint({SEED_LOG!r}, end='')"
    )
    (tmp_path / "image_classification" / "image_classification.py").write_text(script)
    (tmp_path / "task_config_template.cfg").write_text(SEED)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    arguments = ["--task-name", "resnet50_cifar10_imperative", "--num-gpus", "0", "--framework", "mxnet"]
    assert main(["task", *arguments, "--metrics-suffix", "daily"]) == 0
    found = json.loads((tmp_path / "dlbenchmark_result.json").read_text())
    stem = "mxnet.resnet50_cifar10_imperative"
    figures = {
        "speed": 823.0371280,
        "training_acc": 0.351983,
        "validation_acc": 0.393930,
        "total_training_time": 130.2971,
    }
    for name, value in figures.items():
        assert found.pop(f"{stem}.{name}.daily") == pytest.approx(value, abs=1e-9)
    assert found.keys() == {f"{stem}.cpu_memory_usage.daily", f"{stem}.uptime_in_seconds.daily"}
    assert found[f"{stem}.cpu_memory_usage.daily"] > 1000


def test_failed_task_removes_an_earlier_result_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lists = "patterns = ['x=(.)']\nmetrics = ['x']\ncompute_method = ['last']\n"
    (tmp_path / "task_config.cfg").write_text(f"[t]\n{lists}command_to_execute = echo x=1; exit 7\n")
    (tmp_path / "dlbenchmark_result.json").write_text("{}")
    assert main(["task", "--config", "task_config.cfg"]) == 1
    assert not (tmp_path / "dlbenchmark_result.json").exists()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_time_limit_of_a_metric_grows_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert Written(log, log).limit_s == watch.START_LIMIT_S
    log.touch()
    os.truncate(log, 200 * 10**6)
    assert Written(log, log).limit_s == watch.START_LIMIT_S + 10
