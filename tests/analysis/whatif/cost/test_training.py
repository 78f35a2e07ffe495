"""A cost model learns the formula of a fake machine, is judged by held-out operations, and predicts by them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.whatif.cost_model import (
    FOLDS,
    CostModel,
    CostModelError,
    DecisionTree,
    KindErrors,
    Predictor,
    fold_of,
    known_device,
    parse,
    predict,
)
from keras_matrix.analysis.whatif.cost_operations import OBSERVED, samples_of
from keras_matrix.analysis.whatif.graph import Collective, Node, NodeKind
from keras_matrix.records.codec import dumps, to_json
from tests.analysis.whatif.cost.fake_machine import (
    FASTER,
    PEAKS,
    elementwise_s,
    graph,
    node,
    product_s,
    product_work,
    stump,
    trained,
    usual_model,
    wrong,
)
from tests.analysis.whatif.hand_made import Nodes


def errors_of(model: CostModel, kind: str) -> KindErrors:
    return next(one for one in model.errors if one.kind == kind)


def product_node(*shape: int, **fields: Any) -> Node:
    return replace(node("aten::mm", product_s(shape), **product_work(shape)), **fields)


def test_a_regression_that_knows_more_than_the_roofline_is_used() -> None:
    found = errors_of(usual_model(), "matrix product")
    assert found.used == Predictor.REGRESSION
    assert found.regression is not None
    assert found.roofline is not None
    assert found.regression.median < found.roofline.median
    assert (found.operations, found.samples) == (36, 72)


def test_a_regression_that_is_worse_than_the_roofline_says_so_and_is_not_used() -> None:
    model = trained((graph(), PEAKS), learn=wrong)
    found = errors_of(model, "elementwise")
    assert found.used == Predictor.ROOFLINE
    assert found.reason.startswith("the regression is worse than the roofline: median ")
    assert elementwise_s(50_000) == pytest.approx(predict(model, node("aten::mul", 1, bytes=50_000), PEAKS), rel=0.1)


def test_a_kind_without_a_pattern_is_not_predicted() -> None:
    chance = random.Random(1)
    noise = [10 ** chance.uniform(-2, 2) for _ in range(40)]
    model = trained((graph(noise=noise), PEAKS))
    assert errors_of(model, "elementwise").used == Predictor.NOTHING
    assert None is predict(model, node("aten::add", 1, bytes=50_000), PEAKS)


def test_a_kind_with_few_distinct_operations_is_not_learned() -> None:
    nodes = Nodes()
    for size in (1, 2, 3):
        nodes.add(1000 * size, name="aten::add", bytes=4096 * size)
    model = trained((nodes.graph(machine={"cpu_model": PEAKS.product}, cores=2), PEAKS))
    (found,) = model.errors
    assert (found.regression, found.roofline, found.used) == (None, None, Predictor.NOTHING)
    assert found.reason == "distinct operations: 3, and at least 4 are needed"
    assert model.rooflines == []


@pytest.mark.parametrize("shape", [(48, 300), (1, 48, 300), (300, 2000), (1, 300, 2000)])
def test_a_new_operation_is_predicted_also_outside_the_range_of_the_samples(shape: tuple[int, ...]) -> None:
    assert predict(usual_model(), product_node(*shape), PEAKS) == pytest.approx(product_s(shape), rel=0.4)


def test_operations_of_the_same_work_are_never_learned_from_while_they_are_held_out() -> None:
    seen: list[set[float]] = []

    def spy(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[DecisionTree]:
        seen.append({(round(2 ** row[0]), round(2 ** row[1])) for row in rows})  # FLOPs and bytes
        return stump(rows, targets)

    traced = graph()
    trained((traced, PEAKS), (traced, replace(PEAKS, product="Twin")), learn=spy)
    products = [one for one in seen if min(one)[0] > 1]  # not elementwise operations, without FLOPs
    assert len(products) == FOLDS + 1
    *held_out, complete = products
    folds = fold_of(one for one in samples_of(traced, 0).samples if one.flops)
    for number, learned in enumerate(held_out):
        assert complete - learned == {(flops, size) for (_, flops, size), fold in folds.items() if fold == number}


def test_folds_are_even_and_do_not_depend_on_the_order() -> None:
    samples = samples_of(graph(), 0).samples
    folds = fold_of(samples)
    assert folds == fold_of(reversed(samples))
    sizes = [list(folds.values()).count(fold) for fold in range(FOLDS)]
    assert max(sizes) - min(sizes) <= 1


def test_a_new_device_is_predicted_from_its_peaks_with_the_efficiency_of_the_kind() -> None:
    model = trained((graph(), PEAKS), learn=wrong)
    size = 1 << 24
    expected = elementwise_s(size, FASTER)
    assert expected == pytest.approx(predict(model, node("aten::add", 1, bytes=size), FASTER), rel=0.1)


def test_the_error_on_a_new_device_is_measured_between_the_devices_of_the_traces() -> None:
    assert None is errors_of(usual_model(), "elementwise").new_device
    found = errors_of(trained((graph(), PEAKS), (graph(FASTER), FASTER)), "elementwise").new_device
    assert found is not None
    assert found.median < 0.05


def test_rates_of_the_traces_themselves_say_nothing_of_a_new_device() -> None:
    own = replace(PEAKS, source=OBSERVED)
    model = trained((graph(), own))
    assert None is predict(model, product_node(128, 128), FASTER)
    assert None is not predict(model, product_node(128, 128), own)


def test_a_model_says_nothing_of_another_backend_or_an_unknown_kind_work_or_device() -> None:
    model = usual_model()
    assert None is predict(model, product_node(128, 128), replace(PEAKS, backend="jax"))
    assert None is predict(model, product_node(128, 128, name="aten::lstm"), PEAKS)
    assert None is predict(model, product_node(128, 128, flops=None, bytes=None), PEAKS)
    assert None is predict(model, product_node(128, 128), None)


def test_waits_and_collectives_are_not_predicted() -> None:
    assert predict(usual_model(), product_node(128, 128, kind=NodeKind.WAIT), PEAKS) is None
    summed = Collective("all", 0, "all_reduce", (0, 1), 1024)
    assert predict(usual_model(), product_node(128, 128, collective=summed), PEAKS) is None


def test_the_device_of_a_graph_is_found_in_the_model() -> None:
    model = usual_model()
    assert known_device(model, graph().header) == PEAKS
    assert None is known_device(model, graph(FASTER).header)


def test_a_model_is_equal_after_it_was_written_and_read() -> None:
    model = usual_model()
    assert model == parse(dumps(model).encode(), "model.json")


def test_damage_to_a_model_file_is_one_error_that_names_the_file() -> None:
    good = to_json(usual_model())
    tree = good["regressions"][0]["trees"][0]
    looping = {**tree, "left": [0, *tree["left"][1:]]}
    damages = {
        "is not a cost model": {**good, "format": "other"},
        "has version 2, this program reads 1": {**good, "version": 2},
        "has version 1, this program": {**good, "features": ["colour"]},
        "is damaged: model: field 'errors' is missing": {name: good[name] for name in good if name != "errors"},
        "regressions[0].trees[0]: node 0 has the children 0": {
            **good,
            "regressions": [{**good["regressions"][0], "trees": [looping]}],
        },
        "devices[0]: its peaks must be positive": {**good, "devices": [{**good["devices"][0], "byte_per_s": -1.0}]},
        "rooflines[0]: efficiency must be positive": {
            **good,
            "rooflines": [{**good["rooflines"][0], "efficiency": 0.0}],
        },
        "rooflines[0].device: must be from 0 to 0, got 9": {
            **good,
            "rooflines": [{**good["rooflines"][0], "device": 9}],
        },
    }
    for problem, data in damages.items():
        with pytest.raises(CostModelError) as raised:
            parse(json.dumps(data).encode(), "model.json")
        assert str(raised.value).startswith("model.json: ")
        assert problem in str(raised.value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[1]", b'{"format": NaN}', b"[" * 100_000])
def test_what_is_not_a_model_file_is_refused(text: bytes) -> None:
    with pytest.raises(CostModelError, match=r"model.json: is (damaged|not a cost model)"):
        parse(text, "model.json")
