"""The whole service, with real jobs: what is killed, stopped, filled and damaged under it, and that nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulting import Service
from test_running import BEGIN_AND_WAIT, is_alive, until
from test_store_faults import claimed

from fairlead.backends.files import AttemptFiles
from fairlead.backends.ownership import Record, read_record
from fairlead.backends.processes import entry_of

pytestmark = pytest.mark.slow


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    try:
        yield service
        service.ends_well()
    finally:
        service.clean_up()


# -- killed ------------------------------------------------------------------------------------------------------------


def assert_no_step_is_lost(service: Service, *, again: range = range(0)) -> None:
    """Each step begins where the one before ended, and nobody did one twice, but for those that had to be."""
    by_step = {row["step"]: row for row in sorted(service.rows(), key=lambda row: row["step"])}
    assert list(by_step) == list(range(len(by_step)))
    for before, after in itertools.pairwise(by_step.values()):
        assert after["position"] == (before["position"] + before["total"]) % 1000
    for path in service.out.glob("w*.jsonl"):
        steps = [row["step"] for row in service.rows(path.stem)]
        assert {step for step in steps if steps.count(step) > 1} <= set(again), path.stem


def test_a_killed_worker_costs_an_elastic_job_no_step(service: Service) -> None:
    service.up(gpus=2)
    job_id = service.train(steps=200)
    service.trains_on(10, world=2)
    os.kill(service.worker(job_id, 1), signal.SIGKILL)
    service.trains_on(20, world=1)
    assert is_alive(service.worker(job_id, 2))  # the one in its place
    assert service.ends(job_id) == ("SUCCEEDED", 1, 0)
    assert_no_step_is_lost(service)
    assert "worker-lost" in service.told_of(job_id)


def test_a_rigid_job_that_is_killed_with_the_server_is_tried_again_by_the_next(service: Service) -> None:
    service.up()
    only_one = f'exec 9>> "$1/lock"; flock -n 9 || echo twice >> "$1/told"; {BEGIN_AND_WAIT}'
    job_id = service.submit("sh", "-c", only_one, "sh", str(service.directory), max_restarts=1, backoff="0s")
    until(lambda: service.told == ["begin"])
    service.kill(service.worker(job_id, 0))
    service.up()
    until(lambda: service.told == ["begin", "begin"])
    service.let_go()
    assert service.ends(job_id) == ("SUCCEEDED", 2, 1)
    assert service.told == ["begin", "begin", "end"]


def test_an_elastic_job_loses_a_worker_with_the_server_and_trains_on_without_either(service: Service) -> None:
    service.up(gpus=2)
    job_id = service.train(steps=300)
    service.trains_on(10, world=2)
    service.kill(service.worker(job_id, 0))  # the leader
    service.trains_on(20, world=1)
    service.up(gpus=2)
    assert service.ends(job_id) == ("SUCCEEDED", 1, 0)
    assert_no_step_is_lost(service)


def test_an_elastic_job_of_which_everything_was_killed_goes_on_from_its_checkpoint(service: Service) -> None:
    service.up()
    job_id = service.train(gpus="1-2", steps=150)
    until(lambda: service.saved() > 0)
    everybody = service.everybody()
    assert len(everybody) >= 3  # guardian, supervisor and worker
    service.kill(*everybody)
    saved, done = service.saved(), service.done()
    service.up()
    assert service.ends(job_id) == ("SUCCEEDED", 2, 1)
    assert_no_step_is_lost(service, again=range(saved, done + 1))


#: A daemon that keeps nothing of its environment, and writes down who it is.
HIDDEN = "env -i setsid /bin/sh -c 'echo $$ >> pids; exec /bin/sleep 1000' & echo $$ >> pids; "


@pytest.mark.parametrize("whom", ["guardian and supervisor", "all that see to it"])
def test_nothing_of_a_job_lives_on_whose_guardians_are_killed_with_the_server(service: Service, whom: str) -> None:
    service.up()
    script = f"cd {service.directory}; {HIDDEN} {BEGIN_AND_WAIT}"
    job_id = service.submit("sh", "-c", script, "sh", str(service.directory), max_restarts=1, backoff="0s")
    until(lambda: service.told == ["begin"])
    path = service.directory / "pids"
    until(lambda: path.exists() and len(path.read_text().split()) == 2)
    pids = [int(pid) for pid in path.read_text().split()]
    files = AttemptFiles(service.state / "jobs" / job_id / "attempt-1")
    until(lambda: set(pids) <= {pid for pid, _ in (read_record(files) or Record("")).processes})
    supervisor = (files.told("began") or {})["pid"]
    guardians = parents(supervisor, 2)
    if whom == "guardian and supervisor":
        service.kill(guardians[0], supervisor)
        until(lambda: not any(map(is_alive, [*pids, *guardians])))  # before there is another server
    else:
        service.kill(*guardians, supervisor)
        until(lambda: not is_alive(service.worker(job_id, 0)))
    service.up()
    assert not any(map(is_alive, pids))
    until(lambda: service.told == ["begin", "begin"])
    service.let_go()
    assert service.ends(job_id) == ("SUCCEEDED", 2, 1)
    assert service.told == ["begin", "begin", "end"]


def parents(pid: int, count: int) -> list[int]:
    """The process above it, the one above that, ..."""
    found: list[int] = []
    for _ in range(count):
        entry = entry_of((pid, *found)[-1])
        assert entry is not None
        found.append(entry.parent)
    return found


# -- stopped -----------------------------------------------------------------------------------------------------------


def test_a_stopped_worker_is_noticed_and_replaced(service: Service) -> None:
    service.up(gpus=2)
    job_id = service.train(steps=200)
    service.trains_on(10, world=2)
    os.kill(service.worker(job_id, 1), signal.SIGSTOP)
    assert service.ends(job_id) == ("SUCCEEDED", 1, 0)
    assert_no_step_is_lost(service)
    assert "worker-hung" in service.told_of(job_id)


def test_a_worker_that_is_stopped_while_it_boots_is_noticed_too(service: Service) -> None:
    service.up()
    job_id = service.train(gpus="1-2", steps=34)
    os.kill(service.worker(job_id, 0), signal.SIGSTOP)
    assert service.ends(job_id) == ("SUCCEEDED", 1, 0)
    assert "worker-hung" in service.told_of(job_id)


def test_a_worker_that_is_stopped_before_it_leaves_is_noticed_too(service: Service) -> None:
    service.up(gpus=2, policy="even")
    job_id = service.train(gpus="1-2")
    service.trains_on(10, world=2)
    os.kill(service.worker(job_id, 1), signal.SIGSTOP)
    other = service.submit("true")  # it needs a GPU, so one of the two workers has to go
    service.trains_on(20, world=1)
    assert service.ends(other) == ("SUCCEEDED", 1, 0)
    service.fairlead("cancel", job_id)
    assert service.ends(job_id) == ("CANCELLED", 1, 0)


def test_a_job_with_a_stopped_worker_saves_when_it_is_cancelled(service: Service) -> None:
    service.up(gpus=2)
    job_id = service.train()
    service.trains_on(10, world=2)
    os.kill(service.worker(job_id, 1), signal.SIGSTOP)
    service.fairlead("cancel", job_id)
    assert service.ends(job_id) == ("CANCELLED", 1, 0)
    assert "worker-hung" not in service.told_of(job_id)  # nobody had to wait for that
    assert service.saved() == service.done() + 1


def test_a_job_that_ignores_sigterm_is_killed_when_its_time_is_up_with_all_it_started(service: Service) -> None:
    service.up()
    deaf = f"trap '' TERM HUP; cd {service.directory}; echo $$ >> pids; "
    daemon = "setsid sh -c 'echo $$ >> pids; exec sleep 1000' & "
    script = deaf + daemon + "sleep 1000 & echo $! >> pids; while :; do sleep 0.05; done"
    job_id = service.submit("sh", "-c", script, grace_period=1)
    pids = service.directory / "pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    began = time.monotonic()
    service.call("POST", f"/api/v1/jobs/{job_id}/cancel")
    assert service.ends(job_id) == ("CANCELLED", 1, 0)
    assert 1.0 <= time.monotonic() - began < 20.0  # by default it would have 30
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


# -- filled ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Service]:
    """Its state is on a disk of 16 MiB. Its jobs work elsewhere."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.strip()}")
    service = Service(tmp_path, disk / "state")
    try:
        yield service
        service.ends_well()
    finally:
        service.clean_up()
        subprocess.run(["umount", "--lazy", str(disk)], capture_output=True, check=True)


def fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def test_on_a_full_disk_jobs_run_on_and_what_was_taken_in_is_done_when_there_is_room(crowded: Service) -> None:
    service, ballast = crowded, crowded.state.parent / "ballast"
    service.env["FAIRLEAD_SCHEDULER_CADENCE"] = "event+1s"
    service.up()
    counts = 'while [ ! -e go ]; do echo on >> told; sleep 0.2; done; echo "$FAIRLEAD_JOB_ID" >> ran'
    first = service.submit("sh", "-c", counts, workdir=str(service.directory))
    until(lambda: service.told)
    pid, taken_in = service.server["pid"], [first]

    def refused() -> bool:
        """One that is too large for what may be left: nothing but 503, and all that is answered otherwise counts."""
        body = {"run": 'echo "$FAIRLEAD_JOB_ID" >> ran', "env": {"LARGE": "x" * 20_000}}
        answer = service.answer("POST", "/api/v1/jobs", json={**body, "workdir": str(service.directory)})
        if answer.status_code == 201:
            taken_in.extend(answer.json()["ids"])
            return False
        assert answer.status_code == 503, answer.text
        assert "its disk is full" in answer.json()["detail"]
        return True

    assert not refused()
    fill(ballast)
    until(refused)
    until(lambda: service.answer("GET", "/readyz").status_code == 503)
    why = service.answer("GET", "/readyz").json()["detail"]
    assert "the journal cannot be written" in why
    assert "disk is full" in why
    assert str(service.state) not in why  # anybody may ask
    assert service.answer("GET", "/healthz").status_code == 200
    before = len(service.told)
    until(lambda: len(service.told) > before + 5)

    ballast.unlink()
    until(lambda: service.answer("GET", "/readyz").status_code == 200)
    service.let_go()
    assert not refused()
    for job_id in taken_in:
        assert service.ends(job_id) == ("SUCCEEDED", 1, 0)
    assert (service.directory / "ran").read_text().split() == taken_in
    assert service.server["pid"] == pid


# -- damaged -----------------------------------------------------------------------------------------------------------


def damage_the_end(service: Service) -> None:
    with contextlib.closing(sqlite3.connect(service.state / "fairlead.db")) as database, database:
        # It can still be read: only the checksum tells.
        database.execute("UPDATE journal SET body = body || ' ' WHERE seq = (SELECT max(seq) FROM journal)")


def forget_what_came_after_the_start(service: Service) -> None:
    """As if the server had been killed as soon as it had written the start of a job."""
    with claimed(f"sqlite:///{service.state}/fairlead.db") as store:
        store.truncate(next(seq for seq, message in store.read() if type(message).__name__ == "Start"))


@pytest.mark.parametrize("end", ["killed", "killed at once", "down"])
def test_a_damaged_end_of_the_journal_loses_no_job_and_runs_none_twice(service: Service, end: str) -> None:
    service.up()
    first = service.submit_waiting()
    second = service.submit("sh", "-c", f"echo second >> {service.directory}/told")
    until(lambda: service.job(second)["state"] == "PENDING")
    worker = service.worker(first, 0)
    if end == "down":
        service.fairlead("down", "--keep-jobs")
    else:
        service.kill()
    if end == "killed at once":
        forget_what_came_after_the_start(service)
    damage_the_end(service)
    service.up()
    assert "does not match its checksum" in service.log
    assert "went to quarantine" in service.log
    service.is_in(first, "RUNNING")
    assert is_alive(worker)
    service.let_go()
    assert service.ends(first) == ("SUCCEEDED", 1, 0)
    assert service.ends(second) == ("SUCCEEDED", 1, 0)
    assert service.told == ["begin", "end", "second"]


def test_the_gpus_of_a_job_that_the_journal_has_lost_altogether_are_not_given_to_others(service: Service) -> None:
    service.up()
    first = service.submit_waiting(preemptible=False)
    second = service.submit("sh", "-c", f"echo second >> {service.directory}/told", priority=10)
    until(lambda: service.job(second)["state"] == "PENDING")
    worker = service.worker(first, 0)
    service.kill()
    forget_what_came_after_the_start(service)
    damage_the_end(service)  # with which the submission goes, too, if one turn of the loop did both
    service.up()
    service.is_in(first, "RUNNING")
    service.is_in(second, "PENDING")
    assert is_alive(worker)
    service.let_go()
    assert service.ends(first) == ("SUCCEEDED", 1, 0)
    assert service.ends(second) == ("SUCCEEDED", 1, 0)
    assert service.told == ["begin", "end", "second"]


# -- the time of day ---------------------------------------------------------------------------------------------------

#: Whoever finds this when it begins believes in another time of day, as a file says.
OTHER_TIME = """
import os, time
real = time.time
def other():
    with open(os.environ["HOME"] + "/off") as file:
        return real() + float(file.read() or 0)
time.time = other
"""


def test_nobody_cares_if_the_clock_is_set(service: Service) -> None:
    (service.directory / "sitecustomize.py").write_text(OTHER_TIME)
    path = [str(service.directory), *filter(None, [service.env.get("PYTHONPATH")])]
    service.env |= {"PYTHONPATH": os.pathsep.join(path), "HOME": str(service.directory)}

    def set_clock(off_s: float) -> None:
        (service.directory / "new").write_text(str(off_s))
        (service.directory / "new").rename(service.directory / "off")

    day_s = 86_400.0
    set_clock(0.0)
    service.up(gpus=2)
    limited = service.submit_waiting(time_limit=600)
    began = time.monotonic()
    for off_s in (day_s, -day_s):
        set_clock(off_s)
        failing = service.submit("false", max_restarts=1, backoff="1s")
        assert service.ends(failing) == ("FAILED", 2, 2)
    service.kill()
    set_clock(-2 * day_s)
    service.up(gpus=2)
    failing = service.submit("false", max_restarts=1, backoff="1s")
    assert service.ends(failing) == ("FAILED", 2, 2)
    assert time.monotonic() - began < 60.0
    service.let_go()
    assert service.ends(limited) == ("SUCCEEDED", 1, 0)
    times = [service.job(job_id)["submitted_at"] for job_id in (limited, failing)]
    assert 0.0 < times[1] - times[0] < 60.0
