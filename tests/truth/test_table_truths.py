"""Gavel's throughput tables: reading, choosing the entry, packing, and refusing what is broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation
from fairlead.sim.tables import TableTruth, ThroughputTable, load_table
from fairlead.sim.traces.record import InvalidTrace
from fairlead.sim.truth import PACKED_SPEED, FixedDuration, Setting

ONE = Allocation.of({"a": [0]})
TWO = Allocation.of({"a": [0, 1]})
SPREAD = Allocation.of({"a": [0], "b": [0]})


@pytest.fixture
def table(table_file: Path) -> ThroughputTable:
    return load_table(table_file)


@pytest.fixture
def resnet(table: ThroughputTable) -> TableTruth:
    return TableTruth(table, "ResNet-18", 16, 1, 3000.0)


def test_a_table_lists_its_gpu_types_without_their_spread_twins(table: ThroughputTable) -> None:
    assert table.gpu_types == ("v100", "k80")


def test_speed_depends_on_gpu_type_and_count(resnet: TableTruth) -> None:
    assert resnet.pace(Setting(0.0, ONE, "v100")).speed == 30.0
    assert resnet.pace(Setting(0.0, ONE, "k80")).speed == 6.0
    assert resnet.pace(Setting(0.0, TWO, "v100")).speed == 50.0


def test_a_pace_lasts_to_the_end_and_tells_batch_and_step_time(resnet: TableTruth) -> None:
    pace = resnet.pace(Setting(0.0, TWO, "v100"))
    assert (pace.until, pace.batch) == (3000.0, 16)
    assert pace.observation is not None
    assert pace.observation.configuration == ("v100", 1, 2, 8, 0)
    assert pace.observation.step_s == pytest.approx(0.02)


def test_gpus_on_several_nodes_use_the_unconsolidated_entry_where_it_has_one(table: ThroughputTable) -> None:
    assert TableTruth(table, "ResNet-18", 16, 2, 1.0).pace(Setting(0.0, SPREAD, "v100")).speed == 40.0
    assert TableTruth(table, "ResNet-18", 16, 2, 1.0).pace(Setting(0.0, SPREAD, "k80")).speed == 9.0
    # Its unconsolidated entry is 0: as good as none.
    entry = table.entry("v100", ("A3C", 1), nodes=2)
    assert entry is not None
    assert entry.alone == 7.0


def test_zero_and_absent_entries_cannot_run(table: ThroughputTable, resnet: TableTruth) -> None:
    a3c = TableTruth(table, "A3C", None, 1, 100.0)
    assert a3c.pace(Setting(0.0, ONE, "k80")).speed == 0.0
    assert resnet.pace(Setting(0.0, Allocation.of({"a": [0, 1, 2]}), "v100")).speed == 0.0


def test_a_cluster_that_states_no_gpu_type_counts_as_the_fastest(resnet: TableTruth) -> None:
    assert resnet.pace(Setting(0.0, ONE, "gpu")).speed == 30.0


def test_gpu_types_are_found_whatever_their_case(resnet: TableTruth) -> None:
    assert resnet.pace(Setting(0.0, ONE, "K80")).speed == 6.0


def test_an_unknown_gpu_type_is_an_error_that_lists_the_known(resnet: TableTruth) -> None:
    with pytest.raises(InvalidSpec, match="no GPU type 'h100'; it has 'v100', 'k80'"):
        resnet.pace(Setting(0.0, ONE, "h100"))


def test_packed_jobs_go_at_the_measured_speed_of_the_pair(table: ThroughputTable, resnet: TableTruth) -> None:
    a3c = TableTruth(table, "A3C", None, 1, 100.0)
    assert resnet.pace(Setting(0.0, ONE, "v100", (a3c,))).speed == pytest.approx(24.0)
    assert a3c.pace(Setting(0.0, ONE, "v100", (resnet,))).speed == pytest.approx(3.5)
    seen = resnet.pace(Setting(0.0, ONE, "v100", (a3c,), packed_models=("A3C",))).observation
    assert seen is not None
    assert (seen.step_s, seen.partners) == (pytest.approx(1 / 24.0), ("A3C",))


def test_three_on_a_gpu_lose_what_each_pair_loses(table: ThroughputTable, resnet: TableTruth) -> None:
    a3c = TableTruth(table, "A3C", None, 1, 100.0)
    assert resnet.pace(Setting(0.0, ONE, "v100", (a3c, resnet))).speed == pytest.approx(30 * 0.8 * 0.7)


def test_a_pair_measured_as_zero_cannot_run_together(table: ThroughputTable) -> None:
    two = TableTruth(table, "ResNet-18", 16, 2, 1.0)
    assert two.pace(Setting(0.0, TWO, "v100", (two,))).speed == 0.0


def test_beside_a_job_that_is_not_in_the_table_the_usual_share_is_kept(resnet: TableTruth) -> None:
    pace = resnet.pace(Setting(0.0, ONE, "v100", (FixedDuration(1.0, 1),)))
    assert pace.speed == pytest.approx(30.0 * PACKED_SPEED)


def test_packed_is_never_faster_than_alone(write: Callable[[str, object], Path]) -> None:
    path = write("t.json", {"x": {"('a', 1)": {"null": 2.0, "('a', 1)": [3.0, 3.0]}}})
    truth = TableTruth(load_table(path), "a", None, 1, 10.0)
    assert truth.pace(Setting(0.0, ONE, "x", (truth,))).speed == 2.0


def test_a_job_may_accept_the_type_of_a_node_that_states_none(table: ThroughputTable) -> None:
    assert TableTruth(table, "ResNet-18", 16, 1, 3000.0, ("gpu",)).home == "v100"


def test_only_some_gpu_types_can_be_read(table_file: Path) -> None:
    assert load_table(table_file, only=("v100",)).entries.keys() == {"v100"}


def test_what_remains_is_counted_on_the_fastest_type_accepted(table: ThroughputTable) -> None:
    assert TableTruth(table, "ResNet-18", 16, 1, 3000.0).remaining_s(0.0) == pytest.approx(100.0)
    assert TableTruth(table, "ResNet-18", 16, 1, 3000.0).remaining_s(1500.0) == pytest.approx(50.0)
    assert TableTruth(table, "ResNet-18", 16, 1, 3000.0, ("K80",)).remaining_s(0.0) == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("model", "batch", "gpus", "types", "says"),
    [
        (
            "ResNet-18",
            16,
            4,
            (),
            r"no speed for 'ResNet-18 \(batch size 16\)' on 4 GPUs of 'v100', 'k80'; it has it on 1, 2 GPUs",
        ),
        ("VGG", 16, 1, (), r"its job types there are A3C, ResNet-18 \(batch size 16\)"),
        ("A3C", None, 1, ("k80",), "on 1 GPUs of 'k80'; its job types there are"),
        ("A3C", None, 1, ("h100",), "has no GPU type 'h100'; it has 'v100', 'k80'"),
    ],
)
def test_a_job_that_can_run_nowhere_is_refused(
    table: ThroughputTable, model: str, batch: int | None, gpus: int, types: tuple[str, ...], says: str
) -> None:
    with pytest.raises(InvalidSpec, match=says):
        TableTruth(table, model, batch, gpus, 10.0, types)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('{"v100": ', r"bad.json:1: is not JSON"),
        ([], "the file is .*; expected an object of GPU types"),
        ({}, "has no GPU types"),
        ({"v100": 3}, "GPU type 'v100' is 3; expected an object of jobs"),
        ({"v100": {"('a', 1)": 3}}, r"GPU type 'v100', job \('a', 1\) is 3; expected an object of speeds"),
        ({"v100": {"('a', 1)": {}}}, r"job \('a', 1\) has no \"null\""),
        ({"v100": {"('a', 1)": {"null": -1}}}, r"job \('a', 1\) is -1; expected steps per second"),
        ('{"v100": {"(\'a\', 1)": {"null": NaN}}}', r"job \('a', 1\) is nan"),
        ({"v100": {"('a', 1)": {"null": True}}}, r"job \('a', 1\) is True"),
        ({"v100": {"('a', 1)": {"null": 1, "('b', 1)": 2}}}, r"\('a', 1\) with \('b', 1\) is 2; expected \[its speed"),
        ({"v100": {"('a', 1)": {"null": 1, "('b', 1)": [1, "x"]}}}, r"with \('b', 1\) is 'x'"),
        ({"v100": {"('a', 1)": {"null": 1, "b": [1, 1]}}}, r"job \('a', 1\): found the key 'b'"),
        ({"v100": {"__import__('os')": {"null": 1}}}, "found the key"),
        ({"v100": {"('a', 0)": {"null": 1}}}, "found the key"),
        ({"v100": {"('a', True)": {"null": 1}}}, "found the key"),
        ({"v100": {"(": {"null": 1}}}, "found the key"),
        ({"v100": {"('a', 1)": {"null": 1}}, "k80_unconsolidated": {}}, "has 'k80_unconsolidated' but no 'k80'"),
    ],
)
def test_a_broken_table_is_refused_by_file_and_key(
    write: Callable[[str, object], Path], data: object, says: str
) -> None:
    with pytest.raises(InvalidTrace, match=says) as caught:
        load_table(write("bad.json", copy.deepcopy(data)))
    assert "bad.json" in str(caught.value)


def test_the_public_tables_are_read_whole(shared_data: Path) -> None:
    gavel = load_table(shared_data / "gavel" / "simulation_throughputs.json")
    assert gavel.gpu_types == ("k80", "p100", "v100")
    assert [len(gavel.entries[name]) for name in gavel.gpu_types] == [83, 83, 83]
    entry = gavel.entry("v100", ("A3C", 1))
    assert entry is not None
    assert entry.alone == pytest.approx(7.175767)
    assert entry.packed["ResNet-18 (batch size 16)", 1] == pytest.approx(5.573234)
    shockwave: Any = load_table(shared_data / "shockwave" / "tacc_throughputs.json")
    assert shockwave.entry("v100", ("Transformer (batch size 256)", 1)) is None
