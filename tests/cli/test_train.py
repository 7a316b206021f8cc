"""`fairlead train` as a user has it: real jobs that scale, stop and go on; commands that are none; and bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from emulated import BATCH, EPOCHS, POINTS, SCRIPT, expected

import fairlead
from fairlead.cli.train import Place, environment, find_place
from fairlead.cli.train_output import Teller, print_summary, rate, summary
from fairlead.train.history import History

Run = Callable[..., Result]

SOURCE = Path(fairlead.__file__).parents[1]
TIMEOUT_S = 300.0


class Job:
    """`fairlead train` as a process of its own, whose workers can be told from all others by a variable."""

    def __init__(self, out: Path, options: Sequence[object], command: Sequence[object], **script: Any) -> None:
        self.out = out
        out.mkdir(exist_ok=True)
        self._said = (out / "stderr").open("w+")
        env = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "OUT": str(out),
            "OPTIONS": json.dumps(script),
            "FAIRLEAD_REPORT_S": "0.3",
        }
        line = [sys.executable, "-m", "fairlead", "train", *map(str, options), "--", *map(str, command)]
        self.process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=env,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also if the tests run under nohup
        )

    @property
    def stderr(self) -> str:
        return (self.out / "stderr").read_text()

    def until(self, true: Callable[[], bool]) -> None:
        limit = time.monotonic() + TIMEOUT_S
        while not true():
            assert self.process.poll() is None, f"it has ended:\n{self.stderr}"
            assert time.monotonic() < limit, f"not so after {TIMEOUT_S:g} s:\n{self.stderr}"
            time.sleep(0.02)

    def says(self, text: str) -> None:
        self.until(lambda: text in self.stderr)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Exit code and standard output. Nobody may be left."""
        stdout, _ = self.process.communicate(timeout=TIMEOUT_S)
        assert self.running() == []
        return self.process.returncode, stdout

    def running(self) -> list[int]:
        """Processes that have its environment."""
        mark, found = f"OUT={self.out}\0".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes() + b"\0":
                    found.append(int(path.name))
            except OSError:  # it has gone meanwhile, or is another user's
                continue
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)
        self._said.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(*options: object, command: Sequence[object], **script: Any) -> Job:
        jobs.append(Job(tmp_path / "job", options, command, **script))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


Start = Callable[..., Job]


@pytest.fixture
def emulated(start: Start) -> Start:
    """A job of tests/train/emulated.py."""
    if importlib.util.find_spec("torch") is None:  # to import it here would only take time
        pytest.skip("torch is not installed; pip install 'fairlead[train]'")
    return lambda *options, **script: start(*options, command=[sys.executable, SCRIPT], **script)


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- a job that trains -----------------------------------------------------------------------------------------------


def test_a_job_that_began_with_too_many_workers_finds_its_size_and_ends_well(emulated: Start, tmp_path: Path) -> None:
    """On this device two workers are slower than one. Once that is found it becomes fast, and the job ends."""
    told, options = tmp_path / "events", ["--gpus", "1-2", "--autoscale", "--start", 2, "--every-steps", 3]
    job = emulated(*options, "--events", told, "-o", "json", knee=1, extra_s=0.1)
    job.until(lambda: '"found": true' in (told.read_text() if told.exists() else ""))
    job.says("not worthwhile")
    (job.out / "fast").touch()
    code, stdout = job.end()
    assert code == 0, job.stderr
    summed = json.loads(stdout)
    assert [decided["size"] for decided in summed["decisions"]][:3] == [1, 2, 1]
    assert [change["after"] for change in summed["transitions"]][:4] == [2, 1, 2, 1]
    assert "token" not in told.read_text()
    by_size = {size["workers"]: size["samples_per_s"] for size in summed["sizes"]}
    assert by_size[1] > by_size[2] > 0
    assert sum(size["steps"] for size in summed["sizes"]) == EPOCHS * POINTS // BATCH
    assert summed["gpu_s"] > summed["seconds"]
    assert summed["batch"] == {"first": BATCH, "last": BATCH}
    assert "killed" not in job.stderr
    assert {"started", "plan", "joined", "report", "decision", "left", "exited"} <= {e["kind"] for e in events(told)}
    assert json.loads((job.out / "result.json").read_text())["weights"] == pytest.approx(expected(), rel=1e-9, abs=1e-9)


def test_a_job_that_was_stopped_says_how_to_go_on_and_goes_on(emulated: Start, tmp_path: Path) -> None:
    options = ["--gpus", 2, "--checkpoints", tmp_path / "saved", "--logs", tmp_path / "logs"]
    job = emulated(*options, epochs=40)
    job.says("trains with 2 workers from step 0 on")
    job.signal(signal.SIGTERM)
    assert job.end() == (143, "")
    assert "stopped; run the same command again to go on" in job.stderr
    (job.out / "fast").touch()
    again = emulated(*options, epochs=40)
    assert again.end() == (0, "")
    assert "trains with 2 workers from step 0 on" not in again.stderr
    assert "trains with 2 workers from step " in again.stderr
    found = json.loads((again.out / "result.json").read_text())["weights"]
    assert found == pytest.approx(expected(40), rel=1e-9, abs=1e-9)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["w1.log", "w2.log"]


def test_a_second_ctrl_c_kills_a_job_that_takes_too_long_to_stop(emulated: Start) -> None:
    job = emulated("--gpus", 1, "--grace", 600, stall=True, sample_s=0.0)
    job.says("trains with 1 worker")
    job.until((job.out / "stalled").exists)
    job.signal(signal.SIGINT)
    job.says("has 600 s to save, or press Ctrl-C again to kill it")
    job.signal(signal.SIGINT)
    assert job.end()[0] == 137
    assert "killed; what it learned since its last checkpoint is lost" in job.stderr


def test_a_job_that_does_not_save_in_time_is_told_of_the_grace_period(emulated: Start) -> None:
    job = emulated("--gpus", 1, "--grace", 0, stall=True, sample_s=0.0)
    job.until((job.out / "stalled").exists)
    job.signal(signal.SIGHUP)
    assert job.end()[0] == 143
    assert "it took longer than 0 s to save; give it more with --grace" in job.stderr


def test_a_lost_worker_is_told_and_replaced_until_that_was_often_enough(emulated: Start) -> None:
    job = emulated("--gpus", 2, "--max-restarts", 1, epochs=4000)
    for losses in (1, 2):
        job.until(lambda losses=losses: job.stderr.count("trains with 2 workers") == losses)  # type: ignore[misc]
        os.kill(max(pid for pid in job.running() if pid != job.process.pid), signal.SIGKILL)
    assert job.end()[0] == 1
    assert "was killed by signal 9" in job.stderr
    assert "was killed by signal 9, and max_restarts is 1" in job.stderr


# -- commands that are no jobs ---------------------------------------------------------------------------------------


def test_one_worker_that_does_not_use_fairlead_just_runs(start: Start) -> None:
    job = start("--gpus", 1, command=[sys.executable, "-c", "print(1)"])
    assert job.end() == (0, "1\n")
    assert "note: the command has ended without training with fairlead.train" in job.stderr


def test_several_workers_that_do_not_use_fairlead_are_an_error(start: Start) -> None:
    job = start("--gpus", 2, command=[sys.executable, "-c", "pass"])
    assert job.end() == (1, "")
    assert "2 copies of it ran side by side. Call fairlead.train.init in its script, or use --gpus 1" in job.stderr


def test_the_exit_code_is_that_of_the_command(start: Start) -> None:
    job = start("--gpus", 2, command=[sys.executable, "-c", "import sys; sys.exit(7)"])
    assert job.end() == (7, "")
    assert "failed with exit code 7" in job.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["no-such-command"], "error: cannot run no-such-command: No such file or directory\n"),
        (["no/train.py", "-x"], "; to run a script, say: fairlead train -- python no/train.py -x\n"),
    ],
)
def test_a_command_that_does_not_exist_is_named(command: list[str], expected: str, start: Start) -> None:
    job = start("--gpus", 1, command=command)
    assert job.end() == (127, "")
    assert expected in job.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_has_not_begun_to_train_is_stopped_at_once(number: int, start: Start) -> None:
    job = start("--gpus", 2, command=["sleep", "600"])
    job.says("w2 starts on CPU slot 1")
    job.signal(number)
    assert job.end() == (143, "")
    assert "stopped; with --checkpoints DIR, the same command would go on" in job.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_job_goes_on_if_nobody_can_hear_of_it(start: Start) -> None:
    job = start("--gpus", 1, "--events", "/dev/full", command=[sys.executable, "-c", "print(1)"])
    assert job.end() == (0, "1\n")
    assert job.stderr.count("warning: no more events are written to /dev/full: No space left on device") == 1


def test_options_of_the_command_need_no_dashes_before_them() -> None:
    line = [sys.executable, "-m", "fairlead", "train", "--gpus", "1", sys.executable, "-c", "print(1)", "--gpus"]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    assert subprocess.run(line, capture_output=True, text=True, check=True, env=env, timeout=60).stdout == "1\n"


# -- what is said ----------------------------------------------------------------------------------------------------


class Told:
    """What a `Teller` says of events, a second apart."""

    def __init__(self, capsys: pytest.CaptureFixture[str], workers: int = 2) -> None:
        self.history = History()
        self.teller, self._capsys, self._at, self._step = Teller(self.history, "GPU"), capsys, 0.0, 0
        names = [f"w{place + 1}" for place in range(workers)]
        self.hear("plan", generation=1, members=names, lost=[])
        for name in names:
            self.hear("joined", worker=name, generation=1, step=0)

    def hear(self, kind: str, **fields: Any) -> str:
        """What is said of it, without the time."""
        self._capsys.readouterr()
        event = {"kind": kind, "at": self._at, **fields}
        self._at += 1.0
        self.history.note(event)
        self.teller.tell(event)
        return "; ".join(line.split(" s: ")[1] for line in self._capsys.readouterr().err.splitlines())

    def report(self, *samples: int, progress: float = 0.5, step_s: float = 0.5) -> str:
        self._step += len(samples)
        steps = [(2, each, step_s) for each in samples]
        fields = {"progress": progress, "batch": samples[-1], "saves": False}
        return self.hear("report", step=self._step, steps=steps, **fields)

    def exited(self, worker: str, code: int = -9, stage: str = "member") -> str:
        return self.hear("exited", worker=worker, code=code, stage=stage)


Capture = pytest.CaptureFixture[str]


def test_who_was_killed_by_somebody_else_is_told(capsys: Capture) -> None:
    told = Told(capsys)
    assert told.exited("w1") == "w1 was killed by signal 9"
    assert told.exited("w2", -11) == "w2 was killed by signal 11"
    assert told.exited("w3", stage="booting") == "w3 has ended before it trained"
    assert told.exited("w4", -11, stage="booting") == "w4 was killed by signal 11"


def test_how_it_started_is_told_if_its_workers_print_elsewhere(capsys: Capture) -> None:
    told = Told(capsys)
    text = "continues at step 5, saved at noon (saved/5.ckpt)"
    assert told.hear("continues", worker="w1", step=5, text=text) == ""  # it has said so itself
    told.teller = Teller(told.history, "GPU", logs=True)
    told.hear("beat")
    for kind in ("continues", "complete", "foreign", "locked"):
        assert told.hear(kind, worker="w1", step=5, text=text) == text


def test_a_state_that_cannot_be_saved_is_told(capsys: Capture) -> None:
    assert Told(capsys).hear("unsaved", worker="w1", step=3, why="cannot save step 3") == "warning: cannot save step 3"


def test_who_is_killed_by_its_agent_is_told_why(capsys: Capture) -> None:
    told = Told(capsys)
    assert told.exited("w3", stage="left") == "w3 is not needed any more"
    assert told.hear("hung", worker="w2", silent_s=11.0, beat={}) == "w2 hangs, and is killed"
    assert told.exited("w2") == ""
    told.report(64, progress=1.0)
    assert told.exited("w4", stage="ready") == "w4 is not needed any more"
    assert told.exited("w5") == "w5 is not needed any more"  # it was about to join
    assert told.exited("w1") == "w1 was killed, as it had not ended in time"


@pytest.mark.parametrize("code", [0, 3, 143])
def test_who_boots_is_not_needed_once_somebody_has_ended(capsys: Capture, code: int) -> None:
    told = Told(capsys)
    assert told.exited("w1", code) == ""
    assert told.exited("w3", stage="booting") == "w3 is not needed any more"


@pytest.mark.parametrize("stage", ["booting", "leaving", "left"])
def test_who_comes_or_goes_while_others_train_has_not_ended_the_job(capsys: Capture, stage: str) -> None:
    told = Told(capsys)
    assert told.exited("w1", 0, stage) == ""
    assert told.exited("w2") == "w2 was killed by signal 9"


def test_who_is_stopped_by_the_user_is_not_told_to_be_killed_by_a_signal(capsys: Capture) -> None:
    told = Told(capsys)
    told.teller.interrupted()
    assert told.exited("w3", stage="booting") == "w3 is not needed any more"
    assert told.exited("w1") == "w1 was killed, as it had not ended in time"
    told.teller.interrupted()
    assert told.exited("w2") == ""


def test_nobody_is_told_of_those_who_are_killed_when_the_job_has_failed(capsys: Capture) -> None:
    told = Told(capsys)
    told.exited("w1", 3)
    told.hear("ended", code=3, why="worker w1 failed with exit code 3")
    assert told.exited("w2") == ""


def test_who_could_not_join_is_told(capsys: Capture) -> None:
    told = Told(capsys)
    assert told.exited("w3", 3, "booting") == ""
    said = told.hear("refused", worker="w3", node="localhost", gpu=2, code=3)
    assert said == "w3 ended with exit code 3 before it trained; the others go on"


def test_a_straggler_is_told(capsys: Capture) -> None:
    told = Told(capsys).hear("straggler", worker="w2", node="localhost", gpu=1)
    assert told == "w2 has been slow for long, and a new process takes its place"


def test_a_batch_that_changes_is_told_once_a_report_and_in_the_summary(capsys: Capture) -> None:
    told = Told(capsys)
    assert told.report(64, 64) == ""
    assert told.report(128, 256, 20, 256) == "batch 64 -> 256"
    assert told.report(256, 20) == ""
    assert told.report(128, 128) == "batch 256 -> 128"
    print_summary(told.history, [], 0, slot="GPU", output="table")
    assert "GPU time 0 s, batch 64 to 128\n" in capsys.readouterr().err.replace("\u00a0", " ")
    assert summary(told.history, [], 0)["batch"] == {"first": 64, "last": 128}


def test_a_batch_that_has_grown_before_the_first_report_is_told(capsys: Capture) -> None:
    assert Told(capsys).report(64, 128) == "batch 64 -> 128"


def test_a_batch_that_stays_is_no_matter(capsys: Capture) -> None:
    told = Told(capsys)
    told.report(64, 64, 30)
    print_summary(told.history, [], 0, slot="GPU", output="table")
    assert "batch" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("throughput", "expected"),
    [
        (24_183.7, "24,180"),
        (1_234_567.0, "1,235,000"),
        (3.27, "3.27"),
        (0.01234, "0.0123"),
        (500.94, "501"),
        (None, "n/a"),
    ],
)
def test_speeds_have_the_digits_that_matter(throughput: float | None, expected: str) -> None:
    assert rate(throughput) == expected


def test_progress_is_told_with_the_speed(capsys: Capture) -> None:
    told = Told(capsys)
    told.report(500, progress=0.1, step_s=0.02)
    for _ in range(10):
        told.hear("ready", worker="w3", most=8)
    said = told.report(500, progress=0.2, step_s=0.02).replace("\u00a0", " ")
    assert said == "20% done with 2 workers, 25,000 samples/s, about 0.2 s left"


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--gpus 0", "--gpus is 0; expected at least 1"),
        ("--gpus many", "--gpus is 'many'; expected a number, a range such as 1-8, or auto"),
        ("--gpus -1", "--gpus is '-1'; expected a number"),
        ("--gpus 1-4", "--gpus is 1-4, a range; add --autoscale, or give one number"),
        ("--gpus 4-1 --autoscale", "in a range the smaller number first"),
        ("--gpus 0-4 --autoscale", "expected at least 1"),
        ("--start 1", "--start says how to scale the job; add --autoscale, or leave --start out"),
        ("--step 1", "add --autoscale, or leave --step out"),
        ("--threshold 0", "add --autoscale, or leave --threshold out"),
        ("--utility linear:1,1", "add --autoscale, or leave --utility out"),
        ("--price 0", "add --autoscale, or leave --price out"),
        ("--every-steps 5", "add --autoscale, or leave --every-steps out"),
        ("--autoscale --gpus 2-4 --start 5", "--start is 5; expected from 2 to 4, which --gpus allows"),
        ("--autoscale --start 0", "Invalid value for '--start'"),
        ("--autoscale --step 0", "Invalid value for '--step'"),
        ("--autoscale --every-steps 0", "Invalid value for '--every-steps'"),
        ("--autoscale --threshold 2", "Invalid value for '--threshold'"),
        ("--autoscale --threshold nan", "Invalid value for '--threshold': nan is not a finite number"),
        ("--autoscale --price 1", "--price is compared with --utility; add --utility, or leave --price out"),
        ("--autoscale --utility 9:9 --price inf", "Invalid value for '--price': inf is not a finite number"),
        ("--autoscale --utility 9:9 --price -1", "Invalid value for '--price'"),
        ("--autoscale --utility much", "utility is 'much'; 'much' is not two finite numbers"),
        ("--autoscale --utility 9:9 --threshold 0.1", "--threshold and --utility are two ways"),
        ("--grace -1", "Invalid value for '--grace'"),
        ("--grace inf", "Invalid value for '--grace': inf is not a finite number"),
        ("--max-restarts -1", "Invalid value for '--max-restarts'"),
        ("--logs FILE", "Invalid value for '--logs'"),
        ("--checkpoints FILE/sub", "--checkpoints: cannot make the directory"),
        ("--events FILE/sub", "--events: cannot write"),
        ("--events /", "Invalid value for '--events'"),
        ("-o csv", "Invalid value for '-o'"),
        ("--autoscale --util 9:9", "No such option '--util'. Did you mean '--utility'?"),  # no abbreviations
        ("--lr 0.1", "No such option '--lr'"),
    ],
)
def test_bad_input_is_named_with_what_to_do(options: str, expected: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    given = options.replace("FILE", str(tmp_path / "file")).split()
    result = run("train", *given, "--", "touch", tmp_path / "ran")
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in " ".join(result.stderr.split())
    assert not (tmp_path / "ran").exists()


def test_a_command_is_needed(run: Run) -> None:
    result = run("train", "--gpus", 1)
    assert result.exit_code == 2
    assert "there is no command to run; expected: fairlead train [options] -- python train.py" in result.stderr


def test_the_help_says_that_2_may_not_be_the_exit_code_of_the_job(run: Run) -> None:
    assert "2 may also mean an option that cannot be meant" in " ".join(run("train", "--help").stdout.split())


# -- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "devices"),
    [("0,2", ("0", "2")), ("GPU-a, GPU-b", ("GPU-a", "GPU-b")), ("1,-1,2", ("1",)), ("", None), ("-1", None)],
)
def test_cuda_visible_devices_says_which_gpus_there_are(visible: str, devices: tuple[str, ...] | None) -> None:
    assert find_place({"CUDA_VISIBLE_DEVICES": visible}).devices == devices


def test_gpus_are_found_by_their_devices_or_by_nvidia_smi(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert find_place({"PATH": ""}, tmp_path) == Place(2, ("0", "1"))
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A100'; echo '  MIG 1g'; echo 'GPU 1: A100'; echo 'GPU 2: A100'\n")
    program.chmod(0o755)
    assert find_place({"PATH": str(tmp_path)}, tmp_path / "none") == Place(3, ("0", "1", "2"))


def test_without_gpus_cpu_cores_stand_in_for_them(tmp_path: Path) -> None:
    place = find_place({"PATH": ""}, tmp_path)
    assert (place.devices, place.slot) == (None, "CPU slot")
    assert 1 <= place.count <= (os.cpu_count() or 1)


def test_more_gpus_than_there_are_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    result = run("train", "--gpus", 3, "--", "true")
    assert (result.exit_code, "there are 2 GPUs here; give at most 2" in result.stderr) == (2, True)


def test_each_worker_sees_the_gpu_of_its_slot(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    job = start("--logs", tmp_path, command=["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 600"])
    job.until(lambda: [path.read_text() for path in sorted(tmp_path.glob("*.log"))] == ["5\n", "7\n"])
    job.signal(signal.SIGINT)
    job.end()


def test_what_the_user_has_set_is_left_alone() -> None:
    place = Place(2, None)
    assert environment({}, place, None) == {"FAIRLEAD_REPORT_S": "1", "OMP_NUM_THREADS": "1"}
    assert environment({"OMP_NUM_THREADS": "4"}, place, None)["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in environment({}, Place(2, ("0", "1")), None)
    assert environment({}, place, "saved")["FAIRLEAD_CHECKPOINTS"] == str(Path("saved").absolute())
