"""Commands as people submit them, through a real server: launchers, ranks, and errors that repeat themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulting import Service
from test_running import until

TORCHRUN = Path(sys.executable).with_name("torchrun")

#: What torchrun's workers are to do: as little as shows that they are workers of one training.
MEET = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
world = [None] * dist.get_world_size()
dist.all_gather_object(world, int(os.environ["RANK"]))
os.write(1, f"rank {dist.get_rank()} met {world}\\n".encode())  # at once: both workers write to one pipe
"""

#: As many scripts choose: with these variables they take themselves for one worker of many.
PLAIN = 'import os; print("distributed" if "RANK" in os.environ or "WORLD_SIZE" in os.environ else "alone")'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    service.up(gpus=2)
    yield service
    service.ends_well()


@pytest.mark.slow
def test_torchrun_in_a_job_of_two_gpus_makes_two_workers_of_one_training(service: Service) -> None:
    pytest.importorskip("torch", reason="it trains; pip install 'fairlead[train]'")
    script = service.directory / "meet.py"
    script.write_text(MEET)
    command = (TORCHRUN, "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d", script)
    told = service.fairlead("submit", "--gpus", "2", "--wait", "--", *command)
    assert "starts it once, with its 2 GPUs: torchrun starts the workers itself" in told
    assert service.job("1")["launch"] == "once"
    lines = [line for line in service.fairlead("logs", "1").splitlines() if "met" in line]
    assert sorted(lines) == ["rank 0 met [0, 1]", "rank 1 met [0, 1]"]
    assert "once, with all of its GPUs" in service.fairlead("status", "1")


def test_a_launcher_with_a_range_of_gpus_keeps_what_it_was_given(service: Service) -> None:
    command = "sleep 1000"
    service.fairlead("submit", "--gpus", "1-2", "--launch", "once", "--", "bash", "-c", command)
    until(lambda: service.job("1")["state"] == "RUNNING")
    job = service.job("1")
    assert (job["gpus"]["pinned"], job["gpus"]["min"], job["gpus"]["max"]) == (True, job["gpus"]["current"], 1)
    assert job["reason"]["text"] == (
        "runs on 1 GPU: its command is started once for all of them, so it cannot change size while it runs"
    )
    assert "1 of 1, pinned" in service.fairlead("status", "1")
    assert service.told_of("1")[:4] == ["JobSubmitted", "Start", "JobPinned", "JobStarted"]
    service.fairlead("cancel", "1")
    service.ends("1")
    assert service.job("1")["gpus"]["max"] == 2


def test_ranks_are_told_only_to_one_of_several_workers(service: Service) -> None:
    command = (sys.executable, "-c", PLAIN)
    service.fairlead("submit", "--gpus", "1", "--wait", "--", *command)
    service.fairlead("submit", "--gpus", "2", "--launch", "once", "--wait", "--", *command)
    told = service.fairlead("submit", "--gpus", "2", "--wait", "--", *command)
    assert "starts it on each of its 2 GPUs, as torchrun would" in told
    assert [service.fairlead("logs", job).split() for job in "12"] == [["alone"], ["alone"]]
    assert service.fairlead("logs", "3").count("distributed") == 2


def test_an_error_that_repeats_itself_ends_the_job_with_its_words(service: Service) -> None:
    told = service.fairlead("submit", "--wait", "--", sys.executable, "-c", "import nothing_of_this_name", code=1)
    assert "FAILED" in told
    assert service.ends("1") == ("FAILED", 2, 2)
    assert service.job("1")["reason"]["text"] == (
        "failed on attempt 2: it ended with exit code 1, as the attempt before did and with the same last line; "
        "it last printed \"ModuleNotFoundError: No module named 'nothing_of_this_name'\""
    )
    kinds = [kind for kind in service.told_of("1") if kind in ("Start", "JobExited")]
    assert kinds == ["Start", "JobExited"] * 2
