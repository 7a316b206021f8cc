"""What this machine has, as `fairlead doctor` looks at it: packages, GPUs, and what the system allows."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fairlead import __version__
from fairlead.backends import cgroup
from fairlead.backends.machine import find_gpus, users_of_gpus
from fairlead.backends.processes import is_of_a_job

OK, WARNING, PROBLEM = "ok", "warning", "problem"

SERVER_PACKAGES = ("alembic", "fastapi", "prometheus_client", "sqlalchemy", "uvicorn")

#: Less than this is too little for the batches of data loaders.
_LITTLE_SHM = 2**30
_FEW_FILES = 1024

#: In a process of its own: to import torch takes seconds, and can fail in ways that end a process.
_IMPORT_TORCH = (
    "import torch, fairlead.train; print(torch.__version__, int(torch.cuda.is_available()), torch.cuda.device_count())"
)
_IMPORT_S = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    status: str
    text: str
    remedy: str = ""


def everything() -> Iterator[Finding]:
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        *(_python, _server_packages, _torch, _gpus, _strangers, _shared_memory, _open_files, _control_groups, _clock),
    )
    for check in checks:
        try:
            yield from check()
        except OSError as error:
            name = check.__name__.strip("_").replace("_", " ")
            yield Finding(name, WARNING, f"cannot be looked at: {error}")


def missing(packages: Sequence[str]) -> list[str]:
    """Those that are not installed."""
    return [package for package in packages if find_spec(package) is None]


def _python() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("versions", OK, f"Fairlead {__version__}, Python {platform.python_version()}, {system}")
    if platform.system() != "Linux":
        yield Finding(
            "system", PROBLEM, "jobs are run on Linux only", "use a Linux machine; the simulator runs anywhere"
        )


def _server_packages() -> Iterator[Finding]:
    if lacking := missing(SERVER_PACKAGES):
        told = f"{', '.join(lacking)}: not installed"
        yield Finding("server packages", PROBLEM, told, "pip install 'fairlead[server]'")
    else:
        known = ", ".join(f"{name} {_version(name)}" for name in ("fastapi", "sqlalchemy", "uvicorn"))
        yield Finding("server packages", OK, known)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _torch() -> Iterator[Finding]:
    remedy = "pip install 'fairlead[train]'"
    if find_spec("torch") is None:
        told = "not installed here; elastic jobs need it in the environment they run in"
        yield Finding("torch", WARNING, told, remedy)
        return
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT_TORCH], capture_output=True, text=True, timeout=_IMPORT_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding("torch", PROBLEM, f"could not be imported within {_IMPORT_S:g} s", "look at the disk it is on")
        return
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("torch", PROBLEM, f"with fairlead.train it cannot be imported: {last}", remedy)
        return
    torch, usable, count = done.stdout.split()[-3:]
    if find_gpus() and usable == "0":
        told = f"{torch} cannot use the GPUs of this machine"
        yield Finding("torch", PROBLEM, told, "install a build for this driver: https://pytorch.org/get-started")
    else:
        sees = f"sees {count} GPUs" if usable == "1" else "without GPUs"
        yield Finding("torch", OK, f"{torch}, {sees}; fairlead.train can be imported")


def _gpus() -> Iterator[Finding]:
    if found := find_gpus():
        names = ", ".join(sorted({gpu.name for gpu in found}))
        yield Finding("GPUs", OK, f"{len(found)} ({names})")
        return
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if devices and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        told = f"{len(devices)} are there, but CUDA_VISIBLE_DEVICES hides them"
        yield Finding("GPUs", WARNING, told, "unset CUDA_VISIBLE_DEVICES")
    elif devices:
        told = f"{len(devices)} are there, but NVML does not answer"
        remedy = (
            "pip install nvidia-ml-py" if find_spec("pynvml") is None else "run nvidia-smi: the driver may be broken"
        )
        yield Finding("GPUs", PROBLEM, told, remedy)
    else:
        yield Finding("GPUs", OK, f"none; the {cores} CPU cores stand in for them, for trying things out")


def _strangers() -> Iterator[Finding]:
    """Processes on GPUs that no job of ours started."""
    busy = {uuid: sorted(pid for pid in pids if not is_of_a_job(pid)) for uuid, pids in users_of_gpus().items()}
    found = sorted({pid for pids in busy.values() for pid in pids})
    if found:
        on = sum(1 for pids in busy.values() if pids)
        told = f"{len(found)} processes that Fairlead did not start use {on} GPUs: {', '.join(map(str, found[:10]))}"
        yield Finding(
            "others on GPUs", WARNING, told, "jobs may run out of memory there; ask their owners, or --gpus N"
        )
    elif busy:
        yield Finding("others on GPUs", OK, "nobody")


def _shared_memory() -> Iterator[Finding]:
    place = Path("/dev/shm")
    if not place.is_dir():
        yield Finding("shared memory", WARNING, "there is no /dev/shm", "data loaders with workers need it; mount it")
        return
    usage = shutil.disk_usage(place)
    told = f"/dev/shm: {usage.free / 2**30:.1f} GiB of {usage.total / 2**30:.1f} GiB are free"
    if usage.free < _LITTLE_SHM:
        remedy = "data loaders with workers may fail; mount -o remount,size=8G /dev/shm, or docker run --shm-size=8g"
        yield Finding("shared memory", WARNING, told, remedy)
    else:
        yield Finding("shared memory", OK, told)


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = f"{_limit(soft)}, and at most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        remedy = "ulimit -n 4096 before `fairlead up`, or LimitNOFILE=65536 in its unit"
        yield Finding("open files", WARNING, told, remedy)
    else:
        yield Finding("open files", OK, told)


def _control_groups() -> Iterator[Finding]:
    """Never needed: so no finding is a problem."""
    where = cgroup.where_made()
    if where is not None:
        yield Finding("control groups", OK, f"each attempt of a job has one, below {where}")
    else:
        told = (
            "none may be made by this account; what a job starts is known by its parents, by a record and by a cookie"
        )
        yield Finding("control groups", OK, told)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _clock() -> Iterator[Finding]:
    if time.gmtime().tm_year < 2024:
        yield Finding("clock", PROBLEM, f"it says {time.strftime('%Y-%m-%d')}", "set it: deadlines go by it")
        return
    program = shutil.which("timedatectl")
    if program is not None:
        asked = [program, "show", "--property=NTPSynchronized", "--value"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10.0, check=False)
        if done.stdout.strip() == "no":
            yield Finding("clock", WARNING, "it is not synchronised", "timedatectl set-ntp true")
            return
    yield Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S %Z"))
