"""The verdict of a report, in words: which policy finishes jobs fastest, by how much, and what an oracle reached."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fairlead.sim.report.runs import Case, Entry
from fairlead.sim.report.wording import duration, listing, percent

#: Means that differ by less than this share are the same.
_SAME = 0.0005


def verdict(case: Case) -> str:
    """The headline, as HTML."""
    return _headline(case) + _yardstick(case)


def _headline(case: Case) -> str:
    """Who won, by mean completion time, and by how much. Who left jobs unfinished cannot win against who did not."""
    ranked = [(mean, entry.label) for mean, entry in _by_mean(case.ranked)]
    where = f" at {escape(case.name)}" if case.name else ""
    if not ranked:
        return "No job completed."
    best_s, best = ranked[0]
    if len(case.entries) == 1:
        return f"Under <b>{escape(best)}</b> a job took {duration(best_s)} on average{where}."
    if len(ranked) == 1:
        if len(case.ranked) + len(case.oracles) == len(case.entries):
            return f"Under <b>{escape(best)}</b> a job took {duration(best_s)} on average{where}."
        left = f"<b>{escape(best)}</b> left the fewest jobs unfinished{where}"
        return f"{left}; it took {duration(best_s)} per job on average."
    ties = [label for mean, label in ranked if mean <= best_s * (1 + _SAME)]
    if len(ties) == len(ranked):
        return f"{escape(listing(ties)).capitalize()} tie: {duration(best_s)} per job on average{where}."
    next_s, runner_up = next((mean, label) for mean, label in ranked if label not in ties)
    worst_s, worst = ranked[-1]
    ahead = f"{percent(1 - best_s / next_s)} less than {escape(runner_up)}"
    if worst != runner_up:
        ahead += f" and {percent(1 - best_s / worst_s)} less than {escape(worst)}"
    names = " and ".join(f"<b>{escape(label)}</b>" for label in ties)
    verb = "finishes" if len(ties) == 1 else "finish"
    return f"{names} {verb} jobs fastest{where}: {duration(best_s)} on average, {ahead}.{_doubt(case, ties)}"


def _by_mean(entries: Sequence[Entry]) -> list[tuple[float, Entry]]:
    """The fastest first; without those of which no job completed."""
    known = [(mean, entry) for entry in entries if (mean := entry.mean("jct_mean_s")) is not None]
    return sorted(known, key=lambda pair: (pair[0], pair[1].label))


def _doubt(case: Case, first: Sequence[str]) -> str:
    """Which policies may be as fast, as far as seeds tell."""
    others = [entry.label for entry in case.alike("jct_mean_s", sign=-1) if entry.label not in first]
    if not others:
        return ""
    seeds = len(case.entries[0].runs)
    return f" <small>These {seeds} seeds cannot tell it from {escape(listing(others, 4))}.</small>"


def _yardstick(case: Case) -> str:
    """What the best oracle reached beside the best policy. Only one that finished as many jobs can be compared."""
    policies = _by_mean(case.ranked)
    oracles = _by_mean([each for each in case.oracles if each.unfinished <= case.ranked[0].unfinished])
    if not oracles or not policies:
        return ""
    (oracle_s, oracle), (best_s, best) = oracles[0], policies[0]
    name = escape(oracle.label)
    apart = oracle.against(best, "jct_mean_s")
    if abs(oracle_s - best_s) <= _SAME * best_s:
        told = f"With knowledge of the future it is the same: {name}."
    elif apart is not None and apart.absolute.half is not None and not apart.absolute.excludes_zero:
        told = f"With knowledge of the future it is {duration(oracle_s)}, which these {apart.absolute.n} seeds cannot "
        told += f"tell from it: {name}."
    elif oracle_s < best_s:
        told = f"With knowledge of the future it could be {duration(oracle_s)}: {name}."
    else:
        told = (
            f"Knowledge of the future does not help here: {name} takes {duration(oracle_s)}. On several GPU types, or "
        )
        told += "with jobs of several GPUs, an oracle is no bound."
    return f" <small>{told}</small>"
