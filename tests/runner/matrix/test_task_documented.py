"""The example, the keys and the limits in docs/tasks.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from keras_matrix.records.task import Compute, Goal
from keras_matrix.runner.executors.tasks import metric_match, watch
from keras_matrix.runner.matrix.catalog import Catalog
from keras_matrix.runner.matrix.cfg import KNOWN
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.matrix.task_rules import ALWAYS, KEYS, LATE, METRIC, METRIC_KEYS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())


def code(text: str) -> set[str]:
    """Return the texts between backquotes."""
    return set(re.findall(r"`([^`]+)`", text))


def first_cells(heading: str) -> set[str]:
    """Return the texts between backquotes in the first column of the first table after a heading."""
    table = re.search(r"^\| key \|.*\n(?:\|.*\n)+", TEXT[TEXT.index(heading) :], re.MULTILINE)
    assert table is not None
    return {name for line in table[0].splitlines() for name in code(line.split(" | ")[0])}


def test_example_of_the_document_is_the_matrix_that_it_names() -> None:
    example = re.search(r"```yaml\n(version: 1.*?)```", TEXT, re.DOTALL)
    assert example is not None
    place = ROOT / "matrices" / "tasks.yaml"
    documented, stored = (parse(place, text, Catalog({})) for text in (example[1].encode(), place.read_bytes()))
    assert {cell.cell_id for cell in expand(documented)} == {cell.cell_id for cell in expand(stored)}


def test_every_key_of_a_task_and_of_a_metric_is_documented_and_no_other() -> None:
    assert first_cells("# External commands") == {*KEYS} - {"shell"}  # which the row of `command` explains
    assert "`shell: true`" in TEXT
    assert first_cells("## Metrics") == {*METRIC_KEYS}


def test_values_and_defaults_of_a_metric_are_documented() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| `compute` |"))
    assert code(row) == {"compute", *map(str, Compute)}
    assert f"`{METRIC['compute'].default}` (the default)" in row
    row = next(line for line in TEXT.splitlines() if line.startswith("| `unit`, `goal` |"))
    assert code(row) == {"unit", "goal", *map(str, Goal)}
    assert f"`{METRIC['goal'].default}` (the default)" in row


def test_every_place_that_is_always_there_is_documented() -> None:
    sentence = TEXT[TEXT.index("Predefined placeholders") :].split("\n\n")[0]
    assert {f"{{{name}}}" for name in (*LATE, *ALWAYS)} - {"{backend}"} <= code(sentence)
    assert "makes `{backend}` an axis" in TEXT


def test_limits_on_output_time_and_values_are_those_documented() -> None:
    assert f"{metric_match.MOST_VALUES:,} of them" in WORDS
    read_mb = watch.SLOWEST_BYTES_PER_S / 1e6
    assert f"after {watch.START_LIMIT_S:g} s and a second for every {read_mb:g} MB of output" in WORDS
    assert f"SIGTERM, and SIGKILL {watch.GRACE_S:g} s later" in WORDS
    limit, least = watch.LOG_LIMIT_BYTES >> 30, watch.LEAST_FREE_BYTES >> 30
    assert f"ended at {limit} GiB of output, or when a disk with less than {least} GiB free is full" in WORDS


def test_keys_of_a_cfg_file_are_those_of_the_driver() -> None:
    assert KNOWN == ("patterns", "metrics", "compute_method", "command_to_execute", "num_gpus")
