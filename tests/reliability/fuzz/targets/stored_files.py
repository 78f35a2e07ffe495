"""The other files of a results folder: each is used, ignored, or refused with a message that names it.

An input begins with the path of its file within the folder, and a newline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from keras_matrix.models.inputs.stored import shards
from keras_matrix.models.inputs.stored.shards import InputDataError
from keras_matrix.records import appended, findings, history_reader
from keras_matrix.records import replicas as replica_proof
from keras_matrix.records.codec import CodecError, to_json
from keras_matrix.records.fc import communication, proof
from keras_matrix.records.fc.communication import TimedCollective
from keras_matrix.records.instruments import influence, parity, peaks, progress
from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.store import Results, Run
from keras_matrix.records.store_failure import StoreFailure
from tests.conftest import make_record
from tests.old_results import BASE, BEFORE, DATA, NEW
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import ROOT, Check, Target

RECORD = make_record(run_id=BASE)
PEAKS = "58b562a72a6ae522"
Reader = Callable[[Path], object]


def stored(pattern: str) -> Any:
    """Return the JSON value of a file of an earlier version's results folder."""
    return json.loads(next(iter(sorted((DATA / BEFORE).glob(pattern)))).read_text())


ABOUT = {**stored(f"{BASE}/run.json"), "matrix_text": "version: 1", "machine": {"host_id": "0" * 16}, "versions": {}}
ARMS = {"arm": "base", "arms": {"base": {"python": "/usr/bin/python3", "fault": None}, "new": {"fault": "slow_step"}}}
FINDINGS = stored(f"{NEW}/findings.json")
FINDINGS = {**FINDINGS, "found": FINDINGS["found"][:2]}
NOTE = json.loads((DATA / BEFORE / "history.jsonl").read_text().splitlines()[0])
SERIES = UsageSeries([0.0, 1.0], host_resident_bytes=[10, None], epochs_s=[[0.0, 1.0]])
INFLUENCE = {"host_id": "0" * 16, "device": "cpu", "devices": 2, "cell_id": RECORD.cell_id, "backend": "jax"}
PLACEMENTS = {"machines": [{"machine": "a", "work": "x"}]}
COLLECTIVES = to_json([TimedCollective("all_reduce", 2, 1024, 0.001)])
DEVICE_PROOF = json.loads(min((ROOT / "records/evidence/parity/devices").glob("fc.*.json")).read_text())
FC_PROOF = json.loads((ROOT / "records/evidence/parity/fc/proof.json").read_text())

DATA_SET = {"written_by": shards.WRITER, "kind": "tfrecord", "settings": {"count": 2}, "classes": ["a"], "count": 2}
DATA_SET |= {"finished": True, "parts": [{"name": "a.tfrecord", "records": 2, "bytes": 100}], "facts": {}}

FILES: Mapping[str, tuple[list[Any], Reader]] = {
    f"{BASE}/run.json": ([ABOUT, ABOUT | ARMS], lambda root: (Run(root / BASE).about(), history_reader.read([root]))),
    f"{BASE}/finished.json": ([{"ended_at": "2026-01-01"}], lambda root: Run(root / BASE).load_object("finished.json")),
    f"{NEW}/findings.json": ([FINDINGS], lambda root: findings.load(Run(root / NEW))),
    f"{BASE}/usage/{RECORD.cell_id}.0.0.json": ([to_json(SERIES)], lambda root: Run(root / BASE).usage_series(RECORD)),
    f"{BASE}/calibration/a.json": ([{"steps": 10}], lambda root: Run(root / BASE).calibration("a")),
    f"{BASE}/placements.json": ([PLACEMENTS], lambda root: progress.load_placements(Run(root / BASE)).machines),
    f"{BASE}/collectives.json": ([COLLECTIVES], lambda root: communication.read(root / BASE)),
    shards.NAME: ([DATA_SET], shards.finished),
    "history.jsonl": ([NOTE], lambda root: appended.load(root)[0]),
    f"peaks/{PEAKS}.json": ([stored("peaks/*.json")], lambda root: peaks.read(root, PEAKS)),
    "parity/a.json": ([stored("parity/*.json")], lambda root: parity.load(root)[0]),
    "influence/a.json": (
        [{"measured": [{**INFLUENCE, "workload": "bert", "ratio": 1.1}]}],
        lambda r: influence.load([r]),
    ),
    str(proof.PATH): ([{**FC_PROOF, "modes": FC_PROOF["modes"][:2]}], lambda root: proof.load(root)[0]),
    f"{replica_proof.PROOFS_FOLDER}/a.json": ([DEVICE_PROOF], lambda root: replica_proof.load_proofs(root)[0]),
}


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return the path of a file and its content."""
    name = draw(st.sampled_from(sorted(FILES)))
    content = draw(documents.json_texts(documents.changed(FILES[name][0])))
    return f"{name}\n".encode() + content


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for run_id in (BASE, NEW):
        (folder / run_id / "run.json").write_text(json.dumps(ABOUT))
        (folder / run_id / "records").mkdir()

    def check(data: bytes) -> bool:
        name, _, content = data.partition(b"\n")
        path = folder / name.decode()
        former = path.read_bytes() if path.exists() else None
        path.write_bytes(content)
        try:
            assert len(Results(folder).runs()) == 2
            return bool(FILES[name.decode()][1](folder))
        except (StoreFailure, CodecError, InputDataError):
            return False
        finally:
            if former is None:
                path.unlink()
            else:
                path.write_bytes(former)

    yield check


TARGET = Target(
    inputs(),
    checking,
    share=170,
    modules=(
        *(
            "records/findings.py",
            "records/appended.py",
            "records/instruments/p[elar]*.py",
            "records/replicas.py",
        ),
        *("records/fc/proof.py", "records/fc/communication.py", "records/instruments/influence.py", "records/codec.py"),
    ),
)
