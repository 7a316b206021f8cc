"""How figures read: which rows the table has, what each is called, and how numbers become words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: No figure.
NONE = "n/a"

#: Holds a number and its unit together on one line.
_TIE = "\u00a0"

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def duration(seconds: float) -> str:
    """1h 23m: two units at most, and no false precision."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 10:
        return f"{seconds:.1f}{_TIE}s" if seconds % 1 else f"{seconds:.0f}{_TIE}s"
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f}{_TIE}s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{_TIE}{whole % _MINUTE_S:02d}s"
    if whole < 2 * _DAY_S:
        whole = round(seconds / _MINUTE_S) * _MINUTE_S
        return f"{whole // _HOUR_S}h{_TIE}{whole % _HOUR_S // _MINUTE_S:02d}m"
    whole = round(seconds / _HOUR_S) * _HOUR_S
    return f"{whole // _DAY_S}d{_TIE}{whole % _DAY_S // _HOUR_S}h"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{_TIE}%" if 0 < abs(share) < 0.0995 else f"{100 * share:.0f}{_TIE}%"


def change(share: float) -> str:
    """A difference, with its sign; none where it would be a zero."""
    return percent(0.0) if abs(share) < 0.0005 else f"{'+' if share > 0 else ''}{percent(share)}"


def number(value: float) -> str:
    """Three significant digits below 100, whole above, thousands set apart."""
    if value == 0 or abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1g}"


def ratio(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the metrics table."""

    #: A field of Metrics, or a key of `Run.extra`.
    field: str
    label: str
    form: Callable[[float], str] = number
    #: -1 if less is better, 1 if more is, 0 if neither.
    better: int = -1
    #: Left out of the table if it is zero or unknown for everyone.
    optional: bool = False
    hint: str = ""


TABLE: tuple[tuple[str, tuple[Row, ...]], ...] = (
    (
        "Completion time",
        (
            Row("jct_mean_s", "mean", duration, hint="from submission to success, over completed jobs"),
            Row("jct_p50_s", "median", duration),
            Row("jct_p90_s", "p90", duration),
            Row("jct_p99_s", "p99", duration),
            Row("makespan_s", "makespan", duration, hint="from the first submission to the last end"),
        ),
    ),
    (
        "Waiting",
        (
            Row(
                "queue_mean_s", "without GPUs, mean", duration, hint="all time without GPUs between submission and end"
            ),
            Row("queue_p50_s", "without GPUs, median", duration),
            Row("queue_p99_s", "without GPUs, p99", duration),
            Row("wait_first_mean_s", "until the first start, mean", duration),
        ),
    ),
    (
        "Fairness",
        (
            Row(
                "rho_mean",
                "rho, mean",
                ratio,
                hint="completion time over the fair one; 1 is fair",
            ),
            Row("rho_worst", "rho, worst", ratio),
            Row("unfair_share", "jobs with rho above 1.05", percent),
            Row("unfair_share_110", "jobs with rho above 1.1", percent),
            Row("jain", "Jain's index", ratio, 1, hint="over 1/rho; 1 if all jobs fared alike"),
            Row(
                "rho_themis_mean",
                "rho of Themis, mean",
                ratio,
                hint="contention counts jobs, not GPUs",
            ),
            Row("rho_themis_worst", "rho of Themis, worst", ratio),
            Row("unfair_themis_share", "jobs with rho of Themis above 1.05", percent),
            Row("rho_shockwave_mean", "rho of Shockwave, mean", ratio, hint="jobs in the trace over GPUs"),
            Row("rho_shockwave_worst", "rho of Shockwave, worst", ratio),
            Row("unfair_shockwave_share", "jobs with rho of Shockwave above 1.05", percent),
        ),
    ),
    (
        "GPUs",
        (
            # Neither more nor less is better: a GPU that is held need not be put to good use.
            Row("utilisation", "in use", percent, 0, hint="GPU-hours held over GPU-hours of healthy nodes"),
            Row("fragmentation", "fragmentation", percent, 0, hint="share of idle GPUs that sit on partly used nodes"),
            Row("gpu_h_useful", "GPU-hours, useful", number, 0),
            Row("gpu_h_restart", "GPU-hours, restarting", hint="held while starting, rescaling or stopping"),
            Row("gpu_h_lost", "GPU-hours, lost to faults", number, optional=True),
            Row("gpu_h_idle", "GPU-hours, idle", number, 0, hint="to hold GPUs for nothing makes it less, too"),
            Row("node_hours", "node-hours", number, hint="of healthy nodes, idle or not"),
            Row("cost", "cost", number, optional=True, hint="price of every healthy node, idle or not"),
        ),
    ),
    (
        "Disturbance",
        (
            Row("restarts_per_job", "restarts per job", ratio),
            Row("preemptions", "preemptions", number),
            Row("rescales", "rescales", number, 0, optional=True),
            Row("deadline_misses", "deadlines missed", number, optional=True),
        ),
    ),
    (
        "Jobs",
        (
            Row("jobs", "submitted", number, 0),
            Row("completed", "completed", number, 1),
            Row("cancelled", "cancelled", number, 0, optional=True),
            Row("unfinished", "unfinished", number, optional=True),
        ),
    ),
)


_EXTRA = {
    "decision_ms_mean": Row("decision_ms_mean", "a decision takes, mean (ms)"),
    "decision_ms_p99": Row("decision_ms_p99", "a decision takes, p99 (ms)"),
    "decision_ms_max": Row("decision_ms_max", "a decision takes, longest (ms)"),
    "decisions": Row("decisions", "decisions", number, 0),
    "wall_s": Row("wall_s", "the simulation took", duration, 0),
}


def extra_row(name: str) -> Row:
    """A line for a figure that the report's caller adds; if it is not a usual one, its unit is the end of its name."""
    if name in _EXTRA:
        return _EXTRA[name]
    for suffix, form, unit in (("_s", duration, ""), ("_share", percent, ""), ("_ms", number, ", ms")):
        for tail in ("", "_mean", "_p50", "_p90", "_p99", "_max"):
            if name.endswith(suffix + tail):
                return Row(name, (name.removesuffix(suffix + tail) + tail).replace("_", " ") + unit, form)
            if tail and name.endswith(tail + suffix):
                return Row(name, name.removesuffix(suffix).replace("_", " ") + unit, form)
    return Row(name, name.replace("_", " "), number, 0)


def listing(words: Sequence[str], most: int = 8) -> str:
    """a, b and c; or: a, b and 40 others."""
    if len(words) > most:
        left = len(words) - most
        return f"{', '.join(words[:most])} and {left:,} {'other' if left == 1 else 'others'}"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
