"""What this machine has, and which of its devices stand behind which GPU of which node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.backends.machine import CPU_SHARE, CPU_SLOT, Gpu, Machine, describe, find_gpus, shares
from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Node
from fairlead.sim.cluster import UNNAMED, parse_cluster


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


# -- types ---------------------------------------------------------------------------------------------------------


def test_slots_can_be_gpus_of_several_types_with_prices_and_cpu_shares() -> None:
    machine = describe(gpus=5, nodes="fast=1x2@3,slow=2x1@50%,1x1", price_per_hour=1.0)
    assert [(node.id, node.gpus, node.gpu_type, node.price_per_hour) for node in machine.nodes] == [
        ("n0", 2, "fast", 6.0),
        ("n1", 1, "slow", 1.0),
        ("n2", 1, "slow", 1.0),
        ("n3", 1, CPU_SLOT, 1.0),
    ]
    assert machine.cpu_shares == {"n1": 0.5, "n2": 0.5}
    assert [dict(node.labels) for node in machine.nodes] == [{}, {CPU_SHARE: "50%"}, {CPU_SHARE: "50%"}, {}]
    assert {node.speed for node in machine.nodes} == {None}


@pytest.mark.parametrize("text", ["16x4", "v100=3x4,k80=3x4", "a100=2x8@2.5,t4=1x4"])
def test_a_machine_is_the_cluster_that_the_simulator_makes_of_the_same_text(text: str) -> None:
    def kinds(nodes: Iterable[Node]) -> list[tuple[int, str, float]]:
        unnamed = {UNNAMED: CPU_SLOT}
        return [(node.gpus, unnamed.get(node.gpu_type, node.gpu_type), node.price_per_hour) for node in nodes]

    assert kinds(describe(gpus=None, nodes=text).nodes) == kinds(parse_cluster(text))


def test_the_simulator_has_no_cpu_shares_and_says_what_it_has() -> None:
    with pytest.raises(InvalidSpec, match=r"state speeds, as in --speeds slow=0\.5"):
        parse_cluster("fast=1x2,slow=1x2@50%")


def test_speeds_are_stated_if_they_are_asked_for_and_true() -> None:
    machine = describe(gpus=None, nodes="fast=1x2,slow=1x2@50%", speeds="slow=3,fast=6")
    assert [node.speed for node in machine.nodes] == [6.0, 3.0]
    with pytest.raises(InvalidSpec, match=r"which is --speeds fast=1,slow=0\.5; change one of them"):
        describe(gpus=None, nodes="fast=1x2,slow=1x2@50%", speeds="fast=1,slow=0.4")
    with pytest.raises(InvalidSpec, match=r"the cluster has no GPU type 'fats'; did you mean 'fast'\?"):
        describe(gpus=None, nodes="fast=1x2", speeds="fats=1")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("fast=1x2,slow=1x2@0.5%", r"CPU share of 0\.5%; expected 1% to 100%"),
        ("fast=1x2,slow=1x2@101%", "CPU share of 101%; expected 1% to 100%"),
        ("slow=1x2@50%,slow=1x2@20%", "'slow' has CPU shares of 20% and 50%; give each share a type"),
        ("fast=1x2,,slow=1x2", "cannot read ''; expected a number of nodes"),
        ("fast=1x2@fifty%", "cannot read 'fast=1x2@fifty%'"),
        ("1x2@50%@3", "cannot read '1x2@50%@3'"),
    ],
)
def test_types_and_shares_that_make_no_sense_are_refused(nodes: str, told: str) -> None:
    with pytest.raises(InvalidSpec, match=told):
        describe(gpus=None, nodes=nodes)


def test_gpus_keep_the_type_that_they_have_and_no_share_slows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu(place, "NVIDIA A100-SXM4-80GB", f"GPU-{place}") for place in range(4)]
    monkeypatch.setattr("fairlead.backends.machine.find_gpus", lambda: gpus)
    assert {node.gpu_type for node in describe(gpus=None, nodes="2x2").nodes} == {"a100"}
    assert describe(gpus=None, nodes="a100=2x2") == describe(gpus=None, nodes="2x2")
    with pytest.raises(InvalidSpec, match="names GPU type 'fast', but the GPUs of this machine are a100"):
        describe(gpus=None, nodes="fast=1x2,slow=1x2")
    with pytest.raises(InvalidSpec, match="but this machine has GPUs, which it would not slow"):
        describe(gpus=None, nodes="a100=2x2@50%")


def test_shares_that_are_worth_more_processors_than_there_are_are_told() -> None:
    cores = len(os.sched_getaffinity(0))
    assert describe(gpus=None, nodes=f"slow=1x{2 * cores}@50%").notice == ""
    notice = describe(gpus=None, nodes=f"fast=1x{cores},slow=1x1@50%").notice
    assert f"worth {cores + 0.5:g} processors, and this machine has {cores}" in notice
    assert describe(gpus=None, nodes=f"fast=1x{2 * cores}").notice == ""  # nothing is promised


# -- what is refused -----------------------------------------------------------------------------------------------


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
