"""What became of each job, as a table: for a CSV file, and for pandas where that is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fairlead.core.errors import InvalidSpec
from fairlead.sim.metrics import JobOutcome

if TYPE_CHECKING:
    from fairlead.sim.experiment import Result

#: Which run a job is of, then what became of it: the fields of `JobOutcome`.
COLUMNS = ("policy", "load", "seed", *(field.name for field in fields(JobOutcome)))


def rows(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """One for each job of each run, in order."""
    names = COLUMNS[3:]
    for result in results:
        run = {"policy": result.experiment.policy, "load": result.experiment.load, "seed": result.experiment.seed}
        for job in result.jobs:
            yield run | {name: getattr(job, name) for name in names} | {"phase": str(job.phase)}


def to_csv(results: Sequence[Result]) -> str:
    """A header and a line for each job; what did not happen is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(results))
    return text.getvalue()


def to_pandas(results: Sequence[Result]) -> Any:
    """A DataFrame with the same columns."""
    try:
        import pandas
    except ImportError:
        raise InvalidSpec(
            "to_pandas() needs pandas, which is not installed: `pip install pandas`. "
            "Without it, `jobs` has the same rows"
        ) from None
    return pandas.DataFrame(list(rows(results)), columns=list(COLUMNS))
