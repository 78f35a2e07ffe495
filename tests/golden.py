"""Expected texts kept in files: each test folder's `golden/`, compared character by character.

`pytest --update-golden` writes what the program prints now; the change is then reviewed with `git diff`.
"""

from __future__ import annotations

from pathlib import Path


class Golden:
    """The golden files of one test module."""

    def __init__(self, folder: Path, update: bool) -> None:
        self._folder = folder
        self._update = update

    def text(self, name: str) -> str:
        """Return the text of the file `name`."""
        return (self._folder / name).read_text(encoding="utf-8")

    def check(self, name: str, text: str) -> None:
        """Compare `text` with the file `name`, or write it there if `--update-golden` was given."""
        path = self._folder / name
        if self._update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing: run pytest with --update-golden, then review the file"
        assert path.read_text(encoding="utf-8") == text, f"differs from {path}; --update-golden accepts the new text"
