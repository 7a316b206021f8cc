"""Alibaba's GPU cluster traces: PAI of 2020 (Weng et al., NSDI '22) and the pods of 2023 (Weng et al., ATC '23).

Both count seconds from a hidden date. Jobs may ask for part of a GPU; here they get whole ones, the part is a label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.sim.traces.assemble import BACKWARDS, NO_GPUS, NO_RUN, UNFINISHED, JobFields, TraceBuilder
from fairlead.sim.traces.files import names_in, read_text
from fairlead.sim.traces.record import InvalidTrace, Trace, TraceNode
from fairlead.sim.traces.table import Row, layout, listed, make_row, read_table, split_csv

JOB_TABLE = layout("job_name inst_id user status start_time end_time")
TASK_TABLE = layout("job_name task_name inst_num status start_time end_time plan_cpu plan_mem plan_gpu gpu_type")
POD_COLUMNS = (
    "name",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
NODE_COLUMNS = ("sn", "gpu", "model")

PAI_OUTCOMES = {"Terminated": "completed", "Failed": "failed"}
POD_OUTCOMES = {"Succeeded": "completed", "Failed": "failed"}


def job_table_in(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name.startswith("pai_job_table.csv")), None)


def pod_list_in(names: tuple[str, ...]) -> str | None:
    """The default pod list, or the only one."""
    pods = [name for name in names if name.startswith("openb_pod_list") and ".csv" in name]
    default = [name for name in pods if name.startswith("openb_pod_list_default.csv")]
    return default[0] if default else pods[0] if len(pods) == 1 else None


# --- 2020: a job table, and a task table beside it


@dataclass(slots=True)
class _Tasks:
    """What a job's GPU tasks asked for together, and when they ran."""

    gpu_percent: float = 0.0
    start_s: float = math.inf
    end_s: float = -math.inf
    gpu_types: set[str] = field(default_factory=set)


def read_alibaba_2020(path: Path) -> Trace:
    """From the directory or its `pai_job_table.csv`, with `pai_task_table.csv` beside it; neither has a header."""
    job_path = _inside(path, job_table_in(names_in(path)), "pai_job_table.csv")
    task_path = job_path.with_name(job_path.name.replace("job", "task"))
    if task_path == job_path or not task_path.exists():
        raise InvalidTrace(
            f"needs the task table {task_path.name!r} beside it, which says how many GPUs a job asked for",
            source=str(job_path),
        )
    builder = TraceBuilder("alibaba-2020", source=str(job_path))
    tasks = _read_tasks(task_path)
    for row in _headless(job_path, JOB_TABLE):
        _add_pai_job(builder, row, tasks.get(row.name("job_name")))
    return builder.build(zero_s=builder.earliest_s)


def _read_tasks(path: Path) -> dict[str, _Tasks]:
    """Tasks that ask for GPUs, by job."""
    tasks: dict[str, _Tasks] = {}
    for row in _headless(path, TASK_TABLE):
        if row.is_blank("plan_gpu") or not (percent := row.number("plan_gpu")):
            continue
        job = tasks.setdefault(row.name("job_name"), _Tasks())
        job.gpu_percent += percent * (1 if row.is_blank("inst_num") else row.whole("inst_num"))
        if not row.is_blank("start_time"):
            job.start_s = min(job.start_s, row.number("start_time"))
        if not row.is_blank("end_time"):
            job.end_s = max(job.end_s, row.number("end_time"))
        if not row.is_blank("gpu_type"):
            job.gpu_types.add(row.text("gpu_type"))
    return tasks


def _add_pai_job(builder: TraceBuilder, row: Row, tasks: _Tasks | None) -> None:
    if tasks is None:
        builder.skip(NO_GPUS)
    elif row.is_blank("start_time") or math.isinf(tasks.start_s):
        builder.skip(NO_RUN)
    elif row.is_blank("end_time") or math.isinf(tasks.end_s):
        builder.skip(UNFINISHED)
    elif tasks.end_s < tasks.start_s:
        builder.skip(BACKWARDS)
    else:
        fields: JobFields = {
            "id": row.name("job_name"),
            "submit_s": row.number("start_time"),
            # Rounded first: 3 x 33.34 % of a GPU is not to become two for an error in the last bit.
            "gpus": math.ceil(round(tasks.gpu_percent / 100, 9)) or 1,
            "duration_s": tasks.end_s - tasks.start_s,
            "tenant": row.text("user") or "default",
            "outcome": PAI_OUTCOMES.get(row.text("status"), ""),
            # The type it was given; the trace does not tell which ones it would have taken.
            "labels": {"gpu_percent": f"{tasks.gpu_percent:g}", "gpu_type": "|".join(sorted(tasks.gpu_types))},
        }
        builder.add(fields, line=row.line)


def _headless(path: Path, columns: dict[str, int]) -> Iterator[Row]:
    """Rows of a table without a header, or with one that somebody put there."""
    for line, cells in split_csv(read_text(path), source=str(path)):
        if cells[0].strip() != "job_name":
            yield make_row(cells, {len(columns): columns}, source=str(path), line=line)


# --- 2023: a pod list, and perhaps a node list beside it


def read_alibaba_2023(path: Path) -> Trace:
    """From the directory or one of its `openb_pod_list_*.csv`; a node list beside it gives the nodes."""
    pod_path = _inside(path, pod_list_in(names_in(path)), "openb_pod_list_default.csv")
    builder = TraceBuilder("alibaba-2023", source=str(pod_path))
    for row in read_table(pod_path, required=POD_COLUMNS):
        _add_pod(builder, row)
    nodes = _read_nodes(pod_path.parent, builder)
    return builder.build(zero_s=builder.earliest_s, nodes=nodes)


def _add_pod(builder: TraceBuilder, row: Row) -> None:
    if row.whole("num_gpu", at_least=0) == 0:
        builder.skip(NO_GPUS)
    elif row.is_blank("scheduled_time"):
        builder.skip(NO_RUN)
    elif row.is_blank("deletion_time"):
        builder.skip(UNFINISHED)
    elif (duration_s := row.number("deletion_time") - row.number("scheduled_time")) < 0:
        builder.skip(BACKWARDS)
    else:
        types = () if row.is_blank("gpu_spec") else tuple(row.text("gpu_spec").split("|"))
        labels = {name: row.text(name) for name in ("gpu_milli", "qos") if row.has(name) and not row.is_blank(name)}
        fields: JobFields = {
            "id": row.name("name"),
            "submit_s": row.number("creation_time"),
            "gpus": row.whole("num_gpu"),
            "duration_s": duration_s,
            "gpu_types": tuple(name.strip() for name in types if name.strip()),
            "outcome": POD_OUTCOMES.get(row.text("pod_phase"), ""),
            "labels": labels,
        }
        builder.add(fields, line=row.line)


def _read_nodes(directory: Path, builder: TraceBuilder) -> list[TraceNode]:
    # The list of GPU nodes sorts after that of all nodes, and is the one to prefer.
    lists = [name for name in names_in(directory) if name.startswith("openb_node_list") and ".csv" in name]
    if not lists:
        return []
    nodes = []
    for row in read_table(directory / lists[-1], required=NODE_COLUMNS):
        if gpus := row.whole("gpu", at_least=0):
            nodes.append(TraceNode(row.name("sn"), row.name("model"), gpus))
        else:
            builder.skip("node without GPUs")
    return nodes


# --- finding the tables


def _inside(path: Path, name: str | None, wanted: str) -> Path:
    if not path.is_dir():
        return path
    if name is None:
        found = listed(names_in(path)[:8])
        raise InvalidTrace(
            f"is a directory without {wanted!r}; it has {found}. Name the file to read", source=str(path)
        )
    return path / name
