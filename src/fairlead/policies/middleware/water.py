"""Water-filling: an amount shared out by weights, with a least and a most for everybody. In parts, and in whole GPUs.

Legend: G groups, be they queues or users.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: Parts of a GPU below this are errors of rounding.
_TINY = 1e-9


def pour(amount: float, weight_G: Floats, floor_G: Floats, cap_G: Floats) -> Floats:
    """Everybody gets level x weight, at least its floor and at most its cap; the level is where it all is used up.

    Floors are met even if they come to more than there is; what is beyond all caps is left over.
    """
    cap_G = np.maximum(floor_G, cap_G)
    if amount >= cap_G.sum():
        return cap_G
    left = amount - float(floor_G.sum())
    if left <= 0.0:
        return floor_G.copy()
    weight_G = np.maximum(weight_G, 1e-300)
    # As the level rises, a group begins to take part at floor / weight and ends at cap / weight.
    at_E = np.concatenate([floor_G / weight_G, cap_G / weight_G])
    slope_E = np.concatenate([weight_G, -weight_G])
    order_E = np.argsort(at_E, kind="stable")
    at_E, slope_E = at_E[order_E], np.cumsum(slope_E[order_E])
    poured_E = np.concatenate([[0.0], np.cumsum(slope_E[:-1] * np.diff(at_E))])
    event = int(np.searchsorted(poured_E, left, side="right")) - 1
    level = at_E[event] + (left - poured_E[event]) / max(slope_E[event], 1e-300)
    return np.asarray(np.clip(level * weight_G, floor_G, cap_G))


def pour_by_rank(amount: float, rank_G: Ints, weight_G: Floats, floor_G: Floats, cap_G: Floats) -> Floats:
    """The same, but a group of higher rank gets all it may have before one of lower rank gets more than its floor."""
    share_G = floor_G.astype(np.float64)
    left = amount - float(share_G.sum())
    for rank in sorted(set(rank_G.tolist()), reverse=True):
        if left <= 0.0:
            break
        member_G = rank_G == rank
        before = float(share_G[member_G].sum())
        share_G[member_G] = pour(before + left, weight_G[member_G], floor_G[member_G], cap_G[member_G])
        left -= float(share_G[member_G].sum()) - before
    return share_G


def whole(share_G: Floats, first_G: Flags) -> Ints:
    """Whole GPUs that come to the same sum. Those marked are rounded up first, then those with the largest parts."""
    floor_G = np.floor(share_G + _TINY)
    part_G = np.maximum(0.0, share_G - floor_G)
    left = int(np.floor(part_G.sum() + 0.5))
    rank_G = np.lexsort((np.arange(len(share_G)), -np.round(part_G, 6), ~first_G))
    chosen = rank_G[part_G[rank_G] > _TINY][:left]
    floor_G[chosen] += 1.0
    return floor_G.astype(np.int64)
