"""Five learning rates from one directory, handed in as five jobs, with the line that the documentation begins with."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from fairlead.backends.machine import describe
from fairlead.core.types import Phase
from fairlead.jobfile import request_from
from fairlead.server.controller import Controller, ControlOptions
from fairlead.server.notes import note_sentence
from fairlead.server.resources import document_of
from fairlead.server.store import NewJob, Store

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

PATIENCE_S = 240.0
RATES = (0.01, 0.02, 0.03, 0.04, 0.05)

SCRIPT = """
import json, sys, torch, fairlead.train

torch.manual_seed(0)
torch.set_num_threads(1)
points = torch.randn(16, 4)
job = fairlead.train.init(checkpoints="checkpoints")
model = torch.nn.Linear(4, 1)
model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=float(sys.argv[2])))
loader = job.loader(torch.utils.data.TensorDataset(points, points.sum(1, keepdim=True)), batch_size=8)
for epoch in job.epochs(2):
    for inputs, targets in loader:
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        job.backward(loss)
        optimizer.step()
print(json.dumps({"rate": float(sys.argv[2]), "loss": job.loss}), flush=True)
"""


@pytest.mark.slow
def test_five_learning_rates_from_one_directory_give_five_results(tmp_path: Path) -> None:
    """The last of them is elastic, so that its start is told by an agent, and not in a file of notes."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    with Store.open(f"sqlite:///{tmp_path}/fairlead.db") as store:
        ids = []
        for rate in RATES:
            run = f"exec {sys.executable} train.py --lr {rate}"
            gpus = {"gpus": "1-2"} if rate == RATES[-1] else {"gpus": 1}
            request = request_from({"name": f"lr-{rate}", "run": run, "workdir": str(work), **gpus})
            row = NewJob(name=request.name, queue=request.queue, document=document_of(request))
            ids += store.submit([row], user="ann", at=time.time(), key=None, digest=str(rate)).result().ids
        options = ControlOptions(policy="fifo", cadence="event+1s")
        controller = Controller(store, describe(gpus=2, nodes=None), tmp_path / "jobs", options)
        controller.start()
        try:
            published, limit = controller.published, time.monotonic() + PATIENCE_S
            while len(published.finished) < len(RATES) and time.monotonic() < limit:
                published = controller.wait(published.seq, 1.0)
        finally:
            controller.stop(keep_jobs=False, timeout_s=60.0)
        logs = {job_id: (tmp_path / f"jobs/{job_id}/attempt-1/logs/rank-0.log").read_text() for job_id in ids}
        assert {published.finished[job_id].phase for job_id in ids} == {Phase.SUCCEEDED}, logs
        results = [json.loads(log.splitlines()[-1]) for log in logs.values()]
        assert [result["rate"] for result in results] == list(RATES)
        assert len({result["loss"] for result in results}) == len(RATES)
        for job_id, log in logs.items():
            own = tmp_path / "jobs" / job_id / "checkpoints"
            assert f"fairlead: begins at step 0, and saves in {own}" in log
            begins = [note for note in store.notes(job_id) if note.kind == "begins"]
            assert [note_sentence(note) for note in begins] == [f"begins at step 0, and saves in {own}"]
            assert [note.body["attempt"] for note in begins] == [1]
            assert [path.name for path in own.glob("*.ckpt")] == ["00000001-step-4.ckpt"]
    assert not (work / "checkpoints").exists()
