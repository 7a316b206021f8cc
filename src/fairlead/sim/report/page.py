"""The page: what was compared and who won, in words; the table; and places for the charts, with their data."""

from __future__ import annotations

import json
import os
import string
import tempfile
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.sim.intervals import Difference, Interval
from fairlead.sim.report import wording
from fairlead.sim.report.runs import Case, Entry, Run, cases_of, common_setting, own_settings, varied_settings
from fairlead.sim.report.series import Budget, entry_data, sweep_data
from fairlead.sim.report.wording import NONE, Row, change, duration, listing, percent

#: Colours of the style sheet; more policies have the same ones again, with dashes or hatching.
COLOURS = 8

#: Ids of unfinished jobs that the banner names.
_NAMED = 12


def write_report(
    path: Path, runs: Sequence[Run], title: str, *, headline: str | None = None, baseline: str | None = None
) -> None:
    """Write the comparison of `runs` to `path`, all or nothing. Without a headline the page says who won.

    `baseline` is the label of the policy that the others are compared with, seed by seed.
    """
    if not runs:
        raise InvalidSpec("a report needs at least one run")
    page = render(runs, title, headline=headline, baseline=baseline)
    try:
        _replace(path.resolve(), page)
    except OSError as error:
        raise BackendError(f"cannot write {path}: {error.strerror or error}") from error


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def render(runs: Sequence[Run], title: str, *, headline: str | None = None, baseline: str | None = None) -> str:
    """The page as text."""
    cases = cases_of(runs)
    seeds = max(len(entry.runs) for case in cases for entry in case.entries)
    budget = Budget.of(sum(len(case.entries) for case in cases))
    data = {
        "policies": list(dict.fromkeys(run.label for run in runs)),
        "cases": [{"name": c.name, "entries": [entry_data(e, budget) for e in c.entries]} for c in cases],
        "sweep": sweep_data(cases),
    }
    main = cases[-1]
    return string.Template(_file("template.html")).substitute(
        title=escape(title),
        style=_file("report.css"),
        script=_file("figure_export.js") + _file("report.js"),
        headline=_headline(main) + _yardstick(main) if headline is None else escape(headline),
        lead=_lead(cases, runs),
        settings=_settings(runs),
        banner=_banner(cases),
        bars=_bars(main),
        note=_note(main, seeds),
        differences="\n".join(_differences(case, baseline, number) for number, case in enumerate(cases)),
        case_picker=_case_picker(cases),
        tables="\n".join(_table(case, runs, number) for number, case in enumerate(cases)),
        sweep_hidden="" if data["sweep"] else "hidden",
        data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


# -- words ---------------------------------------------------------------------------------------------------------


def _headline(case: Case) -> str:
    """Who won, by mean completion time, and by how much. Who left jobs unfinished cannot win against who did not."""
    ranked = sorted((mean, e.label) for e in case.ranked if (mean := e.mean("jct_mean_s")) is not None)
    where = f" at {escape(case.name)}" if case.name else ""
    if not ranked:
        return "No job completed."
    best_s, best = ranked[0]
    if len(case.entries) == 1:
        return f"Under <b>{escape(best)}</b> a job took {duration(best_s)} on average{where}."
    if len(ranked) == 1:
        left = f"<b>{escape(best)}</b> left the fewest jobs unfinished{where}"
        return f"{left}; it took {duration(best_s)} per job on average."
    ties = [label for mean, label in ranked if mean <= best_s * 1.0005]
    if len(ties) == len(ranked):
        return f"{escape(listing(ties)).capitalize()} tie: {duration(best_s)} per job on average{where}."
    next_s, runner_up = next((mean, label) for mean, label in ranked if label not in ties)
    worst_s, worst = ranked[-1]
    ahead = f"{percent(1 - best_s / next_s)} less than {escape(runner_up)}"
    if worst != runner_up:
        ahead += f" and {percent(1 - best_s / worst_s)} less than {escape(worst)}"
    names = " and ".join(f"<b>{escape(label)}</b>" for label in ties)
    verb = "finishes" if len(ties) == 1 else "finish"
    return f"{names} {verb} jobs fastest{where}: {duration(best_s)} on average, {ahead}.{_doubt(case, ties)}"


def _doubt(case: Case, first: Sequence[str]) -> str:
    """Which policies may be as fast, as far as seeds tell."""
    others = [entry.label for entry in case.alike("jct_mean_s", sign=-1) if entry.label not in first]
    if not others:
        return ""
    seeds = len(case.entries[0].runs)
    return f" <small>These {seeds} seeds cannot tell it from {escape(listing(others, 4))}.</small>"


def _note(case: Case, seeds: int) -> str:
    """What the marks and the intervals in the table mean."""
    said = []
    if len(case.entries) > 1:
        alike = ", a ring what these seeds cannot tell from it" if seeds > 1 else ""
        said.append(f"A dot marks the best value of a row that has a better and a worse{alike}.")
    if seeds > 1:
        said.append(
            f"± is half of the 95 % confidence interval of the mean over {seeds} seeds, by Student's t: were the runs "
            "repeated with other seeds, the mean of all of them would lie within it in nineteen of twenty such reports."
        )
    return escape(" ".join(said))


def _yardstick(case: Case) -> str:
    """What the best oracle reached, which no policy can count on."""
    known = sorted((mean, e.label) for e in case.oracles if (mean := e.mean("jct_mean_s")) is not None)
    if not known:
        return ""
    return f" <small>With knowledge of the future it could be {duration(known[0][0])}: {escape(known[0][1])}.</small>"


def _lead(cases: Sequence[Case], runs: Sequence[Run]) -> str:
    """What was compared, and on what."""
    policies = len({run.label for run in runs})
    parts = [f"{policies} {'policies' if policies > 1 else 'policy'}"]
    jobs = {run.metrics.jobs for run in runs}
    parts.append(f"{min(jobs):,} jobs" if len(jobs) == 1 else f"{min(jobs):,} to {max(jobs):,} jobs")
    sizes = {int(run.timeline.gpus.max()) for run in runs if run.timeline is not None and len(run.timeline.gpus)}
    if sizes:
        parts.append(f"{min(sizes):,} GPUs" if len(sizes) == 1 else f"{min(sizes):,} to {max(sizes):,} GPUs")
    seeds = max(len(entry.runs) for case in cases for entry in case.entries)
    if len(cases) > 1:
        parts.append(f"{len(cases)} settings")
    if seeds > 1:
        parts.append(f"means over {seeds} seeds")
    return escape(" · ".join(parts))


def _settings(runs: Sequence[Run]) -> str:
    pairs = common_setting(runs).items()
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)


def _banner(cases: Sequence[Case]) -> str:
    """Unfinished jobs, loudly: every average leaves them out."""
    lines = []
    for case in cases:
        for entry in case.entries:
            if not entry.unfinished:
                continue
            of = sum(run.metrics.jobs for run in entry.runs)
            ids = list(dict.fromkeys(_brief(job) for run in entry.runs for job in run.metrics.unfinished_ids))
            where = f" ({escape(case.name)})" if case.name else ""
            lines.append(
                f"<li><b>{escape(entry.label)}</b>{where} left {entry.unfinished:,} of {of:,} jobs unfinished: "
                f'<span class="ids">{escape(listing(ids, _NAMED))}</span></li>'
            )
    if not lines:
        return ""
    shown = "".join(lines[:_NAMED]) + (f"<li>and {len(lines) - _NAMED} more</li>" if len(lines) > _NAMED else "")
    return (
        '<aside class="banner" role="alert"><h2>Not every job finished</h2><p>Averages leave these jobs out, which '
        f"flatters the policy: it is not ranked with policies that finished more.</p><ul>{shown}</ul></aside>"
    )


def _brief(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."


# -- the bars and the table ----------------------------------------------------------------------------------------


def _bars(case: Case) -> str:
    """Mean completion time of each policy with its interval over seeds, as bars that need no script."""
    found = [(entry, entry.interval("jct_mean_s")) for entry in case.entries]
    longest = max((each.high for _, each in found if each), default=None)
    if not longest or len(found) < 2:
        return ""
    best = case.best("jct_mean_s", sign=-1)
    rows = []
    for number, (entry, mean) in enumerate(found):
        wins = best is not None and mean is not None and mean.mean == best
        classes = f"bar{' best' if wins else ''}{' hatched' if number // COLOURS % 2 else ''}"
        warning = " <em>unfinished jobs</em>" if entry.unfinished else ""
        rows.append(
            f'<li class="{classes}"><span class="name">{escape(entry.label)}{warning}</span>'
            f'<span class="track">{_bar(mean, longest, number)}</span>'
            f'<span class="value">{_value(mean)}</span></li>'
        )
    where = f" at {escape(case.name)}" if case.name else ""
    spread = " The lines are 95 % confidence intervals over seeds." if any(m and m.half for _, m in found) else ""
    return f'<h2>Mean completion time{where}</h2><ul class="bars">{"".join(rows)}</ul><p class="note">{spread}</p>'


def _bar(mean: Interval | None, longest: float, number: int) -> str:
    if mean is None:
        return ""
    bar = f'<i style="width:{100 * mean.mean / longest:.1f}%;background-color:var(--c{number % COLOURS})"></i>'
    if not mean.half:
        return bar
    low, high = (100 * max(0.0, edge) / longest for edge in (mean.low, mean.high))
    return f'{bar}<b class="whisker" style="left:{low:.1f}%;width:{high - low:.1f}%"></b>'


def _value(mean: Interval | None) -> str:
    if mean is None:
        return NONE
    return duration(mean.mean) + (f" <small>± {duration(mean.half)}</small>" if mean.half else "")


#: What the differences from a baseline are shown of, and how it is called above its column.
_COMPARED = (
    ("jct_mean_s", "mean time"),
    ("jct_p50_s", "median"),
    ("jct_p99_s", "p99"),
    ("queue_mean_s", "without GPUs"),
    ("makespan_s", "makespan"),
    ("rho_worst", "worst rho"),
    ("unfair_share", "rho above 1.05"),
    ("restarts_per_job", "restarts"),
)


def _differences(case: Case, baseline: str | None, number: int) -> str:
    """A table of how each policy differs from the baseline, seed by seed."""
    other = None if baseline is None else case.entry(baseline)
    if other is None or len(case.entries) < 2:
        return ""
    rows = {row.field: row for _, rows in wording.TABLE for row in rows}
    heads = "".join(f'<th scope="col">{escape(heading)}</th>' for _, heading in _COMPARED)
    lines = "".join(
        f'<tr><th scope="row">{escape(entry.label)}</th>'
        + "".join(_difference(entry.against(other, name), rows[name]) for name, _ in _COMPARED)
        + "</tr>"
        for entry in case.entries
        if entry is not other
    )
    seeds = len(other.runs)
    told = (
        f"Mean of the differences seed by seed over {seeds} seeds, ± half of its 95 % confidence interval. Where the "
        "interval leaves out 0 the difference is there, as far as these seeds tell: it is printed in bold."
        if seeds > 1
        else "One seed: how much of it is chance cannot be told. Several seeds give intervals."
    )
    return (
        f'<div class="differences" data-case="{number}"><h2>Against {escape(other.label)}</h2>'
        f'<p class="note">{escape(told)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Differences from {escape(other.label)}"><table><thead><tr><th scope="col">'
        f'<span class="sr">policy</span></th>{heads}</tr></thead><tbody>{lines}</tbody></table></div></div>'
    )


def _difference(found: Difference | None, row: Row) -> str:
    if found is None:
        return f"<td>{NONE}</td>"
    shown, spread = found.relative, None
    if shown is None:
        text = row.form(found.absolute.mean)
    else:
        text = change(shown.mean)
        spread = None if not shown.half else percent(shown.half)
    bold = f"<b>{text}</b>" if found.absolute.excludes_zero else text
    return f"<td>{bold}{f' <small>± {spread}</small>' if spread else ''}</td>"


def _case_picker(cases: Sequence[Case]) -> str:
    if len(cases) < 2:
        return ""
    last = len(cases) - 1
    options = "".join(
        f'<option value="{n}"{" selected" if n == last else ""}>{escape(case.name)}</option>'
        for n, case in enumerate(cases)
    )
    return f'<label class="picker">Setting <select id="case">{options}</select></label>'


def _table(case: Case, runs: Sequence[Run], number: int) -> str:
    heads = "".join(f'<th scope="col">{escape(entry.label)}{_mark(entry)}</th>' for entry in case.entries)
    groups = [(group, rows) for group, rows in wording.TABLE]
    extras = list(dict.fromkeys(name for entry in case.entries for run in entry.runs for name in run.extra))
    if extras:
        groups.append(("Scheduler", tuple(wording.extra_row(name) for name in extras)))
    body = _own_rows(case, runs)
    for group, rows in groups:
        lines = [line for row in rows if (line := _row(case, row))]
        if lines:
            body += f'<tbody><tr class="group"><th scope="rowgroup" colspan="{len(case.entries) + 1}">'
            body += f"<span>{escape(group)}</span></th></tr>{''.join(lines)}</tbody>"
    caption = f"<caption>{escape(case.name)}</caption>" if case.name else ""
    return (
        f'<div class="scroll" data-case="{number}" tabindex="0" role="region" aria-label="Metrics of every policy">'
        f'<table>{caption}<thead><tr><th scope="col"><span class="sr">metric</span></th>{heads}</tr></thead>'
        f"{body}</table></div>"
    )


def _mark(entry: Entry) -> str:
    return f' <em title="{entry.unfinished:,} jobs unfinished">!</em>' if entry.unfinished else ""


def _own_rows(case: Case, runs: Sequence[Run]) -> str:
    """Settings that each policy has of its own."""
    rows = [
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f'<td class="text">{escape(entry.runs[0].setting.get(name, NONE))}</td>' for entry in case.entries)
        + "</tr>"
        for name in own_settings(runs, varied_settings(runs))
    ]
    return f"<tbody>{''.join(rows)}</tbody>" if rows else ""


def _row(case: Case, row: Row) -> str:
    values = [entry.mean(row.field) for entry in case.entries]
    if row.optional and not any(values):
        return ""
    best, alike = case.best(row.field, sign=row.better), case.alike(row.field, sign=row.better)
    cells = []
    for entry, value in zip(case.entries, values, strict=True):
        text = NONE if value is None else row.form(value)
        wins = best is not None and text == row.form(best) and entry in case.ranked
        if (found := entry.interval(row.field)) is not None and found.half:
            text += f" <small>± {row.form(found.half)}</small>"
        mark = ' class="best"' if wins else ' class="alike"' if entry in alike else ""
        cells.append(f"<td{mark}>{text}</td>")
    title = f' title="{escape(row.hint)}"' if row.hint else ""
    return f'<tr><th scope="row"{title}>{escape(row.label)}</th>{"".join(cells)}</tr>'
