"""`fairlead reproduce elasticity`: a job that finds its own size, simulated in full and real in small."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec

import click

from fairlead.cli.errors import reports_errors
from fairlead.cli.options import number_list
from fairlead.cli.output import OUTPUT, counted, csv_of, progress_bar
from fairlead.cli.table import print_table
from fairlead.core.errors import InvalidSpec
from fairlead.sim import reproduction_elasticity as paper
from fairlead.sim.report.wording import NONE, duration
from fairlead.sim.reproduction_elasticity import Outcome, Published, Summary
from fairlead.train import reproduction as small

#: The name of the real job among the trainings.
REAL = "emulated"

#: Where the real job begins: with too few workers, and with too many.
REAL_STARTS = (1, 3)


@click.command()
@click.option(
    "--starts",
    metavar="4,32,60",
    help=f"Sizes to begin the simulations with. [default: every {paper.STEP} from {paper.LEAST} to {paper.MOST}]",
)
@click.option("--simulated-only", is_flag=True, help="Without the real runs, which take minutes and need PyTorch.")
@OUTPUT
@reports_errors  # fmt: skip
def elasticity(starts: str | None, simulated_only: bool, output: str) -> None:
    """Resource elasticity (MLSys '20): how a job finds its own size, in place and by checkpoint and restart.

    Simulated: the paper's two jobs on 64 GPUs, from sizes of 4 to 60, next to the published figures. Their speed is
    assumed; docs/reproductions.md says from what. Real: a small job of real processes on this machine, on an emulated
    accelerator.
    """
    sizes = paper.STARTS if starts is None else tuple(dict.fromkeys(number_list(starts, "starts", int)))
    if not simulated_only and find_spec("torch") is None:
        raise InvalidSpec("the real runs need PyTorch; pip install 'fairlead[train]', or add --simulated-only")
    simulated = _simulate(sizes)
    real = [] if simulated_only else _train(small.Emulated())
    tell(simulated, real, output)


def _simulate(starts: Sequence[int]) -> list[Outcome]:
    runs = [(job, way, start) for job in paper.TRAININGS.values() for way in paper.ways(job) for start in starts]
    outcomes = []
    with progress_bar(f"simulating {counted(len(runs), 'run')}") as progress:
        for place, run in enumerate(runs, start=1):
            outcomes.append(paper.simulate(*run))
            progress(place / len(runs))
    return outcomes


def _train(emulated: small.Emulated) -> list[Outcome]:
    runs = [(way, start) for way in small.WAYS for start in REAL_STARTS]
    outcomes = []
    with progress_bar(f"training {counted(len(runs), 'job')}") as progress:
        for place, (way, start) in enumerate(runs, start=1):
            outcomes.append(Outcome(training=REAL, **asdict(small.run_real(emulated, way, start))))
            progress(place / len(runs))
    return outcomes


# -- how it looks ----------------------------------------------------------------------------------------------------


def tell(simulated: Sequence[Outcome], real: Sequence[Outcome], output: str) -> None:
    """In the form that was asked for."""
    outcomes = [*simulated, *real]
    rows = [
        {"setting": "real" if each.training == REAL else "simulated", **row}
        for each, row in zip(outcomes, paper.with_changes(outcomes), strict=True)
    ]
    if output == "json":
        published = {name: asdict(training.published) for name, training in paper.TRAININGS.items()}
        summaries = [asdict(summary) for summary in paper.summarise(outcomes)]
        told = {"runs": rows, "summaries": summaries, "published": published}
        click.echo(json.dumps(told, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(csv_of(rows), nl=False)
    else:
        _show_simulated(simulated)
        if real:
            _show_real(real)


def _show_simulated(outcomes: Sequence[Outcome]) -> None:
    summaries = paper.summarise(outcomes)
    for training in paper.TRAININGS.values():
        here = [each for each in outcomes if each.training == training.name]
        starts = counted(len({each.start for each in here}), "starting size")
        columns = [_published(training.published), *(_figures(s) for s in summaries if s.training == training.name)]
        heads = ["against static", "published", *(s.way for s in summaries if s.training == training.name)]
        lines = [heads, *([name, *(column[name] for column in columns)] for name in columns[0])]
        print_table(f"{training.title}, simulated, {starts}", lines)
        _show_starts(training.title, here)
    click.echo("Pauses are given to the simulation, and not found by it. Our speeds are assumed, not the paper's.\n")


def _show_starts(title: str, outcomes: Sequence[Outcome]) -> None:
    """The runs in place with the published pauses, next to static ones."""
    still = {each.start: each for each in outcomes if each.way == paper.STATIC}
    lines = [["start", "target", "static JCT", "JCT", "change", "static GPU time", "GPU time", "change", "found after"]]
    for each in outcomes:
        if each.way == paper.IN_PLACE:
            static = still[each.start]
            lines.append(
                [
                    str(each.start),
                    str(each.target),
                    *(duration(static.jct_s), duration(each.jct_s), _change(each.jct_s / static.jct_s - 1.0)),
                    *(duration(static.gpu_s), duration(each.gpu_s), _change(each.gpu_s / static.gpu_s - 1.0)),
                    _shown(each.find_s, _seconds),
                ]
            )
    print_table(f"{title}, {paper.IN_PLACE}, by starting size", lines)


def _show_real(outcomes: Sequence[Outcome]) -> None:
    heads = ["way", "start", "target", "JCT", "GPU time", "found after", "grown", "shrunk", "pause +", "pause -"]
    lines = [heads]
    for each in outcomes:
        lines.append(
            [
                each.way,
                *(str(each.start), str(each.target)),
                *(_seconds(each.jct_s), _seconds(each.gpu_s), _shown(each.find_s, _seconds)),
                *(str(each.growths), str(each.shrinks), _shown(each.grow_s, _pause), _shown(each.shrink_s, _pause)),
            ]
        )
    title = "A small job of real processes on this machine, on an emulated accelerator"
    print_table(title, lines, heads=2)
    summaries = paper.summarise(outcomes)
    columns = [_figures(summary) for summary in summaries]
    lines = [["against static", *(summary.way for summary in summaries)]]
    lines += [[name, *(column[name] for column in columns)] for name in columns[0]]
    print_table(f"The same, over {counted(len(REAL_STARTS), 'starting size')}", lines)


def _figures(summary: Summary) -> dict[str, str]:
    return {
        "JCT, mean": _change(summary.jct.mean),
        "JCT, best": _change(summary.jct.least),
        "JCT, worst": _change(summary.jct.most),
        "GPU time, mean": _change(summary.gpu.mean),
        "GPU time, best": _change(summary.gpu.least),
        "GPU time, worst": _change(summary.gpu.most),
        "found after, mean": _seconds(summary.find_s.mean),
        "found after, longest": _seconds(summary.find_s.most),
        "pause to grow": _shown(summary.grow_s, _pause),
        "pause to shrink": _shown(summary.shrink_s, _pause),
    }


def _published(told: Published) -> dict[str, str]:
    return {
        "JCT, mean": _change(told.jct_mean),
        "JCT, best": _change(told.jct_best),
        "JCT, worst": NONE,
        "GPU time, mean": _change(told.gpu_mean),
        "GPU time, best": _shown(told.gpu_best, _change),
        "GPU time, worst": _shown(told.gpu_worst, _change),
        "found after, mean": _seconds(told.find_mean_s),
        "found after, longest": _seconds(told.find_max_s),
        "pause to grow": _pause(told.grow_s),
        "pause to shrink": _pause(told.shrink_s),
    }


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return NONE if value is None else form(value)


def _change(share: float) -> str:
    return f"{100.0 * share:+.1f} %"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s"


def _pause(value: float) -> str:
    return f"{round(value, 9):.3f} s"  # a mean of equal pauses is what each is
