"""Compiled templates are used again for the same text and options only, and never where escaping differs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from keras_matrix.dashboards.report.compiled_templates import CompiledTemplates
from keras_matrix.dashboards.report.page import templates


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were compiled."""
    texts: list[str] = []
    real = Environment._parse

    def parse(self: Environment, source: str, name: str | None, filename: str | None) -> object:
        texts.append(source)
        return real(self, source, name, filename)

    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(Environment, "_parse", parse)
    return texts


def shown(folder: Path, text: str, *, autoescape: bool = True) -> str:
    cache = CompiledTemplates(folder)
    environment = Environment(loader=DictLoader({"a.html": text}), bytecode_cache=cache, autoescape=autoescape)  # noqa: S701 - of the test alone
    return environment.get_template("a.html").render(value="<b>")


def test_a_template_is_compiled_once_for_all_processes(tmp_path: Path, compiled: list[str]) -> None:
    assert [shown(tmp_path / "new", "{{ value }}") for _ in range(2)] == ["&lt;b&gt;"] * 2
    assert compiled == ["{{ value }}"]


def test_a_changed_template_is_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    assert shown(tmp_path, "{{ value }}") == "&lt;b&gt;"
    assert shown(tmp_path, "{{ value }}!") == "&lt;b&gt;!"
    assert compiled == ["{{ value }}", "{{ value }}!"]


def test_code_that_does_not_escape_is_not_used_where_texts_are_escaped(tmp_path: Path, compiled: list[str]) -> None:
    assert shown(tmp_path, "{{ value }}", autoescape=False) == "<b>"
    assert shown(tmp_path, "{{ value }}") == "&lt;b&gt;"
    assert len(compiled) == 2


def test_a_damaged_file_is_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    shown(tmp_path, "{{ value }}")
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert shown(tmp_path, "{{ value }}") == "&lt;b&gt;"
    assert len(compiled) == 2


def test_without_a_writable_folder_templates_are_compiled_in_each_process(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert [shown(tmp_path / "file", "{{ value }}") for _ in range(2)] == ["&lt;b&gt;"] * 2
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert shown(tmp_path / "none", "{{ value }}") == "&lt;b&gt;"
    assert len(compiled) == 3
    assert not (tmp_path / "none").exists()


def test_pages_keep_their_templates_next_to_them() -> None:
    cache = templates().bytecode_cache
    assert isinstance(cache, CompiledTemplates)
    assert Path(cache.directory).name == "__pycache__"
    assert (Path(cache.directory).parent / "report.html").is_file()
