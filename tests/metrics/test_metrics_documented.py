"""A figure without a definition is worth nothing."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from fairlead.sim.metrics import Metrics, measure

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_metric_is_defined_in_a_table_of_the_documentation() -> None:
    rows = [line.split("|")[1] for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    defined = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert defined == {field.name for field in fields(Metrics)}


def test_the_dictionary_has_exactly_the_fields_of_the_metrics() -> None:
    assert list(measure([]).summary.to_dict()) == [field.name for field in fields(Metrics)]
