"""Scripts of ci/ as modules, for the tests that compare a document with its script."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

CI = Path(__file__).parents[1] / "ci"


def script(name: str) -> ModuleType:
    """Return ci/NAME.py, imported under its name."""
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
