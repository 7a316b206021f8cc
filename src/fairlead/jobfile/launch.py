"""How often a command is started: on each of its GPUs, or once for all of them. What a user says counts; else a rule.

`once` for a launcher, which starts the workers itself (torchrun and its like, also behind `env`, `uv run` and so on),
for a shell line, and on one GPU; `per-gpu` for anything else. A shell line with a range of GPUs that change in place is
the exception: it most often activates an environment for a script that uses `fairlead.train`, whose workers are one on
each GPU, so that it is `once` only if it names a launcher.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.core.types import Launch
from fairlead.jobfile.command import command_of
from fairlead.jobfile.request import JobRequest

#: Programs that start the workers of a training, and the word that must follow where only one of their verbs does so.
LAUNCHERS: Mapping[str, str] = {
    **dict.fromkeys(("torchrun", "deepspeed", "horovodrun", "composer"), ""),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "jsrun", "aprun"), ""),
    "accelerate": "launch",
    "colossalai": "run",
    "fabric": "run",
    "torchx": "run",
    "fairlead": "train",
}

#: The same as modules of Python.
MODULES = frozenset(
    (
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.runner", "horovod.runner.launch", "composer.cli.launcher"),
    )
)

_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish"))
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
#: What stands between two commands of a shell line.
_SEPARATORS = re.compile(r"[;&|()\n{}]+")


@dataclass(frozen=True)
class _Wrapper:
    """A program that runs the command which follows it."""

    #: The verb with which it does so; empty if it has none.
    verb: str = ""
    #: Options whose value is the next word, and words that come before the command.
    valued: frozenset[str] = frozenset()
    words: int = 0


def _wrapper(verb: str = "", valued: str = "", words: int = 0) -> _Wrapper:
    return _Wrapper(verb, frozenset(valued.split()), words)


_UV = (
    "--with --with-editable --with-requirements --extra --no-extra --group --no-group --only-group --env-file -p "
    "--python --package --project --directory --index --default-index -i --index-url --extra-index-url -C -P -f"
)
_WRAPPERS: Mapping[str, _Wrapper] = {
    **dict.fromkeys(("nohup", "setsid", "time", "command", "exec", "catchsegv"), _wrapper()),
    "env": _wrapper(valued="-u --unset -C --chdir"),
    "nice": _wrapper(valued="-n --adjustment"),
    "ionice": _wrapper(valued="-c --class -n --classdata"),
    "timeout": _wrapper(valued="-s --signal -k --kill-after", words=1),
    "stdbuf": _wrapper(valued="-i --input -o --output -e --error"),
    "taskset": _wrapper(words=1),
    "numactl": _wrapper(valued="-N --cpunodebind -m --membind -C --physcpubind -i --interleave -p --preferred"),
    "nsys": _wrapper("profile", "-o --output -t --trace -s --sample -c --capture-range -w --show-output"),
    "uv": _wrapper("run", _UV),
    **dict.fromkeys(("poetry", "pipenv", "pdm", "hatch", "rye"), _wrapper("run", "-p --project -C -P --directory")),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _wrapper("run", "-n --name -p --prefix --cwd")),
    "pixi": _wrapper("run", "-e --environment --manifest-path"),
    **dict.fromkeys(
        ("apptainer", "singularity"), _wrapper("exec", "-B --bind --env --pwd --workdir -H --home", words=1)
    ),
}


@dataclass(frozen=True)
class Choice:
    """How a command is launched, and why, in a clause. `stated` by its user, or else by the rule above."""

    launch: Launch
    why: str
    stated: bool = False


def launch_of(request: JobRequest) -> Choice:
    """How its command is launched."""
    if request.launch is not None:
        return Choice(Launch(request.launch), "its user says so", stated=True)
    if request.gpus.most == 1:
        return Choice(Launch.ONCE, "it has one GPU")
    command = command_of(request)
    if launcher := launcher_in(command):
        return Choice(Launch.ONCE, f"{launcher} starts the workers itself")
    line = shell_line(command)
    if line is not None and not asks_to_change_in_place(request):
        return Choice(Launch.ONCE, "it is a shell line")
    if line is not None and (launcher := next(filter(None, map(launcher_in, _commands_of(line))), "")):
        return Choice(Launch.ONCE, f"its shell line has {launcher}, which starts the workers itself")
    return Choice(Launch.PER_GPU, "it is no launcher and no shell line")


def asks_to_change_in_place(request: JobRequest) -> bool:
    """Should its GPUs change without a restart? Whether they can is known when it runs: see `JobPinned`."""
    return request.gpus.elastic and request.elastic == "in-place"


def launcher_in(command: Sequence[str]) -> str:
    """The launcher that a command is, as it is written; empty if it is none."""
    words = list(command)
    while words:
        name = words[0].rpartition("/")[2]
        if name in LAUNCHERS:
            verb = LAUNCHERS[name]
            return " ".join(filter(None, (name, verb))) if not verb or verb in words[1:2] else ""
        if _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        elif _PYTHON.fullmatch(name):
            words, module = _after_python(words[1:])
            if module:
                return f"python -m {module}" if module in MODULES else ""
            if not words or words[0].rpartition("/")[2] not in LAUNCHERS:  # as in: python /opt/venv/bin/torchrun
                return ""
        elif name in _WRAPPERS and (not _WRAPPERS[name].verb or _WRAPPERS[name].verb in words[1:]):
            words = _after(words[1:], _WRAPPERS[name])
        else:
            return ""
    return ""


def shell_line(command: Sequence[str]) -> str | None:
    """The line that a shell is given to run; empty if it is in a file. None if the command is no shell."""
    words = list(command)
    while words:
        name = words[0].rpartition("/")[2]
        if name in _SHELLS:
            return _line_of(words)
        if name.endswith(".sh"):
            return ""
        if _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        elif name in _WRAPPERS and (not _WRAPPERS[name].verb or _WRAPPERS[name].verb in words[1:]):
            words = _after(words[1:], _WRAPPERS[name])
        else:
            return None
    return None


def _line_of(shell: Sequence[str]) -> str:
    """What follows -c."""
    place = next((i for i, word in enumerate(shell) if re.fullmatch(r"-[a-z]*c", word)), len(shell))
    return shell[place + 1] if place + 1 < len(shell) else ""


def _after(words: list[str], wrapper: _Wrapper) -> list[str]:
    """The command that a wrapper with these arguments runs."""
    if wrapper.verb:
        words = words[words.index(wrapper.verb) + 1 :]
    left = wrapper.words
    while words:
        word = words[0]
        if word == "--":
            words = words[1:]
            return words[left:]
        if word in ("-m", "--module") and wrapper.verb == "run":  # uv run -m MODULE
            return ["python", *words]
        if word.startswith("-"):
            words = words[2 if word in wrapper.valued else 1 :]
        elif left > 0:
            words, left = words[1:], left - 1
        else:
            return words
    return []


def _after_python(words: list[str]) -> tuple[list[str], str]:
    """From the script on, or the module that is run."""
    while words and words[0].startswith("-"):
        if re.fullmatch(r"-[A-Za-z]*m", words[0]) or words[0] == "--module":
            return words[1:], words[1] if len(words) > 1 else "-"
        if re.fullmatch(r"-[A-Za-z]*c", words[0]):
            return [], ""
        words = words[2 if words[0] in ("-X", "-W") else 1 :]
    return words, ""


def _commands_of(line: str) -> list[list[str]]:
    """The commands of a shell line, roughly: enough to see their first words."""
    found = []
    for part in _SEPARATORS.split(line.replace("\\\n", " ")):
        try:
            found.append(shlex.split(part, comments=True))
        except ValueError:  # a quote that ends in another part
            found.append(part.split())
    return found
