"""What is told once, before a run begins: where the input may not be what the user takes it for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fairlead.core.types import Node
from fairlead.plugins import make_policy
from fairlead.sim.applications import DEFAULT_TYPE, GoodputTruth
from fairlead.sim.cadence_note import notes_on_cadence
from fairlead.sim.casting import Library
from fairlead.sim.cluster import UNNAMED, parse_cluster
from fairlead.sim.experiment import Experiment, World, prepare
from fairlead.sim.measured import MeasuredTruth
from fairlead.sim.truth import Truth
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.typed import TypedTruth


def tell_notes(experiments: Sequence[Experiment]) -> None:
    """On standard error, for runs that differ in trace, policy, seed or load only."""
    for path in dict.fromkeys(path for experiment in experiments for path in _tables(experiment)):
        if _breaks_off(path):
            click.echo(f"warning: {path} ends in the middle of a line? Its last character is no newline", err=True)
    by_policy = {(each.policy, each.cadence): None for each in experiments}
    notes = [note for name, cadence in by_policy for note in notes_on_cadence(name, make_policy(name), cadence)]
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if experiments[0].cluster is not None and not _named(parse_cluster(experiments[0].cluster)):
        return  # a long trace takes a second to prepare
    world = prepare(experiments[0])
    for gpu_type in _assumed_types(world):
        told = f"GPU type {gpu_type} counts as {DEFAULT_TYPE}: nothing tells how fast these jobs are on it"
        click.echo(f"note: {told}", err=True)
    for note in world.notes:
        if note not in notes:
            click.echo(f"note: {note}", err=True)


def _tables(experiment: Experiment) -> Iterator[Path]:
    """The CSV files it reads: the trace, and profiles."""
    trace, profiles = Path(experiment.trace), Library.beside(experiment.trace, experiment.profiles).profiles
    if trace.suffix == ".csv" and trace.is_file():
        yield trace
    if profiles is not None:
        yield from sorted(profiles.glob("*/*.csv"))


def _breaks_off(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            return file.read() not in b"\r\n"  # nor if it is empty
    except OSError:
        return False  # whoever needs it will say what is wrong with it


def _assumed_types(world: World) -> list[str]:
    """Types that count as the default one for some job; not the one that nodes without a type have."""
    return [
        gpu_type
        for gpu_type in _named(world.nodes)
        if any(
            _counts_as_default(job.truth, gpu_type)
            for job in world.jobs
            if not job.spec.gpu_types or gpu_type in job.spec.gpu_types
        )
    ]


def _named(nodes: Sequence[Node]) -> list[str]:
    return sorted({node.gpu_type for node in nodes if node.gpu_type.lower() not in (UNNAMED, DEFAULT_TYPE)})


def _counts_as_default(truth: Truth, gpu_type: str) -> bool:
    if isinstance(truth, GoodputTruth):
        return gpu_type.lower() not in truth.app.params
    asked = truth.asked if isinstance(truth, TunedTruth) else truth
    return isinstance(asked, MeasuredTruth) and not isinstance(asked, TypedTruth)
