"""How a run starts: it begins, continues from a checkpoint of its own, or was complete before.

Which of these it is, is always said, in the log and to the agent or the service. A checkpoint of another run is refused
(`fingerprint`), unless the script says `init(resume=True)`: then it is continued with the values of the script.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch
from fairlead.train.checkpoint import Loaded
from fairlead.train.directory_lock import Holder
from fairlead.train.fingerprint import (
    Difference,
    Fingerprint,
    differences,
    extends,
    parse_arguments,
    plain,
    same_command,
    script_name,
)
from fairlead.train.keeper import Keeper
from fairlead.train.link import Link
from fairlead.train.parts import ORIGIN, Parts
from fairlead.train.progress import Progress
from fairlead.train.wire import TOKEN

if TYPE_CHECKING:
    from fairlead.train.session import Job

#: The file in a job's own directory of checkpoints that holds the identity of the job.
_IDENTITY = ".run"

#: Keys of a parameter group that say how an optimiser computes, and not what.
_MEANS = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}

#: Keys that are learning rates, or are made of them by a scheduler.
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


@dataclass(frozen=True)
class StartOptions:
    """What `init` was told about starting."""

    #: Continue what was saved also if it is another run's.
    resume: bool = False
    #: How long to wait for a process that saves in the same directory to end.
    lock_timeout_s: float = 60.0


class Resumption:
    """Of one worker's job. Every worker can tell of which run a checkpoint is; only the one that leads at the start
    loads one."""

    def __init__(self, keeper: Keeper, link: Link, parts: Parts, options: StartOptions) -> None:
        self._keeper, self._link, self._parts, self._options = keeper, link, parts, options
        #: What the session knows, by name.
        self._values: dict[str, Any] = {}
        #: As the script has made them.
        self._groups: list[dict[str, Any]] = []
        #: How many the script asked for at first; 0 before that.
        self.epochs = 0
        #: The step at which it started if nothing was left to do, so that there is nothing to save either.
        self.complete_at: int | None = None

    def note_optimizer(self, optimizer: torch.optim.Optimizer, **values: Any) -> None:
        """Before its first step. A scheduler may have changed the rates already, but keeps what they were."""
        self._groups = [
            {name: value for name, value in group.items() if name not in _MEANS} for group in optimizer.param_groups
        ]
        for group in self._groups:
            group["lr"] = group.pop("initial_lr", group["lr"])
        self._values.update(values)

    def note_data(self, batch: Batch, shards: int | None, **data: int | bool) -> None:
        """The batch as the script or the job file has it, and what the order of samples depends on."""
        self._values.update(data, batch_size=batch.initial, max_batch_size=batch.max_total)
        if shards is not None:
            self._values["virtual_shards"] = shards

    def marked(self, job: Job) -> tuple[dict[str, Any], int]:
        """A state as it is saved, with the run that it is of and the time; and its step."""
        origin = {"fingerprint": self._fingerprint().to_dict(), "saved_at": time.time()}
        return {**job.state(), ORIGIN: origin}, job.progress.step

    def _fingerprint(self) -> Fingerprint:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        store = self._keeper.store
        places = {word for word in sys.argv[1:] if store is not None and Path(word).absolute() == store.directory}
        return Fingerprint(
            run=identity_of(os.environ),
            script=script_name(script) if script else "",
            arguments=parse_arguments(sys.argv[1:], places) if script else {},
            groups=tuple({name: plain(value) for name, value in group.items()} for group in self._groups),
            values={name: plain(value) for name, value in self._values.items()},
            epochs=self.epochs,
        )

    # -- starting ------------------------------------------------------------------------------------------------

    def start(self, job: Job) -> None:
        """As the leader, while no worker has a state. Raises InvalidSpec if what was saved is another run's."""
        if self._keeper.store is None:
            self._tell("begins", "begins at step 0; there is no directory for checkpoints, so nothing is saved", step=0)
            return
        where = str(self._keeper.store.directory)
        loaded = self._keeper.saved(
            within_s=self._options.lock_timeout_s, on_wait=lambda holder: self._waits(job, holder)
        )
        if loaded is None:
            self._tell("begins", f"begins at step 0, and saves in {where}", step=0, directory=where)
            return
        differing, saved = self._check(loaded, job), _saved_fingerprint(loaded)
        if saved is not None and extends(saved, self._fingerprint()):
            loaded.state["progress"]["over"] = False  # the script had had enough, of fewer epochs or steps
        job.load(loaded.state, from_disk=True)
        if saved is not None and differing:
            self._use_own_values(saved)
        self.complete_at = job.progress.step if job.finished else None
        self._tell_of(loaded, differing, unknown=saved is None)

    def _check(self, loaded: Loaded, job: Job) -> list[Difference]:
        """In what the saved run differs from this one, if it may be continued all the same."""
        self._parts.check_kinds(loaded.state)
        saved, ours = _saved_fingerprint(loaded), self._fingerprint()
        if saved is None:
            return []
        found = differences(saved, ours)
        if 0 < ours.epochs < saved.epochs and job.reaches_end(Progress(**loaded.state["progress"])):
            found.append(Difference("the number of epochs", saved.epochs, ours.epochs))
        again = bool(ours.run) and ours.run == saved.run and same_command(saved, ours)
        if found and not self._options.resume and not again:
            told = {"step": loaded.step, "checkpoint": str(loaded.path), "differing": [list(each) for each in found]}
            self._link.say("foreign", text=refusal(loaded, found), **told)  # the log has it as an error
            raise InvalidSpec(refusal(loaded, found))
        return found

    def _waits(self, job: Job, holder: Holder) -> None:
        """For the lock of the directory; but not if what is there already is another run's."""
        store, within_s = self._keeper.store, self._options.lock_timeout_s
        assert store is not None
        if (loaded := store.latest()) is not None:
            self._check(loaded, job)
        text = f"waits for at most {within_s:g} s for the lock of {store.directory}, held by {holder}"
        self._tell("locked", text, directory=str(store.directory), holder=asdict(holder), within_s=within_s)

    def _use_own_values(self, saved: Fingerprint) -> None:
        """Instead of those that were loaded with the optimiser."""
        optimizer = self._parts["optimizer"]
        for group, ours, theirs in zip(optimizer.param_groups, self._groups, saved.groups, strict=True):
            for name, value in ours.items():
                if name not in _RATES and plain(value) != theirs.get(name):
                    group[name] = value
        rates = [
            float(ours["lr"]) / theirs["lr"] if theirs.get("lr") else None
            for ours, theirs in zip(self._groups, saved.groups, strict=True)
        ]
        scale_rates(optimizer, self._parts.get("scheduler"), rates, [group["lr"] for group in self._groups])

    # -- telling -------------------------------------------------------------------------------------------------

    def _tell_of(self, loaded: Loaded, differing: Sequence[Difference], *, unknown: bool) -> None:
        at = saved_at(loaded)
        where = f"step {loaded.step}, saved at {clock(at)} ({loaded.path})"
        changed = "".join(f"; {each.name} is {each.here} now, and was {each.there}" for each in differing)
        if unknown:
            changed = (
                "; warning: it was saved by an older Fairlead and does not say of which run it is: see that it is this"
            )
        kind, text = "continues", f"continues at {where}{changed}"
        if self.complete_at is not None:
            kind, text = "complete", f"was already complete at {where}: nothing to do{changed}"
        fields = {"step": loaded.step, "saved_at": at, "checkpoint": str(loaded.path)}
        self._tell(kind, text, **fields, differing=[list(each) for each in differing])

    def _tell(self, kind: str, text: str, **fields: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # a log that cannot be written is no reason to stop
            print(f"fairlead: {text}", file=sys.stderr, flush=True)
        self._link.say(kind, text=text, **fields)


def refusal(loaded: Loaded, found: Sequence[Difference]) -> str:
    """Why a checkpoint is not continued, and what to do instead."""
    return (
        f"checkpoint {loaded.path} (step {loaded.step}, saved at {clock(saved_at(loaded))}) is of another run: "
        f"{'; '.join(map(str, found))}. Name another directory of checkpoints for this run; or, to continue that one "
        "with the values given here, say fairlead.train.init(resume=True)"
    )


def saved_at(loaded: Loaded) -> float:
    """UNIX seconds; of a checkpoint that does not say, when its file was written."""
    try:
        return float(loaded.state[ORIGIN]["saved_at"])
    except (LookupError, TypeError):
        return loaded.path.stat().st_mtime


def clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _saved_fingerprint(loaded: Loaded) -> Fingerprint | None:
    """None for a checkpoint from before there were any."""
    origin = loaded.state.get(ORIGIN)
    return None if origin is None else Fingerprint.from_dict(origin["fingerprint"])


def identity_of(env: Mapping[str, str]) -> str:
    """Of the job under the service, or of the run of `fairlead train`: the same for all its restarts, and for no other.
    Empty for a script that was started by itself."""
    if "FAIRLEAD_JOB_ID" in env and (own := env.get("FAIRLEAD_CHECKPOINT_DIR")):
        return _drawn_once(Path(own) / _IDENTITY)
    token = env.get(TOKEN, "")
    return hashlib.sha256(token.encode()).hexdigest()[:32] if token else ""


def _drawn_once(path: Path) -> str:
    """A random name that stays in this file. Ids of jobs may begin again in another cluster; this does not."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        if not path.exists():
            draft.write_text(secrets.token_hex(16), encoding="ascii")
            try:
                os.link(draft, path)
            except FileExistsError:  # another worker was faster
                pass
            finally:
                draft.unlink()
        return path.read_text(encoding="ascii").strip()
    except OSError:  # then a restart is compared by its values, as a script that was started by itself
        return ""


# -- learning rates ----------------------------------------------------------------------------------------------------


def scale_rates(
    optimizer: torch.optim.Optimizer, scheduler: Any, factors: Sequence[float | None], rates: Sequence[Any]
) -> None:
    """Multiply the learning rates of each group, as a schedule has left them, with a factor; or set them to `rates`
    where there is none."""
    for group, factor, rate in zip(optimizer.param_groups, factors, rates, strict=True):
        for name in _RATES:
            if name in group:
                group[name] = rate if factor is None else group[name] * factor
    for each in _schedulers(scheduler):
        for name in ("base_lrs", "_last_lr"):
            if (held := getattr(each, name, None)) is not None and len(held) == len(rates):
                new = [
                    rate if factor is None else old * factor
                    for old, factor, rate in zip(held, factors, rates, strict=True)
                ]
                setattr(each, name, new)


def _schedulers(scheduler: Any) -> Iterator[Any]:
    """It, and those it is made of."""
    if scheduler is not None:
        yield scheduler
        for each in getattr(scheduler, "_schedulers", ()):
            yield from _schedulers(each)
