"""How a run starts: it begins, continues or was complete; another run's checkpoint is refused; a lock is waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

import torch
from alone import loss_of, make_model
from script import Points

import fairlead.train
from fairlead.core.errors import InvalidSpec
from fairlead.train.checkpoint import Store
from fairlead.train.parts import ORIGIN
from fairlead.train.start import checkpoint_directory
from fairlead.train.wire import NOTES, TOKEN

pytestmark = pytest.mark.usefixtures("own_sigterm")

HOLDER = """
import sys
from fairlead.train.checkpoint import Store
Store(sys.argv[1]).occupy()
print("ours", flush=True)
sys.stdin.read()
"""

Capture = pytest.CaptureFixture[str]


def train(
    directory: Path,
    *,
    lr: float = 0.1,
    epochs: int = 1,
    samples: int = 10,
    batch: int = 2,
    finish_at: int | None = None,
    decays: bool = False,
    momentum: float = 0.0,
    **options: Any,
) -> Any:
    """The job, when it is done."""
    job: Any = fairlead.train.init(checkpoints=directory, **options)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if decays else None
    model, optimizer = job.wrap(model, optimizer, scheduler=scheduler)  # type: ignore[assignment]
    loader = job.loader(Points(samples), batch)
    for _ in job.epochs(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            job.backward(loss_of(model, inputs, targets))
            optimizer.step()
            if job.progress.step == finish_at:
                job.finish()
        if scheduler is not None:
            scheduler.step()
    job.rate = optimizer.param_groups[0]["lr"]
    return job


def test_every_start_says_what_it_is(tmp_path: Path, capsys: Capture) -> None:
    train(tmp_path)
    assert capsys.readouterr().err == f"fairlead: begins at step 0, and saves in {tmp_path}\n"
    files = sorted(tmp_path.iterdir())
    assert train(tmp_path).progress.step == 5
    told = capsys.readouterr().err
    assert told.startswith("fairlead: was already complete at step 5, saved at 20")
    assert told.endswith(f"({tmp_path}/00000001-step-5.ckpt): nothing to do\n")
    assert sorted(tmp_path.iterdir()) == files  # it has not saved once more
    assert train(tmp_path, epochs=2).progress.step == 10
    assert capsys.readouterr().err.startswith("fairlead: continues at step 5, saved at 20")


def test_without_a_directory_it_begins_and_says_that_nothing_is_saved(capsys: Capture) -> None:
    job = fairlead.train.init()
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    job.loader(Points(10), 2)
    next(job.epochs(1))
    assert "begins at step 0; there is no directory for checkpoints" in capsys.readouterr().err


def test_five_learning_rates_in_one_directory_are_one_result_and_four_refusals(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(shared, lr=0.01)
    for lr in (0.02, 0.03, 0.04, 0.05):
        with pytest.raises(InvalidSpec, match=rf"there learning rate is 0\.01, here it is {lr}\D") as refused:
            train(shared, lr=lr)
        assert f"checkpoint {shared}/00000001-step-5.ckpt (step 5, saved at " in str(refused.value)
        assert "Name another directory" in str(refused.value)
        assert "init(resume=True)" in str(refused.value)
    own = {lr: train(tmp_path / str(lr), lr=lr).loss for lr in (0.01, 0.02, 0.03, 0.04, 0.05)}
    assert len(set(own.values())) == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 5}, "there batch_size is 2, here it is 5; there max_batch_size is 2, here it is 5"),
        ({"seed": 3}, "there seed is 0, here it is 3"),
        ({"samples": 12}, "there samples is 10, here it is 12"),
        ({"momentum": 0.9}, "there momentum is 0.0, here it is 0.9"),
    ],
)
def test_another_hyper_parameter_is_another_run(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(InvalidSpec, match=message):
        train(tmp_path, epochs=2, **changed)


def test_other_arguments_are_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = type(sys)("__main__")
    main.__file__ = "/somewhere/train.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["train.py", "--width", "3", "--out", "a"])
    train(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--width", "4", "--out", "b"])
    with pytest.raises(InvalidSpec, match=r"another run: there argument --width is 3, here it is 4\. Name"):
        train(tmp_path)
    main.__file__ = "/elsewhere/train.py"
    monkeypatch.setattr(sys, "argv", ["train.py", "--width", "3", "--out", "b", str(tmp_path)])
    assert train(tmp_path).progress.step == 5


def test_a_run_that_is_resumed_on_purpose_goes_on_with_the_values_of_its_script(
    tmp_path: Path, capsys: Capture
) -> None:
    train(tmp_path, lr=0.1, decays=True)
    job = train(tmp_path, lr=0.02, momentum=0.5, decays=True, epochs=2, resume=True)
    assert job.progress.step == 10
    assert job.rate == pytest.approx(0.02 * 0.5 * 0.5)  # of the schedule, as far as it was
    told = capsys.readouterr().err
    assert "learning rate is 0.02 now, and was 0.1; momentum is 0.5 now, and was 0.0" in told
    train(tmp_path, lr=0.02, momentum=0.5, decays=True, epochs=3)  # it is that run from now on
    with pytest.raises(InvalidSpec, match=r"there learning rate is 0\.02, here it is 0\.1"):
        train(tmp_path, lr=0.1, decays=True, epochs=4)


def test_what_a_schedule_made_of_the_learning_rate_is_no_difference(tmp_path: Path) -> None:
    train(tmp_path, decays=True, epochs=2)
    assert train(tmp_path, decays=True, epochs=3).rate == pytest.approx(0.1 * 0.5**3)


def test_fewer_epochs_than_were_done_are_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=3)
    with pytest.raises(InvalidSpec, match="there the number of epochs is 3, here it is 2"):
        train(tmp_path, epochs=2)


def test_a_run_that_had_had_enough_is_complete_until_it_gets_more_epochs(tmp_path: Path) -> None:
    train(tmp_path, epochs=5, finish_at=3)
    assert train(tmp_path, epochs=5).progress.step == 4
    assert train(tmp_path, epochs=6).progress.step == 30


def test_a_checkpoint_without_a_fingerprint_is_continued_with_a_warning(tmp_path: Path, capsys: Capture) -> None:
    train(tmp_path)
    loaded = Store(tmp_path).latest()
    assert loaded is not None
    Store(tmp_path).save({name: part for name, part in loaded.state.items() if name != ORIGIN}, step=loaded.step)
    assert train(tmp_path, lr=0.7, epochs=2).progress.step == 10
    told = capsys.readouterr().err
    assert "continues at step 5, saved at 20" in told
    assert "warning: it was saved by an older Fairlead and does not say of which run it is" in told


def test_restarts_of_one_job_always_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Also if its script was edited; but not another job of the same id, whose state directory is another."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FAIRLEAD_JOB_ID", "7")
    monkeypatch.setenv("FAIRLEAD_CHECKPOINT_DIR", str(tmp_path / "a"))
    train(tmp_path / "shared", lr=0.1)
    assert train(tmp_path / "shared", lr=0.2, epochs=2).rate == 0.2
    assert "learning rate is 0.2 now, and was 0.1" in capsys.readouterr().err
    monkeypatch.setenv("FAIRLEAD_CHECKPOINT_DIR", str(tmp_path / "b"))
    with pytest.raises(InvalidSpec, match=r"there learning rate is 0\.2, here it is 0\.1"):
        train(tmp_path / "shared", lr=0.1, epochs=3)


def test_workers_of_one_run_of_the_agent_always_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    train(tmp_path, lr=0.1)
    assert train(tmp_path, lr=0.2, epochs=2).progress.step == 10
    assert b"secret" not in (tmp_path / "00000002-step-10.ckpt").read_bytes()
    monkeypatch.setenv(TOKEN, "another")
    with pytest.raises(InvalidSpec, match="another run"):
        train(tmp_path, lr=0.1, epochs=3)


@contextmanager
def held(directory: Path, job: str = "") -> Iterator[subprocess.Popen[str]]:
    """By another process, until the end of the block."""
    command, env = [sys.executable, "-c", HOLDER, str(directory)], {"FAIRLEAD_JOB_ID": job, "PATH": ""}
    directory.mkdir(exist_ok=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ours\n"
        yield holder
        holder.kill()


def test_a_wait_for_the_lock_is_told_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv(NOTES, str(notes))
    with held(tmp_path / "ck", job="3") as holder:
        with pytest.raises(
            InvalidSpec, match=rf"another job \(process {holder.pid} on .*, of job 3\) saves there, and"
        ):
            train(tmp_path / "ck", lock_timeout_s=0.2)
        told = capsys.readouterr().err
        assert f"waits for at most 0.2 s for the lock of {tmp_path / 'ck'}, held by process {holder.pid} on " in told
        assert told.endswith(", of job 3\n")
    train(tmp_path / "ck", lock_timeout_s=0.2)
    first, second = (json.loads(line) for line in notes.read_text().splitlines())
    assert (first["kind"], first["holder"]["pid"], first["holder"]["job"]) == ("locked", holder.pid, "3")
    assert (second["kind"], second["step"]) == ("begins", 0)
    with pytest.raises(InvalidSpec) as refused:
        train(tmp_path / "ck", lr=0.2)
    third = json.loads(notes.read_text().splitlines()[-1])
    assert (third["kind"], third["text"]) == ("foreign", str(refused.value))
    assert third["differing"] == [["learning rate", 0.1, 0.2]]


def test_a_run_that_would_be_refused_does_not_wait_for_the_lock(tmp_path: Path) -> None:
    """What is there already says so. It is moved, as this process keeps the lock of the first directory."""
    train(tmp_path / "first", lr=0.1)
    (tmp_path / "second").mkdir()
    for path in (tmp_path / "first").glob("*.ckpt"):
        path.rename(tmp_path / "second" / path.name)
    with held(tmp_path / "second"), pytest.raises(InvalidSpec, match=r"there learning rate is 0\.1, here it is 0\.2"):
        train(tmp_path / "second", lr=0.2, lock_timeout_s=600.0)


SERVICE = {"FAIRLEAD_JOB_ID": "7", "FAIRLEAD_CHECKPOINTS": "/jobs/7/checkpoints"}
SERVICE["FAIRLEAD_CHECKPOINT_DIR"] = SERVICE["FAIRLEAD_CHECKPOINTS"]


@pytest.mark.parametrize(
    ("given", "env", "expected"),
    [
        (None, {}, None),
        ("saved", {}, Path.cwd() / "saved"),
        (None, {"FAIRLEAD_CHECKPOINTS": "/given"}, Path("/given")),
        ("saved", {"FAIRLEAD_CHECKPOINTS": "/given"}, Path.cwd() / "saved"),
        (None, SERVICE, Path("/jobs/7/checkpoints")),
        ("checkpoints", SERVICE, Path("/jobs/7/checkpoints")),
        (Path("checkpoints/best"), SERVICE, Path("/jobs/7/checkpoints/best")),
        ("./saved/", SERVICE, Path("/jobs/7/checkpoints/saved")),
        (".", SERVICE, Path("/jobs/7/checkpoints")),
        ("/shared/run", SERVICE, Path("/shared/run")),
    ],
)
def test_a_relative_path_is_the_jobs_own_under_the_service(
    given: Path | str | None, env: dict[str, str], expected: Path | None
) -> None:
    assert checkpoint_directory(given, env) == expected


def test_a_relative_path_does_not_lead_out_of_the_jobs_own_directory() -> None:
    with pytest.raises(InvalidSpec, match=r"leads out of the job's own directory /jobs/7/checkpoints.*absolute"):
        checkpoint_directory("../8/checkpoints", SERVICE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": "yes"}, "resume is 'yes'; expected True or False"),
        ({"lock_timeout_s": -1}, "lock_timeout_s is -1; expected seconds"),
        ({"lock_timeout_s": float("inf")}, "lock_timeout_s is inf; a wait for a lock needs an end"),
    ],
)
def test_what_is_no_option_of_a_start_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        fairlead.train.init(**options)
