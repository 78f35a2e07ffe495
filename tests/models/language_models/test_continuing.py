"""Language models on each backend: equal tokens, with KerasHub alone and in our own loop, without tensorflow-text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).with_name("continue_prompts.py")
TOO_LARGE = "llama: 0.000103 billion weights: it needs at least 0.00 GiB (weights 0.00"
ARCHITECTURES = ["gpt2", "gemma", "llama", "mistral"]
EXPECTED = {
    "shape": [2, 12],
    "prompt_unchanged": True,
    "equals_bare_call": True,
    "own_loop_equals": True,
    "steps": 7,
    "parameters_as_by_formula": True,
    "different_tokens": True,
}


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_prompts_are_continued_as_by_a_bare_call_and_by_our_own_loop(backend: str) -> None:
    """Mutations: our own step continues from the position of the new token, not from that of the last one;

    `of_preset` does not call `check`.
    """
    faster = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # compiles in half the time
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": faster}
    command = [sys.executable, str(SCRIPT), *ARCHITECTURES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"found": dict.fromkeys(ARCHITECTURES, EXPECTED), "preset": [True, TOO_LARGE], "imported": []}


@pytest.mark.nightly
def test_installed_tensorflow_is_not_imported_on_another_backend() -> None:
    """Mutation: `keras_hub()` hides nothing from the import."""
    script = (
        "import sys; from keras_matrix.models.language_models.hub import keras_hub; keras_hub(); "
        "print([name for name in ('tensorflow', 'tensorflow_text') if name in sys.modules])"
    )
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
