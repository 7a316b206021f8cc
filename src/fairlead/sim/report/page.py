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
from fairlead.sim.intervals import Interval
from fairlead.sim.report import wording
from fairlead.sim.report.differences import differences_table
from fairlead.sim.report.figures import figures_data
from fairlead.sim.report.runs import Case, Entry, Run, cases_of, common_setting, own_settings, varied_settings
from fairlead.sim.report.series import Budget, entry_data, sweep_data
from fairlead.sim.report.verdict import verdict
from fairlead.sim.report.wording import NONE, Row, duration, listing

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
        "tables": figures_data(cases, runs, baseline),
    }
    main = cases[-1]
    return string.Template(_file("template.html")).substitute(
        title=escape(title),
        style=_file("report.css"),
        script=_file("figure_export.js") + _file("report.js"),
        headline=verdict(main) if headline is None else escape(headline),
        lead=_lead(cases, runs),
        settings=_settings(runs),
        banner=_banner(cases),
        bars=_bars(main),
        note=_note(main, seeds),
        differences="\n".join(differences_table(case, baseline, number) for number, case in enumerate(cases)),
        case_picker=_case_picker(cases),
        tables="\n".join(_table(case, runs, number) for number, case in enumerate(cases)),
        sweep_hidden="" if data["sweep"] else "hidden",
        data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


# -- words ---------------------------------------------------------------------------------------------------------


def _note(case: Case, seeds: int) -> str:
    """What the marks and the intervals in the table mean."""
    said = []
    if len(case.entries) > 1:
        alike = ", a ring what these seeds cannot tell from it" if seeds > 1 else ""
        said.append(f"A dot marks the best value of a row that has a better and a worse{alike}.")
    if case.oracles:
        names, verb = listing([entry.label for entry in case.oracles], 4), "is" if len(case.oracles) == 1 else "are"
        said.append(f"{names} {verb} left out of that: an oracle knows what no scheduler can.")
    if seeds > 1:
        said.append(
            f"± is half of the 95 % confidence interval of the mean over {seeds} seeds, by Student's t: were the runs "
            "repeated with other seeds, the mean of all of them would lie within it in nineteen of twenty such reports."
        )
    return escape(" ".join(said))


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
    told = "From submission to success, over completed jobs; shorter is better."
    if any(mean and mean.half for _, mean in found):
        told += " The lines are 95 % confidence intervals of the mean over seeds."
    return f'<h2>Mean completion time{where}</h2><ul class="bars">{"".join(rows)}</ul><figcaption>{told}</figcaption>'


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
