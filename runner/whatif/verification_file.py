"""The verification of predictions that a run measured: `whatif.json` in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from keras_matrix.records.codec import CodecError, decode, to_json
from keras_matrix.records.store import VERIFICATION, Run

if TYPE_CHECKING:
    from keras_matrix.analysis.whatif.verify import Verification
    from keras_matrix.records.schema import Record

FILE, VERSION = VERIFICATION, 1


def document(
    run: Run, source: str, found: Verification | None, left_out: Mapping[str, str], note: str = ""
) -> dict[str, object]:
    """Return the content of the file; `source` is what was predicted, `left_out` says what was not measured."""
    return {
        "version": VERSION,
        "run": run.run_id,
        "source": source,
        "verdict": None if found is None else found.verdict.value,
        "verification": to_json(found),
        "left_out": dict(left_out),
        "note": note,
    }


def stored(run: Run, records: Sequence[Record] = ()) -> Verification | None:
    """Return the verification of a run; None if it has none, or one that cannot be read. No record is needed."""
    from keras_matrix.analysis.whatif.verify import Verification

    content = run.load_object(FILE) or {}
    if content.get("version") != VERSION or content.get("verification") is None:
        return None
    try:
        return decode(Verification, content["verification"], FILE)
    except CodecError as error:
        run.note_unread(run.folder / FILE, error)
        return None
