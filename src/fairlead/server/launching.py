"""From a job as it was handed in to what a supervisor is told to run: its command, its directory, its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.backends.machine import Machine
from fairlead.backends.task import Task
from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import Start
from fairlead.core.types import Job, Launch
from fairlead.jobfile import JobRequest, command_of
from fairlead.server.resources import request_of
from fairlead.server.store import JobRow

#: What a job gets of the service's own environment. All else may hold what is not its business.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME"),
)


@dataclass(frozen=True, kw_only=True)
class LaunchRules:
    """How jobs are run here."""

    #: Seconds between two reports of an elastic job.
    report_s: float = 2.0
    nice: int = 5
    #: From being asked to stop until being killed, of a job that says nothing else.
    grace_s: float = 30.0
    #: Of every job, unless it says otherwise.
    default_env: Mapping[str, str] = field(default_factory=dict)
    #: A working directory has to be in one of these; empty means anywhere.
    work_roots: tuple[str, ...] = ()


def task_of(row: JobRow, command: Start, job: Job, *, machine: Machine, root: Path, rules: LaunchRules) -> Task:
    """Raises InvalidSpec if it cannot run at all."""
    request = request_of(row)
    limit_s = request.time_limit
    return Task(
        job=row.id,
        attempt=command.attempt,
        command=command_of(request),
        setup=request.setup,
        workdir=str(_workdir(request, row.id, root, rules)),
        env=_environment(request, row, machine, rules),
        places=tuple(machine.places(command.allocation)),
        devices=machine.devices,
        elastic=job.spec.in_place and job.spec.launch is Launch.PER_GPU,
        launch=job.spec.launch,
        pinned=job.spec.in_place and job.spec.launch is Launch.ONCE,
        delay_s=max(0.0, job.not_before - command.at),
        max_restarts=request.max_restarts,
        restart_on=request.restart_on,
        grace_s=request.grace_period if "grace_period" in row.document else rules.grace_s,
        time_limit_s=None if limit_s is None else max(0.0, limit_s - job.run_at(command.at)),
        nice=rules.nice,
        cpus=machine.cpus,
        gpu_types={node.id: node.gpu_type for node in machine.nodes},
        cpu_shares=machine.cpu_shares,
    )


def _workdir(request: JobRequest, job_id: str, root: Path, rules: LaunchRules) -> Path:
    if request.workdir is None:
        own = root / job_id / "work"
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        return own
    path = Path(os.path.realpath(Path(request.workdir).expanduser()))
    if rules.work_roots and not any(path.is_relative_to(os.path.realpath(each)) for each in rules.work_roots):
        raise InvalidSpec(f"workdir {request.workdir} is outside of {', '.join(rules.work_roots)}, where jobs may work")
    return path


def _environment(request: JobRequest, row: JobRow, machine: Machine, rules: LaunchRules) -> dict[str, str]:
    own = {
        "FAIRLEAD_REPORT_S": f"{rules.report_s:g}",
        "FAIRLEAD_USER": row.user,
        "FAIRLEAD_QUEUE": row.queue,
        "FAIRLEAD_JOB_NAME": row.name,
        "PYTHONUNBUFFERED": "1",  # who follows a log wants to see lines as they are printed
    }
    if row.element is not None:
        own["FAIRLEAD_ARRAY_INDEX"] = str(row.element)
    if (batch := request.batch) is not None:
        own["FAIRLEAD_BATCH"] = f"{batch.initial}" + ("" if batch.max_total is None else f"-{batch.max_total}")
    threads = {} if machine.devices is not None else {"OMP_NUM_THREADS": "1"}  # a slot is one core
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**passed_on, **threads, **rules.default_env, **request.env, **request.secrets, **own}
