"""`ci/soak`: a few cells; neither the runner nor its fork servers keep memory or files of a cell that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.soak.__main__ import Found, Plan, soak, table
from tests.reliability.soak.growth import Growth, growth, slope
from tests.reliability.soak.rates import comparisons_of
from tests.reliability.soak.running import Use

MIB = 1 << 20


def samples(per_cell: float, files_per_cell: float) -> list[tuple[int, Use]]:
    """Return samples of a process: its open files are more while cells are alive."""
    cells = range(20, 2001, 20)
    files = [7 + int(files_per_cell * n) + (11 if n % 80 == 0 else 0) for n in cells]
    return [(n, Use(int(30 * MIB + per_cell * n), 60 * MIB, count)) for n, count in zip(cells, files, strict=True)]


@pytest.mark.parametrize(
    ("per_cell", "files_per_cell", "flat"), [(1100, 0, True), (2500, 0, False), (0, 0.01, False), (-50, 0, True)]
)
def test_growth_per_cell_is_compared_with_its_bound(per_cell: float, files_per_cell: float, flat: bool) -> None:
    """Mutation: only the memory is compared."""
    found = growth(samples(per_cell, files_per_cell))
    assert (found.flat, found.memory_bytes) == (flat, pytest.approx(per_cell, abs=1))
    assert found.files == pytest.approx(files_per_cell, abs=0.002)


def test_first_cells_do_not_count_as_growth() -> None:
    """Mutation: the slope is the mean slope, or that of the first and the last sample."""
    early = [(n, Use(n * MIB, MIB, 7)) for n in range(1, 15)]
    assert growth([*early, *samples(0, 0)]).memory_bytes == 0


def test_slope_of_too_few_points_is_zero() -> None:
    """Mutation: the median of no pair raises an error."""
    assert (slope([]), slope([(1, 5.0)]), slope([(1, 5.0), (3, 9.0)])) == (0.0, 0.0, 2.0)


def test_table_names_what_is_not_flat() -> None:
    """Mutation: problems are not printed."""
    use = Use(30 * MIB, 60 * MIB, 7)
    found = Found(2001, {"runner": Growth(use, use, 5000.0, 0.0)}, None, ["runner: grows"])
    lines = table(found)
    assert lines[1].split() == ["runner", "30.0", "to", "30.0", "5000", "7", "to", "7", "0.0000"]
    assert lines[-1] == "runner: grows"


def test_blocks_of_the_last_comparison_time_a_hundred_cells() -> None:
    """Mutation: fewer pairs of blocks by default."""
    from tests.reliability.soak.__main__ import PAIRS
    from tests.reliability.soak.rates import TIMED

    assert PAIRS * TIMED * 3 >= 100
    assert comparisons_of(PAIRS) == PAIRS * (TIMED + 1)


@pytest.mark.nightly(why="ci/soak measures the same over 2,000 cells")
@pytest.mark.process
def test_runner_and_fork_server_keep_no_memory_and_no_file_of_cells_that_ended(tmp_path: Path) -> None:
    """Mutation: the output pipe of a cell is not closed at its end."""
    found = soak(Plan(24, ("jax",), pairs=0), tmp_path, report=lambda line: None)
    files = {name: one.files for name, one in found.grown.items()}
    assert (found.cells, files) == (24, dict.fromkeys(("runner", "server jax"), pytest.approx(0, abs=0.2)))
    assert {
        name: one.last.anonymous_bytes - one.first.anonymous_bytes < 4 * MIB for name, one in found.grown.items()
    } == {
        "runner": True,
        "server jax": True,
    }
