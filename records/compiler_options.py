"""Options of compilers that a matrix sets: arguments of `torch.compile`, and flags of XLA.

Both are part of a cell's identity, as one text each: words in the order of their names, so that equal options give
equal texts. Whether a compiler knows an option's value is found in the cell: lists of them change with each version.

Sources: the documentation of `torch.compile`; XLA's own descriptions of the flags (xla/debug_options_flags.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

MODE, FULLGRAPH, DYNAMIC = "mode", "fullgraph", "dynamic"
TORCH_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
TORCH_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    DYNAMIC: (False, True),
    FULLGRAPH: (False, True),
    MODE: TORCH_MODES,
}
"""The arguments of `torch.compile` that a matrix sets, with their values."""
MOST_CHARACTERS = 1000  # of the flags of a cell together
_FLAG = re.compile(r"--xla_[a-z0-9_]+(=[!-~]+)?", re.ASCII)
_WORDS: Mapping[str, object] = {"true": True, "false": False}
# Of flags that write files for each compilation, which would be timed.
_WRITING = re.compile(r"--xla_dump_.*")


def torch_arguments(text: str) -> dict[str, object]:
    """Return the arguments of `torch.compile` in such a text, as in `fullgraph=true mode=max-autotune`."""
    pairs = [word.partition("=") for word in text.split()]
    return {name: _WORDS.get(value, value) for name, _, value in pairs}


def torch_text(value: object) -> str:
    """Return accepted arguments, a mapping or a text, as a text in the order of their names."""
    arguments = torch_arguments(value) if isinstance(value, str) else value
    assert isinstance(arguments, Mapping)
    return " ".join(f"{name}={str(arguments[name]).lower()}" for name in sorted(arguments))


def torch_problem(value: object) -> str | None:
    """Return what is wrong with arguments of `torch.compile`, a mapping or a text of them; None if nothing is."""
    arguments = torch_arguments(value) if isinstance(value, str) else value
    if not isinstance(arguments, Mapping):
        return f"{value!r:.60}"
    for name, argument in arguments.items():
        if name not in TORCH_ARGUMENTS:
            return f"{name!s:.60}, which is none of {', '.join(TORCH_ARGUMENTS)}"
        values = TORCH_ARGUMENTS[name]
        if not any(type(argument) is type(known) and argument == known for known in values):
            names = ", ".join(str(known).lower() for known in values)
            got = str(argument).lower() if isinstance(argument, bool) else f"{argument!r:.60}"
            return f"{name}: {got}, which is none of {names}"
    return None


def torch_combinations(value: object) -> Iterator[object]:
    """Yield a mapping for each combination of the lists in a mapping: `{mode: [a, b], dynamic: false}` is an axis."""
    if not isinstance(value, Mapping) or not any(isinstance(part, list) for part in value.values()):
        yield value
        return
    lists = [part if isinstance(part, list) else [part] for part in value.values()]
    for combination in product(*lists):
        yield dict(zip(value, combination, strict=True))


def flags_text(value: object) -> str:
    """Return accepted flags of XLA with one blank between them, in the order of their names."""
    return " ".join(sorted(str(value).split()))


def flags_problem(value: object) -> str | None:
    """Return what is wrong with a text of XLA's flags; None if nothing is."""
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        return f"{value!r:.60}"
    names = set()
    for flag in value.split():
        name = flag.partition("=")[0]
        if not _FLAG.fullmatch(flag):
            return f"{flag!r:.60}"
        if _WRITING.fullmatch(name):
            return f"{name}, which writes files while a cell is timed"
        if name in names:
            return f"{name} twice"
        names.add(name)
    return None
