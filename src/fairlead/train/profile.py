"""How long steps take, by configuration: what the throughput model is fitted to.

The first steps after any change warm something up, and single steps are held up by anything: so the first ones are left
out, and of the others the mean without the fastest and the slowest tenth counts. The median would miss what holds up
every third step, such as a shared processor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import fmean

from fairlead.core.types import Observation

#: Steps after a change that are not looked at, and steps of a configuration that are remembered.
WARM_UP, REMEMBERED = 2, 50

#: GPU type, nodes, GPUs, per-GPU batch, accumulation.
Configuration = tuple[str, int, int, int, int]


def _usual(times_s: Iterable[float]) -> float:
    """The mean without the lowest and the highest tenth."""
    ordered = sorted(times_s)
    cut = len(ordered) // 10
    return fmean(ordered[cut : len(ordered) - cut])


class Profile:
    """Step and sync times of every configuration a job has trained with."""

    def __init__(self) -> None:
        self._times: dict[Configuration, deque[tuple[float, float]]] = {}
        self._steps: dict[Configuration, int] = {}
        self._now: Configuration | None = None
        self._warming = 0

    def changed(self) -> None:
        """Something is different from now on: the group, the batch, or that it was interrupted."""
        self._warming = WARM_UP

    def record(self, configuration: Configuration, step_s: float, sync_s: float) -> None:
        if configuration != self._now:
            self._now = configuration
            self.changed()
        if self._warming > 0:
            self._warming -= 1
            return
        self._times.setdefault(configuration, deque(maxlen=REMEMBERED)).append((step_s, min(sync_s, step_s)))
        self._steps[configuration] = self._steps.get(configuration, 0) + 1

    def observations(self) -> tuple[Observation, ...]:
        return tuple(
            Observation(*configuration, _usual(step for step, _ in times), _usual(sync for _, sync in times), steps)
            for configuration, times in self._times.items()
            if (steps := self._steps[configuration])
        )

    def state_dict(self) -> dict[str, list[list[object]]]:
        return {"observations": [[*o.configuration, o.step_s, o.sync_s, o.steps] for o in self.observations()]}

    def load_state_dict(self, state: dict[str, list[list[object]]]) -> None:
        self.__init__()  # type: ignore[misc]
        for row in state["observations"]:
            seen = Observation(*row)  # type: ignore[arg-type]
            self._times[seen.configuration] = deque([(seen.step_s, seen.sync_s)], maxlen=REMEMBERED)
            self._steps[seen.configuration] = seen.steps
