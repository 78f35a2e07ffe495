"""A target of the fuzzing: how its inputs are made, and what must happen with each of them.

A module of `tests.reliability.fuzz.targets` defines one `TARGET`; its name is that of the module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from tests.reliability.fuzz import targets

FOLDER = Path(__file__).parent
CORPUS = FOLDER / "corpus"
ROOT = FOLDER.parents[2]
Check = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Target:
    """A parser, or several that read the same input.

    `inputs` makes inputs, most of which are valid. `checking` receives an empty folder and yields a function that reads
    one input and returns whether the parser accepted it; an exception, a failed assertion included, is a defect.
    `share` is the number of its inputs in a thousand of all targets. `modules` are patterns of the files, relative to
    the root, of which the branch coverage is reported. `limit_ms` is how long any input may take, if that is promised.
    At least `least_accepted` of the inputs must be accepted, as a share.
    """

    inputs: SearchStrategy[bytes]
    checking: Callable[[Path], AbstractContextManager[Check]]
    share: int
    modules: tuple[str, ...]
    limit_ms: float | None = None
    least_accepted: float = 0.5

    def files(self) -> list[Path]:
        """Return the files of `modules`."""
        return sorted({path for pattern in self.modules for path in ROOT.glob(pattern)})


def names() -> list[str]:
    """Return the names of all targets."""
    return sorted(module.name for module in pkgutil.iter_modules(targets.__path__))


def load(name: str) -> Target:
    """Return a target by its name."""
    found = importlib.import_module(f"{targets.__name__}.{name}").TARGET
    assert isinstance(found, Target)
    return found


def corpus(name: str) -> list[Path]:
    """Return the stored inputs of a target, each of which once showed a defect or is a known attack."""
    return sorted((CORPUS / name).glob("*"))
