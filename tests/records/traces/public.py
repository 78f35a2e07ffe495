"""Traces of other programs, which are not part of this project: tests that use them skip where they are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

PUBLIC = Path(__file__).parents[4] / "shared" / "traces"
needs_public_traces = pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"the public traces are not in {PUBLIC}")
