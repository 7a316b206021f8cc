"""How often a command is started: what is a launcher, what a shell line, and what a user is told of the choice."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.cli.live.wording import launched
from fairlead.core.types import Launch
from fairlead.jobfile import InvalidJob, JobRequest, launch_of, request_from, to_data, to_spec

LAUNCHERS = [
    "torchrun --nproc-per-node 2 train.py",
    "/opt/venv/bin/torchrun train.py",
    "python -m torch.distributed.run train.py",
    "python3.11 -u -X dev -m torch.distributed.launch train.py",
    "python /opt/venv/bin/torchrun train.py",
    "accelerate launch train.py",
    "deepspeed train.py",
    "mpirun -np 2 python train.py",
    "mpiexec -n 2 python train.py",
    "srun python train.py",
    "horovodrun -np 2 python train.py",
    "env OMP_NUM_THREADS=1 torchrun train.py",
    "env -u LD_PRELOAD nice -n 5 srun python train.py",
    "nohup torchrun train.py",
    "timeout -k 5 1h mpirun python train.py",
    "uv run torchrun train.py",
    "uv run --python 3.11 -- torchrun train.py",
    "uv run -m torch.distributed.run train.py",
    "poetry run accelerate launch train.py",
    "conda run -n pytorch --no-capture-output torchrun train.py",
    "fairlead train --workers 2 -- python train.py",
]
LINES = [
    'python train.py --data "$DATA"',
    "cd run && torchrun train.py",
    "OMP_NUM_THREADS=1 torchrun train.py",
    ["sh", "-c", "python train.py"],
    ["/bin/bash", "-lc", "python train.py"],
    ["env", "A=1", "bash", "-c", "python train.py"],
    "bash train.sh",
    "./train.sh",
]
OTHERS = [
    "python train.py",
    "python -m train",
    ["python", "-c", "import torch.distributed.run"],
    "uv run --with deepspeed python train.py",
    "accelerate config",
    "python train.py --launcher torchrun",
    "./train",
]


def asked(run: Any, **fields: Any) -> JobRequest:
    return request_from({"run": run, **fields})


@pytest.mark.parametrize("run", [*LAUNCHERS, *LINES], ids=str)
def test_a_launcher_and_a_shell_line_are_started_once(run: Any) -> None:
    assert launch_of(asked(run, gpus=2)).launch is Launch.ONCE


@pytest.mark.parametrize("run", OTHERS, ids=str)
def test_any_other_command_is_started_on_each_gpu_unless_it_has_one(run: Any) -> None:
    assert launch_of(asked(run, gpus=2)).launch is Launch.PER_GPU
    assert launch_of(asked(run, gpus=1)).launch is Launch.ONCE


@pytest.mark.parametrize("run", LAUNCHERS, ids=str)
def test_a_launcher_with_a_range_of_gpus_is_started_once_as_well(run: Any) -> None:
    spec = to_spec(asked(run, gpus="1-4"), job_id="1", user="ann", now=0.0, cluster_gpus=4)
    assert (spec.launch, spec.in_place, spec.sizes) == (Launch.ONCE, True, (1, 1, 4))


@pytest.mark.parametrize("run", OTHERS, ids=str)
def test_any_other_command_with_a_range_may_change_in_place(run: Any) -> None:
    spec = to_spec(asked(run, gpus="1-4"), job_id="1", user="ann", now=0.0, cluster_gpus=4)
    assert (spec.launch, spec.in_place) == (Launch.PER_GPU, True)


@pytest.mark.parametrize(
    ("run", "elastic", "launch"),
    [
        ("source .venv/bin/activate\npython train.py", "in-place", Launch.PER_GPU),
        ("source .venv/bin/activate\ntorchrun --nproc-per-node \\\n  $FAIRLEAD_GPUS train.py", "in-place", Launch.ONCE),
        ("source .venv/bin/activate\npython train.py", "restart", Launch.ONCE),
    ],
)
def test_a_shell_line_with_a_range_is_a_worker_of_the_library_unless_it_names_a_launcher(
    run: str, elastic: str, launch: Launch
) -> None:
    assert launch_of(asked(run, gpus="1-4", elastic=elastic)).launch is launch


def test_what_the_user_says_counts() -> None:
    assert launch_of(asked(LAUNCHERS[0], gpus=2, launch="per-gpu")).launch is Launch.PER_GPU
    assert launch_of(asked("python train.py", gpus=2, launch="once")).launch is Launch.ONCE
    request = asked("python train.py", gpus=2, launch="once")
    assert to_data(request)["launch"] == "once"
    assert request_from(to_data(request)) == request
    assert "launch" not in to_data(asked("python train.py", gpus=2))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"launch": "twice"}, "launch is the text 'twice'; expected per-gpu or once"),
        ({"launch": "once", "elastic": "in-place", "gpus": "1-4"}, "elastic: in-place needs a process on each GPU"),
    ],
)
def test_a_launch_that_cannot_be_meant_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        asked("python train.py", **fields)


@pytest.mark.parametrize(
    ("run", "fields", "told"),
    [
        (
            "torchrun train.py",
            {"gpus": 2},
            "starts it once, with its 2 GPUs: torchrun starts the workers itself (for a process on each GPU: "
            "--launch per-gpu)",
        ),
        (
            "torchrun train.py",
            {"gpus": "1-4"},
            "starts it once, with all of its GPUs: torchrun starts the workers itself; their number does not change "
            "while it runs (for a process on each GPU: --launch per-gpu)",
        ),
        (
            "python train.py",
            {"gpus": 2},
            "starts it on each of its 2 GPUs, as torchrun would (if it starts its workers itself: --launch once)",
        ),
        ("python train.py", {"gpus": 1}, ""),
        ("python train.py", {"gpus": "1-4"}, ""),
        ("torchrun train.py", {"gpus": 2, "launch": "once"}, ""),
    ],
)
def test_a_choice_that_was_made_for_the_user_is_told(run: str, fields: dict[str, Any], told: str) -> None:
    assert launched(asked(run, **fields)) == told
