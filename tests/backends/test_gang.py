"""Any command on a fixed number of GPUs: what its processes are told, and how they end."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from world import World, alive, kill

from fairlead.core.capability import Capability
from fairlead.core.messages import JobExited, JobStarted, JobStopped
from fairlead.core.types import Launch

#: Everything a process was given, one variable in a line.
TELL = f"""exec {sys.executable} -c 'import os; print("\\n".join(f"{{k}}={{v}}" for k, v in os.environ.items()))'"""


def environment(world: World, job: str, rank: int = 0) -> dict[str, str]:
    return dict(line.split("=", 1) for line in world.log(job, rank).splitlines())


def test_one_process_is_told_what_torchrun_would_tell_it(world: World) -> None:
    world.start("j", TELL, max_restarts=2)
    assert world.exit("j").code == 0
    told = environment(world, "j")
    port = int(told.pop("MASTER_PORT"))
    assert 1024 <= port < 65536
    files = world.backend.files("j", 1)
    assert {name: value for name, value in told.items() if name not in ("PATH", "PWD", "SHLVL", "_", "LC_CTYPE")} == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": "0",
        "ROLE_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_RUN_ID": "fairlead-j",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "CUDA_VISIBLE_DEVICES": "",
        "FAIRLEAD_NODE": world.machine.nodes[0].id,
        "FAIRLEAD_GPU": "0",
        "FAIRLEAD_GPU_TYPE": "cpu",
        "FAIRLEAD_GPUS": "1",
        "FAIRLEAD_JOB_ID": "j",
        "FAIRLEAD_ATTEMPT": "1",
        "FAIRLEAD_PREEMPT_FILE": str(files.notice),
        "FAIRLEAD_NOTES": str(world.root / "j" / "attempt-1" / "worker-notes.jsonl"),
        "FAIRLEAD_CHECKPOINTS": str(world.root / "j" / "checkpoints"),
        "FAIRLEAD_CHECKPOINT_DIR": str(world.root / "j" / "checkpoints"),
        "FAIRLEAD_COOKIE": f"{world.root}:j:1",
    }


def test_a_command_that_is_launched_once_sees_all_its_gpus_and_is_told_nothing_of_ranks(two_nodes: World) -> None:
    world = two_nodes
    both = world.gpus(1, node=0) | world.gpus(0, 1, node=1)
    devices = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    world.start("j", TELL, gpus=both, devices=devices, launch=Launch.ONCE)
    assert world.exit("j").code == 0
    told = environment(world, "j")
    assert told["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c,GPU-d"
    assert (told["FAIRLEAD_GPUS"], told["FAIRLEAD_NODE"], told["FAIRLEAD_GPU"]) == ("3", "n0,n1", "1,2,3")
    ranks = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    assert not ranks & told.keys()
    assert len(world.noted("worker", "j")) == 1


def test_a_command_that_is_launched_once_has_the_processors_of_all_its_gpus(world: World) -> None:
    own = sorted(os.sched_getaffinity(0))[:2]
    cpus = tuple((own[gpu % len(own)],) for gpu in range(4))
    tell = f"sleep 0.5; exec {sys.executable} -c 'import os; print(sorted(os.sched_getaffinity(0)))'"
    world.start("j", tell, gpus=2, cpus=cpus, launch=Launch.ONCE)
    assert world.exit("j").code == 0
    assert world.log("j") == f"{own}\n"


def test_there_is_a_place_for_checkpoints_that_the_next_attempt_finds(world: World) -> None:
    world.start("j", 'echo 7 >> "$FAIRLEAD_CHECKPOINT_DIR/step"; cat "$FAIRLEAD_CHECKPOINT_DIR/step"')
    assert world.exit("j").code == 0
    world.again("j", 2)
    world.until(lambda: len(world.ends("j")) == 2)
    assert world.log("j", attempt=2) == "7\n7\n"


def test_every_node_is_a_machine_of_its_own_to_torchrun(two_nodes: World) -> None:
    world = two_nodes
    both = world.gpus(1, node=0) | world.gpus(0, 1, node=1)
    world.start("j", TELL, gpus=both, devices=("GPU-a", "GPU-b", "GPU-c", "GPU-d"))
    assert world.exit("j").code == 0
    ranks = [environment(world, "j", rank) for rank in range(3)]

    def of(name: str) -> list[str]:
        return [told[name] for told in ranks]

    assert of("RANK") == ["0", "1", "2"]
    assert of("WORLD_SIZE") == ["3", "3", "3"]
    assert of("LOCAL_RANK") == ["0", "0", "1"]
    assert of("LOCAL_WORLD_SIZE") == ["1", "2", "2"]
    assert of("GROUP_RANK") == of("NODE_RANK") == ["0", "1", "1"]
    assert of("GROUP_WORLD_SIZE") == ["2", "2", "2"]
    assert of("FAIRLEAD_NODE") == ["n0", "n1", "n1"]
    assert of("FAIRLEAD_GPU") == ["1", "2", "3"]
    assert of("CUDA_VISIBLE_DEVICES") == ["GPU-b", "GPU-c,GPU-d", "GPU-c,GPU-d"]
    assert len(set(of("MASTER_PORT"))) == 1


def test_a_job_cannot_pretend_to_be_another_rank_or_to_have_other_gpus(world: World) -> None:
    world.start("j", TELL, env={"RANK": "7", "CUDA_VISIBLE_DEVICES": "7", "FAIRLEAD_COOKIE": "", "OWN": "a=b"})
    world.exit("j")
    told = environment(world, "j")
    assert (told["RANK"], told["CUDA_VISIBLE_DEVICES"], told["OWN"]) == ("0", "", "a=b")
    assert told["FAIRLEAD_COOKIE"] == f"{world.root}:j:1"


def test_a_job_sees_nothing_of_the_controllers_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_TEST_SECRET", "of the controller")
    world.start("j", "cat /proc/$PPID/environ; env")
    world.exit("j")
    assert "of the controller" not in world.log("j")


def test_every_process_has_its_own_session_and_the_directory_of_the_job(world: World) -> None:
    world.start("j", "ps -o sid= -p $$ | tr -d ' '; echo $$; pwd; readlink /proc/$$/fd/0", gpus=2)
    world.exit("j")
    for rank in (0, 1):
        session, pid, directory, entry = world.log("j", rank).split()
        assert session == pid == str(world.worker("j", rank))
        assert directory == str(world.work)
        assert entry == "/dev/null"


def test_every_rank_and_every_attempt_has_a_log_of_its_own(world: World) -> None:
    world.start("j", "echo to stdout of $RANK; echo to stderr of $RANK >&2", gpus=2)
    world.end("j")
    world.events.clear()
    world.again("j", 2, gpus=world.gpus(0, 1))
    world.end("j")
    assert [(log.attempt, log.rank) for log in world.backend.logs("j")] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for log in world.backend.logs("j"):
        assert log.path.read_text() == f"to stdout of {log.rank}\nto stderr of {log.rank}\n"
        at, size = log.index.read_text().splitlines()[-1].split()
        assert float(at) > 0.0
        assert int(size) == log.path.stat().st_size


@pytest.mark.parametrize(
    ("script", "code", "detail"),
    [
        ("exit 0", 0, ""),
        ("exit 3", 3, "it ended with exit code 3"),
        ("exit 143", 143, "it ended with exit code 143"),
        ("kill -SEGV $$", 139, "it was killed by SIGSEGV"),
        ("kill -KILL $$", 137, "it was killed by SIGKILL; perhaps memory ran out"),
        ("exit 170", 170, "it ended with exit code 170"),
        ("exit 255", 255, "it ended with exit code 255"),
    ],
)
def test_the_exit_code_is_the_one_a_shell_would_tell(world: World, script: str, code: int, detail: str) -> None:
    world.start("j", script)
    end = world.exit("j")
    assert (end.code, end.detail, end.final) == (code, detail, False)
    assert [type(event) for event in world.heard("j")] == [JobStarted, JobExited]


def test_when_one_rank_fails_the_others_are_ended_and_its_code_counts(world: World) -> None:
    waits = "trap 'echo asked; exit 9' TERM; touch ready-$RANK; while :; do sleep 0.05; done"
    fails = "until [ -e ready-0 -a -e ready-2 ]; do sleep 0.05; done; exit 5"
    world.start("j", f"if [ $RANK = 1 ]; then {fails}; else {waits}; fi", gpus=3)
    end = world.exit("j")
    assert (end.code, end.detail) == (5, "rank 1 ended with exit code 5")
    assert "asked" in world.log("j", 0)
    assert "asked" in world.log("j", 2)


def test_a_rank_that_is_done_leaves_the_others_alone(world: World) -> None:
    world.start("j", "[ $RANK = 0 ] || until [ -e go ]; do sleep 0.05; done", gpus=2)
    pid = world.worker("j", 0)
    world.until(lambda: not alive(pid))
    assert alive(world.worker("j", 1))
    (world.work / "go").touch()
    assert world.exit("j").code == 0


def test_a_command_that_is_not_there_fails_for_good(world: World) -> None:
    world.start("j", ("/nowhere/train", "--fast"))
    end = world.exit("j")
    assert (end.code, end.final) == (127, True)
    assert end.detail == "cannot run /nowhere/train: No such file or directory"


def test_a_command_that_may_not_be_run_fails_for_good(world: World) -> None:
    (world.work / "data.csv").write_text("1,2\n")
    world.start("j", (str(world.work / "data.csv"),), gpus=2)
    end = world.exit("j")
    assert (end.code, end.final) == (127, True)
    assert "Permission denied" in end.detail


def test_what_no_environment_can_hold_fails_for_good(world: World) -> None:
    world.start("j", "true", env={"BAD": "nul\0byte"})
    end = world.exit("j")
    assert (end.code, end.final) == (127, True)
    assert "null byte" in end.detail


def test_a_directory_that_is_not_there_fails_for_good(world: World) -> None:
    world.start("j", "true", workdir="/nowhere/at/all")
    end = world.exit("j")
    assert (end.code, end.final) == (1, True)
    assert end.detail == "there is no directory /nowhere/at/all; change workdir"


def test_a_large_environment_goes_through(world: World) -> None:
    world.start("j", "echo ${#LONG_19}", env={f"LONG_{place}": "x" * 60_000 for place in range(20)})
    assert world.exit("j").code == 0
    assert world.log("j") == "60000\n"


# -- setup ---------------------------------------------------------------------------------------------------------


def test_setup_runs_once_before_all_ranks(world: World) -> None:
    world.start("j", "cat made", setup="echo $FAIRLEAD_JOB_ID >> made; echo setting up", gpus=3)
    assert world.exit("j").code == 0
    assert [world.log("j", rank) for rank in range(3)] == ["j\n"] * 3
    assert (world.backend.files("j", 1).logs / "setup.log").read_text() == "setting up\n"


def test_what_setup_left_running_is_there_for_the_job_and_gone_after_it(world: World) -> None:
    setup = "(setsid bash -c 'echo $$ >> service; exec sleep 1000' >/dev/null 2>&1 &); until [ -s service ]; do :; done"
    world.start("j", "kill -0 $(cat service) && echo served", setup=setup)
    assert world.exit("j").code == 0
    assert world.log("j") == "served\n"
    assert not alive(world.pids("service")[0])


@pytest.mark.parametrize(("setup", "code"), [("true; false; true", 1), ("exit 4 | cat", 4), ("kill -KILL $$", 137)])
def test_a_setup_that_fails_ends_the_attempt(world: World, setup: str, code: int) -> None:
    world.start("j", "touch ran", setup=setup)
    end = world.exit("j")
    assert (end.code, end.final) == (code, False)
    assert end.detail.startswith(f"setup ended with exit code {code}")
    assert not (world.work / "ran").exists()
    assert not world.heard("j", JobStarted)


def test_a_setup_that_no_process_could_be_started_for_fails_for_good(world: World) -> None:
    world.start("j", "touch ran", setup="true", env={"BAD": "nul\0byte"})
    end = world.exit("j")
    assert (end.code, end.final) == (127, True)
    assert end.detail == "cannot run setup: embedded null byte in its script or environment"
    assert not (world.work / "ran").exists()


def test_a_stop_ends_the_setup_and_the_job_never_runs(world: World) -> None:
    world.start("j", "touch ran", setup="trap '' TERM; sleep 1000 & echo $! >> pids; wait")
    (sleeper,) = world.pids("pids")
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert not alive(sleeper)
    assert not (world.work / "ran").exists()


# -- limits --------------------------------------------------------------------------------------------------------


def test_who_takes_too_long_is_asked_and_then_ended_with_124(world: World) -> None:
    script = "trap 'cat $FAIRLEAD_PREEMPT_FILE; exit 0' TERM; while :; do sleep 0.05; done"
    world.start("j", script, time_limit_s=1.0)
    end = world.exit("j")
    assert (end.code, end.final) == (124, True)
    assert end.detail == "time limit reached"
    assert '"why": "time limit reached"' in world.log("j")


def test_a_setup_counts_against_the_time_limit(world: World) -> None:
    world.start("j", "touch ran", setup="sleep 1000", time_limit_s=0.3)
    assert world.exit("j").code == 124
    assert not (world.work / "ran").exists()


def test_a_time_limit_that_comes_while_a_job_is_stopped_for_others_is_not_held_against_it(world: World) -> None:
    script = "trap 'until [ -e go ]; do sleep 0.05; done; exit 143' TERM; touch ready; while :; do sleep 0.05; done"
    world.start("j", script, time_limit_s=3.0)
    world.until(lambda: (world.work / "ready").exists())
    world.stop("j", grace_s=60.0)
    began = world.lines("j")[0]["at"]
    world.until(lambda: world.backend.inbox.clock.now() > began + 3.5)
    (world.work / "go").touch()
    assert isinstance(world.end("j"), JobStopped)


def test_a_job_is_nice_and_keeps_to_its_processors(world: World) -> None:
    mine = min(os.sched_getaffinity(0))
    script = f"""until [ "$(nice)" = 7 -a "$(taskset -pc $$ | sed 's/.*: //')" = {mine} ]; do sleep 0.05; done; nice"""
    world.start("j", script, nice=7, cpus=((mine,), (), (), ()))
    assert world.exit("j").code == 0
    assert world.log("j") == "7\n"


def test_a_killed_worker_is_a_failure_that_is_told_once(world: World) -> None:
    world.start("j", "(setsid bash -c 'echo $$ >> daemons; exec sleep 1000' &); sleep 1000 & sleep 1000", gpus=2)
    daemons = world.pids("daemons", 2)
    kill(world.worker("j", 1), signal.SIGKILL)
    end = world.exit("j")
    assert (end.code, end.detail) == (137, "rank 1 was killed by SIGKILL; perhaps memory ran out")
    assert not any(alive(pid) for pid in daemons)


def test_jobs_that_are_packed_onto_one_gpu_run_side_by_side(world: World) -> None:
    """Which is what `can` promises of this backend."""
    assert Capability.PACKING in world.backend.can
    each_waits_for_the_other = "touch {}; until [ -e {} ]; do sleep 0.05; done"
    world.start("a", each_waits_for_the_other.format("a", "b"), gpus=world.gpus(0))
    world.start("b", each_waits_for_the_other.format("b", "a"), gpus=world.gpus(0))
    assert world.exit("a").code == 0
    assert world.exit("b").code == 0
