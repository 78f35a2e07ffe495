"""`runner replay` from end to end: stored graphs, profilers' files, cells of runs, and every bad input."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.records.codec import dumps
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head, Span, Track, TrackKind
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.whatif import source
from tests.analysis.whatif.cost import fake_machine
from tests.analysis.whatif.cost.fake_machine import FASTER, usual_model
from tests.conftest import MACHINE
from tests.records.traces.synthetic import chrome, event, mark
from tests.runner.whatif.graphs import two_workers
from tests.synthetic_peaks import make_peaks


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    source.write(two_workers(), tmp_path / "graph")
    return tmp_path


def test_a_stored_graph_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "graph"]) == 0
    printed = capsys.readouterr().out
    # Forward 2 ms, backward 3 + 3 ms, the second sum 8 ms, behind the first one on one thread: 2 + 3 + 4 + 8 + 1.
    assert "replayed: 18.0 ms a step" in printed
    # The graph says 99 %, but its replayed step is not the traced one of 21 ms.
    assert "explained by operations and their dependencies: 85.7 % of the step's time; below 90.0 %" in printed
    assert "2 ranks; 12 nodes" in printed
    assert "error, each step predicted from the one before: -14.3 %" in printed
    for title in ("critical path", "by phase", "by layer", "by kind"):
        assert title in printed


def test_without_layers_there_is_no_table_of_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = two_workers()
    nodes = [replace(node, layer=None) for node in graph.nodes]
    source.write(graph.with_nodes(nodes), folder / "unnamed")
    assert main(["replay", "unnamed"]) == 0
    printed = capsys.readouterr().out
    assert "by layer" not in printed
    assert "by phase" in printed


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "graph", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_time_s"] == pytest.approx(0.018, rel=1e-4)
    assert [one["name"] for one in found["critical_path"]][:2] == ["mm", "mm backward"]
    assert found["coverage"] == pytest.approx(18 / 21, rel=1e-4)
    assert len(found["held_out"]) == 2


def test_a_cost_model_is_applied_to_a_new_device_by_its_peaks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write(fake_machine.graph(FASTER), folder / "new")
    (folder / "model.json").write_text(dumps(usual_model()))
    (folder / "peaks.json").write_text(dumps(make_peaks(replace(MACHINE, cpu_model=FASTER.product))))
    assert main(["replay", "new", "--costmodel", "model.json"]) == 2
    assert "measure them there with runner roofline --measure" in capsys.readouterr().err
    assert main(["replay", "new", "--costmodel", "model.json", "--peaks", "peaks.json"]) == 0
    expected = "cost model: model.json: torch on Faster CPU, 2 cores is new to the model, predicted from its peaks"
    assert expected in capsys.readouterr().out
    assert main(["replay", "new", "--peaks", "peaks.json"]) == 2
    assert "--peaks: is for a --costmodel" in capsys.readouterr().err


def test_both_timelines_are_written_for_perfetto(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "graph", "--to", "both.json", "--picture", "both.svg"]) == 0
    assert "timelines: both.json" in capsys.readouterr().out
    json.loads((folder / "both.json").read_text())
    spans = list(neutral.spans(folder / "both.json"))
    steps = {worker: [one for one in spans if one.track == Track(worker, TrackKind.STEPS)] for worker in range(4)}
    assert [len(one) for one in steps.values()] == [3, 3, 1, 1]
    assert pytest.approx(steps[2][0].duration_ns, rel=1e-3) == 18_000_000
    assert (folder / "both.svg").read_text().startswith("<svg")
    assert sorted(path.name for path in folder.iterdir()) == ["both.json", "both.svg", "graph"]


def test_a_packed_timeline_is_written_as_such(folder: Path) -> None:
    assert main(["replay", "graph", "--to", "both.json.gz"]) == 0
    assert (folder / "both.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_the_graph_is_stored_and_read_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "graph", "--graph", "copy"]) == 0
    files = [str(path) for path in source.files_in(folder / "copy")]
    capsys.readouterr()
    assert main(["replay", *files]) == 0
    assert "replayed: 18.0 ms a step" in capsys.readouterr().out


def _nothing(folder: Path) -> str:
    return "missing.json"


def _empty_folder(folder: Path) -> str:
    (folder / "empty").mkdir()
    return "empty"


def _foreign_json(folder: Path) -> str:
    (folder / "foreign.json").write_text('{"hello": [1, 2, 3]}')
    return "foreign.json"


def _not_json(folder: Path) -> str:
    (folder / "text.json").write_text("hello")
    return "text.json"


def _truncated(folder: Path) -> str:
    whole = gzip.compress(
        b'{"traceEvents": [' + b'{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1},' * 999
    )
    (folder / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    return "cut.json.gz"


def _truncated_profile(folder: Path) -> str:
    (folder / "cut.xplane.pb").write_bytes(b"\x0a\xff\xff\x03abc")
    return "cut.xplane.pb"


def _missing_rank(folder: Path) -> str:
    (folder / "graph" / "rank1.parquet").unlink()
    return "graph"


def _damaged_graph(folder: Path) -> str:
    path = folder / "graph" / "rank1.parquet"
    path.write_bytes(path.read_bytes()[:-8])
    return "graph"


def _neutral(folder: Path) -> str:
    span = Span(Track(0, TrackKind.COMPUTE), "mm", "mm", 0, 1000)
    neutral.write(folder / "trace.json.gz", Head("torch", 1, "cpu", 1), [span])
    return "trace.json.gz"


def _other_ending(folder: Path) -> str:
    (folder / "notes.txt").write_text("hello")
    return "notes.txt"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_nothing, "TRACE: missing.json: no such file or folder"),
        (_empty_folder, "TRACE: empty: contains no file of a profiler"),
        (_foreign_json, "TRACE: foreign.json"),
        (_not_json, "TRACE: text.json"),
        (_truncated, "TRACE: cut.json.gz"),
        (_truncated_profile, "TRACE: cut.xplane.pb"),
        (_missing_rank, "TRACE: graph: has files of 1 ranks, the graph has 2"),
        (_damaged_graph, "TRACE: graph/rank1.parquet: cannot be read as Parquet"),
        (_neutral, "TRACE: trace.json.gz: is a neutral trace, which does not say what waits for what"),
        (_other_ending, "TRACE: notes.txt: must end in .xplane.pb, .json, .json.gz, .parquet"),
    ],
)
def test_bad_input_gives_one_error_that_names_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str], made: Callable[[Path], str], message: str
) -> None:
    assert main(["replay", made(folder)]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"runner: {message}")
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "nowhere/x.json"], "--to: must be a file in an existing folder"),
        (["--picture", "graph"], "--picture: must be a file in an existing folder"),
        (["--resamples", "0"], "--resamples: must be from 1 to 100000, got 0"),
        (["--top", "0"], "--top: must be at least 1, got 0"),
    ],
)
def test_wrong_flags_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["replay", "graph", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_cell_without_a_trace_is_refused_with_the_command_that_records_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", "jax:gru"]) == 2
    message = "TRACE: results contains no trace of a cell 'jax:gru', and there is no such file; record one with: runner"
    assert message in capsys.readouterr().err


def test_a_what_if_is_predicted_with_its_speed_up(capsys: pytest.CaptureFixture[str]) -> None:
    """One sum of 3 MB takes 12 ms by the traced sums, and begins after the backward pass: 2 + 6 + 12 + 1."""
    assert main(["replay", "graph", "--what-if", "tensor_fusion=2,"]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("tensor_fusion")]
    assert line.split("  ")[0] == "tensor_fusion=2,"
    assert "21.0 ms" in line
    assert "0.86x" in line
    assert "predicted only: the trace is not of a cell of this project" in line


def test_several_what_ifs_are_shown_alone_and_together(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--what-if", "tensor_fusion=2,", "--what-if", "workers=4"]
    assert main(["replay", "graph", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["what_ifs"]
    assert [one["name"] for one in found] == ["tensor_fusion=2,", "workers=4", "tensor_fusion=2, workers=4"]
    # A ring of four sends 1.5 times as many bytes as one of two, and four workers share two cores: 18 + 2 x 9 ms.
    assert found[2]["step_time_s"] == pytest.approx(0.036, rel=1e-3)
    assert found[0]["settings"] is None


def test_what_ifs_of_one_name_are_alternatives(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--what-if", "tensor_fusion=2,", "--what-if", "tensor_fusion=each"]
    assert main(["replay", "graph", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["what_ifs"]
    assert [one["name"] for one in found] == ["tensor_fusion=2,", "tensor_fusion=each"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker=4", "--what-if: 'worker' is not known; did you mean workers?"),
        ("workers=x", "--what-if: workers: must be an integer of at least 1, got 'x'"),
        ("bandwidth", "--what-if: bandwidth needs a value: bandwidth=RATE"),
        (
            "tensor_fusion=1,1,1",
            "--what-if: tensor_fusion=1,1,1: its numbers add up to 3, the trace has 2 gradients; give numbers that add "
            "up to 2, or a capacity in MiB such as 8",
        ),
        ("tensor_fusion=5,", "--what-if: tensor_fusion=5,: its numbers add up to 5, the trace has 2 gradients"),
        ("op_fusion=0-9:0.8", "--what-if: op_fusion=0-9:0.8: must be layers from 0 to 0, got '0-9'"),
        ("op_fusion=0", "--what-if: op_fusion=0: the gain of block 0 is not known; give the ratio of its times"),
        ("op_fusion=0:x", "--what-if: op_fusion: must be a ratio of times such as 0.8, got 'x'"),
        ("precision=all", "--what-if: precision=all: the effect on layers 0 is not known; give the ratio"),
        ("precision=conv", "--what-if: precision=conv: has no layer 'conv'; layers are dense"),
        ("batch_size=0", "--what-if: batch_size: must be an integer of at least 1, got '0'"),
        ("batch_size=64", "--what-if: batch_size=64: the batch size of fake.json is not known, so that it cannot be"),
        ("gradient_accumulation=x", "--what-if: gradient_accumulation: must be an integer of at least 1, got 'x'"),
        ("recomputation=4", "--what-if: recomputation=4: must be layers from 0 to 0, got '4'"),
        ("bandwidth=5mb", "--what-if: bandwidth: must be a rate such as 500mbit, or bits per second, got '5mb'"),
        ("latency=5", "--what-if: latency: must be a time such as 2ms or 500us, got '5'"),
        ("no_input_stalls", "--what-if: no_input_stalls: fake.json has no operation of an input pipeline"),
    ],
)
def test_a_wrong_what_if_is_refused(capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    assert main(["replay", "graph", "--what-if", text]) == 2
    assert capsys.readouterr().err.startswith(f"runner: {message}")


@pytest.mark.parametrize("text", ["bandwidth=500mbit", "latency=2ms", "tensor_fusion=8", "no_overlap"])
def test_a_what_if_of_collectives_without_any_is_refused_by_its_own_name(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    graph = two_workers()
    alone = [replace(node, depends=()) for node in graph.nodes[:3]]
    source.write(graph.with_nodes(alone, world_size=1), folder / "alone")
    assert main(["replay", "alone", "--what-if", text]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"runner: --what-if: {text}: fake.json")
    assert "trace two workers" in printed


def cell_graph(**header: object) -> Graph:
    """The graph as that of a cell of the workload `fc`, as far as what-ifs read its settings."""
    graph = two_workers()
    return graph.with_nodes(graph.nodes, settings={"workload": "fc", "workers": 2, "batch_size": 64}, **header)


@pytest.mark.parametrize(
    ("texts", "caveat"),
    [
        (
            ("tensor_fusion=2,", "no_overlap"),
            "tensor_fusion=2, has no effect: with no_overlap the workload fc sums each gradient by itself, in no "
            "buckets",
        ),
        (
            ("no_overlap", "tensor_fusion=2,"),
            "no_overlap has no effect: the sums of tensor_fusion=2,, which comes later, overlap with the backward pass",
        ),
        (
            ("workers=1", "tensor_fusion=2,"),
            "tensor_fusion=2, has no effect: with workers=1 nothing is sent or summed over workers",
        ),
        (
            ("latency=2ms", "workers=1"),
            "latency=2ms has no effect: with workers=1 nothing is sent or summed over workers",
        ),
    ],
)
def test_a_combination_says_which_what_if_has_no_effect(
    folder: Path, capsys: pytest.CaptureFixture[str], texts: tuple[str, str], caveat: str
) -> None:
    source.write(cell_graph(), folder / "cell")
    flags = [word for text in texts for word in ("--what-if", text)]
    assert main(["replay", "cell", *flags]) == 0
    assert f"caveat for {' '.join(texts)}: {caveat}" in capsys.readouterr().out.splitlines()
    assert main(["replay", "cell", *flags, "--json"]) == 0
    alone, other, both = json.loads(capsys.readouterr().out)["what_ifs"]
    effective = other if caveat.startswith(texts[0]) else alone
    assert both["step_time_s"] == effective["step_time_s"]
    assert both["settings"] == effective["settings"]
    assert [one["caveats"] for one in (alone, other, both)] == [[], [], [caveat]]


def test_what_ifs_that_do_not_exclude_each_other_have_no_caveat(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write(cell_graph(), folder / "cell")
    assert main(["replay", "cell", "--what-if", "tensor_fusion=2,", "--what-if", "workers=4"]) == 0
    assert "caveat" not in capsys.readouterr().out


WAITING = (
    "collectives have their measured times, which include waiting for the 1 rank without a file; that waiting is "
    "predicted as if it were transfer"
)


@pytest.fixture
def one_rank(folder: Path) -> str:
    """The stored graph of rank 0 of two."""
    graph = cell_graph(missing_ranks=(1,))
    source.write(graph.with_nodes(graph.nodes[:6]), folder / "rank0")
    return "rank0"


@pytest.mark.parametrize("text", ["workers=4", "bandwidth=100mbit", "latency=2ms", "tensor_fusion=2,", "no_overlap"])
def test_predictions_of_collectives_without_the_files_of_all_ranks_have_a_caveat(
    one_rank: str, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert main(["replay", one_rank, "--what-if", text, "--what-if", "recomputation=all"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert f"caveat for {text} and for {text} recomputation=all: {WAITING}" in printed


def test_a_caveat_of_all_predictions_is_printed_once(one_rank: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", one_rank, "--what-if", "workers=4", "--what-if", "latency=2ms"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("caveat")] == [f"caveat: {WAITING}"]


def test_without_collectives_there_is_no_caveat_of_missing_ranks(
    one_rank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", one_rank, "--what-if", "workers=1", "--what-if", "recomputation=all"]) == 0
    assert "caveat" not in capsys.readouterr().out


def test_a_reason_that_all_what_ifs_have_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "graph", "--what-if", "workers=4", "--what-if", "tensor_fusion=2,"]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("workers=4 tensor_fusion")]
    assert line.endswith("predicted only: the trace is not of a cell of this project")


def test_two_files_of_one_rank_are_refused_with_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles = folder / "profiles"
    profiles.mkdir()
    for name in ("first", "second"):
        events = [mark("step:1", 0, 90), event("aten::mm", 0, 50)]
        chrome(profiles / f"{name}.json", events, distributedInfo={"rank": 0})
    assert main(["replay", "profiles"]) == 2
    assert capsys.readouterr().err == (
        "runner: TRACE: profiles/first.json and profiles/second.json are both of rank 0; name one file for each rank, "
        "with only one of these two, in place of a folder\n"
    )
    assert main(["replay", "profiles/first.json"]) == 0


def test_a_calibration_determines_the_link(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """alpha 1 ms, beta 2 ns a byte: one sum of 3 MB takes 1 + 6 ms, corrected by the traced sums: 12 ms, not 8."""
    times = [
        {"operation": "all_reduce", "ranks": 2, "bytes": size, "seconds": 1e-3 + 2e-9 * size} for size in (0, 10**6)
    ]
    (folder / "times.json").write_text(json.dumps(times))
    assert main(["replay", "graph", "--calibration", "times.json", "--what-if", "tensor_fusion=2,", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["what_ifs"][0]
    assert found["step_time_s"] == pytest.approx(0.009 + 0.007 * 12 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--calibration: times.json: cannot be read: No such file or directory"),
        ("[1, 2]", "--calibration: times.json: is not a list of timed collectives"),
        ("[]", "--calibration: times.json: contains no timed collective"),
        ("not JSON", "--calibration: times.json: is not a list of timed collectives"),
    ],
)
def test_a_damaged_calibration_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        (folder / "times.json").write_text(content)
    assert main(["replay", "graph", "--calibration", "times.json"]) == 2
    assert capsys.readouterr().err.startswith(f"runner: {message}")
