"""The throughput model of a job from what its profiler measured (Pollux, section 4.1), and Sia's way to borrow one.

A pure function of the observations: the same ones give the same model to the last bit, in any order, alone or among
others. What was never observed is assumed to be as good as it could be, so that a scheduler will try it.

Legend: B jobs, P points of a profile (padded with points of weight 0), G models to start from, 2 kinds of time
(T_grad, T_opt), 6 times of the model in the order of `ThroughputParams`, 7 = those and gamma, Q = 2 P + 3.

What is minimised is Pollux's loss but for weights, and for a robust error in place of the square:

    loss = 2 sqrt(EXACT^2 + sum_P w h) + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)

    n^2 = (log(T_grad / measured)^2 + log(T_opt / measured)^2) / 2      how wrong the model is at one point
    h   = n^2 / (1 + n^2 / FAR^2)                                       a point far off pulls less (Geman-McClure)
    w   ~ steps / (steps + STEPS_TRUSTED), of sum 1                     evidence, which saturates
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.core.types import LARGEST, Observation
from fairlead.goodput.throughput import GAMMA_MAX, ThroughputParams

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

#: After so many steps a mean step time has half the weight it can ever have.
STEPS_TRUSTED = 20.0
#: A measurement that is wrong by a factor of two pulls with a quarter of its weight.
FAR = math.log(2.0)
#: Relative errors below this are as good as none.
EXACT = 1e-3
#: Pollux's pulls: towards no overlap, and towards averaging whose time does not grow with the GPUs.
PULL_GAMMA, PULL_BETA = 1e-3, 1e-2
#: An error that halves the confidence.
ERROR_TRUSTED = 0.2

#: Seconds that a clock could have measured; others are cut to this range.
SHORTEST_S, LONGEST_S = 1e-9, 1e9
#: A time of the model is at least this part of a typical T_grad while it is fitted, and 0 if it ends there.
LEAST, MOST = 1e-7, 1e7
#: No time is smaller where the descent starts: steps are relative, so that what is nothing would stay so.
SMALL = 1e-3
#: Values of gamma that the descent may start from.
GAMMAS_G1 = np.array([[1.0], [1.5], [2.5], [5.0], [10.0]])
MAX_STEPS = 16
#: A step that would lower the loss by less than this part of it is not taken.
CONVERGED = 1e-3

#: Where the seven may go if they were observed, and where they are if not. An alpha is divided by, and never 0.
LOW_7 = np.array([LEAST] * 6 + [1.0])
HIGH_7 = np.array([MOST] * 6 + [GAMMA_MAX])
PINNED_7 = np.array([LEAST, LEAST, LEAST, 0.0, LEAST, 0.0, 1.0])
PULLS_3 = np.array([PULL_BETA, PULL_BETA, PULL_GAMMA])
#: The first two of the six enter T_grad, the others T_sync.
KINDS_2 = np.array([0, 2])


@dataclass(frozen=True, slots=True)
class Fit:
    """A model, how well it agrees with what was measured, and what that was: all else is the optimistic prior."""

    params: ThroughputParams
    #: RMS of log(predicted / measured) over T_grad and T_opt of every observation, weighted by evidence.
    error: float
    #: More than one per-GPU batch was seen; otherwise half of T_grad is assumed not to depend on it.
    batches: bool
    #: Several GPUs of one node were seen; otherwise averaging within a node is free.
    within: bool
    #: Several nodes were seen; otherwise averaging across them takes 1.1 times as long as within one.
    across: bool
    #: More than two GPUs were seen; otherwise averaging over more takes no longer.
    beyond_two: bool
    #: The most GPUs seen, 0 if nothing was.
    most_gpus: int
    #: 0 to 1: W / (W + 1) x (1 + how many of the four above are true) / 5 / (1 + (error / ERROR_TRUSTED)^2), where W is
    #: the sum over distinct (N, K, m) of steps / (steps + STEPS_TRUSTED).
    confidence: float


#: Without any observation: a second per sample whatever the batch, and every GPU adds as much as the first.
NEUTRAL = Fit(ThroughputParams(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0), 0.0, False, False, False, False, 0, 0.0)

Profile = tuple[Observation, ...]

#: What was fitted, oldest first. It only saves time: a fit is a function of its observations.
_memo: dict[Profile, Fit] = {}
MEMO_SIZE = 65536


def fit(observations: Sequence[Observation]) -> Fit:
    """The model of one job on one type of GPU."""
    return fit_many([observations])[0]


def fit_many(profiles: Sequence[Sequence[Observation]]) -> list[Fit]:
    """Each profile's `fit`, in a fraction of the time."""
    keys = [tuple(profile) for profile in profiles]
    known = [_memo.get(key) for key in keys]
    fits: dict[Profile, Fit] = {}
    # Those of a similar size go together. Each is padded as it would be alone, so that its sums add up alike.
    by_size: dict[int, list[tuple[Profile, list[Point]]]] = {}
    for key in dict.fromkeys(key for key, found in zip(keys, known, strict=True) if found is None):
        if points := _points(key):
            by_size.setdefault(max(8, 1 << (len(points) - 1).bit_length()), []).append((key, points))
        else:
            fits[key] = NEUTRAL
    for size, group in by_size.items():
        fits.update(zip((key for key, _ in group), _fit_alike([points for _, points in group], size), strict=True))
    _memo.update(fits)
    while len(_memo) > MEMO_SIZE:
        del _memo[next(iter(_memo))]
    return [found or fits[key] for key, found in zip(keys, known, strict=True)]


def borrow(source: ThroughputParams, *, source_grad_s: float, grad_s: float) -> ThroughputParams:
    """The model on a type of GPU where only a pass was measured (Sia): T(N, A) = T(1, A) / T(1, B) T(N, B).

    `grad_s` and `source_grad_s` are the times of one pass there and on the type `source` is of; 0 is not known.
    """
    faster = source_grad_s / grad_s if source_grad_s > 0.0 and grad_s > 0.0 else 1.0
    return source.faster(faster, within_node=faster, between_nodes=faster)


# -- profiles as arrays ----------------------------------------------------------------------------------------------

Point = tuple[int, int, int, int, float, float, int]
COLUMNS = "nodes", "gpus", "per_gpu_batch", "accumulation", "step_s", "sync_s", "steps"
_read: Callable[[Observation], Point] = attrgetter(*COLUMNS)


class _Profiles(NamedTuple):
    """Many profiles side by side, each in units of T_grad and m at its typical point.

    Here and in what follows an axis G may come after B. Q = P + P + 3 are what the loss compares: log T_grad and
    log T_opt with what was measured, and beta_n / alpha_n, beta_r / alpha_r and gamma - 1 with Pollux's 0.
    """

    #: The model is linear in its six times: what each adds to T_grad or T_sync, per unit of it.
    design_B6P: Floats
    weight_BP: Floats
    #: What was measured, and whether it was: 1 or 0.
    measured_BQ: Floats
    told_BQ: Floats
    #: Where the seven may go.
    low_B7: Floats
    high_B7: Floats

    def at(self, rows: Bools | tuple[slice, None]) -> _Profiles:
        return _Profiles(*(column[rows] for column in self))


def _points(observations: Sequence[Observation]) -> list[Point]:
    """The usable ones, in an order that does not depend on the one they were told in."""
    points = sorted(_read(o) for o in observations if o.step_s > 0.0)
    if points and max(map(max, points)) > LARGEST:
        cap = partial(min, LARGEST)
        points = [(cap(n), cap(k), cap(m), cap(s), step_s, sync_s, cap(c)) for n, k, m, s, step_s, sync_s, c in points]
    return points


def _profiles(raw_7BP: Floats) -> tuple[_Profiles, Floats, Floats, Bools]:
    """The profiles, their units in seconds and samples, and if batches, within, across and beyond_two were seen."""
    nodes_BP, gpus_BP, m_BP, s_BP, step_BP, sync_BP, steps_BP = raw_7BP
    B, P = nodes_BP.shape
    many_BP, apart_BP, real_BP = gpus_BP > 1.0, nodes_BP > 1.0, steps_BP > 0.0
    # A sync of exactly 0 on several GPUs, or as long as the step, does not say how the step divides.
    tells_BP = real_BP & (sync_BP < step_BP) & ((sync_BP > 0.0) | ~many_BP)
    exposed_BP = sync_BP * tells_BP
    grad_BP = (step_BP - exposed_BP) / (np.maximum(s_BP, 0.0) + 1.0)
    grad_BP = np.minimum(np.maximum(grad_BP, SHORTEST_S), LONGEST_S)
    median, half_B = _typical(grad_BP, np.where(tells_BP.any(axis=1, keepdims=True), tells_BP, real_BP))
    unit_B1 = grad_BP[median]
    measured_BQ, told_BQ = np.zeros((B, 2 * P + 3)), np.ones((B, 2 * P + 3))
    measured_BQ[:, :P], measured_BQ[:, P:-3] = grad_BP, np.minimum(grad_BP + exposed_BP, LONGEST_S)
    measured_BQ[:, :-3] = np.log(measured_BQ[:, :-3] / unit_B1)
    told_BQ[:, :P], told_BQ[:, P:-3] = tells_BP, real_BP
    design_B6P = np.ones((B, 6, P))
    m_BP = np.maximum(m_BP, 1.0)
    batch_B1 = m_BP[median]
    np.divide(m_BP, batch_B1, out=design_B6P[:, 1])
    design_B6P[:, 2], design_B6P[:, 4] = many_BP & apart_BP, many_BP & ~apart_BP
    np.multiply(design_B6P[:, 2::2], np.maximum(gpus_BP - 2.0, 0.0)[:, None], out=design_B6P[:, 3::2])
    # Pollux's priors: what was never observed cannot move.
    free_B7 = np.ones((B, 7), dtype=np.bool_)
    free_B7[:, 0] = (m_BP != batch_B1).any(axis=1)
    free_B7[:, 2:6] = design_B6P[:, 2:].any(axis=2)
    free_B7[:, 6] = free_B7[:, 2] | free_B7[:, 4]
    seen_B4 = free_B7[:, [0, 4, 2, 3]]
    seen_B4[:, 3] |= free_B7[:, 5]
    pinned_B7 = np.empty((B, 7))
    pinned_B7[:], pinned_B7[:, 0] = PINNED_7, half_B
    low_B7, high_B7 = np.where(free_B7, LOW_7, pinned_B7), np.where(free_B7, HIGH_7, pinned_B7)
    weight_BP = steps_BP / (steps_BP + STEPS_TRUSTED)
    weight_BP /= weight_BP.sum(axis=1, keepdims=True)
    profiles = _Profiles(design_B6P, weight_BP, measured_BQ, told_BQ, low_B7, high_B7)
    return profiles, unit_B1, batch_B1, seen_B4


def _typical(grad_BP: Floats, judge_BP: Bools) -> tuple[tuple[Ints, Ints], Floats]:
    """The index of the median T_grad, and half of the mean in units of it: Pollux's alpha_c of a single m.

    The mean is of those within a factor of two of the median, since a single outlier could move it anywhere.
    """
    order_BP = np.argsort(np.where(judge_BP, grad_BP, np.inf), axis=1, kind="stable")
    rows_B1 = np.arange(len(grad_BP))[:, None]
    median = rows_B1, order_BP[rows_B1, (judge_BP.sum(axis=1, keepdims=True) - 1) // 2]
    rel_BP = grad_BP / grad_BP[median]
    near_BP = judge_BP & (rel_BP > 0.5) & (rel_BP < 2.0)
    return median, 0.5 * (rel_BP * near_BP).sum(axis=1) / near_BP.sum(axis=1)


# -- the loss --------------------------------------------------------------------------------------------------------

#: What the model says [B, Q]; what each of the six adds to T_grad or T_sync [B, 6, P], and these two [B, 2, P];
#: derivatives of log T_opt by log T_sync, from 0 to 1, and by log gamma [B, P].
Predicted = tuple[Floats, Floats, Floats, Floats, Floats]


def _predict(profiles: _Profiles, theta_B7: Floats) -> Predicted:
    parts_B6P = profiles.design_B6P * theta_B7[..., :6, None]
    sums_B2P = np.add.reduceat(parts_B6P, KINDS_2, axis=-2)
    sums_B2P[..., 1, :] += 1e-30  # one GPU does not average, but must have a logarithm
    log_B2P = np.log(sums_B2P)
    grad_BP, gamma_B1 = log_B2P[..., 0, :], theta_B7[..., 6:]
    # T_opt = T_grad (1 + (T_sync / T_grad)^gamma)^(1 / gamma), and no power that could overflow.
    ratio_BP = log_B2P[..., 1, :] - grad_BP
    power_BP = gamma_B1 * ratio_BP
    soft_BP = np.logaddexp(0.0, power_BP)
    rise_BP = soft_BP / gamma_B1
    share_BP = np.exp(power_BP - soft_BP)
    growth_B2 = theta_B7[..., 3:6:2] / theta_B7[..., 2:6:2]
    said_BQ = np.concatenate((grad_BP, grad_BP + rise_BP, growth_B2, gamma_B1 - 1.0), axis=-1)
    return said_BQ, parts_B6P, sums_B2P, share_BP, share_BP * ratio_BP - rise_BP


def _loss(profiles: _Profiles, said_BQ: Floats) -> tuple[Floats, Floats, Floats]:
    """The loss, how wrong the model is, and how hard each point pulls: [B], [B, Q], [B, P]."""
    wrong_BQ = (said_BQ - profiles.measured_BQ) * profiles.told_BQ
    square_BQ = wrong_BQ * wrong_BQ
    P = profiles.weight_BP.shape[-1]
    square_BP = 0.5 * (square_BQ[..., :P] + square_BQ[..., P:-3])
    trust_BP = 1.0 / (1.0 + square_BP * FAR**-2)
    pull_BP = profiles.weight_BP * trust_BP
    spread_B = np.sqrt(EXACT**2 + np.add.reduce(pull_BP * square_BP, axis=-1))
    return 2.0 * spread_B + square_BQ[..., -3:] @ PULLS_3, wrong_BQ, pull_BP * trust_BP / spread_B[..., None]


def _slope(profiles: _Profiles, theta_B7: Floats) -> tuple[Floats, Floats]:
    """The loss, and by the logarithms of the seven its curvature (Gauss-Newton's), then its slope: [B], [B, 7, 8]."""
    predicted = _predict(profiles, theta_B7)
    loss_B, wrong_BQ, pull_BP = _loss(profiles, predicted[0])
    B, P = pull_BP.shape
    J_B8Q, pull_B1Q = np.zeros((B, 8, 2 * P + 3)), np.empty((B, 1, 2 * P + 3))
    _fill_jacobian(J_B8Q, predicted)
    J_B8Q[:, 7] = wrong_BQ
    pull_B1Q[:, 0, :P] = pull_B1Q[:, 0, P:-3] = pull_BP
    pull_B1Q[:, 0, -3:] = 2.0 * PULLS_3
    pull_B1Q *= profiles.told_BQ[:, None]
    return loss_B, (J_B8Q[:, :7] * pull_B1Q) @ J_B8Q.swapaxes(1, 2)


def _fill_jacobian(J_B8Q: Floats, predicted: Predicted) -> None:
    """Derivatives of what the model says by the logarithms of the seven, where they are not 0."""
    said_BQ, parts_B6P, sums_B2P, share_BP, bend_BP = predicted
    P = share_BP.shape[-1]
    opt_B8P = J_B8Q[:, :, P:-3]
    np.divide(parts_B6P[:, :2], sums_B2P[:, :1], out=J_B8Q[:, :2, :P])
    np.multiply(J_B8Q[:, :2, :P], (1.0 - share_BP)[:, None], out=opt_B8P[:, :2])
    np.multiply(parts_B6P[:, 2:], (share_BP / sums_B2P[:, 1])[:, None], out=opt_B8P[:, 2:6])
    opt_B8P[:, 6] = bend_BP
    for beta, q in ((3, -3), (5, -2)):
        J_B8Q[:, beta, q] = said_BQ[:, q]
        J_B8Q[:, beta - 1, q] = -said_BQ[:, q]
    J_B8Q[:, 6, -1] = said_BQ[:, -1] + 1.0


# -- minimising it ---------------------------------------------------------------------------------------------------


def _lines(pairs_BPL: Floats, y_BGP: Floats, weight_BGP: Floats) -> tuple[Floats, Floats, Floats]:
    """Lines alpha + beta x of least weighted squares, neither below 0, and the best flat ones: [B, G, L / 2] each.

    The columns of `pairs` are 1 and x of one line, then of the next; both 0 where a point is not of that line.
    """
    sums, y_sums = weight_BGP @ pairs_BPL, (weight_BGP * y_BGP) @ pairs_BPL
    # A line without points is any line: 1e-100 only spares us 0 / 0.
    s1, sxx = sums[..., ::2] + 1e-100, weight_BGP @ np.square(pairs_BPL[..., 1::2]) + 1e-100
    sx, sy, sxy = sums[..., 1::2], y_sums[..., ::2], y_sums[..., 1::2]
    steep = (s1 * sxy - sx * sy) / np.maximum(s1 * sxx - sx * sx, 1e-9 * s1 * sxx)
    beta = np.minimum(np.maximum(steep, 0.0), sxy / sxx)
    return np.maximum((sy - beta * sx) / s1, 0.0), beta, sy / s1


def _start(profiles: _Profiles) -> Floats:
    """Lines through T_grad and, for each gamma tried, through T_sync, sloped and flat. The best of these: [B, 7]."""
    B, P = profiles.weight_BP.shape
    each, pairs_BP6 = profiles.at((slice(None), None)), profiles.design_B6P.swapaxes(1, 2)
    grad_B1P, opt_B1P, tells_B1P = each.measured_BQ[..., :P], each.measured_BQ[..., P:-3], each.told_BQ[..., :P]
    # Seen from the typical point, (1, 1), T_grad lies between a constant and one proportional to m, or is far off.
    log_m_B1P = np.log(profiles.design_B6P[:, 1:2])
    off_B1P = grad_B1P - np.minimum(np.maximum(grad_B1P, np.minimum(log_m_B1P, 0.0)), np.maximum(log_m_B1P, 0.0))
    weight_B1P = each.weight_BP / np.square(1.0 + np.square(off_B1P / FAR))
    judge_B1P = weight_B1P * np.where(tells_B1P.any(axis=2, keepdims=True), tells_B1P, 1.0)
    alpha_B11, beta_B11, _ = _lines(pairs_BP6[..., :2], np.exp(grad_B1P), judge_B1P * np.exp(-2.0 * grad_B1P))
    line_B1P = np.log(alpha_B11 + beta_B11 * profiles.design_B6P[:, 1:2])
    rise_B1P = np.maximum(opt_B1P - np.where(tells_B1P > 0.0, grad_B1P, line_B1P), 1e-9)
    # T_sync = (T_opt^gamma - T_grad^gamma)^(1 / gamma); log T_opt rises by `share` of what log T_sync rises.
    share_BGP = -np.expm1(-GAMMAS_G1 * rise_B1P)
    sync_BGP = np.exp(opt_B1P) * share_BGP ** (1.0 / GAMMAS_G1)
    alpha_BG2, beta_BG2, flat_BG2 = _lines(pairs_BP6[..., 2:], sync_BGP, weight_B1P * np.square(share_BGP / sync_BGP))
    theta_B2G7 = np.zeros((B, 2, len(GAMMAS_G1), 7))
    theta_B2G7[..., 0], theta_B2G7[..., 1], theta_B2G7[..., 6:] = alpha_B11, beta_B11, GAMMAS_G1
    theta_B2G7[:, 0, :, 2:6:2], theta_B2G7[:, 0, :, 3:6:2] = np.maximum(alpha_BG2, beta_BG2), beta_BG2
    theta_B2G7[:, 1, :, 2:6:2] = flat_BG2
    theta_BG7 = np.minimum(np.maximum(theta_B2G7.reshape(B, -1, 7), np.maximum(SMALL, each.low_B7)), each.high_B7)
    best_B = _loss(each, _predict(each, theta_BG7)[0])[0].argmin(axis=1)
    return np.asarray(theta_BG7[np.arange(B), best_B])


def _descend(profiles: _Profiles, theta_B7: Floats) -> Floats:
    """Levenberg and Marquardt's descent; every job stops by itself."""
    answer_B7, rows_B = theta_B7.copy(), np.arange(len(theta_B7))
    damping_B = np.full(len(theta_B7), 3e-3)
    loss_B, curve_B78 = _slope(profiles, theta_B7)
    for _ in range(MAX_STEPS):
        step_B7 = _step(profiles, theta_B7, curve_B78, damping_B)
        # A quadratic would fall by half of this. Of a loss that is next to nothing no part is worth a step.
        going_B = np.add.reduce(step_B7 * curve_B78[:, :, 7], axis=1) > 2.0 * CONVERGED * (loss_B + 10.0 * EXACT)
        if (going := np.count_nonzero(going_B)) < len(rows_B):
            answer_B7[rows_B] = theta_B7
            if not going:
                return answer_B7
            rows_B, profiles, damping_B = rows_B[going_B], profiles.at(going_B), damping_B[going_B]
            theta_B7, step_B7, loss_B, curve_B78 = (x[going_B] for x in (theta_B7, step_B7, loss_B, curve_B78))
        # A time may grow as the step says but shrink no more than tenfold, and so stays positive.
        factor_B7 = np.minimum(np.maximum(1.0 - step_B7, 0.1), 1e3)
        trial_B7 = np.minimum(np.maximum(theta_B7 * factor_B7, profiles.low_B7), profiles.high_B7)
        new_loss_B, new_curve_B78 = _slope(profiles, trial_B7)
        worse_B = new_loss_B >= loss_B
        damping_B = damping_B * np.where(worse_B, 8.0, 0.2)
        if np.count_nonzero(worse_B):
            trial_B7[worse_B], new_loss_B[worse_B] = theta_B7[worse_B], loss_B[worse_B]
            new_curve_B78[worse_B] = curve_B78[worse_B]
        theta_B7, loss_B, curve_B78 = trial_B7, new_loss_B, new_curve_B78
    answer_B7[rows_B] = theta_B7
    return answer_B7


def _step(profiles: _Profiles, theta_B7: Floats, curve_B78: Floats, damping_B: Floats) -> Floats:
    """How far down in the logarithms of the seven; 0 for those that their bounds stop."""
    slope_B7, system_B77 = curve_B78[:, :, 7], curve_B78[:, :, :7].copy()
    stuck_B7 = np.where(slope_B7 > 0.0, theta_B7 <= profiles.low_B7, theta_B7 >= profiles.high_B7)
    diagonal_B7 = system_B77.reshape(-1, 49)[:, ::8]
    lift_B7 = damping_B[:, None] * (diagonal_B7 + 1e-3 * np.maximum.reduce(diagonal_B7, axis=1, keepdims=True)) + 1e-9
    diagonal_B7 += np.where(stuck_B7, 1e15, lift_B7)
    return np.asarray(np.linalg.solve(system_B77, curve_B78[:, :, 7:])[:, :, 0])


# -- the answer ------------------------------------------------------------------------------------------------------


def _fit_alike(group: list[list[Point]], size: int) -> list[Fit]:
    # Points of no steps have no weight.
    padded = [points + [(*points[-1][:6], 0)] * (size - len(points)) for points in group]
    raw_7BP = np.ascontiguousarray(np.array(padded, dtype=np.float64).transpose(2, 0, 1))
    profiles, unit_B1, batch_B1, seen_B4 = _profiles(raw_7BP)
    theta_B7 = _descend(profiles, _start(profiles))
    wrong_BQ = _loss(profiles, _predict(profiles, theta_B7)[0])[1]
    mass_BQ = profiles.told_BQ[:, :-3] * np.concatenate((profiles.weight_BP, profiles.weight_BP), axis=1)
    error_B = np.sqrt((mass_BQ * np.square(wrong_BQ[:, :-3])).sum(axis=1) / mass_BQ.sum(axis=1))
    params_B7 = np.where(theta_B7 > LEAST, theta_B7, 0.0)
    params_B7[:, 0] += params_B7[:, 0] + params_B7[:, 1] == 0.0  # a pass takes some time
    # Pollux: averaging across nodes is no better than within one, until it was seen.
    params_B7[:, 2:4] = np.where(seen_B4[:, 2:3], params_B7[:, 2:4], 1.1 * params_B7[:, 4:6])
    params_B7[:, :6] *= unit_B1
    params_B7[:, 1:2] /= batch_B1
    return list(map(_answer, group, params_B7.tolist(), error_B.tolist(), seen_B4.tolist()))


def _answer(points: list[Point], params: list[float], error: float, seen: list[bool]) -> Fit:
    steps: dict[tuple[int, ...], int] = {}
    for point in points:
        steps[point[:3]] = steps.get(point[:3], 0) + point[6]
    mass = math.fsum(count / (count + STEPS_TRUSTED) for count in steps.values())
    confidence = mass / (mass + 1.0) * (1 + sum(seen)) / 5 / (1.0 + (error / ERROR_TRUSTED) ** 2)
    batches, within, across, beyond_two = seen
    most_gpus = max(1, *(point[1] for point in points))
    return Fit(ThroughputParams(*params), error, batches, within, across, beyond_two, most_gpus, confidence)
