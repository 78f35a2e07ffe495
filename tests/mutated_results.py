"""Results folders as somebody else might send them: one stored folder, each time with one thing wrong in it.

`mutations` is deterministic. Next to the folder is another one, `OUTSIDE`, with a complete run and a file that contain
`CANARY`: links lead there, and the text may occur in no output.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_matrix.records.fc.spec import WORKLOAD
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.service.stored import update_findings
from tests.conftest import make_record, make_settings
from tests.old_results import DATA
from tests.sessions import processes, run_name, store_session
from tests.uploader.stored import uploader

CANARY = "CANARY-5f3a"
OUTSIDE = "outside"
TEBIBYTE = 1 << 40
VALUES: tuple[Any, ...] = (
    None, [], {}, "", "x", -1, 0, 1.7e308, 5e-324, 10**30, -(2**63), True, "\ud800", "a\x1b[2J\u202e", [[[]]],
    {"a": {"b": 1}},
    "../../outside/secret", "/dev/zero", "9" * 400,
)  # fmt: skip
RAW = (b"NaN", b"-Infinity", b"1e999", b"[" * 5000, b"\xff\xfe", b"", b"null", b"0", b'{"a":1,"a":2}')


@dataclass(frozen=True, slots=True)
class Mutation:
    """One thing that is wrong; `apply` changes a copy of the folder."""

    name: str
    apply: Callable[[Path], object]


def stored_folder(folder: Path) -> Path:
    """Store the folder that is mutated, pushed and with findings, and the one outside; return the former."""
    root = folder / "results"
    shutil.copytree(DATA / "results_schema_4", root, symlinks=True)
    names = ("parity", "peaks", "history.jsonl")
    for name in names:
        source = DATA / "results_8f8c047" / name
        shutil.copytree(source, root / name) if source.is_dir() else shutil.copyfile(source, root / name)
    _store(root, 300, "jax", "torch")
    for run in Results(root).runs():
        update_findings(run)
    assert uploader(Results(root), "push", "--quiet") == 0
    _store(root, 301, "jax")  # not pushed
    outside = folder / OUTSIDE
    outside.mkdir()
    _store(outside, 300, "jax", "torch", cpu_model=CANARY)
    _store(outside, 301, "jax", cpu_model=CANARY)
    for run in Results(outside).runs():
        update_findings(run)
        (run.folder / "report.html").write_text(f"<script>{CANARY}</script>")
    assert uploader(Results(outside), "push", "--quiet") == 0
    (outside / "secret").write_text(CANARY)
    return root


def _store(root: Path, night: int, *backends: str, cpu_model: str = "a CPU") -> Run:
    records = [
        record
        for number, backend in enumerate(backends, 1)
        for record in processes(0.01 * number, count=2, settings=make_settings(backend=backend))
    ]
    fc = make_settings(workload=WORKLOAD, backend="torch", params={"mode": "fc_data", "workers": 2})
    records.append(make_record(0.03, settings=fc))
    machine = replace(records[0].machine, cpu_model=cpu_model)
    about = {"planned": len(records), "order_seed": 0, "machine": {"cpu_model": cpu_model}}
    run = Run(store_session(root, run_name(night), [replace(one, machine=machine) for one in records], **about))
    run.store_object("finished.json", {"ended_at": "2026-11-27T12:00:00+00:00"})
    return run


def mutations(root: Path) -> list[Mutation]:
    """Return every mutation of the folder, in an order that mixes their kinds."""
    drawn = random.Random(7)
    found = [*_of_contents(root, drawn), *_of_places(root), *_of_names(root)]
    drawn.shuffle(found)
    return found


def _files(root: Path) -> list[str]:
    paths = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return [path.relative_to(root).as_posix() for path in paths if path.name != ".lock"]


def _folders(root: Path) -> list[str]:
    paths = sorted(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())
    return [path.relative_to(root).as_posix() for path in paths]


def _of_contents(root: Path, drawn: random.Random) -> Iterator[Mutation]:
    for name in _files(root):
        data = (root / name).read_bytes()
        for _ in range(2):
            size = drawn.randrange(len(data))
            yield Mutation(f"{name} has {size} bytes", _writing(name, data[:size]))
        at, flipped = drawn.randrange(len(data)), drawn.randrange(1, 256)
        changed = data[:at] + bytes([data[at] ^ flipped]) + data[at + 1 :]
        yield Mutation(f"{name} has another byte at {at}", _writing(name, changed))
        if name.endswith(".json"):
            raw = drawn.choice(RAW)
            yield Mutation(f"{name} is {raw[:20]!r}", _writing(name, raw))
            for _ in range(7 if "/records/" in name else 4):
                text, what = _with_value(data, drawn)
                yield Mutation(f"{name}: {what}", _writing(name, text))


def _with_value(data: bytes, drawn: random.Random) -> tuple[bytes, str]:
    """Return a document with another value at one place, or with another key."""
    document = json.loads(data)
    places = list(_places(document))
    container, key, path = drawn.choice(places)
    value = drawn.choice(VALUES)
    if isinstance(container, dict) and drawn.random() < 0.15:
        container[f"{key}\ud800"] = container.pop(key)
        return json.dumps(document).encode(), f"{path} has another name"
    container[key] = value
    return json.dumps(document).encode(), f"{path} is {value!r:.30}"


def _places(value: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key, f"{path}.{key}"
        yield from _places(item, f"{path}.{key}")


def _writing(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(data)


def _replacing(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def apply(root: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        make(path)

    return apply


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TEBIBYTE)


def _link_outside(root_of: Callable[[Path], Path], name: str) -> Callable[[Path], object]:
    """Return a maker of a link to the same place of the folder outside, or to its secret if it has no such place."""

    def make(path: Path) -> None:
        outside = root_of(path)
        target = outside / name
        path.symlink_to(target if target.exists() else outside / "secret")

    return make


def _of_places(root: Path) -> Iterator[Mutation]:
    for name in _files(root):
        depth = len(Path(name).parents) - 1
        outside = lambda path, depth=depth: path.parents[depth + 1] / OUTSIDE  # noqa: E731
        makers: dict[str, Callable[[Path], object]] = {
            "missing": lambda path: None,
            "a link outside": _link_outside(outside, name),
            "a link to a secret": lambda path, outside=outside: path.symlink_to(outside(path) / "secret"),
            "an endless link": lambda path: path.symlink_to("/dev/zero"),
            "a pipe": os.mkfifo,
            "sparse": _sparse,
            "a folder": Path.mkdir,
        }
        for what, make in makers.items():
            yield Mutation(f"{name} is {what}", _replacing(name, make))
    for name in _folders(root):
        depth = len(Path(name).parents) - 1
        outside = lambda path, depth=depth: path.parents[depth + 1] / OUTSIDE  # noqa: E731
        for what, make in {
            "missing": lambda path: None,
            "a link outside": _link_outside(outside, name),
            "a link to itself": lambda path: path.symlink_to(path.name),
            "a file": lambda path: path.write_text("x"),
            "a pipe": os.mkfifo,
        }.items():
            yield Mutation(f"{name} is {what}", _replacing(name, make))


def _of_names(root: Path) -> Iterator[Mutation]:
    run = run_name(300)
    record = next(name for name in _files(root) if name.startswith(f"{run}/records/"))
    for name in (
        "20260231T000000Z-ffffff", "20261399T999999Z-000000", "99991231T235959Z-ffffff", "00010101T000000Z-000000",
        "20260231T000000Z-fffff", "merged", "a\x1b[2J", "\udcff", "latest-1", "x" * 200,
    ):  # fmt: skip
        yield Mutation(
            f"a copy of a run named {name!r}", lambda root, name=name: shutil.copytree(root / run, root / name)
        )
        yield Mutation(
            f"a link to a run outside named {name!r}",
            lambda root, name=name: (root / name).symlink_to(root.parent / OUTSIDE / run),
        )
    names = ("0" * 16 + ".0.0.json", "a.json", "..json", "a\x1b]0;x\x07.json", "\udcff.json", "x" * 200 + ".json")
    for name in (
        *names,
        Path(record).name.replace(".0.0.", ".00.0."),
        Path(record).name.replace(".0.0.", ".9999.9999."),
    ):
        yield Mutation(
            f"a copy of a record named {name!r}",
            lambda root, name=name: shutil.copyfile(root / record, (root / record).with_name(name)),
        )
    for member in ("runs", "arm", "arms", "session", "plan_id", "matrix_text", "started_at", "versions", "stopping"):
        for value in ({"a": f"../../{OUTSIDE}/{run}"}, f"../{OUTSIDE}", 7):
            yield Mutation(f"run.json has {member}: {value}", _with_member(f"{run}/run.json", (member,), value))
    for path in (("trace",), ("usage", "course"), ("tensorboard",)):
        value = {"folder": f"../../{OUTSIDE}", "backend": "jax"} if path == ("trace",) else f"../../{OUTSIDE}/secret"
        yield Mutation(f"a record has {path}", _with_member(record, path, value))


def _with_member(name: str, path: tuple[str, ...], value: object) -> Callable[[Path], object]:
    def apply(root: Path) -> None:
        data = json.loads((root / name).read_bytes())
        inner = data
        for key in path[:-1]:
            inner = inner[key] = inner.get(key) or {}
        inner[path[-1]] = value
        (root / name).write_text(json.dumps(data))

    return apply
