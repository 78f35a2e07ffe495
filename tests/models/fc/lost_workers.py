"""Run with KERAS_BACKEND=torch: two worker processes, one of which is lost in the way given by the argument.

Prints the exception, the seconds from the loss to it, and whether any process is left. The way `orphaned` loses the
process that forked the workers instead: nobody is left to raise anything. The way `slow` loses nobody, only time.
"""

import itertools
import json
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from dataclasses import replace

from keras_matrix.models.fc.ranks import Ranks, WorkerDied, WorkerFailed
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem

ORDER = WorkerSpec(FcProblem(mode="fc_data", workers=2, level=2, weight_size=32, batch_size=8), seed=0)


def killed() -> None:
    worker_group = Ranks(ORDER)
    worker_group.run(1)

    def kill() -> None:
        LOST.append(time.perf_counter())
        os.kill(worker_group._processes[1].pid, signal.SIGKILL)

    threading.Timer(0.5, kill).start()
    worker_group.run(1_000_000_000)


def raising() -> None:
    from keras_matrix.models.fc import programs

    real = programs.PROGRAMS["fc_data"]

    def fails_on_rank_1(*arguments):
        import torch.distributed as dist

        if dist.get_rank() == 1:
            raise ArithmeticError("no more")
        return real(*arguments)

    programs.PROGRAMS["fc_data"] = fails_on_rank_1
    worker_group = Ranks(ORDER)
    LOST.append(time.perf_counter())
    worker_group.run(1)


def absent() -> None:
    from keras_matrix.models.fc.native import torch as native

    real = native.join

    def late(meeting):
        if meeting.rank == 1:
            time.sleep(60)
        return real(meeting)

    native.join = late
    LOST.append(time.perf_counter())
    Ranks(ORDER, timeout_s=2.0)


def slow() -> None:
    """Nobody is lost: a step takes longer than the workers had for meeting."""
    from keras_matrix.models.fc import programs

    real = programs.PROGRAMS["fc_data"]

    def slow_on_rank_1(*arguments):
        import torch.distributed as dist

        time.sleep(3.5 * dist.get_rank())
        return real(*arguments)

    programs.PROGRAMS["fc_data"] = slow_on_rank_1
    worker_group = Ranks(ORDER, timeout_s=2.0)
    begun_s = time.perf_counter()
    worker_group.run(1)
    print(json.dumps({"step_time_s": time.perf_counter() - begun_s}))
    worker_group.close()


def ports() -> None:
    from keras_matrix.models.fc.native import torch as native

    def refuse(*arguments, **named):
        raise RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc] bind: Address already in use")

    native.dist.init_process_group = refuse
    LOST.append(time.perf_counter())
    Ranks(ORDER)


def elsewhere() -> None:
    LOST.append(time.perf_counter())
    Ranks(replace(ORDER, namespaces=("kbm-net-never-0",) * 2))


def orphaned() -> None:
    from keras_matrix.models.fc import programs

    read, write = os.pipe()
    forker = os.fork()
    if forker == 0:
        real, steps = programs.PROGRAMS["fc_data"], itertools.count()

        def tells_when_it_is_well_under_way(*arguments):
            if next(steps) == 3:
                os.write(write, b"%d\n" % os.getpid())
            return real(*arguments)

        programs.PROGRAMS["fc_data"] = tells_when_it_is_well_under_way
        Ranks(ORDER).run(1_000_000_000)
    os.close(write)
    _lose(forker, read)


def orphaned_interpreters() -> None:
    """As `orphaned`, with workers that are new interpreters."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        worker_group = Ranks(ORDER, method="spawn")
        os.write(write, "".join(f"{place.process}\n" for place in worker_group.places()).encode())
        worker_group.run(1_000_000_000)
    os.close(write)
    _lose(parent, read)


def _lose(forker: int, read: int) -> None:
    """Kill the process that started two workers, whose numbers can be read; print whether they are left."""
    with os.fdopen(read) as lines:
        ends = [os.pidfd_open(int(lines.readline())) for _ in range(2)]
    os.kill(forker, signal.SIGKILL)
    LOST.append(time.perf_counter())
    left = set(ends)
    while left and (ended := select.select(left, [], [], 5.0)[0]):
        left -= set(ended)
    print(json.dumps({"left": [end in left for end in ends], "took_s": time.perf_counter() - LOST[0]}))
    for end in left:
        signal.pidfd_send_signal(end, signal.SIGKILL)


LOST: list[float] = []

if __name__ == "__main__":
    try:
        WAYS = {way.__name__: way for way in (killed, raising, absent, slow, ports, elsewhere, orphaned)}
        WAYS[orphaned_interpreters.__name__] = orphaned_interpreters
        WAYS[sys.argv[1]]()
    except (WorkerDied, WorkerFailed) as error:
        took_s = time.perf_counter() - LOST[0]
        left = [process.name for process in multiprocessing.active_children()]
        print(json.dumps({"kind": type(error).__name__, "message": str(error), "took_s": took_s, "left": left}))
