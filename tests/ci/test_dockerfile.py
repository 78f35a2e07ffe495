"""Contents of the images that no lock lists."""

from __future__ import annotations

import re
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "docker" / "Dockerfile"


def stage(name: str) -> str:
    """The instructions of one stage, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text(encoding="utf-8"))
    stages = re.split(r"(?m)^FROM ", text)
    return next(found for found in stages if re.match(rf"\S+ AS {name}\n", found))


def test_only_torch_gpu_has_the_compiler_for_tritons_launcher() -> None:
    installs = [line for line in stage("image").splitlines() if "apt-get install" in line]
    assert len(installs) == 1
    assert re.search(r'if \[ "\$\{SERVICE\}" = torch-gpu \]; then .* gcc libc6-dev python3-dev .* fi$', installs[0])
