"""Peaks that GPU makers state, by product name. CPUs are not listed: their peak depends on clocks without guarantee.

Dense rates, without structured sparsity, of the unit that a matrix product in that precision runs on (tensor cores
where there are any; float32 means full float32, not TF32), at boost clock. Memory in byte/s.
Sources: NVIDIA's data sheets V100 (2020), T4 (2019), A10 (2021), A100 (2022), A30 (2022), L4 (2023), L40S (2023), H100
(2023), H200 (2024), and the white paper of the Hopper architecture (2022) for the H100's dense rates; where a sheet
gives tensor-core rates "with sparsity" only, half of them. On 23 November 2026 the sheets were not available:
L40S was compared with a dealer's copy, H100 80GB HBM3 and H200 with other publications, and they agree; H100 NVL and
H200 NVL were entered without a copy and must still be compared with their sheets; the others are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True, slots=True)
class Datasheet:
    """The peaks stated by a product's maker."""

    product: str
    flop_per_s: Mapping[str, float]
    memory_byte_per_s: float


def _sheet(product: str, memory_tb_per_s: float, **tera_flop_per_s: float) -> Datasheet:
    return Datasheet(product, {name: rate * TERA for name, rate in tera_flop_per_s.items()}, memory_tb_per_s * TERA)


SHEETS = (
    _sheet("H200", 4.8, float64=67, float32=67, tf32=494.7, bfloat16=989.4, float16=989.4),
    _sheet("H200 NVL", 4.8, float64=60, float32=60, tf32=417.5, bfloat16=835.5, float16=835.5),
    _sheet("H100 NVL", 3.9, float64=60, float32=60, tf32=417.5, bfloat16=835.5, float16=835.5),
    _sheet("H100 PCIe", 2.0, float64=51, float32=51, tf32=378, bfloat16=756, float16=756),
    _sheet("H100 80GB HBM3", 3.35, float64=67, float32=67, tf32=494.7, bfloat16=989.4, float16=989.4),
    _sheet("A100-SXM4-80GB", 2.039, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A100-SXM4-40GB", 1.555, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A100-PCIE-40GB", 1.555, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A100 80GB PCIe", 1.935, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A30", 0.933, float64=10.3, float32=10.3, tf32=82, bfloat16=165, float16=165),
    _sheet("A10", 0.6, float32=31.2, tf32=62.5, bfloat16=125, float16=125),
    _sheet("L40S", 0.864, float32=91.6, tf32=183, bfloat16=362, float16=362),
    _sheet("L4", 0.3, float32=30.3, tf32=60, bfloat16=121, float16=121),
    _sheet("T4", 0.32, float32=8.1, float16=65),
    _sheet("V100-SXM2", 0.9, float64=7.8, float32=15.7, float16=125),
    _sheet("V100-PCIE", 0.9, float64=7, float32=14, float16=112),
)

# Drivers before 470 omit the first, and prefix some products with the second.
MAKERS = ("NVIDIA ", "Tesla ")
# Names of one product with different memory sizes, on which its stated peaks do not depend.
SAME_SHEET = {f"{product}-{size}": product for product in ("V100-SXM2", "V100-PCIE") for size in ("16GB", "32GB")}


def datasheet(product: str | None) -> Datasheet | None:
    """Return the sheet of a device by its driver's name for it, None if no sheet has exactly this name.

    A longer name is another device: a part of a GPU (`A100-SXM4-40GB MIG 1g.5gb`), a virtual one (`A10-24Q`,
    `GRID A100-10C`), or another product (`H200 NVL`, `A10G`, `GH200 480GB`).
    """
    name = (product or "").strip()
    for maker in MAKERS:
        name = name.removeprefix(maker)
    name = SAME_SHEET.get(name, name)
    return next((sheet for sheet in SHEETS if sheet.product == name), None)
