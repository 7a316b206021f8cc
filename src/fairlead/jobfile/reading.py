"""From a text or a JSON value to a request, with every problem told at once; and back."""

from __future__ import annotations

from typing import Any

from fairlead.core.hints import did_you_mean
from fairlead.jobfile.fields import ALSO_CALLED, BY_NAME, DEFAULTS, FIELDS
from fairlead.jobfile.forms import problem_at
from fairlead.jobfile.request import ONE_GPU, InvalidJob, JobRequest, Problem
from fairlead.jobfile.values import Kind, Value, from_json, from_yaml, shortened


def parse_job(text: str, *, source: str = "job file") -> JobRequest:
    """Read a job file: YAML, or JSON, which is YAML too. `source` is what the message calls it, such as its path."""
    try:
        root, problems = from_yaml(text)
        return _request(root, problems)
    except InvalidJob as error:
        raise InvalidJob(error.problems, source=source) from None


def request_from(data: object) -> JobRequest:
    """Read what a JSON reader gave. Stricter than a file: a number in quotes is a text."""
    root, problems = from_json(data)
    return _request(root, problems)


def to_data(request: JobRequest, *, secrets: bool = False) -> dict[str, Any]:
    """The JSON form, without the fields that are at their default. `request_from` is its inverse.

    Without `secrets` their names stay and their values are None, so that it can be shown; such data cannot be read
    again until the values are filled in.
    """
    data = {}
    for field in FIELDS:
        value = getattr(request, field.name)
        if value != DEFAULTS[field.name]:
            data[field.name] = field.form.write(value)
    if not secrets and "secrets" in data:
        data["secrets"] = dict.fromkeys(data["secrets"])
    return data


def _request(root: Value, problems: list[Problem]) -> JobRequest:
    if root.kind is not Kind.MAPPING:
        told = [] if root.kind is Kind.UNREADABLE else [_no_mapping(root)]
        raise InvalidJob([*problems, *told])
    given = {key.text: (key, value) for key, value in root.pairs}
    found: dict[str, Any] = {}
    for name, (key, value) in given.items():
        try:
            if name not in BY_NAME:
                raise problem_at(key, name, f"there is no field {shortened(name)}{_meant(name)}")
            found[name] = BY_NAME[name].form.read(value, name)
        except InvalidJob as error:
            problems.extend(error.problems)
    if "run" not in given:
        problems.append(Problem("run", "run is missing; it is the command of the job, such as `run: python train.py`"))
    problems.extend(_contradictions(found, given))
    if problems:
        raise InvalidJob(problems)
    return JobRequest(**found)


def _no_mapping(root: Value) -> Problem:
    text = f"a job is a mapping of fields to values, such as `run: python train.py`; this is {root.shown()}"
    return Problem("", text, root.line, root.column)


def _meant(name: str) -> str:
    if name in ALSO_CALLED:
        return f"; did you mean {ALSO_CALLED[name]!r}?"
    return did_you_mean(name[:100].lower(), BY_NAME)


def _contradictions(found: dict[str, Any], given: dict[str, tuple[Value, Value]]) -> list[Problem]:
    """What no field can see alone."""
    problems = []
    gpus = found.get("gpus", None if "gpus" in given else ONE_GPU)
    if "elastic" in found and gpus is not None and not gpus.elastic:
        text = f"elastic is for a range of GPUs such as 1-8, or auto; gpus is {gpus}. Change one of them"
        problems.append(_at(given["elastic"][0], "elastic", text))
    if found.get("launch") == "once" and found.get("elastic") == "in-place":
        text = "elastic: in-place needs a process on each GPU, and launch is once. Leave one of them out"
        problems.append(_at(given["elastic"][0], "elastic", text))
    both = found.get("env", {}).keys() & found.get("secrets", {}).keys()
    for key, _ in given["secrets"][1].pairs if both else ():
        if key.text in both:
            text = f"{key.text} is in env and in secrets; leave it out of one"
            problems.append(_at(key, f"secrets.{key.text}", text))
    return problems


def _at(value: Value, field: str, text: str) -> Problem:
    return Problem(field, text, value.line, value.column)
