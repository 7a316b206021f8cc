"""From a job file and options to a request: options win over the file, and the file over the environment."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fairlead.core.errors import InvalidSpec
from fairlead.jobfile import MOST_BYTES, JobRequest, parse_job, request_from, resolve_deadline, resolve_paths, to_data

Command = TypeVar("Command", bound=Callable[..., Any])

#: What of the submitter's environment goes along, so that the same Python and the same libraries are found.
GOES_ALONG = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")

#: The key under which a command line keeps what stands after `--`.
_AFTER = f"{__name__}.after"

#: Each is the option of a field of the job file. `grace_period` is the one whose name is shorter here.
_OPTIONS = (
    click.option("--name", metavar="TEXT", help="What people call the job."),
    click.option("--gpus", metavar="N|A-B|auto", help="How many GPUs; a range or auto for an elastic job."),
    click.option("--gpu-type", multiple=True, metavar="TYPE", help="A type of GPU it accepts; can be repeated."),
    click.option("--elastic", metavar="HOW", help="How an elastic job changes its GPUs: in-place or restart."),
    click.option("--launch", metavar="HOW",
                 help="How often the command is started: per-gpu or once.  [default: once for a launcher such as "
                 "torchrun, a shell line and one GPU; else per-gpu]"),
    click.option("--queue", metavar="NAME", help="The queue it waits in."),
    click.option("--priority", type=int, metavar="N", help="The higher, the earlier."),
    click.option("--weight", type=float, metavar="W", help="Its share, where GPUs are divided by shares."),
    click.option("--no-preempt", "preemptible", flag_value=False, default=None, type=bool,
                 help="Its GPUs may not be taken away once it runs."),
    click.option("--batch", metavar="N|A-B", help="Global batch size: where it begins, and how large it may grow."),
    click.option("--deadline", metavar="WHEN", help="When it should be done: 18:00, +6h or 2026-11-20T18:00."),
    click.option("--budget", type=float, metavar="COST", help="The most it may cost."),
    click.option("--time-limit", metavar="TIME", help="How long it may run in all: 90m, 2h30m, 1d."),
    click.option("--max-restarts", type=int, metavar="N", help="How many attempts may fail before the job has failed."),
    click.option("--restart-on", type=int, multiple=True, metavar="CODE",
                 help="An exit code after which it is tried again; can be repeated.  [default: any but 0]"),
    click.option("--backoff", metavar="TIME", help="The wait before the first retry."),
    click.option("--grace", "grace_period", metavar="TIME", help="From SIGTERM to SIGKILL when it has to stop."),
    click.option("--depends-on", multiple=True, metavar="ID", help="A job that has to succeed first; can be repeated."),
    click.option("--array", metavar="N|A-B|I,J,...", help="Runs it once for each index."),
    click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="To find it by; can be repeated."),
    click.option("--env", "env", multiple=True, metavar="KEY=VALUE", help="An environment variable; can be repeated."),
    click.option("--secret", "secrets", multiple=True, metavar="KEY",
                 help="An environment variable that is shown to nobody. Its value is taken from your environment, or "
                 "asked for; can be repeated."),
    click.option("--workdir", metavar="DIR", help="The directory it runs in.  [default: this one]"),
    click.option("--setup", metavar="SCRIPT", help="A bash script that runs before the command in every attempt."),
    click.option("--clean-env", is_flag=True, help=f"Do not hand on your {', '.join(GOES_ALONG)}."),
)  # fmt: skip


def job_options(command: Command) -> Command:
    """FILE, and an option for each field of the job file."""
    for option in reversed((click.argument("file", required=False, metavar="[FILE]"), *_OPTIONS)):
        command = option(command)
    return command


class BeforeDashes(click.Command):
    """A command line whose words after `--` are a command of somebody else's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_AFTER] = tuple(args[place + 1 :])
            args = args[:place]
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            words = [word for word in given if not word.startswith("-")]
            if _AFTER in ctx.meta or not words or Path(words[0]).is_file():
                raise
            hint = f"A command comes after --, as in: {ctx.command_path} -- python train.py"
            raise click.UsageError(f"{error.format_message().rstrip('.')}. {hint}", ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def request_of(ctx: click.Context, *, file: str | None, clean_env: bool, **options: Any) -> JobRequest:
    """What a command line asks for, ready to be sent. Raises InvalidJob with every problem of the file at once."""
    command: tuple[str, ...] | None = ctx.meta.get(_AFTER)
    if command is not None and not command:
        raise InvalidSpec("there is no command after --; expected: fairlead submit [options] -- python train.py")
    if file is None and command is None:
        raise InvalidSpec("there is no job; expected a FILE, or a command after --: fairlead submit -- python train.py")
    if file is not None and command is not None:
        raise InvalidSpec(f"both the file {file} and a command after -- are given; a job has one of them")
    given = {"run": list(command)} if file is None and command is not None else _from_file(file or "")
    data = _merged(given, options)
    if not clean_env:
        data["env"] = {**_going_along(os.environ, data.get("secrets", {})), **data.get("env", {})}
    request = resolve_paths(request_from(data), Path.cwd())
    if (request.deadline or "+").startswith("+"):
        return request  # it counts from when the server takes it, and a repeated submission stays the same
    return resolve_deadline(request, time.time())


def _from_file(file: str) -> dict[str, Any]:
    source = "standard input" if file == "-" else file
    text = sys.stdin.buffer.read(MOST_BYTES + 1) if file == "-" else _contents(file)
    if len(text) > MOST_BYTES:
        raise InvalidSpec(f"{source} is larger than {MOST_BYTES} bytes; a job file is a page of text")
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"{source} is no text: byte {error.start + 1} is not UTF-8") from None
    return to_data(parse_job(decoded, source=source), secrets=True)


def _contents(file: str) -> bytes:
    """What is in a file, up to a byte more than a job file may have. Whatever has no end, or none yet, is not read."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            kind = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(kind) and not _is_substituted(file, kind):
                what = next((name for is_it, name in _KINDS if is_it(kind)), "no file")
                raise InvalidSpec(f"{file} is {what}; expected a regular file, or - for standard input")
            os.set_blocking(opened.fileno(), True)
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidSpec(f"cannot read {file}: {error.strerror}{_perhaps_a_command(file)}") from None


_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def _is_substituted(file: str, kind: int) -> bool:
    """Is it a pipe of the shell's: `fairlead submit <(make-job)`, or /dev/stdin?"""
    return stat.S_ISFIFO(kind) and os.path.dirname(os.path.abspath(file)) in ("/dev", "/dev/fd", "/proc/self/fd")


def _perhaps_a_command(file: str) -> str:
    known = any((Path(place) / file).is_file() for place in os.environ.get("PATH", "").split(os.pathsep) if place)
    return "; a command comes after --, as in: fairlead submit -- python train.py" if known else ""


def _merged(data: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """With the options that were given. Mappings grow by them; anything else is replaced."""
    merged = dict(data)
    for field, value in options.items():
        if value is None or value == ():
            continue
        if field in ("env", "labels"):
            merged[field] = {**merged.get(field, {}), **dict(_pair(f"--{field.removesuffix('s')}", v) for v in value)}
        elif field == "secrets":
            merged[field] = {**merged.get(field, {}), **{name: _secret(name) for name in value}}
        elif field == "array":
            merged[field] = _indices(value)
        else:
            merged[field] = list(value) if isinstance(value, tuple) else value
    return merged


def _pair(option: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        hint = ' To hand on a variable of your own: --env KEY="$KEY"' if option == "--env" else ""
        raise InvalidSpec(f"{option} is {text!r}; expected KEY=VALUE.{hint}")
    return key, value


def _secret(name: str) -> str:
    if "=" in name:
        key = name.partition("=")[0]
        raise InvalidSpec(
            f"--secret takes a name without a value, as others can read command lines; "
            f"set {key} in your environment and give: --secret {key}"
        )
    if name in os.environ:
        return os.environ[name]
    if not sys.stdin.isatty():
        raise InvalidSpec(f"the secret {name} is not in your environment, and there is no terminal to ask for it")
    return str(click.prompt(name, hide_input=True, err=True))


def _indices(text: str) -> str | list[int]:
    if "," not in text:
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSpec(f"--array is {text!r}; expected 10, 3-7 or 1,5,7") from None


def _going_along(env: Mapping[str, str], secrets: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in GOES_ALONG if name in env and name not in secrets}
