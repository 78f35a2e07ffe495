"""Writes the markers of a lock as briefly as the Pythons and processors that it is for allow: LOCK PYTHONS PROCESSORS.

    python ci/lock_markers.py locks/cpu.txt "3.11 3.12 3.13" "x86_64 aarch64"

uv's markers exclude every other system on each line, which hides the few that matter, and with which pip would silently
install nothing elsewhere. Guarantee: of these Pythons and processors, a pin applies to those to which it did, and to no
others; one that applies to none is left out. A line names the Pythons.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.markers import Marker

PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*==[^ ;\\]+)(?: ; ([^\\]+?))?( \\)?$")


def brief(marker: str | None, pythons: Sequence[str], machines: Sequence[str]) -> str | None:
    """The shortest marker that means the same there: "" where it always holds, None where it never does."""
    places = list(itertools.product(pythons, machines))
    holding = [place for place in places if marker is None or Marker(marker).evaluate(environment_of(*place))]
    if len(holding) in (0, len(places)):
        return "" if holding else None
    own_pythons = [python for python in pythons if any(place[0] == python for place in holding)]
    own_machines = [machine for machine in machines if any(place[1] == machine for place in holding)]
    first, after = (pythons.index(own_pythons[0]), pythons.index(own_pythons[-1]) + 1)
    if list(itertools.product(pythons[first:after], own_machines)) != holding:
        return marker  # no range of Pythons on the same processors
    terms = [f"python_full_version >= '{own_pythons[0]}'"] if first > 0 else []
    terms += [f"python_full_version < '{pythons[after]}'"] if after < len(pythons) else []
    if len(own_machines) < len(machines):
        [machine] = own_machines  # of two
        terms.append(f"platform_machine == '{machine}'")
    return " and ".join(terms)


def environment_of(python: str, machine: str) -> dict[str, str]:
    """The values of markers' variables under a Python on a processor, on Linux."""
    names = {"python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}
    system = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return {**names, **system, "platform_machine": machine, "platform_python_implementation": "CPython"}


def rewritten(text: str, pythons: Sequence[str], machines: Sequence[str]) -> str:
    """The lock's text with brief markers, without what uv says of its own files."""
    header, *rest = re.split(r"(?m)^(?=[a-z0-9])", re.split(r"(?m)^# The following packages", text)[0])
    header = re.sub(r"(?m)^# Pythons: .*\n", "", header)
    pins = [header.rstrip("\n"), f"# Pythons: {' '.join(pythons)}"]
    for pin in rest:
        first, *others = pin.rstrip("\n").split("\n")
        parts = PIN.match(first)
        if parts is None:
            raise ValueError(f"not a pin, got {first!r}")
        marker = brief(parts[2], pythons, machines)
        if marker is not None:
            pins.append(parts[1] + (f" ; {marker}" if marker else "") + (parts[3] or ""))
            pins += [line for line in others if not line.startswith("    #   -c ")]
    return "\n".join(pins) + "\n"


if __name__ == "__main__":
    lock = Path(sys.argv[1])
    lock.write_text(rewritten(lock.read_text(encoding="utf-8"), *(words.split() for words in sys.argv[2:4])))
