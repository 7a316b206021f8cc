"""The job file: what a person writes about a job, read from YAML or JSON with every mistake told at once.

`request.py` has the nouns, `fields.py` the table of fields that everything else is driven by, `reading.py` the way in
and out, and `ready.py` the way to a `JobSpec`. Nothing here touches a disk or a network.
"""

from fairlead.jobfile.command import command_of, shell_command
from fairlead.jobfile.fields import FIELDS, schema
from fairlead.jobfile.launch import Choice, launch_of
from fairlead.jobfile.reading import parse_job, request_from, to_data
from fairlead.jobfile.ready import (
    check_ready,
    expand,
    resolve_deadline,
    resolve_paths,
    to_spec,
)
from fairlead.jobfile.request import AUTO_MOST, Gpus, InvalidJob, JobRequest, Problem
from fairlead.jobfile.sizes import parse_array, parse_gpus
from fairlead.jobfile.times import deadline_at, parse_duration
from fairlead.jobfile.values import MOST_BYTES

__all__ = [
    "AUTO_MOST",
    "FIELDS",
    "MOST_BYTES",
    "Choice",
    "Gpus",
    "InvalidJob",
    "JobRequest",
    "Problem",
    "check_ready",
    "command_of",
    "deadline_at",
    "expand",
    "launch_of",
    "parse_array",
    "parse_duration",
    "parse_gpus",
    "parse_job",
    "request_from",
    "resolve_deadline",
    "resolve_paths",
    "schema",
    "shell_command",
    "to_data",
    "to_spec",
]
