"""How far off the estimates of speeds are that were never measured, on Gavel's published throughput table.

    python benchmarks/rate_estimates.py [--data DIR] [--repeats 3] [--gpus 1] [--choose] [-o table|json]

What is estimated is hidden: of one job type at a time, most of what it keeps of its speed beside the others
(`packed`), or its speed on one GPU type (`types`). An error is |estimate / truth - 1|. Job types of the same model with
another batch are there (`known`) or left out as well (`new`), so that nothing alike was ever seen. The ways:

    fairlead   matrix_completion.complete and complete_ratios, as in policies/relative_speeds.py
    paper      Gavel, section 4: probabilistic matrix factorisation (10 factors, mu 0.01) of packed speed over speed
               alone, then the known job type with the least cosine distance
    mean       of all known entries; of types, the mean ratio of the two types over all job types
    chosen     as fairlead, whose number of factors and shrinkage were chosen by this very table; but here, for each
               model, those that would have been best for the other models (with --choose, which takes a minute)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fairlead.policies.matrix_completion import complete, complete_ratios
from fairlead.policies.relative_speeds import LEAST_SHARE
from fairlead.sim.tables import ThroughputTable, load_table

Floats = NDArray[np.float64]
#: (the matrix of known rows, then one with gaps; NaN where nothing is known) -> that last row, complete.
Estimate = Callable[[Floats], Floats]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "gavel"
TABLE = "simulation_throughputs.json"
PROFILED = (0.1, 0.3)


def packed_shares(table: ThroughputTable, names: list[str], gpus: int) -> Floats:
    """[job type, GPU type, partner]; NaN where one of the two cannot run."""
    share_JTP = np.full((len(names), len(table.gpu_types), len(names)), np.nan)
    for t, gpu_type in enumerate(table.gpu_types):
        rows = table.entries[gpu_type]
        for j, name in enumerate(names):
            entry = rows.get((name, gpus))
            for p, partner in enumerate(names) if entry is not None and entry.alone > 0.0 else ():
                mine = entry.packed.get((partner, gpus), 0.0) if entry is not None else 0.0
                theirs = rows[partner, gpus].packed.get((name, gpus), 0.0)
                if entry is not None and mine > 0.0 and theirs > 0.0:
                    share_JTP[j, t, p] = mine / entry.alone
    return share_JTP


def by_completion(known: Floats, **options: float) -> Floats:
    logs = np.log(np.maximum(known, LEAST_SHARE))
    return np.asarray(np.exp(np.minimum(0.0, complete(logs, **options)[-1])))  # type: ignore[arg-type]


def by_the_paper(known: Floats) -> Floats:
    """Where no pair could be measured the artifact has 0, and takes it for a measurement."""
    whole, there = np.nan_to_num(known), np.isfinite(known)
    there[:-1] = True
    row = np.where(there[-1], whole[-1], np.clip(factorised(whole, there)[-1], 0.0, 1.0))
    length = np.linalg.norm(whole[:-1], axis=1) * np.linalg.norm(row) + 1e-12
    return np.asarray(whole[int(np.argmax(whole[:-1] @ row / length))])


def factorised(whole: Floats, there: NDArray[np.bool_], factors: int = 10, mu: float = 1e-2) -> Floats:
    """Alternating ridge regressions from a random start."""
    rng = np.random.default_rng(0)
    u, v = (rng.standard_normal((size, factors)) for size in whole.shape)
    weight, ridge = there.astype(np.float64), mu * np.eye(factors)
    for _ in range(100):
        before = u
        u = np.linalg.solve(np.einsum("rc,ck,cl->rkl", weight, v, v) + ridge, ((whole * weight) @ v)[..., None])[..., 0]
        v = np.linalg.solve(np.einsum("rc,rk,rl->ckl", weight, u, u) + ridge, ((whole * weight).T @ u)[..., None])[
            ..., 0
        ]
        if float(np.abs(u - before).mean()) < 1e-3:
            break
    return np.asarray(u @ v.T)


def by_the_mean(known: Floats) -> Floats:
    return np.full(known.shape[1], np.nanmean(known[:-1]))


GRID = tuple((factors, shrink) for factors in (0, 1, 2, 3, 5) for shrink in (0.1, 0.3, 1.0, 3.0))

PACKED: dict[str, Estimate] = {"fairlead": by_completion, "paper": by_the_paper, "mean": by_the_mean}


def others(names: list[str], j: int, *, new: bool) -> list[int]:
    """The job types that are known while one is hidden."""
    return [k for k in range(len(names)) if k != j and not (new and model_of(names[k]) == model_of(names[j]))]


def model_of(name: str) -> str:
    return name.split(" (")[0]


def chosen_rows(share_JTP: Floats, names: list[str], repeats: int) -> Iterator[dict[str, object]]:
    models = sorted(set(map(model_of, names)))
    for new in (False, True):
        for profiled in PROFILED:
            errors = {
                (factors, shrink, model): np.concatenate(
                    [
                        np.abs(by_completion(rows, factors=factors, shrink=shrink)[asked] / truth[asked] - 1.0)
                        for j in range(len(names))
                        if model_of(names[j]) == model
                        for rows, truth, asked in hidings(share_JTP, names, j, profiled, repeats, new=new)
                    ]
                )
                for factors, shrink in GRID
                for model in models
            }
            found = []
            for model in models:
                rest = [other for other in models if other != model]
                best = min(GRID, key=lambda way: np.median(np.concatenate([errors[*way, other] for other in rest])))
                found.append(errors[*best, model])
            yield row("packed", new, f"{profiled:.0%} of its pairs", "chosen", np.concatenate(found))


def hidings(
    share_JTP: Floats, names: list[str], j: int, profiled: float, repeats: int, *, new: bool
) -> Iterator[tuple[Floats, Floats, NDArray[np.bool_]]]:
    """(known rows and the one with gaps, that one whole, where it is asked for), for each draw of what is measured."""
    refs = others(names, j, new=new)
    known = share_JTP[refs][:, :, refs].reshape(len(refs), -1)
    truth = share_JTP[j][:, refs].reshape(-1)
    for repeat in range(repeats):
        hidden = np.random.default_rng([j, repeat]).random(len(truth)) >= profiled
        yield np.vstack([known, np.where(hidden, np.nan, truth)]), truth, hidden & np.isfinite(truth)


def packed_rows(share_JTP: Floats, names: list[str], repeats: int) -> Iterator[dict[str, object]]:
    if not np.isfinite(share_JTP).any():
        return  # the table has pairs of jobs of one GPU only
    for new in (False, True):
        for profiled in PROFILED:
            errors: dict[str, list[Floats]] = {way: [] for way in PACKED}
            for j in range(len(names)):
                for rows, truth, asked in hidings(share_JTP, names, j, profiled, repeats, new=new):
                    for way, estimate in PACKED.items():
                        errors[way].append(np.abs(estimate(rows)[asked] / truth[asked] - 1.0))
            for way, found in errors.items():
                yield row("packed", new, f"{profiled:.0%} of its pairs", way, np.concatenate(found))


def type_rows(alone_JT: Floats, names: list[str]) -> Iterator[dict[str, object]]:
    log_JT = np.log(alone_JT)
    for new in (False, True):
        for measured in (1, 2):
            errors: dict[str, list[float]] = {"fairlead": [], "mean": []}
            for j in range(len(names)):
                known = log_JT[others(names, j, new=new)]
                for t, on in _settings(log_JT[j], measured):
                    gaps = np.full(log_JT.shape[1], np.nan)
                    gaps[on] = log_JT[j, on]
                    truth = log_JT[j, t]
                    ours = complete_ratios(np.vstack([known, gaps]))[-1, t]
                    mean = np.mean([log_JT[j, s] + np.nanmean(known[:, t] - known[:, s]) for s in on])
                    errors["fairlead"].append(abs(math.exp(ours - truth) - 1.0))
                    errors["mean"].append(abs(math.exp(float(mean) - truth) - 1.0))
            for way, found in errors.items():
                yield row("types", new, f"{measured} of 3 types", way, np.array(found))


def _settings(log_T: Floats, measured: int) -> Iterator[tuple[int, list[int]]]:
    """(type that is hidden, types that are known)"""
    for t in np.flatnonzero(np.isfinite(log_T)).tolist():
        rest = [s for s in np.flatnonzero(np.isfinite(log_T)).tolist() if s != t]
        if measured == 1:
            yield from ((t, [s]) for s in rest)
        elif len(rest) == measured:
            yield t, rest


def row(what: str, new: bool, known: str, way: str, errors: Floats) -> dict[str, object]:
    median, worst = np.percentile(errors, [50, 90])
    return {
        "what": what,
        "model": "new" if new else "known",
        "measured": known,
        "way": way,
        "median_error": round(float(median), 4),
        "p90_error": round(float(worst), 4),
        "estimates": len(errors),
    }


@click.command(help=__doc__.split("\n")[0])
@click.option("--data", type=click.Path(path_type=Path, exists=True), default=DATA, show_default=True)
@click.option("--repeats", default=3, show_default=True, help="Draws of what is measured, for each job type.")
@click.option("--gpus", default=1, show_default=True, help="Of each job; the defaults were chosen by those of 1 GPU.")
@click.option("--choose", is_flag=True, help="Also with options chosen without the model that is estimated.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(data: Path, repeats: int, gpus: int, choose: bool, output: str) -> None:
    table = load_table(data / TABLE if data.is_dir() else data)
    types = table.gpu_types
    names = sorted({name for name, count in table.entries[types[0]] if count == gpus})
    alone_JT = np.array([[_alone(table, gpu_type, (name, gpus)) for gpu_type in types] for name in names])
    shares = packed_shares(table, names, gpus)
    rows = [*packed_rows(shares, names, repeats), *type_rows(alone_JT, names)]
    if choose:
        rows += chosen_rows(shares, names, repeats)
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    shown = Table("estimated", "model", "measured", "way", "median error", "90th percentile", "estimates")
    for each in rows:
        figures = f"{each['median_error']:.1%}", f"{each['p90_error']:.1%}", f"{each['estimates']:,}"
        shown.add_row(str(each["what"]), str(each["model"]), str(each["measured"]), str(each["way"]), *figures)
    Console().print(shown)


def _alone(table: ThroughputTable, gpu_type: str, key: tuple[str, int]) -> float:
    entry = table.entry(gpu_type, key)
    return math.nan if entry is None else entry.alone


if __name__ == "__main__":
    main()
