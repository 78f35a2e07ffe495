"""What records and the findings of a run are refused for, each with its complete message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records import findings
from keras_matrix.records.codec import to_json
from keras_matrix.records.findings import Finding, FindingKind
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results, Run
from keras_matrix.records.store_failure import StoreFailure
from tests.golden import Golden
from tests.messages import check_messages, refusal


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Results(tmp_path).create("20260101T000000Z-abcdef", {})


# By title, the fields of a record that are other ones; a text is the whole file.
RECORDS: Mapping[str, dict[str, Any] | str] = {
    "a file that breaks off": "{",
    "a text in another encoding": "\udcff",
    "a number that JSON does not have": '{"a": NaN}',
    "a key twice": '{"a": 1, "a": 2}',
    "a list": "[]",
    "a repeat that is true": {"repeat": True},
    "a repeat that is text": {"repeat": "0"},
    "a repeat of more than 64 bits": {"repeat": 2**63},
    "a status that there is not": {"status": "fine"},
    "a warning that is a number": {"warnings": ["a", 1]},
    "no times": {"times": None},
    "a time that is text": {"times": {"step_time_s": "fast"}},
    "an unknown field": {"surprise": 1},
    "the former name of a field": {"times": {"seed_total_time_s": 1.5}},
    "no version": {"schema_version": None},
    "a cell of another form": {"cell_id": "../x"},
    "the record of another run": {"run_id": "20250101T000000Z-abcdef"},
}


def test_every_wrong_record_has_its_message(golden: Golden, run: Run, record: Record) -> None:
    path = run.publish(record)

    def messages_of(change: dict[str, Any] | str) -> list[str]:
        text = change if isinstance(change, str) else json.dumps(to_json(record) | change)
        path.write_bytes(text.encode(errors="surrogateescape"))
        records, problems = run.load()
        assert records == []
        return [problem.reason for problem in problems]

    messages = {title: messages_of(change) for title, change in RECORDS.items()}
    data = to_json(record)
    del data["cell_id"]
    messages["a missing field"] = messages_of(json.dumps(data))
    check_messages(golden, "records.txt", messages)


ONE = Finding(FindingKind.FIGURE, "times.step_time_s", "mlp", "a reason", 2, cell_id="0" * 16, estimate=0.1)
FINDINGS: Mapping[str, dict[str, Any] | str] = {
    "a file that breaks off": "{",
    "a newer version": {"version": 9},
    "findings of another run": {"run_id": "20260101T000000Z-aaaaaa"},
    "a run that leads elsewhere": {"run_id": "../../x"},
    "a cell that leads elsewhere": {"found": [{"cell_id": "../../../x"}]},
    "a cell of fifteen digits": {"found": [{"cell_id": "0" * 15}]},
    "a cell of two lines": {"found": [{"cell_id": "0" * 16 + "\n"}]},
    "a cell without a name": {"found": [{"cell_id": ""}]},
    "a run of a change that leads elsewhere": {"found": [{"at_run_id": "/etc/passwd"}]},
    "an estimate that is text": {"found": [{"estimate": "fast"}]},
    "a kind that there is not": {"found": [{"kind": "guess"}]},
}


def test_every_wrong_file_of_findings_has_its_message(golden: Golden, run: Run) -> None:
    path = run.folder / findings.FILE
    findings.keep(run, [ONE])
    stored = json.loads(path.read_text())

    def messages_of(change: dict[str, Any] | str) -> list[str]:
        text = change if isinstance(change, str) else json.dumps(changed(change))
        path.write_text(text)
        return [line.replace(f"{run.folder}/", "") for line in refusal(StoreFailure, lambda: findings.load(run))]

    def changed(change: dict[str, Any]) -> dict[str, Any]:
        found = [stored["found"][0] | one for one in change.get("found", [{}])]
        return stored | change | {"found": found}

    check_messages(golden, "findings.txt", {title: messages_of(change) for title, change in FINDINGS.items()})
