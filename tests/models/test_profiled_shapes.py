import json

import pytest

from keras_matrix.records.traces.request import STEP, TraceError

MAIN, POOLED, OTHER = 10, 11, 12


def join(*files):
    from keras_matrix.models.profiling import torch  # imports PyTorch, which to collect the tests needs not

    torch.join(*files)


def event(name, at_us, duration_us=1, thread=MAIN, **args):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": at_us, "dur": duration_us} | (
        {"args": args} if args else {}
    )


def shaped(name, at_us, dims, thread=MAIN):
    return event(name, at_us, thread=thread, **{"Input Dims": dims, "Input type": ["float"], "External id": 3})


def step(number, at_us, duration_us):
    return event(f"{STEP}{number}", at_us, duration_us)


FIRST = [
    step(1, 100, 50),
    shaped("aten::mm", 110, [[2, 3]]),
    shaped("aten::mm", 120, [[3, 4]]),
    shaped("gloo:all_reduce", 130, [[7]], POOLED),
    shaped("gloo:all_reduce", 140, [[8]], OTHER),
    shaped("aten::mm", 90, [[9, 9]]),  # before the step
]


def written(folder, name, events, base_ns=0):
    path = folder / name
    path.write_text(json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": events, "distributedInfo": {"rank": 1}}))
    return path


def joined(folder, rest, first=FIRST, bases=(0, 0)):
    path = folder / "joined.json"
    join(written(folder, "first.json", first, bases[0]), written(folder, "rest.json", rest, bases[1]), path)
    return json.loads(path.read_text())


def dims(document, *, after_us, name):
    found = sorted((one for one in document["traceEvents"] if one["name"] == name), key=lambda one: one["ts"])
    return [(one.get("args") or {}).get("Input Dims") for one in found if one["ts"] > after_us]


def test_operators_of_later_steps_get_the_shapes_of_the_first_one_in_order(tmp_path):
    rest = [step(2, 200, 50), event("aten::mm", 220), event("aten::mm", 210), step(3, 300, 50)]
    rest += [event("aten::mm", 310), event("aten::mm", 349)]
    assert dims(joined(tmp_path, rest), after_us=150, name="aten::mm") == [[[2, 3]], [[3, 4]]] * 2


def test_collectives_may_run_on_any_thread_of_their_pool(tmp_path):
    rest = [step(2, 200, 50)]
    rest += [event("gloo:all_reduce", 210, thread=OTHER), event("gloo:all_reduce", 220, thread=POOLED)]
    assert dims(joined(tmp_path, rest), after_us=150, name="gloo:all_reduce") == [[[7]], [[8]]]


def test_a_thread_of_its_own_has_its_own_calls(tmp_path):
    rest = [step(2, 200, 50), event("aten::mm", 210), event("aten::mm", 215, thread=99), event("aten::mm", 220)]
    assert dims(joined(tmp_path, rest), after_us=150, name="aten::mm") == [[[2, 3]], None, [[3, 4]]]


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_calls_has_no_shapes(tmp_path, count):
    rest = [step(2, 200, 50), *(event("aten::mm", 210 + at) for at in range(count))]
    assert dims(joined(tmp_path, rest), after_us=150, name="aten::mm") == [None] * count


def test_what_is_outside_of_the_steps_has_no_shapes(tmp_path):
    rest = [event("aten::mm", 190), step(2, 200, 50), event("aten::mm", 210), event("aten::mm", 220)]
    rest += [event("aten::mm", 260)]
    assert dims(joined(tmp_path, rest), after_us=150, name="aten::mm") == [None, [[2, 3]], [[3, 4]], None]


def test_all_events_and_members_remain(tmp_path):
    rest = [step(2, 200, 50), {"ph": "M", "name": "thread_name", "pid": 1, "tid": MAIN, "args": {"name": "main"}}]
    document = joined(tmp_path, rest)
    assert document["distributedInfo"] == {"rank": 1}
    names = [one["name"] for one in document["traceEvents"]]
    assert sorted(names) == sorted([one["name"] for one in FIRST] + [f"{STEP}2", "thread_name"])


def test_numbers_that_connect_events_differ_between_both(tmp_path):
    flow = {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 3, "pid": 1, "tid": MAIN, "ts": 1}
    rest = [step(2, 200, 50), flow | {"ts": 201}, event("aten::add", 205, **{"External id": 3, "Sequence number": 3})]
    events = joined(tmp_path, rest, [*FIRST, flow])["traceEvents"]
    flows = [one["id"] for one in events if one["name"] == "fwdbwd"]
    assert len(set(flows)) == 2
    (added,) = (one["args"] for one in events if one["name"] == "aten::add")
    assert added["External id"] != 3
    assert added["Sequence number"] == 3  # PyTorch counts these for the process


def test_times_are_those_of_one_base(tmp_path):
    document = joined(tmp_path, [step(2, 100, 50)], bases=(5_000_000, 4_000_000))
    times = {one["name"]: one["ts"] for one in document["traceEvents"]}
    assert document["baseTimeNanoseconds"] == 4_000_000
    assert (times[f"{STEP}1"], times[f"{STEP}2"]) == (1100, 100)


def test_a_damaged_file_is_named(tmp_path):
    first, rest = written(tmp_path, "first.json", FIRST), tmp_path / "rest.json"
    rest.write_text('{"traceEvents": [')
    with pytest.raises(TraceError, match=r"rest\.json"):
        join(first, rest, tmp_path / "joined.json")
