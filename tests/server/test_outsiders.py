"""A GPU that somebody outside uses, from the driver to the decision: the real loop, store, backend and processes.

Only what the driver says is made up, as this machine may have none.
"""

from __future__ import annotations

import getpass
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from still import StillPlane
from test_api_metrics import figures

from fairlead.backends.machine import Machine, Users
from fairlead.cli.live.columns import NODES
from fairlead.cli.live.tables import Look
from fairlead.core.messages import OutsidersSeen
from fairlead.core.types import Node, Phase
from fairlead.jobfile import request_from
from fairlead.server.controller import Controller, ControlOptions
from fairlead.server.published import Published
from fairlead.server.resources import document_of, held_gpus, node_resource
from fairlead.server.store import NewJob, Store
from fairlead.server.story import note_sentence

PATIENCE_S = 30.0


class Cluster:
    """One node with two GPUs that are looked at often, and what the driver says of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.using: dict[str, set[int]] = {"GPU-0": set(), "GPU-1": set()}

    @contextmanager
    def up(self, *, keep_jobs: bool = False) -> Iterator[None]:
        machine = Machine((Node("n0", 2, "a100"),), tuple(self.using), ((), ()), Users(lambda: dict(self.using), 0.05))
        options = ControlOptions(policy="fifo", cadence="event", minimum_run_s=0.0)
        with Store.open(f"sqlite:///{self.root}/fairlead.db") as self.store:
            self.controller = Controller(self.store, machine, self.root / "jobs", options)
            self.controller.start()
            try:
                self.until(lambda p: p.nodes)
                yield
            finally:
                self.controller.stop(keep_jobs=keep_jobs, timeout_s=PATIENCE_S)

    def submit(self, name: str) -> str:
        """A job of one GPU that runs until its file is there."""
        request = request_from({"name": name, "run": f"until [ -e {self.root}/{name} ]; do sleep 0.05; done"})
        row = NewJob(name=name, queue=request.queue, document=document_of(request))
        (job_id,) = self.store.submit([row], user="ann", at=time.time(), key=None, digest="").result().ids
        self.controller.hand_over(self.store.requests()[-1])
        return job_id

    def end(self, name: str) -> None:
        (self.root / name).touch()

    def until(self, true: Callable[[Published], object]) -> Published:
        limit, published = time.monotonic() + PATIENCE_S, self.controller.published
        while not true(published):
            assert time.monotonic() < limit, f"it did not come about: {published.live} {published.nodes}"
            published = self.controller.wait(published.seq, 0.1)
        return published

    def node(self) -> dict[str, Any]:
        published = self.controller.published
        return node_resource(published.nodes["n0"], held_gpus(published).get("n0", {}))


@contextmanager
def outsider() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], env={}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def runs_on(job_id: str, gpu: int) -> Callable[[Published], bool]:
    def true(published: Published) -> bool:
        job = published.live.get(job_id)
        return job is not None and job.phase is Phase.RUNNING and job.allocation.shares == (("n0", (gpu,)),)

    return true


def test_a_waiting_job_is_not_put_on_a_gpu_that_somebody_uses_until_it_is_left(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with outsider() as pid, cluster.up():
        cluster.using = {**cluster.using, "GPU-0": {pid}}
        cluster.until(lambda p: p.nodes["n0"].outside == (0,))
        first, second = cluster.submit("first"), cluster.submit("second")
        cluster.until(runs_on(first, 1))
        told = cluster.until(lambda p: p.plan is not None and second in p.plan.reasons)
        assert told.plan is not None
        assert told.plan.reasons[second].text == (told.plan.reasons[second].text)
        assert told.plan.reasons[second].text.startswith("needs 1 GPU, 0 are free; job ")
        assert told.plan.reasons[second].text.endswith("; 1 GPU is used by processes that Fairlead did not start")
        assert told.live[second].phase is Phase.PENDING
        assert {name: cluster.node()[name] for name in ("used", "free", "outside")} == {
            "used": 1,
            "free": 0,
            "outside": [0],
        }
        cluster.using = {**cluster.using, "GPU-0": set()}
        cluster.until(runs_on(second, 0))
        assert cluster.controller.complaints == []
        assert (cluster.node()["free"], cluster.node()["outside"]) == (0, [])
        cluster.end("first")
        cluster.end("second")
        cluster.until(lambda p: not p.live)


def test_a_job_goes_on_beside_somebody_who_comes_and_is_told_of_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with outsider() as pid, cluster.up():
        job = cluster.submit("job")
        cluster.until(runs_on(job, 0))
        cluster.using = {**cluster.using, "GPU-0": {pid}}
        cluster.until(lambda p: p.nodes["n0"].outside == (0,))
        other = cluster.submit("other")
        cluster.until(runs_on(other, 1))
        assert runs_on(job, 0)(cluster.controller.published)
        limit = time.monotonic() + PATIENCE_S
        while not (found := [note for note in cluster.store.notes(job) if note.kind == "outsider"]):
            assert time.monotonic() < limit
            time.sleep(0.05)
        assert [note_sentence(note) for note in found] == [
            f"GPU 0 of node n0 is also used by process {pid} ({getpass.getuser()})"
        ]
        cluster.end("job")
        third = cluster.submit("third")
        cluster.until(lambda p: job not in p.live and third in p.live)
        assert cluster.controller.published.live[third].phase is Phase.PENDING
        cluster.using = {**cluster.using, "GPU-0": set()}
        cluster.until(runs_on(third, 0))


def test_after_a_restart_it_is_as_it_is_found_and_not_as_it_was(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with outsider() as pid:
        cluster.using = {"GPU-0": {pid}, "GPU-1": {pid}}
        with cluster.up(keep_jobs=True):
            cluster.until(lambda p: p.nodes["n0"].outside == (0, 1))
            job = cluster.submit("job")
            cluster.until(lambda p: job in p.live)
        cluster.using = {"GPU-0": {pid}, "GPU-1": set()}  # while nobody looked
        with cluster.up(keep_jobs=True):
            cluster.until(lambda p: p.nodes["n0"].outside == (0,))
            cluster.until(runs_on(job, 1))
        with cluster.up():
            assert cluster.until(lambda p: p.nodes["n0"].outside == (0,)).live[job].attempt == 1
            seen = [message for _, message in cluster.store.read() if isinstance(message, OutsidersSeen)]
            assert [message.gpus for message in seen] == [(0, 1), (0,)]


# -- what people see ---------------------------------------------------------------------------------------------------


def test_the_api_the_metrics_and_the_command_line_tell_of_it(tmp_path: Path) -> None:
    with StillPlane(tmp_path) as plane:
        plane.controller.happens(OutsidersSeen(plane.controller.now(), "n0", (1, 3)))
        plane.controller.until(lambda p: p.nodes["n0"].outside == (1, 3))
        first, second = plane.get("/api/v1/nodes")["nodes"]
        assert (first["outside"], first["free"], second["outside"]) == ([1, 3], 2, [])
        told = figures(plane)
        assert told["fairlead_gpus gpu_type=a100 state=outside"] == 2
        assert told["fairlead_gpus gpu_type=a100 state=free"] == 2
        assert "fairlead_gpus gpu_type=t4 state=outside" not in told
        (column,) = (column for column in NODES if column.title == "GPUS")
        look = Look(now=0.0)
        assert [str(column.cell(node, look)) for node in (first, second)] == ["0/4, 2 outside", "0/2"]
