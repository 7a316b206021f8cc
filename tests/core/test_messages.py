"""The JSON form of messages: it round-trips, and whatever is not a message is refused by the name of its fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import (
    EVENTS,
    INTENTS,
    VERSION,
    JobCancelled,
    JobExited,
    JobHeld,
    JobPinned,
    JobReported,
    JobReprioritised,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Release,
    Remember,
    Rent,
    Resize,
    Start,
    Stop,
    Tick,
    decode,
    encode,
)
from fairlead.core.types import Allocation, Batch, JobSpec, Launch, Node, Observation

ids = st.text(min_size=1, max_size=6)
times = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(0, 1e12)
counts = st.integers(1, 2**40)
labels = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
attempts = st.integers(1, 1000)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    low, mid, high = sorted(draw(st.tuples(*[st.integers(1, 5000)] * 3)))
    bounded = draw(st.booleans())
    return JobSpec(
        id=draw(ids),
        name=draw(st.text(max_size=4)),
        tenant=draw(st.text(max_size=4)),
        command=tuple(draw(st.lists(st.text(max_size=4), max_size=3))),
        gpus=mid,
        gpus_min=low if bounded else None,
        gpus_max=high if bounded else None,
        gpu_types=tuple(draw(st.lists(st.text(max_size=4), max_size=2))),
        in_place=draw(st.booleans()),
        launch=draw(st.sampled_from(Launch)),
        preemptible=draw(st.booleans()),
        priority=draw(st.integers(-(2**40), 2**40)),
        weight=draw(st.floats(1e-6, 1e6)),
        estimate_s=draw(st.none() | positive),
        deadline=draw(st.none() | positive),
        budget=draw(st.none() | positive),
        max_restarts=draw(st.integers(0, 9)),
        queue=draw(st.text(max_size=4)),
        depends_on=tuple(draw(st.lists(ids, max_size=2))),
        restart_on=tuple(draw(st.lists(st.integers(1, 255), max_size=2))),
        backoff_s=draw(positive),
        batch=draw(st.none() | st.builds(Batch, counts)),
        scaling_rule=draw(st.none() | st.text(max_size=4)),
        labels=draw(labels),
    )


nodes = st.builds(
    Node,
    ids,
    st.integers(1, 1024),
    gpu_type=st.text(max_size=4),
    healthy=st.booleans(),
    draining=st.booleans(),
    price_per_hour=positive,
    labels=labels,
    outside=st.sampled_from([(), (0,)]),
)
observations = st.builds(
    Observation, st.text(max_size=4), counts, counts, counts, st.integers(0, 9), positive, positive, counts
)
allocations = st.dictionaries(ids, st.sets(st.integers(0, 70), min_size=1, max_size=5), max_size=4).map(Allocation.of)

memo_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | times | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)

STRATEGIES: dict[type, st.SearchStrategy[Any]] = {
    JobSubmitted: st.builds(JobSubmitted, times, specs()),
    JobCancelled: st.builds(JobCancelled, times, ids, st.text(max_size=4), st.text(max_size=4)),
    JobHeld: st.builds(JobHeld, times, ids, st.booleans()),
    JobReprioritised: st.builds(JobReprioritised, times, ids, st.integers(-9, 9)),
    JobStarted: st.builds(JobStarted, times, ids, attempts),
    JobReported: st.builds(
        JobReported,
        times,
        ids,
        attempts,
        st.floats(0, 1),
        st.none() | counts,
        st.none() | times,
        st.lists(observations, max_size=2).map(tuple),
        st.booleans(),
        st.none() | st.builds(Batch, counts),
        st.none() | positive,
    ),
    JobPinned: st.builds(JobPinned, times, ids, attempts, st.booleans()),
    JobRescaled: st.builds(JobRescaled, times, ids, attempts),
    JobStopped: st.builds(JobStopped, times, ids, attempts),
    JobExited: st.builds(
        JobExited, times, ids, attempts, st.integers(-255, 255), st.text(max_size=9), st.booleans(), st.text(max_size=9)
    ),
    NodeJoined: st.builds(NodeJoined, times, nodes),
    NodeLost: st.builds(NodeLost, times, ids),
    NodeDrained: st.builds(NodeDrained, times, ids, st.booleans(), st.none() | times),
    OutsidersSeen: st.builds(OutsidersSeen, times, ids, st.lists(st.integers(0, 70), max_size=4).map(tuple)),
    Tick: st.builds(Tick, times),
    Start: st.builds(Start, times, ids, attempts, allocations),
    Resize: st.builds(Resize, times, ids, attempts, allocations),
    Stop: st.builds(Stop, times, ids, attempts),
    Rent: st.builds(Rent, times, ids),
    Release: st.builds(Release, times, ids),
    Remember: st.builds(Remember, times, st.dictionaries(st.text(max_size=4), memo_values, max_size=3)),
}
messages = st.one_of(*STRATEGIES.values())

#: One of each, with every field that has parts filled in: the ground for mutations.
FULL: list[Message] = [
    JobSubmitted(
        1.5,
        JobSpec(
            id="a",
            name="resnet",
            tenant="vision",
            queue="research",
            depends_on=("z",),
            restart_on=(1, 137),
            backoff_s=2.5,
            command=("python", "train.py"),
            gpus=4,
            gpus_min=2,
            gpus_max=8,
            gpu_types=("a100",),
            in_place=True,
            launch=Launch.ONCE,
            preemptible=False,
            priority=3,
            weight=2.0,
            estimate_s=60.5,
            deadline=90.5,
            budget=7.5,
            max_restarts=1,
            batch=Batch(32, 512, 2, 64),
            scaling_rule="linear",
            labels={"team": "x"},
        ),
    ),
    JobCancelled(1.5, "a", "ann", "too slow"),
    JobHeld(1.5, "a", False),
    JobReprioritised(1.5, "a", 7),
    JobStarted(1.5, "a", 1),
    JobReported(
        1.5, "a", 1, 0.25, 64, 17.5, (Observation("a100", 1, 2, 32, 1, 0.5, 0.25, 10),), True, Batch(32, 64), 0.5
    ),
    JobPinned(1.5, "a", 1, False),
    JobRescaled(1.5, "a", 1),
    JobStopped(1.5, "a", 1),
    JobExited(1.5, "a", 1, 9, "out of memory", True, "MemoryError"),
    NodeJoined(1.5, Node("n0", 8, "a100", False, True, 3.5, {"rack": "r1"}, 90.5, (0, 7))),
    NodeLost(1.5, "n0"),
    NodeDrained(1.5, "n0", True, 90.5),
    OutsidersSeen(1.5, "n0", (0, 7)),
    Tick(1.5),
    Start(1.5, "a", 1, Allocation.of({"n0": [0, 3], "n1": [2]})),
    Resize(1.5, "a", 1, Allocation.of({"n0": [0]})),
    Stop(1.5, "a", 1),
    Rent(1.5, "n0"),
    Release(1.5, "n0"),
    Remember(1.5, {"policy": {"a": [1, 2.5, "x", True]}, "gone": None}),
]


def name(message: Message) -> str:
    return type(message).__name__


def through_json(message: Message) -> Message:
    return decode(json.loads(json.dumps(encode(message), allow_nan=False)))


def test_every_message_type_is_drawn_and_has_an_example() -> None:
    assert set(STRATEGIES) == set(EVENTS) | set(INTENTS) == set(get_args(Message))
    assert {type(message) for message in FULL} == set(STRATEGIES)


@given(messages)
def test_every_message_survives_json(message: Message) -> None:
    assert through_json(message) == message
    assert encode(through_json(message)) == encode(message)


def test_fields_at_their_defaults_are_left_out() -> None:
    assert encode(NodeDrained(1.0, "n0")) == {"v": VERSION, "type": "NodeDrained", "at": 1.0, "node": "n0"}
    assert encode(JobSubmitted(0.0, JobSpec(id="a")))["spec"] == {"id": "a", "gpus_min": 1, "gpus_max": 1}


# -- what is refused -------------------------------------------------------------------------------------------------


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside the JSON value, parts before wholes excluded at the root."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def altered(data: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(data)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def wrong_kind_of(value: Any) -> Any:
    """Something no field that held `value` accepts."""
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, int):
        return 1.5
    return "soon" if isinstance(value, float) else 7.5


#: Within the patch of a memo any JSON value may stand.
CASES = [
    pytest.param(encode(message), path, id=f"{name(message)}.{'.'.join(map(str, path))}")
    for message in FULL
    for path in places(encode(message))
    if path[0] != "patch" or len(path) == 1
]


@pytest.mark.parametrize(("data", "path"), CASES)
def test_a_value_of_the_wrong_kind_is_refused_with_the_name_of_its_field(
    data: dict[str, Any], path: tuple[Any, ...]
) -> None:
    value: Any = data
    for key in path:
        value = value[key]
    with pytest.raises(InvalidSpec) as caught:
        decode(altered(data, path, wrong_kind_of(value)))
    field = "version" if path == ("v",) else [key for key in path if isinstance(key, str)][-1]
    assert field in str(caught.value)


@pytest.mark.parametrize("message", FULL, ids=name)
@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "1" + "0" * 400, "-1" + "0" * 400])
def test_a_number_that_is_not_finite_is_refused_with_the_name_of_its_field(message: Message, number: str) -> None:
    data = encode(message)
    for path in places(data):
        value: Any = data
        for key in path:
            value = value[key]
        if isinstance(value, int | float) and not isinstance(value, bool) and path != ("v",):
            with pytest.raises(InvalidSpec) as caught:
                decode(altered(data, path, json.loads(number)))
            assert [key for key in path if isinstance(key, str)][-1] in str(caught.value)


@pytest.mark.parametrize("message", FULL, ids=name)
def test_a_missing_field_is_named(message: Message) -> None:
    data = encode(message)
    for field in ("at", "job", "attempt", "progress", "spec", "node", "allocation", "patch"):
        if field in data:
            with pytest.raises(InvalidSpec, match=f"{name(message)} lacks {field}"):
                decode({key: item for key, item in data.items() if key != field})


@pytest.mark.parametrize("message", FULL, ids=name)
def test_a_field_nobody_knows_is_named_with_those_that_are_known(message: Message) -> None:
    with pytest.raises(InvalidSpec, match=f"{name(message)} has no field 'colour'; expected .*at"):
        decode({**encode(message), "colour": "red"})


def test_a_fault_inside_a_spec_names_the_way_to_it() -> None:
    data = encode(FULL[0])
    data["spec"]["batch"]["max_total"] = 1
    with pytest.raises(InvalidSpec, match=r"JobSubmitted\.spec\.batch: the largest batch \(1\) is below the initial"):
        decode(data)


def test_a_gpu_index_that_no_machine_has_is_refused_and_not_computed_with() -> None:
    data = encode(next(message for message in FULL if isinstance(message, Start)))
    data["allocation"]["shares"][0][1] = [0, 10**15]
    with pytest.raises(InvalidSpec, match=r"Start\.allocation"):
        decode(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_word_that_is_a_list_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidSpec, match=r"launch is \[\]; expected one of"):
        decode({"v": 1, "type": "JobSubmitted", "at": 0.0, "spec": {"id": "a", "launch": []}})


@given(json_values)
def test_no_json_value_does_worse_than_to_be_refused(value: Any) -> None:
    with pytest.raises(InvalidSpec):
        decode(value)


@given(st.sampled_from(FULL), st.data())
def test_a_message_with_any_part_replaced_by_anything_is_a_message_or_refused(
    message: Message, data: st.DataObject
) -> None:
    encoded = encode(message)
    path = data.draw(st.sampled_from(list(places(encoded))))
    try:
        other = decode(altered(encoded, path, data.draw(json_values)))
    except InvalidSpec:
        return
    assert through_json(other) == other


# -- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, 0, -1, VERSION + 1, True, "1", 1.0])
def test_a_version_from_the_future_or_from_nowhere_is_refused(version: Any) -> None:
    with pytest.raises(InvalidSpec, match=f"reads 1 to {VERSION}: upgrade"):
        decode({"v": version, "type": "Tick", "at": 0.0})


def test_an_unknown_type_is_refused_with_the_list_of_known_ones() -> None:
    for kind in ("tick", None, 3, ["Tick"]):
        with pytest.raises(InvalidSpec, match=r"is unknown; expected one of .*Tick"):
            decode({"v": 1, "type": kind, "at": 0.0})


#: Written by version 1. These lines never change: a journal from that day must stay readable.
VERSION_1 = {
    '{"v":1,"type":"JobSubmitted","at":0.0,"spec":{"id":"a","gpus":2,"gpus_min":2,"gpus_max":2,"priority":1}}': (
        JobSubmitted(0.0, JobSpec(id="a", gpus=2, priority=1))
    ),
    '{"v":1,"type":"JobCancelled","at":1,"job":"a"}': JobCancelled(1.0, "a"),
    '{"v":1,"type":"JobHeld","at":1.5,"job":"a"}': JobHeld(1.5, "a"),
    '{"v":1,"type":"JobReprioritised","at":1.5,"job":"a","priority":3}': JobReprioritised(1.5, "a", 3),
    '{"v":1,"type":"JobStarted","at":1.5,"job":"a","attempt":1}': JobStarted(1.5, "a", 1),
    '{"v":1,"type":"JobReported","at":1.5,"job":"a","attempt":1,"progress":0.5}': JobReported(1.5, "a", 1, 0.5),
    '{"v":1,"type":"JobPinned","at":1.5,"job":"a","attempt":1}': JobPinned(1.5, "a", 1),
    '{"v":1,"type":"JobRescaled","at":1.5,"job":"a","attempt":1}': JobRescaled(1.5, "a", 1),
    '{"v":1,"type":"JobStopped","at":1.5,"job":"a","attempt":1}': JobStopped(1.5, "a", 1),
    '{"v":1,"type":"JobExited","at":1.5,"job":"a","attempt":1,"code":143}': JobExited(1.5, "a", 1, 143),
    '{"v":1,"type":"NodeJoined","at":0.0,"node":{"id":"n0","gpus":4}}': NodeJoined(0.0, Node("n0", 4)),
    '{"v":1,"type":"NodeLost","at":0.0,"node":"n0"}': NodeLost(0.0, "n0"),
    '{"v":1,"type":"NodeDrained","at":0.0,"node":"n0"}': NodeDrained(0.0, "n0"),
    '{"v":1,"type":"OutsidersSeen","at":0.0,"node":"n0","gpus":[0,2]}': OutsidersSeen(0.0, "n0", (0, 2)),
    '{"v":1,"type":"Tick","at":0.0}': Tick(0.0),
    '{"v":1,"type":"Start","at":0.0,"job":"a","attempt":1,"allocation":{"shares":[["n0",[0,1]]]}}': (
        Start(0.0, "a", 1, Allocation.of({"n0": [0, 1]}))
    ),
    '{"v":1,"type":"Resize","at":0.0,"job":"a","attempt":1,"allocation":{}}': Resize(0.0, "a", 1, Allocation()),
    '{"v":1,"type":"Stop","at":0.0,"job":"a","attempt":1}': Stop(0.0, "a", 1),
    '{"v":1,"type":"Rent","at":0.0,"node":"n0"}': Rent(0.0, "n0"),
    '{"v":1,"type":"Release","at":0.0,"node":"n0"}': Release(0.0, "n0"),
    '{"v":1,"type":"Remember","at":0.0,"patch":{"p":{"a":1.5,"b":null}}}': Remember(0.0, {"p": {"a": 1.5, "b": None}}),
}


@pytest.mark.parametrize("line", VERSION_1)
def test_what_version_1_wrote_stays_readable(line: str) -> None:
    assert decode(json.loads(line)) == VERSION_1[line]


def test_the_record_of_version_1_is_complete() -> None:
    assert {type(message) for message in VERSION_1.values()} == set(STRATEGIES)
