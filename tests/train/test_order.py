"""The data order: whatever becomes of the workers, every sample of an epoch is used exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.train.order import Audit, Order, Stream, deal, micro_batches, shards, split
from fairlead.train.progress import Progress

SPEEDS = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)
#: What a step meets: its batch, the workers' speeds, and its end: committed, discarded and redone, or a resume.
STEPS = st.lists(st.tuples(st.integers(1, 20), SPEEDS, st.sampled_from(["commit", "abort", "resume"])), min_size=1)


def shared(total: int, speeds: list[float], virtual: int | None) -> list[list[int]]:
    """The positions that each worker takes, as in the loader: by speed, or in reproducible mode by virtual shards."""
    if virtual is None:
        return [[at for part in micro_batches(mine, 3) for at in part] for mine in split(total, speeds)]
    cut = shards(total, virtual)
    return [[at for shard in hand for at in cut[shard]] for hand in deal(virtual, len(speeds))]


@settings(deadline=None)
@given(STEPS, st.integers(1, 60), st.integers(0, 2**70), st.booleans(), st.none() | st.integers(1, 12))
def test_rescales_aborted_steps_and_resumes_use_every_sample_exactly_once(
    steps: list[tuple[int, list[float], str]], length: int, seed: int, shuffle: bool, virtual: int | None
) -> None:
    order, progress, audit = Order(length, seed, shuffle=shuffle), Progress(), Audit()
    calm_end = [(7, [1.0], "commit")] * length  # finishes the epoch that the schedule leaves open
    for number, (batch, speeds, fate) in enumerate(steps + calm_end):
        if fate == "resume":
            order, progress = Order(length, seed, shuffle=shuffle), replace(progress)
        stop = min(progress.position + batch, length)
        ids = order.ids(progress.epoch, progress.position, stop).tolist()
        # Work is done in any case, but counts only when committed.
        taken = [[ids[at] for at in mine] for mine in shared(len(ids), speeds, virtual)]
        if fate == "abort":
            continue
        for rank, samples in enumerate(taken):
            audit.took(progress.epoch, number, "everybody", rank, samples)
        audit.committed(number, "everybody", number)
        progress.position = stop
        if stop == length:
            progress.epoch, progress.position = progress.epoch + 1, 0
    audit.check(length, epochs=range(progress.epoch))
    assert progress.epoch >= 1


@given(st.integers(0, 50), st.integers(1, 12), st.integers(1, 8), st.integers(1, 8))
def test_micro_batches_of_reproducible_mode_do_not_depend_on_the_number_of_workers(
    total: int, count: int, few: int, many: int
) -> None:
    cut = shards(total, count)

    def run_by(workers: int) -> list[range]:
        return [cut[shard] for hand in deal(count, workers) for shard in hand]

    assert run_by(few) == run_by(many) == cut
    assert [at for shard in cut for at in shard] == list(range(total))
    assert max(map(len, deal(count, many))) - min(map(len, deal(count, many))) <= 1
    assert len(deal(count, many)) == many


@given(st.integers(0, 500), SPEEDS)
def test_a_split_is_exhaustive_contiguous_and_leaves_nobody_idle(total: int, shares: list[float]) -> None:
    parts = split(total, shares)
    assert len(parts) == len(shares)
    assert [at for part in parts for at in part] == list(range(total))
    assert total < len(shares) or all(len(part) >= 1 for part in parts)


@given(st.integers(0, 500), SPEEDS)
def test_a_faster_worker_never_gets_less(total: int, shares: list[float]) -> None:
    parts = split(total, shares)
    by_speed = sorted(range(len(shares)), key=lambda rank: (shares[rank], -rank))
    counts = [len(parts[rank]) for rank in by_speed]
    assert total < len(shares) or counts == sorted(counts)


@given(st.integers(100, 10_000), st.lists(st.floats(1, 10), min_size=1, max_size=8))
def test_a_large_split_is_within_one_sample_of_proportional(total: int, shares: list[float]) -> None:
    whole = sum(map(Fraction, shares))
    for part, share in zip(split(total, shares), shares, strict=True):
        assert abs(len(part) - total * Fraction(share) / whole) < 1


def test_what_does_not_divide_goes_to_the_lowest_ranks() -> None:
    assert split(10, [1, 1, 1]) == [range(4), range(4, 7), range(7, 10)]
    assert split(2, [1, 1, 1]) == [range(1), range(1, 2), range(2, 2)]
    assert split(4, [100, 1, 1]) == [range(2), range(2, 3), range(3, 4)]


@pytest.mark.parametrize("shares", [[], [1.0, 0.0], [float("nan")], [float("inf"), 1.0], [-1.0]])
def test_shares_that_are_no_speeds_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="positive shares"):
        split(8, shares)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 20))
def test_micro_batches_are_few_and_equal(start: int, count: int, largest: int) -> None:
    mine = range(start, start + count)
    parts = micro_batches(mine, largest)
    assert [at for part in parts for at in part] == list(mine)
    assert len(parts) == -(-count // largest)
    assert not parts or max(map(len, parts)) <= min(largest, min(map(len, parts)) + 1)


@given(st.integers(1, 300), st.integers(0, 2**64), st.integers(0, 5))
def test_an_epoch_is_a_permutation_that_depends_on_nothing_but_seed_and_epoch(length: int, seed: int, at: int) -> None:
    order = Order(length, seed)
    whole = order.ids(at, 0, length)
    order.ids(at + 1, 0, 1)
    assert sorted(whole) == list(range(length))
    assert np.array_equal(np.concatenate([order.ids(at, 0, length // 2), order.ids(at, length // 2, length)]), whole)
    assert np.array_equal(Order(length, seed).ids(at, 0, length), whole)


def test_the_order_never_changes_between_versions() -> None:
    assert Order(10, 1).ids(0, 0, 10).tolist() == [4, 6, 1, 3, 9, 8, 2, 0, 5, 7]
    assert Order(10, 1).ids(1, 0, 10).tolist() == [5, 3, 2, 8, 7, 0, 1, 4, 9, 6]


def test_every_order_is_about_as_likely() -> None:
    counts = dict.fromkeys([(a, b, c) for a in range(3) for b in range(3) for c in range(3) if len({a, b, c}) == 3], 0)
    for epoch in range(3000):
        counts[tuple(Order(3, 7).ids(epoch, 0, 3).tolist())] += 1
    assert min(counts.values()) > 400  # 500 expected, with a standard deviation of 20


def test_the_callers_changes_do_not_reach_the_order() -> None:
    order = Order(10, 1)
    order.ids(0, 0, 10)[:] = 0
    assert sorted(order.ids(0, 0, 10)) == list(range(10))


def test_without_shuffling_ids_are_positions() -> None:
    assert Order(10, 1, shuffle=False).ids(3, 2, 5).tolist() == [2, 3, 4]


def test_positions_beyond_the_epoch_are_refused() -> None:
    with pytest.raises(ValueError, match="no positions 8 to 12 in an epoch of 10"):
        Order(10, 1).ids(0, 8, 12)


def test_an_empty_data_set_and_a_negative_seed_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="0 samples"):
        Order(0, 1)
    with pytest.raises(InvalidSpec, match="seed"):
        Order(1, -1)


def test_an_audit_names_what_is_missing_and_repeated(tmp_path: Path) -> None:
    audits = [Audit(tmp_path / "0"), Audit(tmp_path / "1")]
    audits[0].took(0, 5, "a", 0, [0, 1])
    audits[1].took(0, 5, "a", 1, [1, 3])
    audits[0].took(0, 5, "b", 0, [0, 1, 2, 3])  # was begun again, but not committed
    audits[1].committed(5, "a", 1.0)
    merged = Audit.merged([tmp_path / "0", tmp_path / "1"])
    assert merged.used == {0: [(0, 5, 0), (1, 5, 0), (1, 5, 1), (3, 5, 1)]}
    with pytest.raises(AssertionError, match=r"missing \[2\]; .* \{1: \[\(5, 0\), \(5, 1\)\]\}; unknown \[\]"):
        merged.check(4)
    with pytest.raises(AssertionError, match=r"unknown \[3\]"):
        merged.check(3)
    with pytest.raises(AssertionError, match=r"epoch 1 .* missing \[0, 1\]"):
        merged.check(2, epochs=[1])
    merged.committed(5, "b", 2.0)  # who had committed it before was lost
    merged.check(4)


class Resumable:
    """Counts, and can go on from any number."""

    def __init__(self) -> None:
        self.at = 0
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 100:
            self.at += 1
            self.read += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@given(st.sets(st.integers(0, 30)))
def test_a_stream_yields_the_samples_at_the_positions_asked_for(wanted: set[int]) -> None:
    assert list(Stream(range(20)).take(sorted(wanted))) == [at for at in sorted(wanted) if at < 20]


def test_a_stream_does_not_go_back() -> None:
    stream = Stream(range(20))
    assert list(stream.take([3, 4])) == [3, 4]
    with pytest.raises(ValueError, match=r"position 4 .* already read \(it is at 5\)"):
        list(stream.take([4]))


def test_a_stream_resumes_by_reading_forward() -> None:
    stream = Stream(range(20))
    list(stream.take([3, 4]))
    resumed = Stream(range(20))
    resumed.load_state_dict(stream.state_dict())
    assert list(resumed.take([5, 7])) == [5, 7]
    resumed.load_state_dict(stream.state_dict())  # a restart of the same stream, back to an earlier place
    assert list(resumed.take([6])) == [6]


def test_a_stream_over_an_iterable_with_a_state_resumes_at_once() -> None:
    stream = Stream(Resumable())
    list(stream.take([50]))
    source = Resumable()
    resumed = Stream(source)
    resumed.load_state_dict(stream.state_dict())
    assert list(resumed.take([52])) == [52]
    assert source.read == 2


def test_a_stream_that_can_be_read_only_once_says_so() -> None:
    stream = Stream(iter(range(20)))
    list(stream.take([5]))
    with pytest.raises(InvalidSpec, match="can be read only once"):
        stream.load_state_dict({"position": 2})
    with pytest.raises(InvalidSpec, match="ends after 20 samples, but was saved after 30"):
        stream.load_state_dict({"position": 30})
