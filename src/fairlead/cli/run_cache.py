"""Runs that were done before: found, told of, and kept for the next time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from fairlead.cli.errors import Interrupted
from fairlead.cli.output import counted
from fairlead.sim.experiment import Experiment, Result
from fairlead.sim.fingerprint import fingerprint
from fairlead.sim.result_cache import ResultCache, default_directory

Command = TypeVar("Command", bound=Callable[..., Any])


class KeptRuns:
    """The runs of one command: those done before, and those it finishes. Without a cache, none are kept."""

    def __init__(self, experiments: Sequence[Experiment], cache: ResultCache | None) -> None:
        self._cache, self._all, self._finished = cache, len(experiments), 0
        self.done: dict[int, Result] = {}
        if cache is not None:
            for place, experiment in enumerate(experiments):
                if (result := cache.find(fingerprint(experiment), experiment)) is not None:
                    self.done[place] = result

    def tell(self) -> None:
        if not self.done:
            return
        before, left = len(self.done), self._all - len(self.done)
        went = f"{before} of {counted(self._all, 'run')} {'was' if before == 1 else 'were'} done before"
        click.echo(f"{went}; {f'continuing with {left}' if left else '--no-cache runs them again'}", err=True)

    def keep(self, key: str, result: Result) -> None:
        self._finished += 1
        if self._cache is None:
            return
        try:
            self._cache.keep(key, result)
        except OSError as error:
            where, why = self._cache.directory, error.strerror or error
            click.echo(f"note: finished runs are not kept: cannot write to {where}: {why}", err=True)
            self._cache = None

    @contextmanager
    def told_when_interrupted(self) -> Iterator[None]:
        try:
            yield
        except Interrupted:
            if self._cache is not None:
                done = f"{len(self.done) + self._finished} of {counted(self._all, 'run')} are done and kept"
                click.echo(f"{done}; the same command continues with the rest", err=True)
            raise


def cache_options(command: Command) -> Command:
    """Add the options of where finished runs are kept."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Run everything anew, and keep nothing for the next time."),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where finished runs are kept.  [default: $XDG_CACHE_HOME/fairlead/runs, or ~/.cache/fairlead/runs]",
        ),
    ):
        command = option(command)
    return command


def cache_of(*, no_cache: bool, cache_dir: Path | None) -> ResultCache | None:
    return None if no_cache else ResultCache(cache_dir or default_directory())
