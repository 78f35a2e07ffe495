"""Properties of matrix files and of the flags that select and change their cells."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.matrix.scalars import value_text
from keras_matrix.runner.whatif.strategy_file import ChosenCell, written
from tests.golden import Golden
from tests.messages import inputs
from tests.runner.matrix.test_messages import HEAD, entry, problems_of

CATALOG = catalog.load()
AXES: Mapping[str, Sequence[Scalar]] = {
    "batch_size": [1, 2, 32],
    "seed": [0, 1, 2],
    "epochs": [3, 4],
    "jit": ["auto", True, False],
    "precision": ["float32", "mixed_bfloat16"],
    "image_size": [32, 64],  # a parameter
    "backends": ["tensorflow", "jax", "torch"],
}
ENTRIES = st.fixed_dictionaries(
    {"backends": st.lists(st.sampled_from(AXES["backends"]), min_size=1, unique=True)},
    optional={
        name: st.lists(st.sampled_from(values), min_size=1, unique_by=repr)
        for name, values in AXES.items()
        if name != "backends"
    },
)
Entry = Mapping[str, Sequence[Scalar]]


def cells_of(keys: Entry, workload: str = "mobilenet_v3_small", **overrides: object) -> list[Cell]:
    lines = [f"workload: {workload}", *(f"{name}: {json.dumps(values)}" for name, values in keys.items())]
    text = entry("".join(f"{line}\n" for line in lines), "workload", HEAD)
    return expand(parse(Path("matrix.yaml"), text.encode(), CATALOG), Overrides(**overrides))  # type: ignore[arg-type]


def settings_of(cells: Sequence[Cell]) -> list[Settings]:
    return [cell.settings for cell in cells]


def value_of(cell: Cell, key: str) -> Scalar:
    own = cell.settings
    value: Scalar = own.params[key] if key in own.params else getattr(own, key)
    return value


def test_lines_before_an_entry_move_the_lines_of_its_problems_and_nothing_else(golden: Golden) -> None:
    """Mutation: a problem without a line of its own gets that of the file's beginning."""
    moved = HEAD.replace("cells:", "# a comment\n\n# another one\ncells:")
    entries = [text for text in inputs(golden, "matrix.txt").values() if text.startswith("workload:")]
    assert len(entries) > 60
    for text in entries:
        expected = [
            re.sub(r"(?:^|(?<=line ))\d+", lambda line: str(int(line[0]) + 3), problem)
            for problem in problems_of(entry(text, "workload", HEAD))
        ]
        assert problems_of(entry(text, "workload", moved)) == expected


@settings(max_examples=25, deadline=None)
@given(ENTRIES, st.randoms(use_true_random=False))
def test_cells_do_not_depend_on_the_order_of_the_keys(keys: Entry, random: Random) -> None:
    shuffled = dict(random.sample(list(keys.items()), len(keys)))
    assert {cell.cell_id for cell in cells_of(shuffled)} == {cell.cell_id for cell in cells_of(keys)}


@settings(max_examples=25, deadline=None)
@given(ENTRIES, st.data())
def test_a_value_that_is_set_gives_the_cells_of_a_file_with_this_value(keys: Entry, data: st.DataObject) -> None:
    """Mutation: `--set` replaces an axis only if the entry has it."""
    name = data.draw(st.sampled_from([name for name in AXES if name != "backends"]))
    value = data.draw(st.sampled_from(AXES[name]))
    assert settings_of(cells_of(keys, assignments={name: value})) == settings_of(cells_of({**keys, name: [value]}))


@settings(max_examples=25, deadline=None)
@given(ENTRIES, st.data())
def test_filters_select_exactly_the_cells_that_match_all_of_them(keys: Entry, data: st.DataObject) -> None:
    """Mutation: a filter replaces the one before it."""
    names = data.draw(st.lists(st.sampled_from([*AXES]), max_size=3, unique=True))
    wanted = {"backend" if name == "backends" else name: data.draw(st.sampled_from(AXES[name])) for name in names}
    filters = tuple(f"{name}={value_text(value)}" for name, value in wanted.items())
    selected = [
        cell
        for cell in cells_of(keys)
        if all(fnmatchcase(value_text(value_of(cell, name)), value_text(value)) for name, value in wanted.items())
    ]
    if selected:
        assert settings_of(cells_of(keys, filters=filters)) == settings_of(selected)
    else:
        with pytest.raises(UsageError):
            cells_of(keys, filters=filters)


@settings(max_examples=25, deadline=None)
@given(ENTRIES, st.sampled_from(["mobilenet_v3_small", "my.models:build"]))
def test_every_cell_can_be_written_as_a_matrix_file_and_read_again(keys: Entry, workload: str) -> None:
    """Mutation: a value that is another reader's true, such as on, is written without quotes."""
    if workload == "my.models:build":
        keys = {name: values for name, values in keys.items() if name != "image_size"}
    cells = cells_of(keys, workload)
    strategy = written([ChosenCell(cell.settings, ()) for cell in cells])
    assert settings_of(strategy.cells) == settings_of(cells)
    again = expand(parse(Path("strategy.yaml"), strategy.text.encode(), CATALOG))
    assert {cell.cell_id for cell in again} == {cell.cell_id for cell in cells}
