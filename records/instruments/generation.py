"""What a process saw of its language model: sizes and, with `phase: generate`, the figures of our own loop.

KerasHub's `generate()` is one compiled program on JAX and TensorFlow, so that nothing can be timed inside it. Figures
named `own_` come from a loop of this project over the same model: prefill and one decoding step, each compiled by
itself, with every token read on the host. They explain the time of `generate()`, and are no parts of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.codec import about


@dataclass(frozen=True, slots=True)
class Generation:
    """The language model of a process, and the times of our own loop; null if the loop failed or was not run.

    Steps of `fit` and `predict` have neither prompts nor a cache.
    """

    prompt_length: int | None = about("tokens of each prompt; null unless the phase is generate")
    max_length: int = about("tokens of each sequence: the prompt, if any, included")
    weight_bytes: int = about("size of the weights as stored, quantised ones included")
    read_weight_bytes: int | None = about(
        "weights that a decoding step reads: all but tables of which it reads a few rows; null unless the phase is "
        "generate"
    )
    cache_bytes: int | None = about("size of the cache of keys and values; null unless the phase is generate")
    last_level_cache_bytes: int | None = about("last-level caches of all CPUs; null on other devices", default=None)
    own_prefill_time_s: float | None = about("our loop: the pass over the prompt, padded to max_length", default=None)
    own_time_to_first_token_s: float | None = about(
        "our loop: prefill and the first step, until it is on the host", default=None
    )
    own_token_time_p50_s: float | None = about("our loop: median time of a decoding step", default=None)
    own_token_time_p99_s: float | None = about("our loop: 99th percentile of the time of a decoding step", default=None)
    own_token_time_mean_s: float | None = about("our loop: mean time of a decoding step", default=None)
    own_tokens_agree: bool | None = about("our loop: whether it generated the tokens of generate()", default=None)
    overhead_time_s: float | None = about(
        "our loop: median step of a model with the same operations and the smallest widths; by one process of a cell",
        default=None,
    )
    unquantised_time_s: float | None = about(
        "our loop: median step of the same model without quantisation, if that fits the memory; by one process of a "
        "cell; null without quantisation",
        default=None,
    )
    problem: str | None = about("why our loop has no figures", default=None)
