"""Options that several command lines have, `runner` included: each is defined once, here or beside its command."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

from uploader.warehouse import MOST_BYTES_BILLED

if TYPE_CHECKING:
    from argparse import _ActionsContainer

DEADLINE_MIN = 30


def positive(text: str) -> int:
    """Read a whole number above 0. Raises `ArgumentTypeError`."""
    with contextlib.suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")


def minutes(text: str) -> float:
    """Read minutes above 0 and return seconds. Raises `ArgumentTypeError`."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return 60 * number
    raise argparse.ArgumentTypeError(f"must be minutes above 0, got {text!r}")


@dataclass(frozen=True, slots=True)
class Flag:
    """One option, `--name VALUE`, or a switch if `read` is None.

    `read` turns the text into the value and raises `ValueError` or `argparse.ArgumentTypeError`; `dest` is the name of
    the value in the parsed arguments, by default the option's own.
    """

    name: str
    help: str
    metavar: str | None = None
    read: Callable[[str], object] | None = None
    default: object = None
    dest: str = ""

    @property
    def key(self) -> str:
        """The name of its value in the parsed arguments."""
        return self.dest or self.name.replace("-", "_")

    def add_to(self, parser: _ActionsContainer) -> None:
        """Add it to a command."""
        if self.read is None:
            parser.add_argument(f"--{self.name}", action="store_true", dest=self.key, help=self.help)
        else:
            parser.add_argument(
                f"--{self.name}",
                type=self.read,
                default=self.default,
                dest=self.key,
                metavar=self.metavar,
                help=self.help,
            )


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Options of one command that another command also takes, as `--PREFIX-name`, and passes on unchanged."""

    prefix: str
    flags: tuple[Flag, ...]

    def add_to(self, parser: _ActionsContainer) -> None:
        """Add them. Their values are checked when they are parsed; None and False mean that none was given."""
        for flag in self.flags:
            name = f"--{self.prefix}-{flag.name}"
            if flag.read is None:
                parser.add_argument(name, action="store_true", dest=self._key(flag), help=flag.help)
            else:
                read = _checked(flag.read)
                parser.add_argument(name, type=read, dest=self._key(flag), metavar=flag.metavar, help=flag.help)

    def given(self, args: argparse.Namespace) -> tuple[str, ...]:
        """Return the options that were given, as arguments of the command whose options they are."""
        found: list[str] = []
        for flag in self.flags:
            value = getattr(args, self._key(flag))
            if value is True:
                found.append(f"--{flag.name}")
            elif value not in (None, False):
                found.append(f"--{flag.name}={value}")
        return tuple(found)

    def _key(self, flag: Flag) -> str:
        return f"{self.prefix}_{flag.key}"


def add(parser: _ActionsContainer, flags: Iterable[Flag]) -> None:
    """Add options to a command."""
    for flag in flags:
        flag.add_to(parser)


def _checked(read: Callable[[str], object]) -> Callable[[str], str]:
    """Return what checks a text as `read` does and keeps the text, which the other command reads again."""

    @wraps(read)
    def keep(text: str) -> str:
        read(text)
        return text

    return keep


LOCATION = Flag("location", "where the dataset is, such as EU; by default read from it, for init: US", "REGION", str)
IMPERSONATE = Flag(
    "impersonate",
    "act as this service account; you need roles/iam.serviceAccountTokenCreator on it",
    "ACCOUNT",
    str,
)
APPEND_ONLY = Flag(
    "append-only",
    "init: a dataset for projects without DML (the sandbox), whose tables are views that show each row once; other "
    "commands read from the dataset how it was made",
)
MAXIMUM_BYTES_BILLED = Flag(
    "maximum-bytes-billed",
    "refuse a statement that would read more; default: 10737418240 (10 GiB)",
    "N",
    positive,
    MOST_BYTES_BILLED,
    "most_bytes_billed",
)
DEADLINE = Flag(
    "deadline",
    "BigQuery: end with exit 3 when sending takes longer, waits and repeated requests included; what is pending then "
    f"stays pending; default: {DEADLINE_MIN}",
    "MINUTES",
    minutes,
    DEADLINE_MIN * 60.0,
    "deadline_s",
)
# How BigQuery is reached and what a statement may cost, for commands that only read; and for those that also write.
READING = (LOCATION, IMPERSONATE, MAXIMUM_BYTES_BILLED)
BIGQUERY = (LOCATION, IMPERSONATE, APPEND_ONLY, MAXIMUM_BYTES_BILLED)
