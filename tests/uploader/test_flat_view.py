"""The flat view `benchmarks`: variants have different names, and only valid attempts have rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from keras_matrix.records.fc.rules import stored_params
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import DeviceProof, Record, Status, Times
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results
from keras_matrix.records.task import UPTIME, Metric, TaskRun
from keras_matrix.runner.matrix.catalog import load as load_catalog
from keras_matrix.runner.matrix.grammar import SETTINGS
from keras_matrix.uploader.bigquery.client import connect
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.schema import CELLS, MEASUREMENTS, RUNS
from keras_matrix.uploader.sql import views
from keras_matrix.uploader.warehouse import BIGQUERY, Options, Warehouse
from tests.conftest import MACHINE, make_record, make_settings
from tests.dashboards.googles_engine import answers
from tests.sessions import VERSIONS, run_name, store_session
from tests.uploader.stored import results_with, store_run
from tests.uploader.variants import FC_OTHERS, OTHERS, command_settings, fc_settings, variants

REPEATS = 2
ORIGINAL = (
    "test_id",
    "test_name",
    "test_type",
    "recorded_time",
    "metrics",
    "keras_backend",
    "cpu_info",
    "platform_info",
    "keras_version",
    "gpu_info",
)
NAMING = "SELECT cell_id, repeat, test_name, test_type, keras_backend.type AS backend FROM benchmarks"


def measured(settings: Settings, repeat: int = 0, **changes: Any) -> Record:
    """An attempt of a cell; for an external command with the seconds of the command."""
    if settings.phase != "task":
        return make_record(0.01, repeat, settings=settings, **changes)
    run = TaskRun("train", ["true"], UPTIME, [Metric(UPTIME, 12.5, "s")])
    return make_record(None, repeat, settings=settings, task=run, **{"resolved": None, **changes})


def store(root: Path, records: Sequence[Record], **about: Any) -> Results:
    store_session(root, run_name(0), records, **about)
    return Results(root)


def pushed(results: Results) -> LocalWarehouse:
    made = LocalWarehouse(results.root / "warehouse")
    made.create()
    push(results, made, Outbox(results.root.parent / "outbox"))
    return made


def flat(results: Results, sql: str = "SELECT * FROM benchmarks") -> list[dict[str, Any]]:
    return pushed(results).query(sql).dicts()


def stored_variants(root: Path) -> tuple[Results, set[str]]:
    by_cell = {cell_id(one): one for one in variants()}
    return store(root, [measured(one, repeat) for one in by_cell.values() for repeat in range(REPEATS)]), set(by_cell)


# Names.


def test_every_setting_and_parameter_that_can_vary_is_varied_here() -> None:
    assert list(OTHERS) == [field.name for field in fields(Settings)]
    assert {*OTHERS} == {*SETTINGS, "backend", "workload", "params", "set_by_matrix"}
    assert {*FC_OTHERS} == {*load_catalog().workloads["fc"].params}


def test_two_cells_of_a_run_never_share_their_names_and_the_repeats_of_one_always_do(tmp_path: Path) -> None:
    results, cells = stored_variants(tmp_path / "results")
    names: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    repeats: dict[str, list[int]] = defaultdict(list)
    for row in flat(results, NAMING):
        names[row["test_name"], row["test_type"], row["backend"]].add(row["cell_id"])
        repeats[row["cell_id"]].append(row["repeat"])
    assert {name: found for name, found in names.items() if len(found) > 1} == {}
    assert len(names) == len(cells)
    assert {cell: sorted(found) for cell, found in repeats.items()} == {cell: list(range(REPEATS)) for cell in cells}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (make_settings(), "fit, batch_size=32"),
        (make_settings(params={"units": 256}, eager=True), "fit, units=256, batch_size=32, eager"),
        (make_settings(phase="predict", precision="bfloat16"), "predict, batch_size=32, precision=bfloat16"),
        (make_settings(jit=True, league="matched"), "fit, batch_size=32, jit=true, league=matched"),
        (make_settings(params={"size": "tiny"}, feed="host_fed"), 'fit, size="tiny", batch_size=32, feed=host_fed'),
        (fc_settings(mode="fc_data", workers=2), "fit, fc_data, workers=2, batch_size=128"),
        (
            fc_settings(mode="fc_phy", workers=2, phy_blocks=16, weight_size=512),
            "fit, fc_phy, workers=2, phy_blocks=16, weight_size=512, batch_size=128",
        ),
        (command_settings({"batch_size": 32, "definition": "ab12"}), 'task, batch_size=32, definition="ab12"'),
    ],
)
def test_test_type_lists_settings_in_readable_form(tmp_path: Path, settings: Settings, expected: str) -> None:
    [row] = flat(store(tmp_path / "results", [measured(settings)]))
    assert row["test_type"] == expected


def test_a_setting_or_parameter_at_the_default_of_the_grammar_is_not_in_the_type(tmp_path: Path) -> None:
    plain = make_settings(**{name: rule.default for name, rule in SETTINGS.items() if rule.default is not None})
    parallel = load_catalog().workloads["fc"]
    params = stored_params({name: rule.default for name, rule in parallel.params.items()})
    tasks = replace(plain, workload="fc", params=params, batch_size=parallel.batch_size, samples=parallel.samples)
    rows = flat(store(tmp_path / "results", [measured(plain), measured(tasks)]))
    assert {row["test_name"]: row["test_type"] for row in rows} == {
        "mnist_mlp": "fit, batch_size=32",
        "fc": "fit, fc_single_manual, workers=1, batch_size=128",
    }


def test_what_distinguishes_a_variant_has_columns_too(tmp_path: Path) -> None:
    plain = make_settings(params={"units": 64}, eager=True, precision="float64", league="matched", threads=1)
    parallel = fc_settings(mode="fc_data", workers=2)
    rows = flat(store(tmp_path / "results", [measured(plain), measured(parallel)]))
    by_name = {row["test_name"]: row for row in rows}
    names = ("phase", "eager", "jit", "precision", "league", "device", "feed", "samples", "params")
    assert {name: by_name["mnist_mlp"][name] for name in names} == {
        "phase": "fit",
        "eager": True,
        "jit": "auto",
        "precision": "float64",
        "league": "matched",
        "device": "cpu",
        "feed": "device_resident",
        "samples": 1000,
        "params": '{"units":64}',
    }
    assert by_name["mnist_mlp"]["settings"] == {
        "epochs": 4,
        "discard": 1,
        "steps_per_epoch": "auto",
        "steps_per_execution": 1,
        "seed": 0,
        "threads": "1",
        "cpus": "all",
        "compile_cache": "cold",
        "clocks": "free",
        "autotune": "fresh",
        "freed_memory": "returned",
        "set_by_matrix": "",
        "page_cache": None,
        "input_timers": None,
        "nodes": None,
        "devices": None,
        "distribution": None,
        "gradient_accumulation_steps": None,
        "remat": None,
        "env": None,
        "implementation": None,
        "call": None,
        "outputs": None,
        "torch_compile": None,
        "xla_flags": None,
        "matmul_precision": None,
    }
    assert [(by_name[name]["fc_mode"], by_name[name]["fc_workers"]) for name in ("mnist_mlp", "fc")] == [
        (None, None),
        ("fc_data", 2),
    ]


def test_rows_from_before_a_setting_existed_are_named_as_with_its_default(tmp_path: Path) -> None:
    made = pushed(store(tmp_path / "results", [measured(make_settings())]))
    [path] = (made.folder / "cells").glob("*.parquet")
    newer = path.rename(tmp_path / "newer.parquet")
    later = "cpus, clocks, autotune, freed_memory, set_by_matrix, page_cache, input_timers, nodes, machine_machine_type"
    duckdb.sql(f"COPY (SELECT * EXCLUDE ({later}) FROM '{newer}') TO '{path}'")
    [row] = LocalWarehouse(made.folder).query("SELECT * FROM benchmarks").dicts()
    assert (row["test_type"], row["settings"]["cpus"]) == ("fit, batch_size=32", None)


# Rows.


@pytest.mark.fault("F30", mutation="the view benchmarks has a row for every attempt")
def test_superseded_attempt_is_excluded(tmp_path: Path) -> None:
    settings = make_settings()
    slow, again, other = (
        make_record(0.05, 0, settings=settings, attempt=0),
        make_record(0.01, 0, settings=settings, attempt=1),
        make_record(0.02, 1, settings=settings),
    )
    rows = flat(store(tmp_path / "results", [slow, again, other]))
    assert sorted((row["repeat"], row["step_time_s"]) for row in rows) == [(0, 0.01), (1, 0.02)]


def test_repeat_whose_last_attempt_failed_has_the_figure_of_the_one_before(tmp_path: Path) -> None:
    settings = make_settings()
    first = make_record(0.05, 0, settings=settings, attempt=0)
    last = make_record(None, 0, Status.CRASH, settings=settings, attempt=1)
    (row,) = flat(store(tmp_path / "results", [first, last]))
    assert (row["status"], row["repeat"]) == ("ok", 0)


def test_only_attempts_that_ended_ok_or_unstable_are_rows(tmp_path: Path) -> None:
    records = [make_record(0.01, repeat, status) for repeat, status in enumerate(Status)]
    rows = flat(store(tmp_path / "results", records))
    assert sorted(row["status"] for row in rows) == ["ok", "unstable"]


def test_run_with_an_injected_fault_is_excluded(tmp_path: Path) -> None:
    about = {"arm": "new", "arms": {"base": {"fault": None}, "new": {"fault": "sleep:0.1"}}}
    store_session(tmp_path / "results", run_name(0), [make_record()], **about)
    store_session(tmp_path / "results", run_name(1), [make_record()], **{**about, "arm": "base"})
    rows = flat(Results(tmp_path / "results"))
    assert [(row["run_id"], row["arm"]) for row in rows] == [(run_name(1), "base")]


def test_an_imported_row_has_its_source_in_a_column_and_in_its_name(tmp_path: Path) -> None:
    results = results_with(tmp_path / "results", runs=1, count=1)
    pushed(results)
    (tmp_path / "old.csv").write_text("w,b,s,t,n\nmnist_mlp,jax,9.5,2017-10-02,32\n")
    maps = [f"--map={one}" for one in ("workload=w", "backend=b", "value=s", "started_at=t", "batch_size=n")]
    command = ["import", str(tmp_path / "old.csv"), "--metric", "times.suite_total_time_s", "--source", "lab 2017"]
    assert main([*command, *maps, "--results", str(results.root)]) == 0
    rows = LocalWarehouse(results.root / "warehouse").query("SELECT * FROM benchmarks ORDER BY test_type").dicts()
    assert [(row["source"], row["test_type"], row["metrics"]["totaltime"]) for row in rows] == [
        ("lab 2017", "batch_size=32, source=lab 2017", 9.5),
        (None, "fit, batch_size=32", pytest.approx(0.03)),
    ]


# Figures.


def test_total_time_is_the_2017_suite_total_if_it_was_measured(tmp_path: Path) -> None:
    times = Times(step_time_s=0.01, samples_per_s=3200.0, epoch_times_s=[0.5] * 3, suite_total_time_s=0.9)
    shorter = replace(times, suite_total_time_s=None)
    rows = flat(store(tmp_path / "results", [make_record(times=times), make_record(repeat=1, times=shorter)]))
    found = {row["repeat"]: (row["metrics"]["totaltime"], row["steps_per_epoch"]) for row in rows}
    assert found == {0: (0.9, 32), 1: (1.5, 50)}
    assert {(row["step_time_s"], row["samples_per_s"], row["metrics"]["epochs"]) for row in rows} == {(0.01, 3200.0, 3)}


def test_total_time_of_an_external_command_is_that_of_the_command(tmp_path: Path) -> None:
    [row] = flat(store(tmp_path / "results", [measured(command_settings({"definition": "ab12"}))]))
    assert (row["test_name"], row["metrics"]["totaltime"], row["steps_per_epoch"]) == ("task train", 12.5, None)


# The table of the first benchmarks.


def test_the_columns_of_the_first_benchmarks_come_first_under_their_names(tmp_path: Path) -> None:
    [row] = flat(results_with(tmp_path / "results", runs=1, count=1))
    assert tuple(row)[: len(ORIGINAL)] == ORIGINAL
    assert row["metrics"] == {
        "totaltime": pytest.approx(0.03),
        "epochs": 3,
        "batch_size": 32,
        "sampletype": "synthetic",
    }
    assert row["keras_backend"] == {"type": "jax", "version": VERSIONS["jax"]}
    assert (row["test_name"], row["keras_version"]) == ("mnist_mlp", VERSIONS["keras"])
    assert row["recorded_time"].isoformat() == "2026-01-01T02:00:00+00:00"
    assert row["cpu_info"] == {"numcores": 2.0, "memory": None, "memory_units": "GiB", "platform": "a CPU"}
    assert row["platform_info"] == {"type": "host", "machine_type": None}
    assert row["gpu_info"] == {"count": 0.0, "platform": None}


def test_memory_container_machine_type_and_gpus_are_shown(tmp_path: Path) -> None:
    machine = replace(MACHINE, memory_bytes=8 << 30, container="docker", machine_type="n1-standard-8")
    device = DeviceProof("gpu", "cuda:0", 2, "a GPU")
    store_run(tmp_path / "results", 0, count=1, machine=machine, device=device)
    [row] = flat(Results(tmp_path / "results"))
    assert row["cpu_info"] == {"numcores": 2.0, "memory": 8.0, "memory_units": "GiB", "platform": "a CPU"}
    assert row["platform_info"] == {"type": "docker", "machine_type": "n1-standard-8"}
    assert row["gpu_info"] == {"count": 2.0, "platform": "a GPU"}


# For Google's engine, whose tables have no times.
FLAT = {"benchmarks": views()["benchmarks"].replace("c.started_at AS recorded_time,", "")}
FLAT_TABLES = (RUNS, CELLS, MEASUREMENTS)
NAMES = (
    "SELECT cell_id, repeat, test_name, test_type, fc_mode, fc_workers, step_time_s FROM benchmarks "
    "ORDER BY cell_id, repeat"
)


@pytest.mark.emulator
def test_googles_sql_engine_accepts_the_flat_view() -> None:
    there = answers(None, FLAT_TABLES, FLAT, {"names": NAMES})["names"]
    assert "error" not in there, there["error"]
    assert there["columns"][:2] == ["cell_id", "repeat"]


@pytest.mark.emulator
@pytest.mark.nightly
def test_googles_sql_engine_gives_every_variant_the_same_name(tmp_path: Path) -> None:
    results, cells = stored_variants(tmp_path / "results")
    local = pushed(results)
    there = answers(local, FLAT_TABLES, FLAT, {"names": NAMES})["names"]
    assert "error" not in there, there["error"]
    assert len(there["rows"]) == len(cells) * REPEATS
    assert [tuple(row) for row in there["rows"]] == local.query(NAMES).rows


@pytest.mark.emulated_at_night
@pytest.mark.google_client
def test_both_engines_give_every_variant_the_same_row(tmp_path: Path, emulated: str) -> None:
    results, cells = stored_variants(tmp_path / "results")
    address = BIGQUERY.fullmatch(emulated)
    assert address is not None
    remote: Warehouse = connect(address["project"], address["dataset"], Options(first_day="2000-01-01"))
    remote.create()
    push(results, remote, Outbox(tmp_path / "remote"))
    sql = (
        "SELECT cell_id, repeat, test_name, test_type, keras_backend.type AS backend, metrics.totaltime AS totaltime, "
        "platform_info.machine_type AS machine_type, cpu_info.platform AS cpu, status, arm, source, phase, fc_mode, "
        "fc_workers, samples, eager, jit, precision, league, device, feed, settings.threads AS threads, "
        "steps_per_epoch, step_time_s, samples_per_s FROM benchmarks ORDER BY cell_id, repeat"
    )
    here, there = pushed(results).query(sql), remote.query(sql)
    remote.close()
    assert len(here.rows) == len(cells) * REPEATS
    assert here.columns == there.columns
    assert here.rows == there.rows
