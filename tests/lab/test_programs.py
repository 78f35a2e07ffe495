"""The study of the corpus: its choice of programs, and what it says of an interval."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.backends import TRAINING_BACKENDS
from lab.programs.command import IN_PROCESSES, Chosen, build, processes, ratio, verdict
from tests.programs.corpus import corpus


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.99, 1.01, "yes"), (0.97, 1.01, "open"), (0.99, 1.03, "open"), (1.03, 1.05, "no"), (0.9, 0.97, "no")],
)
def test_interval_is_within_the_target_outside_of_it_or_open(low: float, high: float, text: str) -> None:
    columns = verdict(Estimate((low + high) / 2, low, high, 12), 0.02).split(" | ")
    assert columns[1:] == ["12", text]


def test_ratio_without_an_interval_says_so() -> None:
    assert verdict(Estimate(1.0, None, None, 2), 0.02) == verdict(None, 0.02) == "no interval | | "


def test_whole_processes_are_those_of_six_programs_whose_first_fit_is_measured() -> None:
    programs = {program.name: program for program in corpus()}
    assert len({name for name, _ in IN_PROCESSES}) == 6
    assert {backend for _, backend in IN_PROCESSES} == {*TRAINING_BACKENDS}
    for name, backend in IN_PROCESSES:
        program = programs[name]
        assert program.call.startswith("fit "), name
        assert backend in program.backends, name
        path, line = program.place
        assert not any(".fit(" in text for text in path.read_text(encoding="utf-8").splitlines()[: line - 1]), name


def test_every_program_has_a_ratio_on_every_backend_for_which_it_is_written() -> None:
    chosen = Chosen(corpus(), tuple(TRAINING_BACKENDS), 1.0, 12)
    cases = list(chosen.cases())
    assert len(cases) == len({*((program.name, backend) for program, backend in cases)}) > 80
    assert len(ratio(chosen)) == len(cases)
    assert len(processes(chosen)) == 6
    assert len(build(chosen)) == 3
