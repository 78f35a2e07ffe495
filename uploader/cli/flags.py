"""Command-line options that several commands share, including commands of `runner`."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING

from keras_matrix.uploader.warehouse import MOST_BYTES_BILLED

if TYPE_CHECKING:
    from argparse import _ActionsContainer

DEADLINE_MIN = 30


def positive(text: str) -> int:
    """Parse a positive integer. Raises `ArgumentTypeError`."""
    with contextlib.suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")


def minutes(text: str) -> float:
    """Parse a positive number of minutes and return seconds. Raises `ArgumentTypeError`."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return 60 * number
    raise argparse.ArgumentTypeError(f"must be a positive number of minutes, got {text!r}")


@dataclass(frozen=True, slots=True)
class Flag:
    """One option, `--name VALUE`, or a switch if `read` is None.

    `read` converts the text to the value and raises `ValueError` or `argparse.ArgumentTypeError`; `dest` is the name of
    the value in the parsed arguments, by default the name of the option.
    """

    name: str
    help: str
    metavar: str | None = None
    read: Callable[[str], object] | None = None
    default: object = None
    dest: str = ""

    @property
    def key(self) -> str:
        """The name of the value in the parsed arguments."""
        return self.dest or self.name.replace("-", "_")

    def add_to(self, parser: _ActionsContainer) -> None:
        """Add this option to a command."""
        add = partial(parser.add_argument, f"--{self.name}", dest=self.key, help=self.help)
        if self.read is None:
            add(action="store_true")
        else:
            add(type=self.read, default=self.default, metavar=self.metavar)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Options of one command that another command accepts as `--PREFIX-name` and forwards unchanged."""

    prefix: str
    flags: tuple[Flag, ...]

    def add_to(self, parser: _ActionsContainer) -> None:
        """Add these options. Values are validated when they are parsed; None and False mean not given."""
        for flag in self.flags:
            read = flag.read and _checked(flag.read)
            name, key = f"{self.prefix}-{flag.name}", self._key(flag)
            replace(flag, name=name, read=read, default=None, dest=key).add_to(parser)

    def given(self, args: argparse.Namespace) -> tuple[str, ...]:
        """Return the given options, as arguments of the command that they are forwarded to."""
        words: list[str] = []
        for flag in self.flags:
            value = getattr(args, self._key(flag))
            if value is True:
                words.append(f"--{flag.name}")
            elif value not in (None, False):
                words.append(f"--{flag.name}={value}")
        return tuple(words)

    def values(self, args: argparse.Namespace) -> dict[str, object]:
        """Return the value of each option by its name in the other command's arguments; defaults where not given."""
        texts = {flag: getattr(args, self._key(flag)) for flag in self.flags}
        return {
            flag.key: flag.default if text is None else text if flag.read is None else flag.read(text)
            for flag, text in texts.items()
        }

    def _key(self, flag: Flag) -> str:
        return f"{self.prefix}_{flag.key}"


def add(parser: _ActionsContainer, flags: Iterable[Flag]) -> None:
    """Add options to a command."""
    for flag in flags:
        flag.add_to(parser)


def _checked(read: Callable[[str], object]) -> Callable[[str], str]:
    """Return a function that validates a text with `read` and returns the text, which the other command parses."""

    @wraps(read)
    def validate(text: str) -> str:
        read(text)
        return text

    return validate


LOCATION = Flag("location", "location of the dataset, such as EU; default: its own, for init: US", "REGION", str)
IMPERSONATE = Flag(
    "impersonate",
    "act as this service account; you need roles/iam.serviceAccountTokenCreator on it",
    "ACCOUNT",
    str,
)
APPEND_ONLY = Flag(
    "append-only",
    "init: create a dataset for projects without DML (the sandbox), with views that remove duplicates; other commands "
    "detect it",
)
MAXIMUM_BYTES_BILLED = Flag(
    "maximum-bytes-billed",
    "reject a statement that would read more; default: 10737418240 (10 GiB)",
    "N",
    positive,
    MOST_BYTES_BILLED,
    "most_bytes_billed",
)
DEADLINE = Flag(
    "deadline",
    "BigQuery: exit with 3 if sending takes longer, including waits and retries; unsent batches stay pending; default: "
    f"{DEADLINE_MIN}",
    "MINUTES",
    minutes,
    DEADLINE_MIN * 60.0,
    "deadline_s",
)
# Options for access and cost limits of BigQuery: of commands that only read, and of those that also write.
READING = (LOCATION, IMPERSONATE, MAXIMUM_BYTES_BILLED)
BIGQUERY = (LOCATION, IMPERSONATE, APPEND_ONLY, MAXIMUM_BYTES_BILLED)
