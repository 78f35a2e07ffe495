"""Keeps compiled templates next to the templates, as Python keeps compiled modules.

Compiling those of a report takes a quarter of a second. A file is used only for the same text, the same options and
the same versions of Jinja and Python; where the folder cannot be written, templates are compiled in each process.

A module of its own: it imports Jinja, which is loaded only when a page is rendered.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket, FileSystemBytecodeCache

# What changes a template's code. Above all, code that escapes nothing is never used where everything is escaped.
OPTIONS = ("autoescape", "undefined", "trim_blocks", "lstrip_blocks", "keep_trailing_newline", "sandboxed", "optimized")


class CompiledTemplates(FileSystemBytecodeCache):
    """The compiled templates in a folder, which is created for the first one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), f"%s.jinja-{jinja2.__version__}")

    def get_bucket(self, environment: jinja2.Environment, name: str, filename: str | None, source: str) -> Bucket:
        """Return the code of a template, empty if there is none for its text with the options of this environment."""
        options = [f"{option}={getattr(environment, option)!r}" for option in OPTIONS]
        return super().get_bucket(environment, name, filename, "\n".join([*options, source]))

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read the code of a template; a file that cannot be read is none."""
        with suppress(OSError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Store the code of a template, unless Python is to store none or the folder is not writable."""
        if sys.dont_write_bytecode:
            return
        with suppress(OSError):
            Path(self.directory).mkdir(exist_ok=True)
            super().dump_bytecode(bucket)
