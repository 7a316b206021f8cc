"""What a fit of the throughput model costs and how good it is, against L-BFGS-B. Prints figures; asserts nothing.

    python benchmarks/fit.py [speed|quality ...] [--data DIR] [-o table|json]

speed    CPU per fit: `fit` one by one, `fit_many` of all, and L-BFGS-B on the same loss from Pollux's start
quality  the loss against the best that L-BFGS-B finds from several starts, and the error at configurations never
         seen of our fit, of that best, and of the best fit of Pollux's own loss (measured profiles need --data)

Runs with one BLAS thread: on a busy machine L-BFGS-B's threads spend most of their time waiting for one another.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

from fairlead.core.types import Observation
from fairlead.goodput import fit as fitting
from fairlead.goodput.fit import fit, fit_many
from fairlead.goodput.throughput import GAMMA_MAX, ThroughputParams, grad_time, update_time
from fairlead.sim.measured import applications_in, load_profile

Floats = NDArray[np.float64]
Profile = list[Observation]
#: From residuals log(predicted / measured) [2, P] and weights [P]: a loss and its slope by each residual.
Loss = Callable[[Floats, Floats], tuple[float, Floats]]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "pollux" / "profiles"
JOBS = 200
STARTS = 5

# -- the reference ---------------------------------------------------------------------------------------------------


def our_loss(wrong_2P: Floats, weight_P: Floats) -> tuple[float, Floats]:
    n2_P = 0.5 * (wrong_2P * wrong_2P).sum(axis=0)
    trust_P = 1.0 / (1.0 + n2_P / fitting.FAR**2)
    spread = math.sqrt(fitting.EXACT**2 + float((weight_P * n2_P * trust_P).sum()))
    return 2.0 * spread, wrong_2P * (weight_P * trust_P * trust_P / spread)


def pollux_loss(wrong_2P: Floats, weight_P: Floats) -> tuple[float, Floats]:
    rms_2 = np.sqrt(1e-12 + (wrong_2P * wrong_2P).mean(axis=1))
    return float(rms_2.sum()), wrong_2P / rms_2[:, None] / len(weight_P)


class Reference:
    """One profile as L-BFGS-B sees it: seven logarithms, their bounds by Pollux's priors, a loss and its slope."""

    def __init__(self, observations: Sequence[Observation], loss: Loss) -> None:
        self.loss = loss
        N, K, self.m, s, step, sync, steps = np.array([fitting._read(o) for o in observations], dtype=float).T
        grad = (step - sync) / (s + 1)
        self.measured_2P = np.log(np.stack([grad, grad + sync]))
        weight = steps / (steps + fitting.STEPS_TRUSTED)
        self.weight_P = weight / weight.sum()
        across, within = ((K > 1) & (N > 1)).astype(float), ((K > 1) & (N <= 1)).astype(float)
        further = np.maximum(K - 2, 0)
        self.sync_4P = np.stack([across, across * further, within, within * further])
        low, high = np.full(7, 1e-8), np.full(7, 1e8)
        if len(set(self.m.tolist())) == 1:
            low[0] = high[0] = grad.mean() / 2
        high[2:6] = np.where(self.sync_4P.any(axis=1), 1e8, 1e-8)
        low[6], high[6] = 1.0, GAMMA_MAX if K.max() > 1 else 1.0
        self.low_7, self.high_7 = np.log(low), np.log(high)

    def __call__(self, x_7: Floats) -> tuple[float, Floats]:
        theta = np.exp(x_7)
        gamma = theta[6]
        grad = theta[0] + theta[1] * self.m
        parts = self.sync_4P * theta[2:6, None]
        sync = parts.sum(axis=0) + 1e-30
        ratio = np.log(sync / grad)
        soft = np.logaddexp(0.0, gamma * ratio)
        share = np.exp(gamma * ratio - soft)
        log_grad = np.log(grad)
        value, slope_2P = self.loss(np.stack([log_grad, log_grad + soft / gamma]) - self.measured_2P, self.weight_P)
        by_grad, by_sync = slope_2P[0] + slope_2P[1] * (1.0 - share), slope_2P[1] * share / sync
        slope = np.empty(7)
        slope[0], slope[1] = theta[0] * (by_grad / grad).sum(), theta[1] * (by_grad * self.m / grad).sum()
        slope[2:6] = parts @ by_sync
        slope[6] = (slope_2P[1] * (share * ratio - soft / gamma)).sum() + 2e-3 * (gamma - 1.0) * gamma
        value += 1e-3 * (gamma - 1.0) ** 2
        for alpha in (2, 4):
            if self.high_7[alpha + 1] > self.low_7[alpha + 1]:
                pull = 1e-2 * (theta[alpha + 1] / theta[alpha]) ** 2
                value += pull
                slope[alpha] -= 2.0 * pull
                slope[alpha + 1] += 2.0 * pull
        return value, slope

    def minimum(self, starts: int) -> tuple[float, Floats]:
        """The best from Pollux's start and others around it."""
        rng, best = np.random.default_rng(0), (math.inf, self.low_7)
        for k in range(starts):
            start = np.log([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, (1.001, 2.0, 4.0, 8.0)[k % 4]])
            start[:6] += rng.normal(0.0, 1.5, 6) if k else 0.0
            bounds = list(zip(self.low_7, self.high_7, strict=True))
            found = minimize(self, np.clip(start, self.low_7, self.high_7), jac=True, method="L-BFGS-B", bounds=bounds)
            best = min(best, (float(found.fun), found.x), key=lambda pair: pair[0])
        return best

    def params(self, x_7: Floats) -> ThroughputParams:
        times, gamma = np.exp(x_7[:6]), min(max(float(np.exp(x_7[6])), 1.0), GAMMA_MAX)
        if not self.sync_4P[0].any():
            times[2:4] = np.maximum(times[2:4], 1.1 * times[4:6])
        alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r = times.tolist()
        return ThroughputParams(alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma)

    def of(self, params: ThroughputParams) -> float:
        theta = [getattr(params, name) for name in params.__slots__]
        return self(np.clip(np.log(np.maximum(theta, 1e-8)), self.low_7, self.high_7))[0]


# -- profiles --------------------------------------------------------------------------------------------------------


def synthetic(jobs: int, points: int, noise: float) -> list[tuple[Profile, Profile]]:
    """What was seen of models drawn at random, and what was not, without noise."""
    rng = np.random.default_rng(points)
    placements = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (2, 8), (3, 12), (4, 16))
    configurations = [(n, k, m) for n, k in placements for m in (8, 16, 32, 64, 128)]
    found = []
    for _ in range(jobs):
        alpha_c, alpha_r = np.exp(rng.normal(-3.0, 1.0)), np.exp(rng.normal(-3.0, 1.0))
        alpha_n = alpha_r * np.exp(rng.uniform(0.0, 2.0))
        growth_n, growth_r = rng.choice([0.0, 0.02, 0.1, 0.3], 2)
        seven = np.array([alpha_c, alpha_c * np.exp(rng.normal(-3.0, 1.0)), alpha_n, alpha_n * growth_n, alpha_r, 0, 0])
        seven[5:] = alpha_r * growth_r, rng.choice([1.0, 1.5, 2.0, 3.0, 5.0, 8.0])
        params = ThroughputParams(*seven.tolist())
        chosen = set(rng.choice(len(configurations), points, replace=False).tolist())
        seen: Profile = []
        unseen: Profile = []
        for row, (n, k, m) in enumerate(configurations):
            grad, opt = float(grad_time(params, m)), float(update_time(params, n, k, m))
            a, b = np.exp(noise * rng.normal(size=2)) if row in chosen else (1.0, 1.0)
            sync = float((opt - grad) * b) + 1e-9
            (seen if row in chosen else unseen).append(Observation("gpu", n, k, m, 0, grad * a + sync, sync, 100))
        found.append((seen, unseen))
    return found


def measured(data: Path, per_application: int) -> list[tuple[Profile, Profile]]:
    """Of each application, parts of its measured profile as a job might see them, and the rest."""
    rng = np.random.default_rng(0)
    placements = [(1,), (2,), (3,), (4,), (1, 1), (2, 2), (4, 2), (4, 4), (4, 4, 4), (4, 4, 4, 4)]
    found = []
    for name in applications_in(data):
        profile = load_profile(data / name)
        assert profile.batch.max_per_gpu is not None
        batches = np.geomspace(profile.batch.min_per_gpu, profile.batch.max_per_gpu, 7).round().astype(int).tolist()
        every = {
            (p, m): Observation("t4", len(p), sum(p), m, 0, *times, 100)
            for p in placements
            for m in dict.fromkeys(batches)
            if (times := profile.times(p, m)) is not None
        }
        for k in range(per_application):
            keys = list(every)
            if k % 2:  # a job that grew, at a few batches
                grown = [(1,), (2,), (4,), (4, 4), (4, 4, 4, 4)][: int(rng.integers(1, 6))]
                keys = [key for key in keys if key[0] in grown]
            size = min(len(keys), int(rng.integers(3, 16)))
            chosen = {keys[row] for row in rng.choice(len(keys), size, replace=False).tolist()}
            found.append(([every[key] for key in every if key in chosen], [every[key] for key in set(every) - chosen]))
    return found


def unseen_error(params: ThroughputParams, seen: Profile, unseen: Profile) -> float:
    """RMS of log(predicted / measured) T_opt at configurations of the regimes that were seen."""
    kinds = {(o.nodes > 1, min(o.gpus, 3)) for o in seen}
    logs = [
        math.log(float(update_time(params, o.nodes, o.gpus, o.per_gpu_batch)) / o.step_s)
        for o in unseen
        if (o.nodes > 1, min(o.gpus, 3)) in kinds
    ]
    return float(np.sqrt(np.mean(np.square(logs)))) if logs else math.nan


# -- the cases -------------------------------------------------------------------------------------------------------


def cpu_us(run: Callable[[], object], rounds: int) -> float:
    """CPU of the fastest of several rounds: other load on the machine only adds to it."""
    best = math.inf
    for _ in range(rounds):
        fitting._memo.clear()
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return 1e6 * best


def speed(_: Path) -> list[dict[str, Any]]:
    rows = []
    for points in (3, 10, 30):
        profiles = [seen for seen, _ in synthetic(JOBS, points, 0.05)]
        references = [Reference(profile, our_loss) for profile in profiles[:20]]
        one = float(np.mean([cpu_us(partial(fit, profile), 10) for profile in profiles]))
        many = cpu_us(partial(fit_many, profiles), 10) / JOBS
        scipy = float(np.mean([cpu_us(partial(reference.minimum, 1), 2) for reference in references]))
        rows.append(
            {
                "case": f"speed {points} points",
                "fit_us": round(one),
                "fit_many_us": round(many),
                "scipy_us": round(scipy),
                "times_faster": round(scipy / one, 1),
                "times_faster_many": round(scipy / many, 1),
            }
        )
    return rows


def quality(data: Path) -> list[dict[str, Any]]:
    sets = {f"synthetic, noise {noise}": synthetic(40, 10, noise) for noise in (0.0, 0.05, 0.2)}
    if data.is_dir():
        sets["measured"] = measured(data, 20)
    else:
        print(f"quality: measured profiles skipped, {data} is absent; say where they are with --data")
    rows = []
    for name, profiles in sets.items():
        fits = fit_many([seen for seen, _ in profiles])
        ratios, errors = [], []
        for (seen, unseen), ours in zip(profiles, fits, strict=True):
            same, pollux = Reference(seen, our_loss), Reference(seen, pollux_loss)
            best, x_7 = same.minimum(STARTS)
            ratios.append(same.of(ours.params) / best)
            others = same.params(x_7), pollux.params(pollux.minimum(STARTS)[1])
            errors.append([unseen_error(params, seen, unseen) for params in (ours.params, *others)])
        error_3 = np.nanmean(errors, axis=0)
        rows.append(
            {
                "case": name,
                "profiles": len(profiles),
                **{f"loss_ratio_{q}": round(float(np.quantile(ratios, q / 100)), 4) for q in (50, 95, 100)},
                **dict(zip(("error", "error_scipy", "error_pollux"), error_3.round(4).tolist(), strict=True)),
            }
        )
    return rows


CASES = {"speed": speed, "quality": quality}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="speed, quality; both if none is named")
    parser.add_argument("--data", type=Path, default=DATA, help="directory with one measured profile per application")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    # A fresh process, since the number of threads is read when numpy is imported.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        tables = [pool.submit(CASES[case], options.data).result() for case in options.cases or CASES]
    if options.output == "json":
        print(json.dumps([row for table in tables for row in table], indent=2))
        return
    for rows in tables:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console(width=140).print(table)


if __name__ == "__main__":
    main()
