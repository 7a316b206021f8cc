"""What it costs to start, stop, move and resize a job, in seconds during which it makes no progress."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from fairlead.core.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class Costs:
    """All in seconds; all zero by default."""

    #: From a first start until training begins.
    start_s: float = 0.0
    #: The same for a later start, which also loads the checkpoint.
    restart_s: float = 0.0
    #: From a stop until the GPUs are free: the last checkpoint is written.
    save_s: float = 0.0
    #: Pause of a job that changes its GPUs in place, is suspended or is resumed.
    rescale_s: float = 0.0
    #: A lost node costs the work since the last of these; 0 loses nothing.
    checkpoint_every_s: float = 0.0
    #: Before the pause of a job that grows in place: its new workers boot while the others train on.
    boot_s: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidSpec(f"cost {f.name} is {value}; expected a finite number of seconds of at least 0")


FREE = Costs()

#: A checkpoint-restart on a shared file system: the 30 s of the Pollux experiments, and an hour between checkpoints
#: lost at most. Rescaling in place is what the elastic training library is for.
DEFAULT = Costs(start_s=10.0, restart_s=25.0, save_s=5.0, rescale_s=2.0, checkpoint_every_s=1800.0)

#: Checkpoint-restart times measured for larger models by the Sia authors (stop and restart together).
_RESTART_S = {"deepspeech2": 25.0, "cifar10": 30.0, "yolov3": 45.0, "bert": 120.0, "imagenet": 250.0}


#: What every start takes in the simulator of Sia's artifact, the first one included; 30 s for other models.
_SIA_START_S = {"deepspeech2": 25.0, "cifar10": 50.0, "yolov3": 80.0, "bert": 120.0, "imagenet": 250.0, "ncf": 15.0}


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs by model: `base` for every job, and those that are known better by model."""

    base: Costs = FREE
    by_model: Mapping[str, Costs] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> CostModel:
        """`none`, `default`, `sia` (its simulator), or `start=10,restart=25,save=5,rescale=2,...` (others 0)."""
        if text == "none":
            return CostModel()
        if text == "default":
            known = {name: max(0.0, total_s - DEFAULT.save_s) for name, total_s in _RESTART_S.items()}
            return CostModel(DEFAULT, {name: replace(DEFAULT, restart_s=after_s) for name, after_s in known.items()})
        if text == "sia":
            return CostModel(
                _every_start(30.0), {name: _every_start(start_s) for name, start_s in _SIA_START_S.items()}
            )
        names = {f.name.removesuffix("_s"): f.name for f in fields(Costs)}
        values: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.partition("=")
            if name not in names:
                raise InvalidSpec(f"cost {name!r} is unknown; expected none, default, sia, or {'=S,'.join(names)}=S")
            if names[name] in values:
                raise InvalidSpec(f"cost {name} is given twice in {text!r}")
            try:
                values[names[name]] = float(number)
            except ValueError:
                raise InvalidSpec(f"cost {name} is {number!r}; expected a number of seconds") from None
        return CostModel(Costs(**values))

    def of(self, model: str | None) -> Costs:
        return self.by_model.get(model or "", self.base)


def _every_start(start_s: float) -> Costs:
    return Costs(start_s=start_s, restart_s=start_s, rescale_s=DEFAULT.rescale_s)
