"""`runner replay` from end to end: stored graphs, profilers' files, cells of runs, and every bad input."""

from __future__ import annotations

import gzip
import json
import re
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
from tests.golden import Golden
from tests.records.traces.synthetic import chrome, event, mark
from tests.runner.whatif.graphs import two_workers
from tests.synthetic_peaks import make_peaks
from tests.transcripts import Transcript


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    source.write(two_workers(), tmp_path / "graph")
    return tmp_path


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


REFUSED = (  # made above; or with flags that do not fit
    "replay missing.json",
    "replay jax:gru",
    "replay graph --to nowhere/x.json",
    "replay graph --picture graph",
    "replay graph --resamples 0",
    "replay graph --top 0",
    *(
        f"replay graph --what-if {what_if}"
        for what_if in (
            "worker=4",
            "workers=x",
            "bandwidth",
            "tensor_fusion=1,1,1",
            "tensor_fusion=5,",
            "op_fusion=0-9:0.8",
            "op_fusion=0",
            "op_fusion=0:x",
            "precision=all",
            "precision=conv",
            "batch_size=0",
            "batch_size=64",
            "gradient_accumulation=x",
            "recomputation=4",
            "bandwidth=5mb",
            "latency=5",
            "no_input_stalls",
        )
    ),
    *(f"replay alone --what-if {what_if}" for what_if in ("bandwidth=500mbit", "latency=2ms", "tensor_fusion=8")),
    "replay alone --what-if no_overlap",
    "replay graph --calibration absent.json",
    *(f"replay graph --calibration {name}.json" for name in ("pair", "none", "text")),
)


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


@pytest.fixture
def one_rank(folder: Path) -> str:
    """The stored graph of rank 0 of two."""
    graph = cell_graph(missing_ranks=(1,))
    source.write(graph.with_nodes(graph.nodes[:6]), folder / "rank0")
    return "rank0"


def test_a_calibration_determines_the_link(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """alpha 1 ms, beta 2 ns a byte: one sum of 3 MB takes 1 + 6 ms, corrected by the traced sums: 12 ms, not 8."""
    times = [
        {"operation": "all_reduce", "ranks": 2, "bytes": size, "seconds": 1e-3 + 2e-9 * size} for size in (0, 10**6)
    ]
    (folder / "times.json").write_text(json.dumps(times))
    assert main(["replay", "graph", "--calibration", "times.json", "--what-if", "tensor_fusion=2,", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["what_ifs"][0]
    assert found["step_time_s"] == pytest.approx(0.009 + 0.007 * 12 / 8, rel=1e-3)


def test_what_is_printed_of_a_graph(folder: Path, one_rank: str, transcript: Transcript, golden: Golden) -> None:
    """The step is 2 + 3 + 4 + 8 + 1 ms: the second sum is behind the first one on one thread.

    Two sums as one take 12 ms, and begin after the backward pass: 2 + 6 + 12 + 1. A caveat of all predictions, or a
    reason of all what-ifs, is printed once; without collectives nothing waits for the rank without a file.
    """
    graph = two_workers()
    source.write(graph.with_nodes([replace(node, layer=None) for node in graph.nodes]), folder / "unnamed")
    source.write(cell_graph(), folder / "cell")
    commands = (
        "replay graph",
        "replay unnamed",
        "replay graph --what-if tensor_fusion=2,",
        "replay graph --what-if workers=4 --what-if tensor_fusion=2,",
        "replay cell --what-if tensor_fusion=2, --what-if workers=4",
        *(
            f"replay {one_rank} --what-if {what_if} --what-if recomputation=all"
            for what_if in (
                "workers=1",
                "workers=4",
                "bandwidth=100mbit",
                "latency=2ms",
                "tensor_fusion=2,",
                "no_overlap",
            )
        ),
        f"replay {one_rank} --what-if workers=4 --what-if latency=2ms",
    )
    # What is before the table of what-ifs is shown once.
    transcript.run(*commands)
    golden.check("replay.txt", re.sub(r"(--what-if.*\n)(?:.*\n)*?(?=what-if )", r"\1...\n", transcript.text))


def test_messages_of_what_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], transcript: Transcript, golden: Golden
) -> None:
    """Each is one line, names its file or flag, and ends with 2; nothing is printed as a result."""
    graph = two_workers()
    alone = [replace(node, depends=()) for node in graph.nodes[:3]]
    source.write(graph.with_nodes(alone, world_size=1), folder / "alone")
    for name, text in (("pair", "[1, 2]"), ("none", "[]"), ("text", "not JSON")):
        (folder / f"{name}.json").write_text(text)
    (folder / "profiles").mkdir()
    for name in ("first", "second"):
        events = [mark("step:1", 0, 90), event("aten::mm", 0, 50)]
        chrome(folder / "profiles" / f"{name}.json", events, distributedInfo={"rank": 0})
    assert main(["replay", "profiles/first.json"]) == 0
    transcript.run("replay profiles", *REFUSED)
    for made in (_empty_folder, _foreign_json, _not_json, _truncated, _truncated_profile, _neutral, _other_ending):
        transcript.run(f"replay {made(folder)}")
    capsys.readouterr()
    assert main(["replay", _damaged_graph(folder)]) == 2
    damaged = capsys.readouterr().err  # its end is DuckDB's
    assert damaged.startswith("runner: TRACE: graph/rank1.parquet: cannot be read as Parquet: ")
    transcript.run(f"replay {_missing_rank(folder)}")
    text = transcript.text
    assert text.count("$ runner") == text.count("exit code 2\n") == text.count("\n! runner: ") == len(REFUSED) + 9
    golden.check("replay_refused.txt", text)
