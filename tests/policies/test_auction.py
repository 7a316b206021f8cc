"""The auction against every outcome, where there are few enough of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policies.auction import FEW_BIDDERS, LEAST_KEPT, Bid, Pool, Win, hold_auction

Free = dict[str, dict[str, int]]


def layouts(free: Mapping[str, int], gpus: int) -> Iterator[dict[str, int]]:
    """Every way to take so many GPUs from nodes."""
    if gpus == 0:
        yield {}
    elif free:
        node, *others = free
        rest = {name: free[name] for name in others}
        for count in range(min(gpus, free[node]) + 1):
            for where in layouts(rest, gpus - count):
                yield {node: count, **where} if count else where


def most_gain(bids: list[Bid], free: Free) -> float:
    """The greatest total gain over all outcomes and all layouts."""
    if not bids:
        return 0.0
    bid, *others = bids
    best = most_gain(others, free)
    for gpu_type in bid.rho:
        for where in layouts(free[gpu_type], bid.gpus):
            gain = bid.gain(bid.rho_on(gpu_type, len(where)))
            left = {n: count - where.get(n, 0) for n, count in free[gpu_type].items()}
            best = max(best, gain + most_gain(others, {**free, gpu_type: left}))
    return best


@st.composite
def auctions(draw: st.DrawFn) -> tuple[list[Bid], Free]:
    free: Free = {
        "a": {"a0": draw(st.integers(0, 3)), "a1": draw(st.integers(0, 3))},
        "b": {"b0": draw(st.integers(0, 3))},
    }
    bids = []
    for number in range(draw(st.integers(1, 4))):
        rho = {}
        for gpu_type in ("a", "b"):
            if draw(st.booleans()):
                first = draw(st.floats(0.5, 5.0))
                rho[gpu_type] = [first, first * draw(st.floats(1.0, 2.0))]
        bids.append(Bid(f"j{number}", draw(st.integers(1, 4)), draw(st.floats(1.0, 8.0)), rho))
    return bids, free


def taken(wins: Mapping[str, Win]) -> dict[str, int]:
    total: dict[str, int] = {}
    for win in wins.values():
        for node, count in win.where.items():
            total[node] = total.get(node, 0) + count
    return total


@settings(max_examples=150, deadline=None)
@given(auctions())
def test_the_gain_is_at_most_the_optimum_and_the_bound_at_least(auction: tuple[list[Bid], Free]) -> None:
    bids, free = auction
    outcome, best = hold_auction(bids, Pool(free)), most_gain(bids, free)
    assert outcome.gain <= best + 1e-9
    assert outcome.bound >= best - 1e-9
    capacity = {node: count for by_node in free.values() for node, count in by_node.items()}
    assert all(count <= capacity[node] for node, count in taken(outcome.wins).items())
    assert all(LEAST_KEPT <= share <= 1.0 for share in outcome.kept.values())
    assert outcome.kept.keys() == outcome.wins.keys()


@settings(max_examples=100, deadline=None)
@given(auctions())
def test_it_is_the_optimum_where_nodes_do_not_matter(auction: tuple[list[Bid], Free]) -> None:
    bids, free = auction
    flat = [Bid(bid.job, bid.gpus, bid.idle_rho, {t: by_nodes[:1] for t, by_nodes in bid.rho.items()}) for bid in bids]
    assert hold_auction(flat, Pool(free)).gain == pytest.approx(most_gain(flat, free), abs=1e-9)


def narrow(name: str, idle: float, served: float) -> Bid:
    return Bid(name, 1, idle, {"gpu": [served]})


def test_winners_maximise_the_product_of_values_and_not_the_gain_of_one() -> None:
    """A gang that would win alone loses to two bidders whose values rise by more together."""
    wide = Bid("wide", 2, 3.0, {"gpu": [1.0]})
    pair = [narrow("a", 2.0, 1.0), narrow("b", 2.0, 1.0)]
    pool = Pool({"gpu": {"n0": 2}})
    assert hold_auction([wide, pair[0]], pool).wins.keys() == {"wide"}
    assert hold_auction([wide, *pair], pool).wins.keys() == {"a", "b"}


def test_a_winner_pays_what_its_presence_costs_the_others() -> None:
    """Without `a` the GPU goes to `b`, whose value would be 1/1.5 and not 1/2: `a` keeps 1.5/2."""
    outcome = hold_auction([narrow("a", 4.0, 1.0), narrow("b", 2.0, 1.5)], Pool({"gpu": {"n0": 1}}))
    assert outcome.kept == {"a": pytest.approx(0.75)}


def test_a_winner_that_stands_in_the_way_of_no_other_pays_nothing() -> None:
    outcome = hold_auction([narrow("a", 4.0, 1.0), narrow("b", 2.0, 1.5)], Pool({"gpu": {"n0": 2}}))
    assert outcome.kept == {"a": 1.0, "b": 1.0}


def test_a_true_table_is_best_for_the_bidder_where_the_outcome_is_a_share_of_the_gpu() -> None:
    """What the loser states decides neither its own payment nor, below the winner's, who wins."""
    pool = Pool({"gpu": {"n0": 1}})
    truth = narrow("a", 4.0, 1.0)
    honest = hold_auction([truth, narrow("b", 2.0, 1.5)], pool).kept["a"]
    for stated in (0.25, 0.5, 1.5, 2.0):
        assert hold_auction([narrow("a", 4.0, stated), narrow("b", 2.0, 1.5)], pool).kept["a"] == pytest.approx(honest)


def test_a_job_that_can_stay_where_it_is_prefers_that_to_a_place_of_equal_worth() -> None:
    stays = Bid("a", 2, 3.0, {"gpu": [1.2]}, {"n1": 2}, 1.0)
    win = hold_auction([stays], Pool({"gpu": {"n0": 2, "n1": 2}})).wins["a"]
    assert (win.where, win.stays) == ({"n1": 2}, True)


def test_many_bidders_are_served_greedily_within_the_stated_bound() -> None:
    bids = [Bid(f"j{n}", 1 + n % 3, 2.0 + n % 7, {"gpu": [1.0]}) for n in range(FEW_BIDDERS + 30)]
    outcome = hold_auction(bids, Pool({"gpu": {f"n{n}": 4 for n in range(5)}}))
    assert sum(taken(outcome.wins).values()) == 20
    assert outcome.gain <= outcome.bound
    assert outcome.gain >= 0.9 * outcome.bound
    assert math.isfinite(outcome.bound)
