"""Of which run a checkpoint is: its script, its arguments and its hyper-parameters, and in what two runs differ.

A fingerprint holds what a run was started with, and never what became of that: the learning rate before any schedule,
the batch before it grew. What says nothing about the result is left out: how many workers there are, where logs and
checkpoints go, how often is saved. Runs of more epochs are the same run, extended.

Pure, and without torch: what is compared here was collected elsewhere (`resumption`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

#: Said of a value that one of two runs does not have.
ABSENT = "absent"

#: What an option with such a name is about: where something is written, or how the run is carried out.
_WRITTEN = "checkpoint|checkpoints|ckpt|ckpts|log|logs|logging|out|output|outputs|result|results|save|tensorboard|wandb"
_ABOUT = "dir|directory|path|file|folder|root|every|every_s|interval|freq|frequency|level|name|to|steps"
_UNIMPORTANT = re.compile(
    rf"(?:{_WRITTEN})(?:_?(?:{_ABOUT}))?"
    r"|resume|resume_from|verbose|quiet|progress|device|devices|gpus|workers|num_workers|n_workers|world_size"
    r"|local_rank|nproc|nproc_per_node|master_addr|master_port|port|dry_run|help"
)

#: Options that say how long to train, in epochs: compared by `Fingerprint.epochs` alone. And in steps: more of them
#: extend a run.
_EPOCHS = re.compile(r"(?:num_|n_|max_|total_)?(?:train_)?epochs?")
_STEPS = re.compile(r"(?:num_|n_|max_|total_)?(?:train_)?(?:steps|iterations|iters)")

#: How a key of an optimiser's parameter group is called in messages.
_SPOKEN = {"lr": "learning rate", "weight_decay": "weight decay"}


class Difference(NamedTuple):
    """A value in which two runs differ: as it was saved, and as it is now."""

    name: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"there {self.name} is {self.there}, here it is {self.here}"


@dataclass(frozen=True)
class Fingerprint:
    """What a run was started with."""

    #: Names the job under the service, or the run of `fairlead train`, to which all its restarts belong; empty for a
    #: script that was started by itself.
    run: str = ""
    #: The script's name without its directory; empty where there is none, as in a notebook.
    script: str = ""
    #: By name: an option's values in one string. See `parse_arguments`.
    arguments: Mapping[str, str] = field(default_factory=dict)
    #: Of each parameter group of the optimiser, such as {"lr": 0.1, "momentum": 0.9}.
    groups: tuple[Mapping[str, Any], ...] = ()
    #: All others by name: batch_size, seed, samples and so on.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: How many it should train; 0 if that is not known.
    epochs: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "groups": [dict(group) for group in self.groups]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Fingerprint:
        """Keys that a later version may add are passed over."""
        return Fingerprint(
            run=data.get("run", ""),
            script=data.get("script", ""),
            arguments=dict(data.get("arguments", {})),
            groups=tuple(dict(group) for group in data.get("groups", ())),
            values=dict(data.get("values", {})),
            epochs=data.get("epochs", 0),
        )


def differences(saved: Fingerprint, ours: Fingerprint) -> list[Difference]:
    """Every value in which they differ, hyper-parameters first. The number of epochs is none of them."""
    return [
        *_between_groups(saved.groups, ours.groups),
        *_between(saved.values, ours.values),
        *_between_scripts(saved.script, ours.script),
        *_between_arguments(saved, ours),
    ]


def _between_groups(there: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]) -> list[Difference]:
    if len(there) != len(here):
        return [Difference("the number of parameter groups", len(there), len(here))]
    found = []
    for place, (theirs, ours) in enumerate(zip(there, here, strict=True)):
        suffix = f" of parameter group {place}" if len(here) > 1 else ""
        for name, was, now in _between(theirs, ours):
            found.append(Difference(f"{_SPOKEN.get(name, name)}{suffix}", was, now))
    return found


def _between_scripts(there: str, here: str) -> list[Difference]:
    """Where one of them has no script, as in a notebook, they cannot be compared."""
    return [Difference("the script", there, here)] if there and here and there != here else []


def _between_arguments(saved: Fingerprint, ours: Fingerprint) -> list[Difference]:
    if not saved.script or not ours.script:
        return []
    lengths = (str(saved.epochs), str(ours.epochs))
    return [
        Difference(f"argument {name}", there, here)
        for name, there, here in _between(saved.arguments, ours.arguments)
        if (there, here) != lengths  # the number of epochs, whatever its option is called
        and not _more_steps(name, there, here)
    ]


def extends(saved: Fingerprint, ours: Fingerprint) -> bool:
    """Whether it is the same run, made longer on purpose."""
    changed = _between(saved.arguments, ours.arguments)
    return saved.epochs < ours.epochs or any(_more_steps(*each) for each in changed)


def same_command(saved: Fingerprint, ours: Fingerprint) -> bool:
    """Whether both are of one script with the same arguments: a job may run several, one after the other."""
    return not (_between_scripts(saved.script, ours.script) or _between_arguments(saved, ours))


def _more_steps(name: str, there: Any, here: Any) -> bool:
    if not _STEPS.fullmatch(_word(name)):
        return False
    try:
        return float(there) < float(here)
    except ValueError:
        return False


def _between(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(name, there.get(name, ABSENT), here.get(name, ABSENT))
        for name in {**there, **here}
        if not _alike(there.get(name, ABSENT), here.get(name, ABSENT))
    ]


def _alike(a: Any, b: Any) -> bool:
    """Also 1e-3 and 0.001, which an argument may be written as."""
    if a == b:
        return True
    if not isinstance(a, str) or not isinstance(b, str):
        return False
    try:
        return float(a) == float(b)
    except ValueError:
        return False


def plain(value: Any) -> Any:
    """A value as JSON has it, so that it is the same when it was saved and loaded. Of an object that is no number, such
    as a function, only the type can be compared."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    try:
        return plain(value.item())  # of a tensor or array with one number
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return f"a {type(value).__name__}"


def script_name(path: str) -> str:
    """Of a script's path: its name, or of a package's `__main__.py` with that of the package."""
    parts = PurePath(path).parts[-2:]
    return "/".join(parts) if parts and parts[-1] == "__main__.py" else PurePath(path).name


def parse_arguments(arguments: Sequence[str], places: Collection[str] = ()) -> dict[str, str]:
    """Options by name with their values, in any order, and what comes before them by its position. Left out are options
    that say nothing about the result, and values that are one of `places`, where the run saves."""
    found: dict[str, list[str]] = {}
    values, positions = None, 0
    for word in arguments:
        name, given, value = _split(word)
        if name:
            values = found.setdefault(name, [])
            values += [value] if given else []
        elif values is not None:
            values.append(word)
        else:
            positions += 1
            found[str(positions)] = [word]
    kept = {name: told for name, told in found.items() if _matters(name) and not set(told) & set(places)}
    return {name: " ".join(told) if told else "given" for name, told in kept.items()}


def _split(word: str) -> tuple[str, bool, str]:
    """(the name, whether a value stands beside it, that value). What is no option, as a number below 0, has no name."""
    if match := re.fullmatch(r"(--?[A-Za-z_][\w.-]*)(?:(=)(.*))?", word, re.DOTALL):
        return match[1], match[2] is not None, match[3] or ""
    if match := re.fullmatch(r"(\+{0,2}[A-Za-z_][\w./-]*)=(.*)", word, re.DOTALL):  # as of Hydra
        return match[1], True, match[2]
    return "", False, ""


def _word(name: str) -> str:
    """An option's name, whatever it is written with: --max-steps, ++trainer.max_steps."""
    return name.lstrip("-+").lower().replace("-", "_").rpartition(".")[2]


def _matters(name: str) -> bool:
    word = _word(name)
    return not (_UNIMPORTANT.fullmatch(word) or _EPOCHS.fullmatch(word))
