"""Matrix files: every point becomes the right cell. What is refused is in `test_messages.py`."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keras_matrix.records.identity import cell_id
from keras_matrix.runner.errors import MatrixError, UsageError
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
from keras_matrix.runner.matrix.reader import Cell, expand, load

CATALOG = catalog.load(Path(__file__).parents[1] / "catalog.json")
ROOT = Path(__file__).parents[3]
HEAD = "version: 1\nbackends: [tensorflow, jax, torch]\ncells:\n  - workload: mnist_mlp\n"

Expand = Callable[..., list[Cell]]


@pytest.fixture
def cells_of(tmp_path: Path) -> Expand:
    def make(text: str, limit: int = 100_000, **overrides: Any) -> list[Cell]:
        path = tmp_path / "matrix.yaml"
        path.write_bytes(text.encode())
        return expand(load(path, CATALOG), Overrides(**overrides), limit)

    return make


@pytest.fixture
def problems_of(cells_of: Expand) -> Callable[..., list[str]]:
    def make(text: str, **keys: Any) -> list[str]:
        with pytest.raises(MatrixError) as caught:
            cells_of(text, **keys)
        return [re.sub(r"^\S*matrix\.yaml:", "", problem) for problem in caught.value.problems]

    return make


def entry(*lines: str) -> str:
    """Return a matrix of one mnist_mlp entry with these lines, the first of which is line 5."""
    return HEAD + "".join(f"    {line}\n" for line in lines)


def of(workload: str, *lines: str) -> str:
    return entry(*lines).replace("mnist_mlp", workload)


# What a file makes.


def test_smallest_matrix_has_one_cell_per_backend_with_all_defaults(cells_of: Expand) -> None:
    found = cells_of(HEAD)

    assert [cell.settings.backend for cell in found] == ["tensorflow", "jax", "torch"]
    cell = found[0]
    assert (cell.repeats, cell.timeout_s, cell.line) == (5, 300.0, 4)
    assert (
        cell.settings.batch_size,
        cell.settings.samples,
        cell.settings.phase,
        cell.settings.epochs,
        cell.settings.discard,
        cell.settings.steps_per_epoch,
    ) == (32, 1000, "fit", 4, 1, "auto")


def test_lists_are_axes_and_the_backend_varies_fastest(cells_of: Expand) -> None:
    found = cells_of(entry("batch_size: [1, 2]", "backends: [torch, jax]"))

    assert [(cell.settings.batch_size, cell.settings.backend) for cell in found] == [
        (1, "torch"),
        (1, "jax"),
        (2, "torch"),
        (2, "jax"),
    ]


def test_entry_overrides_defaults_which_override_the_catalog(cells_of: Expand) -> None:
    text = (
        "version: 1\ndefaults: {batch_size: 7, seed: 3, repeats: 5}\nbackends: [jax]\ncells:\n"
        "  - {workload: lstm}\n  - {workload: lstm, batch_size: 9, repeats: 6}\n"
    )

    assert [(c.settings.batch_size, c.settings.seed, c.repeats) for c in cells_of(text)] == [(7, 3, 5), (9, 3, 6)]
    assert [c.settings.batch_size for c in cells_of(of("lstm"), backends=("jax",))] == [128]


@pytest.mark.parametrize("lines", [("image_size: [32, 64]",), ("params: {image_size: [32, 64]}",)])
def test_parameter_is_set_in_the_entry_or_under_params(cells_of: Expand, lines: tuple[str, ...]) -> None:
    found = cells_of(of("mobilenet_v3_small", *lines), backends=("jax",))

    assert [c.settings.params for c in found] == [{"alpha": 1.0, "image_size": 32}, {"alpha": 1.0, "image_size": 64}]


def test_user_workload_accepts_any_parameter_and_has_own_defaults(cells_of: Expand) -> None:
    found = cells_of(of("my_package.net:Build", "params: {width: [1, 2.5, true, x]}"), backends=("jax",))

    assert [cell.settings.params["width"] for cell in found] == [1, 2.5, True, "x"]
    assert (found[0].settings.batch_size, found[0].settings.samples) == (32, 1000)


def test_options_set_for_a_user_workload_are_part_of_the_cell_id(cells_of: Expand) -> None:
    left, chosen, default = (
        cells_of(text, backends=("jax",))[0]
        for text in (
            of("my_package.net:Build"),
            of("my_package.net:Build", "eager: [false]", "samples: 1000"),
            "defaults: {eager: false}\n" + of("my_package.net:Build"),
        )
    )

    assert [cell.settings.set_by_matrix for cell in (left, chosen, default)] == ["", "eager,samples", "eager"]
    assert len({left.cell_id, chosen.cell_id, default.cell_id}) == 3
    assert (left.settings.leaves("eager"), chosen.settings.leaves("eager")) == (True, False)
    assert replace(left.settings, set_by_matrix="eager,samples") == chosen.settings


def test_command_line_sets_a_users_option_as_the_matrix_does(cells_of: Expand) -> None:
    (cell,) = cells_of(of("a.b:c", "samples: 9"), backends=("jax",), assignments={"eager": False})

    assert cell.settings.set_by_matrix == "eager,samples"


def test_catalog_workload_does_not_decide_options_itself(cells_of: Expand) -> None:
    (cell,) = cells_of(of("mnist_mlp", "eager: false"), backends=("jax",))

    assert (cell.settings.set_by_matrix, cell.settings.leaves("samples")) == ("", False)


def test_integer_and_equal_float_are_one_cell(cells_of: Expand) -> None:
    one, other = (cells_of(of("mobilenet_v3_small", f"alpha: {text}")) for text in ("1", "1.0"))

    assert [cell.cell_id for cell in one] == [cell.cell_id for cell in other]


def test_cell_id_is_the_identity_of_its_settings(cells_of: Expand) -> None:
    found = cells_of(
        of("mobilenet_v3_small", "image_size: [32, 64]", "alpha: [0.5, 1e-1]", "jit: [auto, true, false]", "phase: fit")
        + "  - workload: a.b:c\n    params: {z: ['%s', 'é\"', {}], a: [1, 1.0, true]}\n".replace("{}", "'{0}'")
        + "  - workload: bert\n    threads: [all, 1]\n    freed_memory: [returned, kept]\n"
        + "  - workload: bert\n    batch_size: 9\n    freed_memory: kept\n"
    )

    assert len(found) == 3 * (12 + 9 + 4 + 1)
    assert [cell_id(cell.settings) for cell in found] == [cell.cell_id for cell in found]


AXES = {"batch_size": [1, 2, 3], "seed": [0, 1, 2], "epochs": [3, 4], "backend": ["tensorflow", "jax", "torch"]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(data=st.data())
def test_cells_are_the_product_of_the_axes_without_the_points_that_match_all_values_of_an_exclude(
    cells_of: Expand, data: st.DataObject
) -> None:
    axes = {
        name: data.draw(st.lists(st.sampled_from(values), min_size=1, unique=True)) for name, values in AXES.items()
    }
    chosen = st.fixed_dictionaries(
        {}, optional={name: st.lists(st.sampled_from(values), min_size=1, unique=True) for name, values in axes.items()}
    )
    excludes = data.draw(st.lists(chosen.filter(bool), max_size=3))
    product = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    left = [point for point in product if not any(all(point[key] in out[key] for key in out) for out in excludes)]
    lines = [f"{name if name != 'backend' else 'backends'}: {json.dumps(values)}" for name, values in axes.items()]
    lines += [f"exclude: {json.dumps(excludes)}"] if excludes else []

    if not left:
        with pytest.raises(MatrixError, match="exclude leaves no cell"):
            cells_of(entry(*lines))
        return
    found = [tuple(getattr(cell.settings, name) for name in axes) for cell in cells_of(entry(*lines))]
    assert sorted(found) == sorted(tuple(point.values()) for point in left)


def test_exclude_accepts_a_parameter(cells_of: Expand) -> None:
    lines = ("image_size: [32, 64]", "alpha: [0.5, 1]", "exclude: [{alpha: 1, image_size: 64}]")
    found = cells_of(of("mobilenet_v3_small", *lines), backends=("jax",))

    assert [
        (c.settings.params["image_size"], c.settings.params["alpha"])
        for c in sorted(found, key=lambda c: (c.settings.params["alpha"], c.settings.params["image_size"]))
    ] == [(32, 0.5), (64, 0.5), (32, 1.0)]


OWN_NAMES = ("params: {feed: [a, b], seed: [1, 2]}",)  # parameters that are named like settings


def test_parameter_named_like_a_setting_is_selected_and_replaced_under_params(cells_of: Expand) -> None:
    document = of("pkg.mod:build", *OWN_NAMES, "feed: host_fed")
    [cell] = cells_of(document, filters=("params.feed=b", "params.seed=2", "seed=0"), backends=("jax",))
    assert (cell.settings.params, cell.settings.feed, cell.settings.seed) == ({"feed": "b", "seed": 2}, "host_fed", 0)
    assigned = cells_of(document, assignments={"params.feed": "c", "seed": 7}, backends=("jax",))
    found = [(cell.settings.params["feed"], cell.settings.params["seed"], cell.settings.seed) for cell in assigned]
    assert found == [("c", 1, 7), ("c", 2, 7)]
    assert {cell.settings.feed for cell in assigned} == {"host_fed"}


def test_exclude_names_a_parameter_under_params_where_a_setting_has_its_name(cells_of: Expand) -> None:
    document = of("pkg.mod:build", *OWN_NAMES, "seed: [0, 1]", "exclude: [{params.feed: a, params.seed: 2, seed: 1}]")
    cells = [cell.settings for cell in cells_of(document, backends=("jax",))]
    assert len(cells) == 7
    assert ("a", 2, 1) not in [(one.params["feed"], one.params["seed"], one.seed) for one in cells]


def test_parameters_of_a_users_workload_have_no_conflicts_of_the_catalogs(cells_of: Expand) -> None:
    assert len(cells_of(of("pkg.mod:build", "params: {quantization: int8, lora_rank: 0}"), backends=("jax",))) == 1


def test_include_adds_the_entry_again_with_some_keys_replaced(cells_of: Expand) -> None:
    lines = ("batch_size: [1, 2]", "jit: [true, false]", "include: [{batch_size: 8, backends: [jax], repeats: 9}]")
    found = [cell for cell in cells_of(entry(*lines)) if cell.settings.batch_size == 8]

    assert [(c.settings.backend, c.settings.jit, c.repeats) for c in found] == [("jax", True, 9), ("jax", False, 9)]


def test_include_adds_after_exclude_has_left_out(cells_of: Expand) -> None:
    lines = ("batch_size: [1, 2]", "exclude: [{batch_size: 2}]", "include: [{batch_size: 2, seed: 1}]")

    assert [(c.settings.batch_size, c.settings.seed) for c in cells_of(entry(*lines), backends=("jax",))] == [
        (1, 0),
        (2, 1),
    ]


# Limits.


@pytest.mark.fault("F32", mutation="the number of problems has no limit")
def test_at_most_fifty_problems_are_reported(problems_of: Callable[..., list[str]]) -> None:
    found = problems_of(entry(*(f"key{n}: 1" for n in range(1000))))

    assert len(found) == 51
    assert found[-1] == "54: stopped after 50 problems; fix these first"


def test_missing_file_and_folder_are_refused_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(
        MatrixError,
        match=r"none\.yaml: no such file; give the path with --matrix, or write a first .*keras-matrix init",
    ):
        load(tmp_path / "none.yaml", CATALOG)
    with pytest.raises(MatrixError, match="is not a regular file"):
        load(tmp_path, CATALOG)


@pytest.mark.fault("F34", mutation="the count is written out")
def test_very_large_count_is_abbreviated(problems_of: Callable[..., list[str]]) -> None:
    (problem,) = problems_of(of("a:b", f"params: {{{', '.join(f'p{n}: [1, 2]' for n in range(3000))}}}"))

    assert "got more than 10^15 of more than 10^15 here" in problem


def test_number_of_cells_may_equal_the_limit(cells_of: Expand, problems_of: Callable[..., list[str]]) -> None:
    assert len(cells_of(entry("seed: [1, 2]"), limit=6)) == 6
    assert "must define at most 5 cells" in problems_of(entry("seed: [1, 2]"), limit=5)[0]


# The command line.


def test_backends_and_filters_select_matching_cells(cells_of: Expand) -> None:
    text = entry("batch_size: [1, 16, 128]", "jit: [auto, true]") + "  - workload: mobilenet_v3_small\n"

    def selected(**overrides: Any) -> set[tuple[object, ...]]:
        found = cells_of(text, **overrides)
        return {(c.settings.workload, c.settings.backend, c.settings.batch_size, c.settings.jit) for c in found}

    assert {("mobilenet_v3_small", "jax", 16, "auto")} == selected(backends=("jax",), filters=("mobile",))
    assert {("mnist_mlp", "torch", 1, True)} == selected(filters=("backend=tor*", "batch_size=1", "jit=true"))
    assert len(selected(filters=("batch_size=1*", "mnist*", "jit=auto"), backends=("jax", "torch"))) == 6
    assert {16} == {point[2] for point in selected(filters=("image_size=224",))}


def test_set_replaces_defaults_entries_axes_and_parameters_where_they_apply(cells_of: Expand) -> None:
    text = entry("seed: [1, 2]", "include: [{batch_size: 64, seed: 1}]") + "  - workload: mobilenet_v3_small\n"
    found = cells_of(text, backends=("jax",), assignments={"seed": 9, "image_size": 32, "repeats": 7, "timeout_s": 5})

    assert [(c.settings.workload, c.settings.batch_size, c.settings.seed) for c in found] == [
        ("mnist_mlp", 32, 9),
        ("mnist_mlp", 64, 9),
        ("mobilenet_v3_small", 16, 9),
    ]
    assert found[-1].settings.params["image_size"] == 32
    assert {(7, 5.0)} == {(c.repeats, c.timeout_s) for c in found}
    assert [cell_id(c.settings) for c in found] == [c.cell_id for c in found]


def test_repeats_flag_has_priority(cells_of: Expand) -> None:
    assert {2} == {c.repeats for c in cells_of(entry("repeats: 9"), repeats=2, assignments={"repeats": 5})}


def test_exclude_applies_after_set(cells_of: Expand) -> None:
    text = entry("batch_size: [1, 2]", "exclude: [{backend: jax, batch_size: 2}]")

    assert [c.settings.backend for c in cells_of(text, assignments={"batch_size": 2})] == ["tensorflow", "torch"]
    assert len(cells_of(text, assignments={"batch_size": 1})) == 3


def test_filter_that_is_not_printable_is_escaped(cells_of: Expand) -> None:
    with pytest.raises(UsageError) as caught:
        cells_of(HEAD, filters=("\x1b[31m\udcff",))

    assert str(caught.value) == "--filter \\x1b[31m\\udcff: matches no cell; workload is one of mnist_mlp"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch_size=64", ("batch_size", 64)),
        ("jit=true", ("jit", True)),
        ("alpha=1e-3", ("alpha", 0.001)),
        ("name='12'", ("name", "12")),
        ("name=a=b", ("name", "a=b")),
        ("seed=012", ("seed", "012")),
    ],
)
def test_assignment_follows_the_rules_of_the_file(text: str, expected: tuple[str, object]) -> None:
    assert expected == parse_assignment(text)


# Anything at all.

SCALARS = st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.text(max_size=6)
WORDS = st.sampled_from(
    [
        *("version", "defaults", "backends", "cells", "workload", "params", "include", "exclude", "batch_size", "jit"),
        *("epochs", "seed", "repeats", "data", "jax", "torch", "mnist_mlp", "bert", "a.b:c", "size", "width", "auto"),
        *("image_size", "1", "0", "true"),
    ]
)
TREES: st.SearchStrategy[object] = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.lists(st.dictionaries(WORDS, TREES, max_size=5).map(lambda keys: {"workload": "bert"} | keys), max_size=3)


def only_matrix_or_matrix_error(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    cells: list[Cell] = []
    problems: list[str] = []
    try:
        cells = expand(load(path, CATALOG))
    except MatrixError as error:
        problems = error.problems
    assert cells or problems
    assert all(re.match(r"\S+matrix\.yaml:\d+: ", problem) and problem.isprintable() for problem in problems)


@pytest.mark.fault("F32", mutation="errors of the parser are raised as they are")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(max_size=200) | TREES.map(repr))
@example(text="")
def test_any_text_results_in_a_matrix_or_a_matrix_error(tmp_path: Path, text: str) -> None:
    only_matrix_or_matrix_error(tmp_path / "matrix.yaml", text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(entries=ENTRIES, extra=st.dictionaries(WORDS, TREES, max_size=2))
def test_any_entries_result_in_a_matrix_or_a_matrix_error(
    tmp_path: Path, entries: object, extra: dict[str, object]
) -> None:
    import yaml

    text = yaml.safe_dump({"version": 1, "backends": ["jax"], "cells": entries} | extra, allow_unicode=True)

    only_matrix_or_matrix_error(tmp_path / "matrix.yaml", text)


# What is shipped.


@pytest.mark.parametrize("path", [ROOT / "matrix.yaml", *sorted((ROOT / "matrices").glob("*.yaml"))], ids=str)
def test_shipped_matrices_can_be_expanded(path: Path) -> None:
    assert expand(load(path))


def test_real_sizes_of_the_published_benchmarks_are_as_published() -> None:
    """keras.io/getting_started/benchmarks; of Stable Diffusion 3, another model, the batch sizes alone."""
    cells = [cell.settings for cell in expand(load(ROOT / "matrices" / "keras-io.yaml"))]
    names = ("size", "sequence_length", "max_length", "image_size", "lora_rank")
    real = {
        (one.workload, one.phase, one.batch_size, one.precision, *(one.params.get(name, 0) for name in names))
        for one in cells
        if one.params["size"] != "tiny"
    }
    language_models = {
        (workload, *row)
        for workload in ("gemma", "mistral")
        for row in (
            ("fit", 8, "bfloat16", "7b", 0, 128, 0, 4),
            ("generate", 32, "bfloat16", "7b", 0, 50, 0, 0),
            ("generate", 1, "bfloat16", "7b", 0, 50, 0, 0),
        )
    }
    assert real == language_models | {
        ("bert", "fit", 32, "float32", "base", 512, 0, 0, 0),
        ("bert", "predict", 256, "float32", "base", 512, 0, 0, 0),
        ("sam", "fit", 1, "float32", "huge", 0, 0, 0, 0),  # of its own image size, 1024
        ("sam", "predict", 4, "float32", "huge", 0, 0, 0, 0),
        ("stable_diffusion_3", "fit", 8, "float32", "medium", 0, 0, 512, 0),
        ("stable_diffusion_3", "predict", 26, "float32", "medium", 0, 0, 512, 0),
    }
    assert len([one for one in cells if one.params["size"] != "tiny"]) == 3 * len(real)


def test_cpus_are_an_axis_of_counts_and_lists(cells_of: Expand) -> None:
    found = cells_of(entry('cpus: [1, "1,0", 3-3]'), backends=("jax",))
    assert [cell.settings.cpus for cell in found] == [1, "0-1", "3-3"]
    assert len({cell.cell_id for cell in found}) == 3


@pytest.mark.parametrize(("text", "expected"), [("cpus=2", 2), ("cpus=1,0", "0-1"), ("cpus='3'", "3-3")])
def test_cpus_are_set_on_the_command_line(cells_of: Expand, text: str, expected: int | str) -> None:
    found = cells_of(entry("cpus: all"), assignments=dict([parse_assignment(text)]))
    assert {cell.settings.cpus for cell in found} == {expected}


def test_gpu_cell_may_lock_its_clocks_and_pin_its_tuning(cells_of: Expand) -> None:
    found = cells_of(entry("device: gpu", "clocks: [free, locked]", "autotune: [fresh, pinned, off]"))
    assert len({(cell.settings.clocks, cell.settings.autotune) for cell in found}) == 6
