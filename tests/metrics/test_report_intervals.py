"""What a report says of several seeds: intervals, what they cannot tell apart, differences from a baseline; colours."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from importlib import resources

import pytest

from fairlead.sim.metrics import Metrics, measure
from fairlead.sim.report import Run
from fairlead.sim.report.page import COLOURS, render
from fairlead.sim.report.runs import cases_of
from fairlead.sim.report.wording import TABLE


def run(label: str, seed: int, load: float = 1.0, **figures: float) -> Run:
    metrics = replace(measure([]).summary, jobs=10, completed=10, **figures)
    return Run(label=label, setting={"seed": str(seed), "load": str(load)}, metrics=metrics)


def seeded(load: float = 1.0) -> list[Run]:
    """`slow` is always 10 s behind `fifo`; `odd` is ahead on average, but only by chance; seeds differ a lot."""
    return [
        run(label, seed, load, jct_mean_s=1000.0 * (seed + 1) + by[seed], utilisation=0.5 + seed / 10)
        for seed in range(3)
        for label, by in (("fifo", (0, 0, 0)), ("slow", (10, 10, 10)), ("odd", (-300, 20, 20)))
    ]


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.split("<script")[0]).replace("\u00a0", " "))


def test_intervals_are_shown_and_explained() -> None:
    page = text(render(seeded(), "t"))
    assert (
        "± is half of the 95 % confidence interval of the mean over 3 seeds, by Student's t".replace("'", "&#x27;")
        in page
    )
    assert "The lines are 95 % confidence intervals of the mean over seeds." in page
    once = text(render(seeded()[:3], "t"))
    assert "±" not in once
    assert "confidence intervals of the mean over seeds" not in once


def test_what_seeds_cannot_tell_from_the_best_is_said_and_not_marked_as_worse() -> None:
    page = render(seeded(), "t")
    rows = dict(re.findall(r'<tr><th scope="row"[^>]*>([^<]+)</th>(.*?)</tr>', page))
    assert re.findall(r"<td( class=\"\w+\")?>", rows["mean"]) == [' class="alike"', ' class="alike"', ' class="best"']
    assert "<b>odd</b> finishes jobs fastest" in page
    assert "These 3 seeds cannot tell it from fifo and slow." in page
    (case,) = cases_of([each for each in seeded() if each.label != "odd"])
    assert case.alike("jct_mean_s", sign=-1) == ()  # the difference is small, but the same with every seed


def test_nothing_is_best_where_more_may_be_waste() -> None:
    page = render(seeded(), "t")
    rows = dict(re.findall(r'<tr><th scope="row"[^>]*>([^<]+)</th>(.*?)</tr>', page))
    assert "class" not in rows["in use"]
    direction = {row.field: row.better for _, group in TABLE for row in group}
    neutral = {"utilisation", "fragmentation", "gpu_h_useful", "gpu_h_idle", "rescales", "jobs", "cancelled"}
    assert {name for name, sign in direction.items() if sign == 0} == neutral
    assert {name for name, sign in direction.items() if sign > 0} == {"jain", "completed"}
    assert direction.keys() <= set(Metrics.__dataclass_fields__)


def test_differences_from_the_baseline_are_paired() -> None:
    page = render(seeded(), "t", baseline="fifo")
    table = page.split("Against fifo")[1].split("</table>")[0]
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th><td>(.*?)</td>', table))
    assert rows.keys() == {"slow", "odd"}
    assert rows["slow"].replace("\u00a0", " ") == "<b>+0.5 %</b>"  # 10 of 2000 s, with every seed
    assert "<b>" not in rows["odd"]
    assert "±" in rows["odd"]
    assert "Against" not in render(seeded(), "t")
    assert "One seed: how much of it is chance cannot be told." in render(seeded()[:3], "t", baseline="fifo")


def test_where_the_baseline_has_none_the_difference_itself_is_told_with_its_interval_and_explained() -> None:
    runs = [
        run(label, seed, jct_mean_s=1000.0, restarts_per_job=by[seed], unfair_share=by[seed] / 10)
        for seed in range(3)
        for label, by in (("fifo", (0, 0, 0)), ("las", (0.5, 0.6, 0.7)), ("same", (0, 0, 0)))
    ]
    page = render(runs, "t", baseline="fifo").replace("\u00a0", " ")
    table = page.split("Against fifo")[1].split("</table>")[0]
    told = "Where fifo has 0, the difference itself, in the figure&#x27;s own unit and without %."
    assert told in table
    las, same = (re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tbody>")[1].split("</tr>")[:2])
    assert las[-2:] == [
        "<b>+6.0 points</b> <small>± 2.5 points</small>",
        "<b>+0.60</b> <small>± 0.25</small>",
    ]
    assert same[-1] == "0 %"
    assert told not in render(seeded(), "t", baseline="fifo")


def test_the_table_is_there_as_numbers_with_units_and_intervals() -> None:
    runs = [replace(each, extra={"decision_ms_mean": 1.5}) for each in [*seeded(0.5), *seeded(1.0)]]
    page = render(runs, "t", baseline="fifo")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    tables = json.loads(found[1])["tables"]
    units = dict(tables["figures"])
    assert (units["jct_mean_s"], units["utilisation"], units["gpu_h_idle"]) == ("s", "share", "GPU-hours")
    assert (units["rho_worst"], units["preemptions"], units["decision_ms_mean"]) == ("ratio", "count", "ms")
    assert (tables["settings"], [case["setting"] for case in tables["cases"]]) == (["load"], [["0.5"], ["1.0"]])
    place = list(units).index("jct_mean_s")
    fifo, slow, _ = tables["cases"][0]["entries"]
    assert (fifo["mean"][place], fifo["n"][place]) == (2000, 3)
    assert fifo["half"][place] == pytest.approx(4.302653 * 1000 / math.sqrt(3))
    assert "difference" not in fifo
    assert (slow["difference"][place], slow["difference_half"][place], slow["relative"][place]) == (10, 0, 0.005)
    assert all(len(each["mean"]) == len(units) for case in tables["cases"] for each in case["entries"])


def test_the_load_sweep_has_intervals() -> None:
    page = render([*seeded(0.5), *seeded(1.0)], "t", baseline="fifo")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    for line in json.loads(found[1])["sweep"]:
        for low, mean, high in zip(line["low"], line["y"], line["high"], strict=True):
            assert 0 <= low < mean < high
    assert page.count("Against fifo") == 2


def _lab(colour: str) -> tuple[float, ...]:
    """A colour in OKLab, where distances are about as far apart as colours look."""
    r, g, b = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    )
    x = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    y = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    z = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * x + 0.7936177850 * y - 0.0040720468 * z,
        1.9779984951 * x - 2.4285922050 * y + 0.4505937099 * z,
        0.0259040371 * x + 0.7827717662 * y - 0.8086757660 * z,
    )


def test_colours_stay_apart_in_both_schemes() -> None:
    sheet = resources.files("fairlead.sim.report").joinpath("report.css").read_text()
    palettes = [dict(re.findall(r"--c(\d): (#\w{6})", part)) for part in sheet.split("prefers-color-scheme: dark")]
    for palette in palettes:
        assert len(palette) == COLOURS
        assert min(math.dist(_lab(a), _lab(b)) for a, b in itertools.combinations(palette.values(), 2)) > 0.12
