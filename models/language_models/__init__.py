"""Language models of KerasHub: GPT-2, Gemma, Llama and Mistral, from a configuration with random weights or a preset.

    shapes.py     the sizes of each architecture, its parameter count, and the memory it needs, by formula
    building.py   builds the Keras model: KerasHub without TensorFlow, quantisation, LoRA
    presets.py    loads presets
    hub.py        imports KerasHub

With `phase: generate` a sample is a prompt of `prompt_length` random tokens, padded to `max_length`; with fit and
predict it is a sequence of `max_length` random tokens, in fit with the next tokens as targets. No tokenizer is used.
"""

from __future__ import annotations

from keras_matrix.models.language_models.shapes import QUANTIZATIONS, SIZES
from keras_matrix.models.workload import Built, Param, Request, generating, workload

# fmt: off
COMMON = (
    Param("layers", 0, "Decoder blocks; 0: as the size.", 0, 1024),
    Param("width", 0, "Width of the residual stream; 0: as the size. Hidden layers grow with it.", 0, 1 << 17),
    Param("heads", 0, "Heads of queries; 0: as the size. Heads of keys and values grow with them.", 0, 1024),
    Param("vocabulary", 0, "Number of different tokens; 0: as the size.", 0, 1 << 22),
    Param("prompt_length", 16, "generate: tokens of the prompt.", 1, 1 << 20),
    Param("max_length", 32, "Tokens of a sequence; generate: of the prompt and what is generated.", 2, 1 << 20),
    Param("lora_rank", 0, "fit: rank of the updates that are trained in place of the weights; 0: none.", 0, 4096),
    Param("quantization", "none", "Keras's mode that stores weights in fewer bits.", choices=QUANTIZATIONS),
    Param("preset", "", "A KerasHub preset or its folder, whose configuration and weights replace size, layers, ..."),
)
# fmt: on


def _params(architecture: str) -> tuple[Param, ...]:
    sizes = tuple(SIZES[architecture])
    return (Param("size", "tiny", f"{', '.join(sizes)}.", choices=sizes), *COMMON)


def _built(architecture: str, request: Request) -> Built:
    from keras_matrix.models.language_models.building import built

    return built(architecture, request)


@generating
@workload(batch_size=4, samples=64, params=_params("gpt2"))
def gpt2(request: Request) -> Built:
    """GPT-2 of KerasHub: learned positions, layer normalisation, tied output; random tokens."""
    return _built("gpt2", request)


@generating
@workload(batch_size=4, samples=64, params=_params("gemma"))
def gemma(request: Request) -> Built:
    """Gemma of KerasHub: rotary positions, gated layers, wide heads, tied output; random tokens."""
    return _built("gemma", request)


@generating
@workload(batch_size=4, samples=64, params=_params("llama"))
def llama(request: Request) -> Built:
    """Llama of KerasHub: rotary positions, gated layers, separate output weights; random tokens."""
    return _built("llama", request)


@generating
@workload(batch_size=4, samples=64, params=_params("mistral"))
def mistral(request: Request) -> Built:
    """Mistral of KerasHub: Llama's blocks with fewer heads of keys and a sliding window; random tokens."""
    return _built("mistral", request)
