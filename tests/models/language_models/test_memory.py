"""A model that is too large for the memory is refused before it is made, by what the cell trains and its precision."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from keras_matrix.models.language_models.shapes import SIZES
from keras_matrix.models.workload import Request, UnsupportedWorkload

FREE_BYTES = 20 << 30  # more than the weights of 7b in bfloat16, less than them in float32 or all of them trained


@pytest.mark.process  # Keras is imported
@pytest.mark.parametrize(
    ("dtype", "rank", "fits"), [("bfloat16", 4, True), ("bfloat16", 0, False), ("float32", 4, False)]
)
def test_low_rank_updates_in_bfloat16_need_less_memory(
    monkeypatch: pytest.MonkeyPatch, dtype: str, rank: int, fits: bool
) -> None:
    """Mutations: every weight is counted as trained; the weights are counted in float32."""
    from keras_matrix.models.language_models import building

    policy = SimpleNamespace(variable_dtype=dtype, compute_dtype=dtype)
    monkeypatch.setattr(building.keras.config, "dtype_policy", lambda: policy)
    request = Request({"max_length": 128, "lora_rank": rank}, "synthetic", None, 8, free_bytes=FREE_BYTES)
    if fits:
        building._check_memory(SIZES["gemma"]["7b"], request)
    else:
        with pytest.raises(UnsupportedWorkload, match=r"gemma: 8\.54 billion weights: it needs at least"):
            building._check_memory(SIZES["gemma"]["7b"], request)
