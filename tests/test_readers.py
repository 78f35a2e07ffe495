"""Files of a results folder are opened in one place; every other call that opens a file is listed here with its reason.

A new call must either go through `records.files`, or be added to the list: only for what no results folder contains.
"""

from __future__ import annotations

import pytest

from tests.scan import facts, modules

LEAST_MODULES, LEAST_CALLS = 550, 80

THE_READER = "the one reader"
OPENED_BY_THE_READER = "a descriptor or a file that the one reader has opened"
KERNEL = "files of the kernel: /proc, /sys, /dev"
OWN = "files of this distribution"
NAMED = "a file that the user names on the command line"
SCRATCH = "the scratch folder of a process that is being measured, or of this process"
DATA_SET = "a data set or its index, which a cell reads or writes"
IN_THE_CELL = "orders that the host writes for the process in which this runs"

ALLOWED: dict[str, tuple[int, str]] = {
    "records/files.py": (3, THE_READER),
    "records/host/procfs.py": (1, KERNEL),
    "records/host/streams.py": (3, "the standard streams of this process"),
    "records/store.py": (1, OPENED_BY_THE_READER),
    "records/trees.py": (2, "folders that are removed, without following a link"),
    "records/traces/kineto.py": (1, OPENED_BY_THE_READER),
    "records/traces/neutral.py": (4, f"{OPENED_BY_THE_READER}, or one that is written"),
    "runner/cell/artefacts.py": (3, "what the same process wrote before it became that of a runtime"),
    "runner/cell/project.py": (2, "the user's own project, copied in the cell"),
    "models/fc/meeting.py": (1, KERNEL),
    "models/fc/worker.py": (1, IN_THE_CELL),
    "models/fc/profiled.py": (1, SCRATCH),
    "models/fc/prove.py": (1, IN_THE_CELL),
    "models/flops/__main__.py": (1, IN_THE_CELL),
    "models/inputs/images.py": (4, DATA_SET),
    "models/inputs/pipelines/batch_loader.py": (1, DATA_SET),
    "models/inputs/pipelines/decode.py": (1, DATA_SET),
    "models/inputs/probe.py": (2, DATA_SET),
    "models/inputs/stored/folder.py": (2, DATA_SET),
    "models/inputs/stored/make_images.py": (1, DATA_SET),
    "models/inputs/stored/shards.py": (2, DATA_SET),
    "models/inputs/stored/page_cache.py": (4, DATA_SET),
    "models/inputs/stored/record_file.py": (2, DATA_SET),
    "models/inputs/stored/source.py": (3, DATA_SET),
    "models/inputs/stored/writers.py": (2, DATA_SET),
    "models/profiling/torch.py": (1, SCRATCH),
    "uploader/cli/query.py": (1, NAMED),
    "uploader/external_import.py": (1, NAMED),
    "uploader/local/graph_files.py": (1, SCRATCH),
    "uploader/local/warehouse.py": (1, OPENED_BY_THE_READER),
    "uploader/outbox.py": (1, OPENED_BY_THE_READER),
    "uploader/sql.py": (2, OWN),
    "dashboards/live/app/refreshed.py": (1, SCRATCH),
    "dashboards/live/page.py": (1, OWN),
    "dashboards/live/questions.py": (1, OWN),
    "dashboards/report/page.py": (1, OWN),
    "runner/cell/checks/answering.py": (1, IN_THE_CELL),
    "runner/cell/entry.py": (1, SCRATCH),
    "runner/cell/measured_epochs.py": (2, SCRATCH),
    "runner/cell/job.py": (2, IN_THE_CELL),
    "runner/cell/parity.py": (1, IN_THE_CELL),
    "runner/cell/peaks/timing.py": (1, KERNEL),
    "runner/cell/piped/training.py": (1, SCRATCH),
    "runner/checks/parity.py": (1, f"{SCRATCH}; without objects"),
    "runner/checks/roofline.py": (1, OWN),
    "runner/cli/look/list_.py": (1, OWN),
    "runner/service/first_hour.py": (1, NAMED),
    "runner/service/script.py": (1, "the user's own project, to see whether it has changed"),
    "runner/service/starter.py": (1, OWN),
    "runner/service/trace.py": (
        1,
        "a stored trace, whose path `Run.inside` has checked, or one made in a scratch folder",
    ),
    "runner/environments/revisions.py": (5, f"{NAMED}: a wheel or a checkout, and its copy in the cache"),
    "runner/environments/rebuilt.py": (2, f"{NAMED}; a lock next to an environment that the runner has made"),
    "runner/executors/docker/containers.py": (1, KERNEL),
    "runner/executors/docker/executor.py": (1, KERNEL),
    "runner/executors/docker/registration.py": (1, "what this runner has noted about its own containers"),
    "runner/executors/process/probe.py": (2, SCRATCH),
    "runner/executors/process/interpreter.py": (1, "pyvenv.cfg of a Python that the user names"),
    "runner/executors/ray/agent.py": (2, KERNEL),
    "runner/executors/ray/machines.py": (2, "an archive in memory"),
    "runner/executors/supervise/watch.py": (2, SCRATCH),
    "runner/machine/machine.py": (3, KERNEL),
    "runner/machine/tree_memory.py": (3, KERNEL),
    "runner/machine/surroundings/counters.py": (1, KERNEL),
    "runner/machine/workload_names.py": (1, "the module of a workload, which the user names"),
    "runner/matrix/catalog.py": (1, OWN),
    "runner/matrix/parts.py": (1, OWN),
    "runner/matrix/prices.py": (1, NAMED),
    "runner/matrix/reader.py": (1, NAMED),
    "runner/notify/places.py": (1, NAMED),
    "runner/notify/webhook.py": (1, "a request, not a file"),
    "runner/matrix/cfg.py": (1, NAMED),
    "runner/executors/tasks/metric_match.py": (3, SCRATCH),
    "runner/executors/tasks/watch.py": (3, SCRATCH),
    "runner/service/bisect.py": (1, NAMED),
}
# Modules whose SQL names files; before that, their files are checked with `lstat` or the one reader.
SQL = ("read_parquet(", "read_json(", "parquet_schema(", "parquet_kv_metadata(", "read_csv(")
WITH_SQL = {
    "uploader/local/parquet.py",  # of the warehouse, whose files `damaged_files.find_unfit` has checked
    "uploader/local/graph_files.py",  # of a trace, whose files `read_range` has opened before
    "dashboards/live/app/refreshed.py",  # of a scratch folder
}


def test_files_of_results_are_opened_by_one_reader() -> None:
    """Mutation: `Run.about` reads `run.json` with `read_bytes`."""
    found = {name: opened for name, text in modules().items() if (opened := facts(text).opened)}
    assert len(modules()) >= LEAST_MODULES
    assert sum(map(len, found.values())) >= LEAST_CALLS
    others = {name: opened for name, opened in found.items() if len(opened) > ALLOWED.get(name, (0, ""))[0]}
    assert others == {}, "open it through records.files, or list it here with the reason"
    unused = {name for name, (count, _) in ALLOWED.items() if len(found.get(name, ())) < count}
    assert unused == set()


def test_files_are_named_in_the_sql_of_three_modules_only() -> None:
    found = {name for name, text in modules().items() if any(call in text for call in SQL)}
    named = {name for name in found if any(call in part for part in facts(modules()[name]).texts for call in SQL)}
    assert named == WITH_SQL


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("path.read_bytes()", 1), ("Path(p).read_text()", 1), ("with open(p) as f: json.load(f)", 2),
        ("os.open(p, 0)", 1),
        ("path.open()", 1), ("shutil.copyfile(a, b)", 1), ("gzip.open(p)", 1), ("duckdb.read_parquet(p)", 1),
        ("run.load()", 0), ("read_json(p)", 0), ("opened(p)", 0),
    ],
)  # fmt: skip
def test_scan_sees_each_way_to_open_a_file(source: str, count: int) -> None:
    assert len(facts(source).opened) == count
