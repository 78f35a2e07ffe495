"""Print which compute capabilities the GPU code in a wheel is for: the source of runner/machine/preflight.py.

python ci/gpu_code.py WHEEL...

Reads the fat binaries that nvcc and clang embed: a header (magic number 0xBA55ED50), then entries of PTX (kind 1) or
machine code (kind 2), each with its compute capability. Written from the layout that LLVM's and NVIDIA's tools print;
`cuobjdump --list-elf` shows the same.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections import Counter

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER_BYTES, ENTRY_BYTES, ARCH_OFFSET = 16, 64, 28
PTX, MACHINE_CODE = 1, 2
KINDS = {PTX: "compute", MACHINE_CODE: "sm"}


def gpu_code(data: bytes) -> Counter[str]:
    """Return how many pieces of code there are for each target (sm_80: machine code, compute_90: PTX)."""
    targets: Counter[str] = Counter()
    start = data.find(MAGIC)
    while start != -1:
        header_bytes, size = struct.unpack_from("<HQ", data, start + 6) if start + HEADER_BYTES <= len(data) else (0, 0)
        if header_bytes == HEADER_BYTES:
            targets.update(_entries(data, start + HEADER_BYTES, min(start + HEADER_BYTES + size, len(data))))
        start = data.find(MAGIC, start + 4)
    return targets


def _entries(data: bytes, place: int, end: int) -> list[str]:
    targets = []
    while place + ENTRY_BYTES <= end:
        kind, _, header_bytes, size = struct.unpack_from("<HHIQ", data, place)
        if kind not in KINDS or header_bytes < ARCH_OFFSET + 4:
            break
        targets.append(f"{KINDS[kind]}_{struct.unpack_from('<I', data, place + ARCH_OFFSET)[0]}")
        place += header_bytes + size
    return targets


def main(paths: list[str]) -> None:
    """Print one line for each library with GPU code."""
    for path in paths:
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if ".so" in name and (targets := gpu_code(wheel.read(name))):
                    listed = ", ".join(f"{target} ({count})" for target, count in sorted(targets.items()))
                    print(f"{name}: {listed}")


if __name__ == "__main__":
    main(sys.argv[1:])
