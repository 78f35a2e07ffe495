"""The parser of a command: what it does not know is refused with the command's own usage and a near name.

A parser of `argparse` returns unknown arguments of a command to the program's parser, which then prints a usage that
says nothing of the command.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from keras_matrix.records.text import near

_SECRET = re.compile(r"[^\s=]*:\S*@\S*")


class CommandParser(argparse.ArgumentParser):
    """The parser of one command of a program; `commands` are all of them."""

    commands: Collection[str] = ()

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse; end the program with a message if something is not known."""
        parsed, unknown_words = super().parse_known_args(args, namespace)
        if unknown_words:
            self._refuse(unknown_words, list(args or ()))
        return parsed, unknown_words

    def error(self, message: str) -> NoReturn:
        """End the program with the usage and a message, in which an address does not show its password."""
        super().error(_SECRET.sub("(an address with a user or a password)", message))

    def _refuse(self, unknown_words: Sequence[str], words: Sequence[str]) -> NoReturn:
        """End the program: an option gets a near name, a command that is not the first word the right order."""
        first_word = unknown_words[0]
        advice = near(first_word.partition("=")[0], self._option_string_actions) if first_word.startswith("-") else ""
        if first_word in self.commands:
            program = self.prog.partition(" ")[0]
            other_words = [word for index, word in enumerate(words) if index != words.index(first_word)]
            advice = f"; {first_word} is a command and comes first: {shlex.join([program, first_word, *other_words])}"
        self.error(f"unrecognized arguments: {' '.join(unknown_words)}{advice}")
