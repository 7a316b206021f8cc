"""What the charts draw, as small JSON values: distributions, steps and GPU stays, thinned but true to extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.sim.intervals import Interval
from fairlead.sim.report.runs import Case, Entry, Run
from fairlead.sim.timeline import Floats, Ints, Timeline

#: Colours of bars: eight hues, three strengths. A job has the same under every policy.
_SHADES = 24


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of each thing a page shows, so that it stays small whatever it compares."""

    cdf_points: int = 400
    step_points: int = 800
    gantt_bars: int = 4000
    gantt_gpus: int = 128

    @staticmethod
    def of(entries: int) -> Budget:
        """Shared out among the policies and cases of a page, which stays below 2 MB."""
        n = max(1, entries)
        return Budget(
            cdf_points=max(40, min(400, 8000 // n)),
            step_points=max(60, min(800, 12000 // n)),
            gantt_bars=max(60, min(4000, 20000 // n)),
        )


def entry_data(entry: Entry, budget: Budget) -> dict[str, Any]:
    """One policy in one case. Distributions pool all seeds; what happens over time is the first seed's."""
    jobs = [job for run in entry.runs for job in run.jobs if job.counted]
    jct = np.array([job.jct_s for job in jobs if job.jct_s is not None])
    rho = np.array([job.rho for job in jobs if job.rho is not None])
    asked = len(jct) + entry.unfinished
    first = entry.runs[0]
    data: dict[str, Any] = {
        "label": entry.label,
        "jct": distribution(jct, of=asked, points=budget.cdf_points),
        "rho": distribution(rho, of=len(rho), points=budget.cdf_points),
        "queue": None,
        "gpus": None,
        "size": None,
        "gantt": None,
    }
    if (timeline := first.timeline) is not None and timeline.end_s > timeline.start_s:
        data["queue"] = steps(timeline, timeline.queued, points=budget.step_points)
        data["gpus"] = steps(timeline, timeline.gpus_in_use, points=budget.step_points)
        data["size"] = steps(timeline, timeline.gpus, points=budget.step_points)
        data["gantt"] = gantt(first, timeline, budget)
    return data


def sweep_data(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Mean JCT against load, one line per policy, if the load was varied at all."""
    swept = [case for case in cases if case.load is not None]
    if len({case.load for case in swept}) < 2:
        return []
    lines: dict[str, dict[float, list[Entry]]] = {}
    for case in swept:
        for entry in case.entries:
            if entry.mean("jct_mean_s") is not None and case.load is not None:
                lines.setdefault(entry.label, {}).setdefault(case.load, []).append(entry)
    return [_sweep_line(label, sorted(by_load.items(), key=lambda point: point[0])) for label, by_load in lines.items()]


def _sweep_line(label: str, points: list[tuple[float, list[Entry]]]) -> dict[str, Any]:
    means = [_pooled(entries) for _, entries in points]
    return {
        "label": label,
        "x": [load for load, _ in points],
        "y": [_short(mean.mean) for mean in means],
        "low": [_short(max(0.0, mean.low)) for mean in means],
        "high": [_short(mean.high) for mean in means],
        "unfinished": [sum(entry.unfinished for entry in entries) for _, entries in points],
    }


def _pooled(entries: Sequence[Entry]) -> Interval:
    """Of one entry its mean and interval over seeds; of several, settings that differ otherwise, the mean alone."""
    found = [each for entry in entries if (each := entry.interval("jct_mean_s")) is not None]
    return found[0] if len(found) == 1 else Interval(float(np.mean([each.mean for each in found])), None, len(found))


def distribution(values: Floats, *, of: int, points: int) -> dict[str, list[float]] | None:
    """Sorted values and the share of `of` at or below each; always with the smallest and the largest."""
    if not len(values):
        return None
    ranks = np.unique(np.linspace(0, len(values) - 1, points).round().astype(int))
    ordered = np.sort(values)
    return {"x": [_short(x) for x in ordered[ranks]], "y": [round(float(r + 1) / of, 5) for r in ranks]}


def steps(timeline: Timeline, values: Floats, *, points: int) -> dict[str, list[float]]:
    """A step series from the first submission on: of every slice of time its lowest and highest value are kept."""
    times = timeline.times_s
    first = max(0, int(np.searchsorted(times, timeline.start_s, side="right")) - 1)
    last = int(np.searchsorted(times, timeline.end_s, side="right"))
    time_R = np.maximum(times[first:last], timeline.start_s) - timeline.start_s
    value_R = values[first:last]
    changed = np.concatenate(([True], np.diff(value_R) != 0))
    time_R, value_R = time_R[changed], value_R[changed]
    span_s = timeline.end_s - timeline.start_s
    if len(time_R) > points:
        keep = _extremes(time_R, value_R, slices=points // 2, span_s=span_s)
        time_R, value_R = time_R[keep], value_R[keep]
    return {"t": [_short(t) for t in time_R] + [_short(span_s)], "v": [_short(v) for v in value_R]}


def _extremes(time_R: Floats, value_R: Floats, *, slices: int, span_s: float) -> Ints:
    """Rows with the lowest and the highest value of each slice, in order of time."""
    slice_R = np.minimum((time_R / span_s * slices).astype(np.int64), slices - 1)
    ascending = np.lexsort((value_R, slice_R))
    starts = np.flatnonzero(np.concatenate(([True], np.diff(slice_R[ascending]) != 0)))
    ends = np.append(starts[1:], len(ascending)) - 1
    rows = np.concatenate(([0], ascending[starts], ascending[ends]))
    return np.unique(rows).astype(np.int64)


def gantt(run: Run, timeline: Timeline, budget: Budget) -> dict[str, Any] | None:
    """Bars of who held which GPU: neighbouring GPUs of one job are one bar. Says what it leaves out."""
    s = timeline.segments
    if not len(s):
        return None
    nodes, shown = _nodes_shown(timeline, budget.gantt_gpus)
    bars = _bars(timeline, np.flatnonzero(np.isin(s.node, shown)))
    waited = bool(timeline.queued.max() > 0)
    centre = timeline.times_s[int(np.argmax(timeline.queued if waited else timeline.gpus_in_use))]
    start_s, end_s = _window(timeline, bars, float(centre), most=budget.gantt_bars)
    bars = bars[:, (bars[3] < end_s) & (bars[4] > start_s)]
    bars = bars[:, np.argsort(bars[4] - bars[3])[::-1][: budget.gantt_bars]]  # at one instant there may still be more
    tops = np.cumsum([0, *(node.gpus for node in nodes[:-1])])
    rows = {int(node): int(top) for node, top in zip(shown, tops, strict=True)}
    numbers = {int(job): place for place, job in enumerate(np.unique(bars[5]))}
    zero = timeline.start_s
    return {
        "nodes": [[node.id[:40], node.gpus] for node in nodes],
        "jobs": [[_name(run, timeline, job), job % _SHADES] for job in numbers],
        "bars": [
            [
                rows[int(n)] + int(g),
                int(k),
                _short(max(a, start_s) - zero),
                _short(min(b, end_s) - zero),
                numbers[int(j)],
            ]
            for n, g, k, a, b, j in bars.T
        ],
        "from": _short(start_s - zero),
        "to": _short(end_s - zero),
        "whole": bool(start_s <= timeline.start_s and end_s >= timeline.end_s),
        "around": "the longest queue" if waited else "the busiest moment",
        "all_nodes": len(timeline.nodes),
    }


def _nodes_shown(timeline: Timeline, most_gpus: int) -> tuple[list[Any], Ints]:
    """The first nodes by name, as many as fit; at least one."""
    order = sorted(range(len(timeline.nodes)), key=lambda n: _natural(timeline.nodes[n].id))
    total = 0
    shown: list[int] = []
    for n in order:
        total += timeline.nodes[n].gpus
        if shown and total > most_gpus:
            break
        shown.append(n)
    return [timeline.nodes[n] for n in shown], np.array(shown, dtype=np.int64)


def _bars(timeline: Timeline, rows: Ints) -> Floats:
    """Columns node, first GPU, GPUs, from, to, job of the segments in `rows`, neighbours merged."""
    s = timeline.segments
    order = rows[np.lexsort((s.gpu[rows], s.end_s[rows], s.start_s[rows], s.job[rows], s.node[rows]))]
    columns = (s.node[order], s.gpu[order], s.start_s[order], s.end_s[order], s.job[order])
    node, gpu, start_s, end_s, job = columns
    same = [np.diff(column) == 0 for column in (node, start_s, end_s, job)]
    first = np.flatnonzero(np.concatenate(([True], ~(np.logical_and.reduce(same) & (np.diff(gpu) == 1)))))
    count = np.diff(np.append(first, len(order)))
    return np.array([node[first], gpu[first], count, start_s[first], end_s[first], job[first]], dtype=np.float64)


def _window(timeline: Timeline, bars: Floats, centre: float, *, most: int) -> tuple[float, float]:
    """All the time if that is few enough bars, else as much as fits around `centre`."""
    start_s, end_s = timeline.start_s, timeline.end_s
    if bars.shape[1] <= most:
        return start_s, end_s
    low, high = 0.0, end_s - start_s
    for _ in range(40):
        half = (low + high) / 2
        inside = np.count_nonzero((bars[3] < centre + half) & (bars[4] > centre - half))
        low, high = (half, high) if inside <= most else (low, half)
    return max(start_s, centre - low), min(end_s, centre + low)


def _name(run: Run, timeline: Timeline, number: int) -> str:
    job_id = timeline.jobs[number]
    name = run.jobs[number].name if number < len(run.jobs) else ""
    return (f"{job_id} ({name})" if name and name != job_id else job_id)[:80]


def _natural(text: str) -> list[Any]:
    """n2 before n10."""
    parts: list[Any] = [""]
    for letter in text:
        if letter.isdecimal() == isinstance(parts[-1], int):
            parts[-1] = parts[-1] * 10 + int(letter) if letter.isdecimal() else parts[-1] + letter
        else:
            parts.append(int(letter) if letter.isdecimal() else letter)
    return parts


def _short(value: float) -> float:
    """Six significant digits: more than a screen can show, and a third of the bytes."""
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short
