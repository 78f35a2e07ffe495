"""Run with KERAS_BACKEND: workers of two machines, played by two processes of this one over the loopback interface.

Prints, for each problem, the errors against NumPy in float64, the machines of the workers and the files of a trace;
with the argument `lost` or `absent` the error if the other machine's worker is killed, or never comes.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import keras

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.native import assemble
from keras_matrix.models.fc.prove import error, train
from keras_matrix.models.fc.ranks import Ranks, WorkerDied, WorkerFailed, serve
from keras_matrix.models.fc.worker import WorkerStart
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.network import Rendezvous, Site
from keras_matrix.records.fc.spec import FcProblem, layout_problem, parallel_of
from keras_matrix.records.traces.request import TraceOrder

BACKEND = keras.backend.backend()
STEPS = 3
DATA = FcProblem("fc_data", workers=2, level=3, weight_size=48, batch_size=24)
PROBLEMS = [DATA] if BACKEND == "tensorflow" else [DATA, DATA.changed(mode="fc_zero"), DATA.changed(workers=4)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def order_of(problem: FcProblem) -> WorkerSpec:
    sites = [Site("one", "1", "127.0.0.1"), Site("two", "2", "127.0.0.1", free_port())]
    return WorkerSpec(problem, seed=0, keep_gradients=True, rendezvous=Rendezvous(sites, os.urandom(32).hex()))


def providing(order: WorkerSpec) -> int:
    """Fork the process of the second machine."""
    child = os.fork()
    if child == 0:
        assert order.rendezvous is not None
        own = replace(order, rendezvous=replace(order.rendezvous, index=1))
        serve(WorkerStart(own, own.workers_here, None, 60.0, copied=True, backend=BACKEND))
        os._exit(0)
    return child


def divided(problem: FcProblem) -> dict[str, object]:
    order = order_of(problem)
    child = providing(order)
    workers = assemble(BACKEND, order)
    try:
        workers.run(STEPS)
        states, wanted = workers.states(), train(problem, 0, STEPS)
        found = parallel_of(problem, workers.places(), workers.traffic(), workers.peaks_bytes())
        return {
            "gradient_error": error(worker_group.whole(problem, [one.gradients for one in states]), wanted.gradients),
            "weight_error": error(worker_group.whole(problem, [one.weights for one in states]), wanted.weights),
            "layout_problem": layout_problem(problem, found),
            "machines": [place.machine for place in found.places],
            "processes": len({place.process for place in found.places}),
            **profiled(workers),
        }
    finally:
        workers.close()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def profiled(workers: Ranks) -> dict[str, object]:
    """Return what the workers' profilers have found, or how a worker ended meanwhile."""
    try:
        communication = workers.communication(2, 1)
        with tempfile.TemporaryDirectory() as folder:
            workers.traced(TraceOrder(folder, epochs=[1], steps=2))
            files = sorted(path.name for path in Path(folder).iterdir())
    except (WorkerDied, WorkerFailed) as ended:
        return {"ended": str(ended)}
    return {"communicates": communication is not None and communication.step_times_s[0] > 0, "files": files}


def lost() -> dict[str, object]:
    """Kill the worker of the second machine between two steps."""
    order = order_of(DATA)
    child = providing(order)
    workers = assemble(BACKEND, order)
    process = workers.places()[1].process
    assert process is not None
    os.kill(process, signal.SIGKILL)
    return failed(lambda: workers.run(1_000)) | {"provider": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def absent() -> dict[str, object]:
    """Start only the process that measures."""
    return failed(lambda: Ranks(order_of(DATA), timeout_s=1.0, backend=BACKEND))


def failed(act) -> dict[str, object]:
    begun_s = time.perf_counter()
    try:
        act()
    except (WorkerDied, WorkerFailed) as caught:
        return {"kind": type(caught).__name__, "message": str(caught), "took_s": time.perf_counter() - begun_s}
    raise AssertionError("nothing was raised")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps({"lost": lost, "absent": absent}[sys.argv[1]]()))
    else:
        print(json.dumps([divided(problem) for problem in PROBLEMS]))
