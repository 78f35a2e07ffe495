"""The section of verified what-ifs: predicted and measured step times, and what decided the verdict."""

from __future__ import annotations

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.analysis.whatif.verify import Measurement, Prediction, judge, judge_again
from keras_matrix.dashboards.report.page import render
from keras_matrix.dashboards.report.predictions import predictions
from tests.sessions import processes

PREDICTED = {"baseline": Prediction(0.1, 0.09, 0.11), "workers=4": Prediction(0.2, 0.19, 0.21)}
MEASURED = {
    "baseline": Measurement(dict(enumerate((0.1, 0.101, 0.099, 0.1, 0.1)))),
    "workers=4": Measurement(dict(enumerate((0.41, 0.4, 0.4, 0.39, 0.4)))),
}


def test_a_run_without_a_verification_has_no_section() -> None:
    records = processes(0.01)
    pages = [
        render(records, result_table(table(records), RunContext(verification=verification)), {})
        for verification in (None, judge(PREDICTED, MEASURED))
    ]
    assert ['id="predictions"' in page for page in pages] == [False, True]


def test_each_setting_has_its_times_its_error_and_its_verdict() -> None:
    found = predictions(judge(PREDICTED, MEASURED))
    assert found.verdict == "refuted"
    (table,) = found.tables
    assert table.columns[0] == "predicted, ms"
    assert [row.name for row in table.rows] == ["baseline", "workers=4"]
    assert table.rows[1].values[:3] == ["200", "[190 210]", "400"]
    assert table.rows[1].values[4:] == ["-50.0 %", "refuted"]
    assert found.facts[0] == "error: mean 25.0 %, largest 50.0 %"
    assert found.facts[-1] == "regret: 0.0 %; baseline was predicted to have the lowest time, and is lowest"
    assert len(found.reasons) == 1


def test_a_recalibration_has_a_table_of_its_own() -> None:
    first = judge(PREDICTED, MEASURED)
    found = predictions(judge_again(first, PREDICTED, MEASURED, "alpha 2 ms", ["baseline"]))
    assert [one.title for one in found.tables] == ["As predicted", "After a recalibration of the link: alpha 2 ms"]
    assert found.tables[1].rows[0].values[-1] == "fitted"
