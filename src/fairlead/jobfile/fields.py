"""The table of fields. Reading, writing, the JSON Schema and the manual all follow it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from dataclasses import fields as fields_of
from typing import Any

from fairlead.jobfile.forms import (
    INK,
    LINE,
    LINES,
    Form,
    as_text,
    choice,
    flag,
    many,
    mapping,
    number,
    one_or_many,
    optional,
    text,
    whole,
)
from fairlead.jobfile.request import JobRequest
from fairlead.jobfile.sizes import array, batch, gpus
from fairlead.jobfile.times import deadline, duration
from fairlead.jobfile.values import Kind, Value

DAY_S = 86400.0
#: A wait before a retry doubles up to this, so a longer one could not be kept.
MOST_BACKOFF_S = 300.0

#: The system hands a program no word of more than 128 KiB, and a character takes up to four bytes.
MOST_CHARACTERS = 32_000

#: What every worker is told by these names; a job that set them would break its own rendezvous.
TAKEN = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
)
TAKEN_PREFIXES = ("FAIRLEAD_", "TORCHELASTIC_")

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
_FREE = rf"(?!{'|'.join(TAKEN_PREFIXES)}|(?:{'|'.join(TAKEN)})$){_VARIABLE}"
_WORD = r"[A-Za-z0-9._/-]{1,63}"

_SCRIPT = text(
    f"{LINES}*{INK}{LINES}*",
    most=MOST_CHARACTERS,
    expected=f"a command of at most {MOST_CHARACTERS} characters and no control characters",
)
_ARGUMENT = text(
    f"{LINES}*",
    most=MOST_CHARACTERS,
    expected=f"a text of at most {MOST_CHARACTERS} characters and no control characters",
)


def _taken(name: str) -> str:
    if not re.fullmatch(_VARIABLE, name):
        return ""
    return "Fairlead sets it for every worker; choose another name"


def _variables() -> Form:
    names = "letters, digits and _, with no digit first"
    return mapping(_FREE, as_text(_ARGUMENT), most=1000, expected=names, refuse=_taken)


def _run() -> Form:
    words = many(_ARGUMENT, most=10_000, least=1, repeats=True)
    program = text(f"{LINE}*{INK}{LINE}*", most=MOST_CHARACTERS, expected="the name of a program")

    def read(value: Value, place: str) -> Any:
        if value.kind is not Kind.LIST:
            return _SCRIPT.read(value, place)
        found = words.read(value, place)
        program.read(value.items[0], f"{place}[0]")
        return found

    schema = {"anyOf": [_SCRIPT.schema, {**words.schema, "prefixItems": [program.schema]}]}
    return Form(read, schema, lambda run: run if isinstance(run, str) else list(run))


def _workdir() -> Form:
    form = optional(
        text(
            f"(?!~[^/]){LINE}+",
            most=4096,
            expected="a path such as /data/run, ~/run or run, without control characters",
        )
    )

    def read(value: Value, place: str) -> Any:
        home = value.kind is Kind.PLAIN and value.text == "~"  # to YAML it is nothing, to a person it is home
        return "~" if home else form.read(value, place)

    return Form(read, form.schema)


@dataclass(frozen=True)
class Field:
    """One line of the table: a name, its form, and what it is for."""

    name: str
    form: Form
    about: str


FIELDS = (
    Field(
        "name",
        text(f"{LINE}*", most=128, expected="at most 128 printable characters"),
        "What people call the job. It need not be unique.",
    ),
    Field(
        "run",
        _run(),
        "The command. A list runs as it is, without a shell; a text with shell syntax or several lines is a "
        "bash script that ends at its first error.",
    ),
    Field(
        "setup",
        text(f"{LINES}*", most=MOST_CHARACTERS, expected="a script without control characters"),
        "A bash script that runs before the command in every attempt.",
    ),
    Field(
        "workdir",
        _workdir(),
        "The directory it runs in: absolute, below ~, or relative to where the job is submitted from.",
    ),
    Field("env", _variables(), "Environment variables. Numbers and switches are the text that was written."),
    Field("secrets", _variables(), "Environment variables whose values are shown to nobody."),
    Field("gpus", gpus(), "How many GPUs: a number, a range such as 1-8 for an elastic job, or auto."),
    Field(
        "gpu_type",
        one_or_many(text(f"{LINE}*{INK}{LINE}*", most=63, expected="the name of a GPU type"), most=64),
        "The types of GPU it accepts; it runs on one of them at a time. None means any.",
    ),
    Field(
        "elastic",
        choice("in-place", "restart"),
        "How a job with a range of GPUs, or auto, changes its number: without a restart, or from its checkpoint.",
    ),
    Field(
        "launch",
        optional(choice("per-gpu", "once")),
        "How often the command is started: on each of its GPUs, or once with all of them. Left out, it is once for a "
        "launcher such as torchrun, for a shell line and on one GPU, and else per-gpu.",
    ),
    Field("queue", text(_WORD, most=63, expected="1 to 63 of A-Z a-z 0-9 . _ / -"), "The queue it waits in."),
    Field("priority", whole(-1_000_000, 1_000_000), "The higher, the earlier, where the policy heeds priorities."),
    Field("weight", number(0.0, 1e6, above=True), "Its share, where the policy divides GPUs by shares."),
    Field("preemptible", flag(), "Whether its GPUs may be taken away once it runs."),
    Field(
        "batch",
        optional(batch()),
        "Bounds of the global batch size within which the job may retune it: 64 is where it begins, 64-4096 also how "
        "large it may grow, and a mapping of initial, max, min_per_gpu and max_per_gpu says it all.",
    ),
    Field(
        "deadline",
        optional(deadline()),
        "When it should be done: a time of day, a date (its end), a date and time, or +6h from its submission.",
    ),
    Field("budget", optional(number(0.0, 1e12)), "The most it may cost, in the unit of the nodes' prices."),
    Field("time_limit", optional(duration(least=1.0, most=3650 * DAY_S)), "How long it may run in all."),
    Field("max_restarts", whole(0, 1_000_000), "How many attempts may fail before the job has failed."),
    Field(
        "restart_on",
        one_or_many(whole(1, 255), most=255),
        "The exit codes after which it is tried again. None means any but 0.",
    ),
    Field("backoff", duration(most=MOST_BACKOFF_S), "The wait before the first retry; it doubles up to 5 minutes."),
    Field("grace_period", duration(most=DAY_S), "The time from SIGTERM to SIGKILL when it has to stop."),
    Field(
        "depends_on",
        one_or_many(as_text(text(r"[!-~]{1,128}", most=128, expected="the id of a job")), most=1000),
        "The jobs that have to succeed first, by their ids; the number of an array means all its jobs.",
    ),
    Field("array", array(), "Runs it once for each index: 10 is 0 to 9; 3-7 and [1, 5, 7] name them."),
    Field(
        "labels",
        mapping(
            _WORD,
            as_text(text(f"{LINE}*", most=256, expected="at most 256 printable characters")),
            most=64,
            expected="1 to 63 of A-Z a-z 0-9 . _ / -",
        ),
        "Words to find it by. They change nothing.",
    ),
)

BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}

#: What other systems call these fields.
ALSO_CALLED = {
    **dict.fromkeys(("cmd", "command", "commands", "entrypoint", "script", "args"), "run"),
    **dict.fromkeys(("num_gpus", "gpu", "gpu_count", "accelerators", "resources", "nproc_per_node"), "gpus"),
    **dict.fromkeys(("cwd", "chdir", "working_dir", "working_directory"), "workdir"),
    **dict.fromkeys(("partition",), "queue"),
    **dict.fromkeys(("time", "timeout", "walltime", "max_runtime"), "time_limit"),
    **dict.fromkeys(("retries", "max_retries"), "max_restarts"),
    **dict.fromkeys(("dependency", "dependencies", "needs"), "depends_on"),
    **dict.fromkeys(("environment",), "env"),
    **dict.fromkeys(("batch_size",), "batch"),
}


#: What a field is when it is not given; MISSING if it has to be.
DEFAULTS: Mapping[str, Any] = {
    f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields_of(JobRequest)
}


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a job."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Fairlead job",
        "description": "What a job file holds. Whole numbers go up to 2^53.",
        "type": "object",
        "properties": {field.name: _property(field) for field in FIELDS},
        "required": [name for name, value in DEFAULTS.items() if value is MISSING],
        "additionalProperties": False,
    }


def _property(field: Field) -> dict[str, Any]:
    described = {"description": field.about, **field.form.schema}
    value = DEFAULTS[field.name]
    if value is not MISSING and value is not None:
        described["default"] = field.form.write(value)
    return described
