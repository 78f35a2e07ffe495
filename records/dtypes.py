"""Dtypes: the bits of an element, and what a dtype policy of Keras computes in. Names are those of Keras and NumPy.

`tf32` is a float32 whose products have 19 bits; `bool` and the eight-bit types occupy a byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BITS: Mapping[str, int] = MappingProxyType({
    "bool": 8, "int4": 4, "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint4": 4, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float8_e5m2": 8, "float8_e4m3fn": 8, "float16": 16, "bfloat16": 16, "tf32": 32, "float32": 32, "float64": 64,
    "complex64": 64, "complex128": 128,
})  # fmt: skip
ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({name: bits // 8 for name, bits in BITS.items() if bits >= 8})
# The dtype that a policy computes in. That of its variables is the same, and float32 for a mixed one.
COMPUTED_IN: Mapping[str, str] = MappingProxyType(
    {
        "float32": "float32",
        "float64": "float64",
        "bfloat16": "bfloat16",
        "mixed_bfloat16": "bfloat16",
        "mixed_float16": "float16",
    }
)


def variable_bytes(policy: str) -> int:
    """Return the bytes of an element of the variables of a policy; a mixed one stores float32."""
    return ELEMENT_BYTES.get(policy, ELEMENT_BYTES["float32"])
