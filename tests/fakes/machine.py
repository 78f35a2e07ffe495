"""A fake machine: the files of /proc and /sys of four CPUs on two cores and two nodes, bare metal, cgroup version 2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from keras_matrix.records.host.procfs import ProcTree

CPU = "/sys/devices/system/cpu"
CGROUP = "/sys/fs/cgroup"
STAT = """\
cpu  1000 0 500 8000 100 10 20 30 0 0
cpu0 100 10 50 800 10 1 2 3 0 0
cpu1 200 20 60 700 20 3 4 5 0 0
cpu2 300 30 70 600 30 5 6 7 0 0
cpu3 400 40 80 500 40 7 8 9 0 0
intr 12345 0 0
ctxt 777
btime 1700000000
"""
PRESSURE = """\
some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000
full avg10=0.00 avg60=0.00 avg300=0.00 total=250000
"""
FILES: dict[str, str] = {
    "/proc/stat": STAT,
    "/proc/vmstat": "nr_free_pages 5\npswpin 3\npswpout 4\n",
    "/proc/loadavg": "0.25 0.50 0.75 1/200 4242\n",
    "/proc/meminfo": "MemTotal: 1000 kB\nSwapTotal: 400 kB\nSwapFree: 300 kB\n",
    "/proc/cpuinfo": "processor : 0\nflags : fpu sse\n",
    "/proc/sys/kernel/randomize_va_space": "2\n",
    "/proc/self/cgroup": "0::/user/job\n",
    "/proc/self/mountinfo": f"35 24 0:30 / {CGROUP} rw - cgroup2 cgroup2 rw,nsdelegate\n",
    "/proc/1/stat": "1 (init) S 0 1 1 0 -1 0 0 0 0 0 10 20 0 0 20 0 1 0 5 0 0\n",
    f"{CGROUP}/user/job/cpu.max": "max 100000\n",
    f"{CGROUP}/user/job/cpu.stat": "usage_usec 5\nnr_throttled 1\nthrottled_usec 2000000\n",
    f"{CGROUP}/user/job/memory.max": "max\n",
    f"{CGROUP}/user/job/memory.current": "600\n",
    f"{CGROUP}/user/job/memory.stat": "anon 400\ninactive_file 200\n",
    f"{CGROUP}/user/cpu.max": "max 100000\n",
    f"{CGROUP}/user/memory.max": "max\n",
    f"{CPU}/online": "0-3\n",
    f"{CPU}/intel_pstate/no_turbo": "1\n",
    f"{CPU}/smt/control": "on\n",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "/sys/devices/system/node/node0/cpulist": "0-1\n",
    "/sys/devices/system/node/node1/cpulist": "2-3\n",
    "/sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
    "/sys/class/thermal/thermal_zone0/temp": "45000\n",
    "/sys/class/thermal/thermal_zone0/trip_point_0_type": "active\n",
    "/sys/class/thermal/thermal_zone0/trip_point_0_temp": "40000\n",
    "/sys/class/thermal/thermal_zone0/trip_point_1_type": "critical\n",
    "/sys/class/thermal/thermal_zone0/trip_point_1_temp": "105000\n",
    "/sys/class/thermal/thermal_zone0/trip_point_2_type": "passive\n",
    "/sys/class/thermal/thermal_zone0/trip_point_2_temp": "95000\n",
    **{f"/proc/pressure/{name}": PRESSURE for name in ("cpu", "memory", "io")},
    **{f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/cpufreq/scaling_driver": "intel_pstate\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/topology/physical_package_id": f"{cpu // 2}\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/thermal_throttle/core_throttle_count": f"{cpu}\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/thermal_throttle/package_throttle_count": "10\n" for cpu in range(4)},
}


def machine(root: Path, changes: Mapping[str, str | None] | None = None) -> ProcTree:
    """Write FILES with the changes below root; None leaves a file out."""
    for path, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            write(root, path, text)
    return ProcTree(root)


def write(root: Path, path: str, text: str | bytes) -> None:
    """Write one file in place, as the kernel changes what a file says."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text.encode() if isinstance(text, str) else text)
