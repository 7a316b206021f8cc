"""What is to be said where a policy that is made for a period runs without one."""

from __future__ import annotations

from fairlead.core.loop import Cadence


def notes_on_cadence(name: str, policy: object, cadence: str) -> tuple[str, ...]:
    """One note if the policy, or one that it wears, declares `period_s`, and the cadence has no period; else none."""
    when, made_for_s = Cadence.parse(cadence), _period_s(policy)
    if made_for_s is None or when.period_s is not None:
        return ()
    period = str(Cadence(made_for_s, on_events=False))
    return (
        f"{name} is made to decide every {made_for_s:g} s; with --cadence {when} it decides only when a job or node "
        f"comes or goes, and until then jobs keep the GPUs they have: give it a period, as --cadence {when}+{period}",
    )


def _period_s(policy: object) -> float | None:
    """As a policy declares it, or the policy inside."""
    while policy is not None:
        declared = getattr(policy, "period_s", None)
        if declared is not None:
            return float(declared)
        policy = getattr(policy, "inner", None)
    return None
