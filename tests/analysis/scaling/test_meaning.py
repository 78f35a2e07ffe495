"""The caveats of several devices: in the rows of the table, each once, with the backends that they concern."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.comparison.context import named_caveats
from keras_matrix.analysis.comparison.table import table
from keras_matrix.records.schema import Record
from tests.synthetic_devices import DRAWS, device_records, scaled_run

NOT_FIT = (
    "not fit: torch: the step is this project's, around DistributedDataParallel, since Keras 3.15.1 has no "
    "distribution on this backend"
)


def test_row_has_each_caveat_once_with_its_backends() -> None:
    caveats = {row.title: row.caveats for row in table(scaled_run(counts=(1, 2)))}
    assert caveats == {
        "mnist_mlp devices=1": (),
        "mnist_mlp devices=2": (f"tensorflow, torch on 2 devices: {DRAWS}", NOT_FIT),
    }


def test_row_of_one_backend_has_its_caveats_too() -> None:
    [row] = table(device_records(2, [0.1], "torch"))
    assert (row.verdict, row.caveats) == ("nothing to compare", (NOT_FIT, f"torch on 2 devices: {DRAWS}"))


def test_row_that_cannot_be_compared_has_its_caveats_too() -> None:
    others = [replace(r, resolved=replace(r.resolved, parameters=9)) for r in device_records(2, [0.1]) if r.resolved]
    [row] = table(device_records(2, [0.1], "torch") + others)
    assert row.verdict.startswith("not comparable: parameters differ")
    assert row.caveats[0] == NOT_FIT


def test_record_without_versions_names_no_version_of_keras() -> None:
    unknown = [replace(record, versions={}) for record in device_records(2, [0.1], "torch")]
    assert caveats_of(unknown)[0].endswith(
        "around DistributedDataParallel, since Keras has no distribution on this backend"
    )


def test_text_of_a_record_is_shown_as_it_is() -> None:
    odd = [
        replace(r, replicas=replace(r.replicas, semantics=["{0} braces {"]))
        for r in device_records(2, [0.1])
        if r.replicas
    ]
    assert caveats_of(odd) == ("jax on 2 devices: {0} braces {",)


def test_verdict_is_marked_with_the_named_caveats_only() -> None:
    assert named_caveats(("TF32: a", NOT_FIT, "losses differ: b")) == {"TF32": "TF32: a", "not fit": NOT_FIT}


def caveats_of(records: list[Record]) -> tuple[str, ...]:
    [row] = table(records)
    return row.caveats
