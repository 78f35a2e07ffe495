"""The corpus has a program for each way to train, and its table says what is in the programs."""

from __future__ import annotations

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.runner.service.adopt import read_project
from tests.programs.corpus import FOLDER, corpus

WAYS = {
    "DataLoader", "GAN", "Grain", "KerasHub task without preset", "PyDataset with processes", "VAE", "argparse",
    "callbacks", "diffusion with EMA", "early stopping", "fit in a function", "fit twice", "functional",
    "gradient accumulation", "graph network", "if __name__", "metric learning", "mixed precision", "own loop",
    "own packages", "relative data files", "sequence to sequence with masks", "several outputs with weights",
    "subclassed", "tf.data", "train_step",
}  # fmt: skip
LEAST_PROGRAMS, LEAST_INDEPENDENT = 30, 10
LEAST_RIGHT = 0.9  # of what `runner adopt` says about the backends of a program


def test_corpus_has_every_way_to_train_on_every_backend_on_which_it_exists() -> None:
    programs = corpus()
    assert len(programs) >= LEAST_PROGRAMS
    assert sum(program.independent for program in programs) >= LEAST_INDEPENDENT
    assert {way for program in programs for way in program.ways} >= WAYS
    for way in ("train_step", "own loop", "GAN"):
        backends = {backend for program in programs if way in program.ways for backend in program.backends}
        assert backends >= ({"tensorflow", "torch"} if way == "GAN" else {*TRAINING_BACKENDS}), way


def test_every_program_has_a_row_and_its_measured_call_in_the_stated_line() -> None:
    programs = corpus()
    assert {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"} == {
        program.name for program in programs
    }
    for program in programs:
        assert (program.folder / program.program).is_file(), program.name
        path, number = program.place
        line = path.read_text(encoding="utf-8").splitlines()[number - 1]
        kind = program.call.partition(" ")[0]
        assert f".{kind}(" in line, f"{program.name}: {line}"


def test_programs_know_nothing_of_this_project_but_the_lines_of_a_loop() -> None:
    read = 0
    for program in corpus():
        for path in program.folder.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            read += 1
            if "own loop" in program.ways:
                lines = [line for line in text.splitlines() if "keras_matrix" in line]
                assert len(lines) == 2, f"{path}: an import and one line"
            else:
                assert "keras_matrix" not in text, path
    assert read > LEAST_PROGRAMS


def test_adopt_is_right_about_the_backends_and_the_call_of_nine_in_ten_programs() -> None:
    """Mutation: `allowed` of program_names.py excludes PyTorch where a program has `tensorflow.data`."""
    programs, wrong = corpus(), dict[str, object]()
    for program in programs:
        read = {found.path: found for found in read_project(program.folder, (), TRAINING_BACKENDS).programs}
        adopted = read.get(program.program)
        seen = (adopted.backends, f"{adopted.call.kind} {adopted.call.place}") if adopted else None
        places = {f"{call.kind} {call.place}" for call in adopted.calls} if adopted else {}
        if adopted is None or set(adopted.backends) != set(program.backends) or program.call not in places:
            wrong[program.name] = seen
    assert len(programs) - len(wrong) >= LEAST_RIGHT * len(programs), wrong
