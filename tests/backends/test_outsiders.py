"""Who uses GPUs without asking us, with real processes. Only the driver, which says who uses which GPU, is made up."""

from __future__ import annotations

import getpass
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from world import World, alive, kill

from fairlead.backends.machine import Machine, Users, users_of_gpus
from fairlead.backends.outsiders import Outsider, Outsiders
from fairlead.backends.processes import COOKIE, is_alive, is_of_a_job, user_of
from fairlead.core.messages import Event, OutsidersSeen
from fairlead.core.types import Node


class Driver:
    """What a driver would say: the processes on each device."""

    def __init__(self, *devices: str) -> None:
        self.using: dict[str, set[int]] = {device: set() for device in devices}
        self.broken = False

    def read(self) -> dict[str, set[int]]:
        if self.broken:
            raise OSError("the driver does not answer")
        return {device: set(pids) for device, pids in self.using.items()}


@contextmanager
def process(**env: str) -> Iterator[int]:
    """Somebody's, with this environment and nothing else."""
    started = subprocess.Popen(["sleep", "600"], env=env)
    try:
        yield started.pid
    finally:
        started.kill()
        started.wait()


def machine(driver: Driver, *sizes: int, every_s: float = 0.05) -> Machine:
    nodes = tuple(Node(f"n{place}", size, "a100") for place, size in enumerate(sizes or (2,)))
    devices = tuple(f"GPU-{place}" for place in range(sum(node.gpus for node in nodes)))
    return Machine(nodes, devices, ((),) * len(devices), Users(driver.read, every_s))


ROOT = Path("/nowhere/jobs")


def used(outsiders: Outsiders) -> dict[str, tuple[int, ...]]:
    return {node: gpus for node, gpus in outsiders.gpus.items() if gpus}


# -- seen twice, missed twice ----------------------------------------------------------------------------------------


def test_who_is_seen_twice_in_a_row_counts_until_it_is_missed_twice() -> None:
    driver = Driver("GPU-0", "GPU-1", "GPU-2")
    outsiders = Outsiders(machine(driver, 1, 2), ROOT)
    assert outsiders.look() == []
    with process() as pid:
        driver.using["GPU-2"] = {pid}
        assert outsiders.look() == []
        assert used(outsiders) == {}
        assert outsiders.look() == [Outsider("n1", 1, pid, getpass.getuser())]
        assert outsiders.gpus == {"n0": (), "n1": (1,)}
        driver.using["GPU-2"] = set()
        assert outsiders.look() == []
        assert used(outsiders) == {"n1": (1,)}
        driver.using["GPU-2"] = {pid}  # it was only missed
        assert outsiders.look() == []
        driver.using["GPU-2"] = set()
        outsiders.look()
        assert used(outsiders) == {"n1": (1,)}
        outsiders.look()
        assert used(outsiders) == {}


def test_visitors_do_not_count_however_often_they_come() -> None:
    driver = Driver("GPU-0")
    outsiders = Outsiders(machine(driver, 1), ROOT)
    outsiders.look()
    for _ in range(3):
        with process() as pid:
            driver.using["GPU-0"] = {pid}
            assert outsiders.look() == []
        driver.using["GPU-0"] = set()
        outsiders.look()
        assert used(outsiders) == {}


def test_who_is_there_at_the_first_look_counts_at_once() -> None:
    driver = Driver("GPU-0", "GPU-1")
    with process() as pid:
        driver.using["GPU-1"] = {pid}
        outsiders = Outsiders(machine(driver), ROOT)
        assert [each.pid for each in outsiders.look()] == [pid]
        assert used(outsiders) == {"n0": (1,)}


def test_a_gpu_that_nobody_can_tell_of_stays_as_it_was() -> None:
    driver = Driver("GPU-0", "GPU-1")
    with process() as pid:
        driver.using["GPU-1"] = {pid}
        outsiders = Outsiders(machine(driver), ROOT)
        outsiders.look()
        driver.using = {}
        for _ in range(3):
            outsiders.look()
        driver.broken = True
        with pytest.raises(OSError, match="does not answer"):
            outsiders.look()
        assert used(outsiders) == {"n0": (1,)}


def test_cpu_slots_are_anybodys() -> None:
    driver = Driver("0", "1")
    driver.broken = True  # nobody asks it
    slots = Machine((Node("n0", 2, "cpu"),), None, ((), ()), Users(driver.read))
    outsiders = Outsiders(slots, ROOT)
    assert outsiders.look() == []
    assert outsiders.gpus == {"n0": ()}


# -- ours and others' ------------------------------------------------------------------------------------------------


def test_who_carries_our_cookie_is_ours_and_who_carries_anothers_is_not() -> None:
    with (
        process(**{COOKIE: f"{ROOT}:7:1"}) as ours,
        process(**{COOKIE: "/elsewhere/jobs:7:1"}) as theirs,
        process(OTHER=f"{COOKIE}={ROOT}:7:1") as stranger,
    ):
        assert [is_of_a_job(pid, ROOT) for pid in (ours, theirs, stranger)] == [True, False, False]
        assert [is_of_a_job(pid) for pid in (ours, theirs, stranger)] == [True, True, False]
        driver = Driver("GPU-0", "GPU-1")
        driver.using["GPU-0"] = {ours, theirs, stranger}
        outsiders = Outsiders(machine(driver), ROOT)
        assert sorted(each.pid for each in outsiders.look()) == sorted([theirs, stranger])


def test_a_process_below_one_of_ours_is_ours_also_without_the_environment() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess; p = subprocess.Popen(['sleep', '600'], env={}); print(p.pid, flush=True); p.wait()",
        ],
        env={COOKIE: f"{ROOT}:7:1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert is_of_a_job(child, ROOT)
    finally:
        kill(child)
        parent.kill()
        parent.communicate()


def test_a_worker_of_ours_that_ends_slowly_stays_ours() -> None:
    driver = Driver("GPU-0", "GPU-1")
    outsiders = Outsiders(machine(driver), ROOT)
    outsiders.look()
    worker = subprocess.Popen(["sleep", "600"], env={COOKIE: f"{ROOT}:7:1"})
    driver.using["GPU-0"] = {worker.pid}
    outsiders.look()
    worker.kill()
    until(lambda: not is_alive(worker.pid))  # a zombie, which has no environment any more
    for _ in range(3):
        assert outsiders.look() == []
    worker.wait()
    for _ in range(3):
        assert outsiders.look() == []
    assert used(outsiders) == {}


def test_a_process_that_is_gone_is_nobody() -> None:
    with process() as pid:
        assert is_alive(pid)
        assert user_of(pid) == getpass.getuser()
    assert not is_alive(pid)
    assert user_of(pid) == ""
    assert not is_of_a_job(pid)
    driver = Driver("GPU-0", "GPU-1")
    driver.using["GPU-0"] = {pid}  # as from another namespace of processes: that one cannot be judged
    assert Outsiders(machine(driver), ROOT).look() == []
    assert is_alive(1)
    assert not is_of_a_job(1)


# -- the backend -----------------------------------------------------------------------------------------------------


def until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.01)


@pytest.fixture
def driver() -> Driver:
    return Driver("GPU-0", "GPU-1", "GPU-2", "GPU-3")


@pytest.fixture
def watched(tmp_path: Path, driver: Driver) -> Iterator[World]:
    """Two nodes with two GPUs each, looked at twenty times a second."""
    world = World(tmp_path, machine=machine(driver, 2, 2))
    yield world
    left = world.leave()
    assert not left, f"still there after the test: {left}"


def seen(world: World) -> list[Event]:
    return [event for event in world.events if isinstance(event, OutsidersSeen)]


def test_the_loop_hears_who_comes_and_goes(watched: World, driver: Driver) -> None:
    with process() as pid:
        driver.using = {**driver.using, "GPU-2": {pid}, "GPU-3": {pid}}
        watched.until(lambda: len(seen(watched)) == 1)
        driver.using["GPU-3"] = set()
        watched.until(lambda: len(seen(watched)) == 2)
    driver.using["GPU-2"] = set()
    watched.until(lambda: len(seen(watched)) == 3)
    assert [(event.node, event.gpus) for event in seen(watched)] == [("n1", (0, 1)), ("n1", (0,)), ("n1", ())]  # type: ignore[union-attr]


def test_a_jobs_own_processes_are_no_outsiders_and_its_neighbours_are_told_of(watched: World, driver: Driver) -> None:
    watched.start("j", "env -i sleep 600 & echo $! >> pids; wait", gpus=watched.gpus(1))
    (own,) = watched.pids("pids")
    driver.using["GPU-1"] = {own, watched.worker("j"), watched.supervisor("j")}
    with process() as pid:
        driver.using["GPU-0"] = {pid}  # not its own GPU
        watched.until(lambda: seen(watched))
        assert [(event.node, event.gpus) for event in seen(watched)] == [("n0", (0,))]  # type: ignore[union-attr]
        assert watched.noted("outsider") == []
        driver.using["GPU-1"] |= {pid}
        watched.until(lambda: watched.noted("outsider"))
        (note,) = watched.noted("outsider", "j")
        assert note["text"] == f"GPU 1 of node n0 is also used by process {pid} ({getpass.getuser()})"
        assert {name: note[name] for name in ("node", "gpu", "pid", "user")} == {
            "node": "n0",
            "gpu": 1,
            "pid": pid,
            "user": getpass.getuser(),
        }
        assert alive(own)  # nobody is stopped for that
        watched.stop("j")
        watched.end("j")
    assert len(watched.noted("outsider")) == 1


def test_what_the_driver_says_at_the_start_is_known_before_anything_is_told(watched: World, driver: Driver) -> None:
    with process() as pid:
        driver.using["GPU-3"] = {pid}
        watched.backend.close()
        watched.old.append(watched.backend)
        watched.backend = watched.make_backend()
        assert watched.backend.outside() == {"n0": (), "n1": (1,)}
        watched.backend.listen()
        driver.using["GPU-3"] = set()
        watched.until(lambda: seen(watched))
        assert seen(watched)[-1].gpus == ()  # type: ignore[union-attr]


def test_a_driver_that_fails_stops_nothing(watched: World, driver: Driver) -> None:
    driver.broken = True
    assert watched.backend.outside() == {"n0": (), "n1": ()}
    watched.start("j", "exit 0")
    assert watched.exit("j").code == 0
    driver.broken = False
    with process() as pid:
        driver.using["GPU-0"] = {pid}
        watched.until(lambda: seen(watched))


def test_what_is_made_up_here_is_asked_of_the_driver_otherwise() -> None:
    users = Machine((Node("n0", 1),), ("GPU-0",), ((),)).users
    assert (users.read, users.every_s) == (users_of_gpus, 10.0)
