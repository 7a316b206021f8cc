"""What this machine has, and which of its devices stand behind which GPU of which node."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.backends.machine import CPU_SLOT, Gpu, Machine, describe, find_gpus, shares
from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Node


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are some."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_without_gpus_every_core_is_a_slot() -> None:
    machine = describe(gpus=None, nodes=None)
    cores = sorted(os.sched_getaffinity(0))
    (node,) = machine.nodes
    assert (node.gpus, node.gpu_type) == (len(cores), CPU_SLOT)
    assert machine.devices is None
    assert machine.cpus == tuple((core,) for core in cores)
    assert re.fullmatch(r"[A-Za-z0-9.-]+", node.id)


def test_so_many_slots_as_were_asked_for() -> None:
    machine = describe(gpus=64, nodes=None, price_per_hour=1.5)
    assert [(node.gpus, node.price_per_hour) for node in machine.nodes] == [(64, 96.0)]
    assert machine.cpus == ((),) * 64  # fewer cores than slots: everybody may use all of them


def test_slots_can_be_several_nodes() -> None:
    machine = describe(gpus=None, nodes="2x4")
    assert [(node.id, node.gpus) for node in machine.nodes] == [("n0", 4), ("n1", 4)]
    assert len(machine.cpus) == 8
    assert describe(gpus=8, nodes="2x4") == machine


def test_the_price_of_a_node_is_that_of_its_gpus() -> None:
    machine = describe(gpus=None, nodes="2x2", price_per_hour=2.0)
    assert [node.price_per_hour for node in machine.nodes] == [4.0, 4.0]


@pytest.mark.parametrize("nodes", ["", "2", "x", "2x", "x4", "0x4", "2x0", "2x-1", "2 x 4", "2x4x2", "two by four"])
def test_nodes_that_make_no_sense_are_refused(nodes: str) -> None:
    with pytest.raises(InvalidSpec, match="such as 2x4"):
        describe(gpus=None, nodes=nodes)


@pytest.mark.parametrize("gpus", [0, -3])
def test_a_machine_without_slots_is_refused(gpus: int) -> None:
    with pytest.raises(InvalidSpec, match="at least 1"):
        describe(gpus=gpus, nodes=None)


def test_two_numbers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="--gpus is 3, but --nodes 2x4 is 8"):
        describe(gpus=3, nodes="2x4")


def test_hidden_gpus_are_none() -> None:
    assert find_gpus() == []
    assert Gpu(0, "NVIDIA A100", "GPU-1").index == 0


# -- places --------------------------------------------------------------------------------------------------------


@st.composite
def machines_and_allocations(draw: st.DrawFn) -> tuple[Machine, Allocation]:
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=12))
    machine = Machine(tuple(Node(f"n{place}", size) for place, size in enumerate(sizes)), None, ())
    held = {f"n{place}": draw(st.sets(st.integers(0, size - 1))) for place, size in enumerate(sizes)}
    return machine, Allocation.of({node: gpus for node, gpus in held.items() if gpus})


@given(machines_and_allocations())
def test_places_are_devices_and_can_be_taken_back(drawn: tuple[Machine, Allocation]) -> None:
    machine, allocation = drawn
    places = machine.places(allocation)
    assert machine.allocation(places) == allocation
    assert machine.allocation(places[::-1]) == allocation
    devices = [device for _, device in places]
    assert len(set(devices)) == len(devices) == allocation.total
    assert all(0 <= device < sum(node.gpus for node in machine.nodes) for device in devices)


def test_the_devices_of_the_second_node_come_after_those_of_the_first() -> None:
    machine = describe(gpus=None, nodes="2x4")
    assert machine.places(Allocation.of({"n0": [1], "n1": [0, 3]})) == [("n0", 1), ("n1", 4), ("n1", 7)]


# -- processors ----------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 300), min_size=1, max_size=64).map(sorted), st.integers(1, 80))
def test_every_slot_gets_as_many_processors_as_any_other_and_nobody_those_of_another(
    cores: list[int], slots: int
) -> None:
    parts = shares(cores, slots)
    assert len(parts) == slots
    assert {len(part) for part in parts} == {len(cores) // slots}
    given_away = [core for part in parts for core in part]
    assert len(set(given_away)) == len(given_away)
    assert set(given_away) <= set(cores)
