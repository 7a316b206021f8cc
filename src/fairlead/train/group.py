"""The workers of one generation, connected: process groups that are nobody's default group.

Every generation has a store of its own, at its leader's, so that nothing stale is ever found. To build a group takes
milliseconds, and is done by a thread while the training goes on. Gloo carries what is in main memory, and NCCL what is
on GPUs. NCCL connects when it is first used: two of its groups that are busy at the same time may wait for each other.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from fairlead.train.link import Link, Plan, is_over
from fairlead.train.memory import Memory, found, made, path_of
from fairlead.train.wire import TOKEN

#: Torch does not say that it exports these.
dist: Any = torch.distributed

#: Until everybody is there, and until a collective has failed; whoever dies is noticed by its closed connections.
BUILD_S, COLLECTIVE_S = 60.0, 1800.0

#: How often whoever waits looks whether the agent has given the generation up, and whether a GPU is done.
LOOK_UP_S, POLL_S = 0.1, 1e-4

#: Until a thread that is inside torch has come out of it, when the process ends.
EXIT_S = 10.0

#: `gloo` in this variable: also for gradients on GPUs, where NCCL does not work.
BACKEND = "FAIRLEAD_BACKEND"


class Broken(Exception):
    """A member is gone, so what was being done together cannot be completed."""


class Group:
    """Collectives over one generation. Alone, they are nothing."""

    def __init__(self, plan: Plan, rank: int, backend: Any | None, link: Link | None = None) -> None:
        self.plan, self.rank, self.world = plan, rank, plan.world
        #: For handing the state to new members, if it was made ready.
        self.memory: Memory | None = None
        self._backend, self._link = backend, link
        #: For gradients on GPUs, made when there are some.
        self._store: Any = None
        self._nccl: Any = None

    @staticmethod
    def build(plan: Plan, link: Link) -> Group:
        """Connect to all others of a generation. Raises Broken if that cannot be done."""
        rank = plan.members.index(link.name)
        if plan.world == 1:
            return Group(plan, 0, None)
        try:
            store = _meet(plan, link, rank)
            backend = dist.ProcessGroupGloo(store, rank, plan.world, timedelta(seconds=COLLECTIVE_S))
        except (RuntimeError, ValueError) as error:
            raise Broken(f"generation {plan.generation} cannot be built: {error}") from error
        group = Group(plan, rank, backend, link)
        group._store = store
        return group

    def _for(self, tensor: torch.Tensor) -> Any:
        """What carries a tensor."""
        if not tensor.is_cuda or not dist.is_nccl_available() or os.environ.get(BACKEND) == "gloo":
            return self._backend
        if self._nccl is None:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=COLLECTIVE_S)
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", self._store), self.rank, self.world, options)
        return self._nccl

    def start_sum(self, tensor: torch.Tensor) -> Any:
        """Add up in place over all members, in the background; `finish` waits for it."""
        if self._backend is None:
            return None
        try:
            return self._for(tensor).allreduce([tensor], dist.AllreduceOptions())
        except RuntimeError as error:
            raise Broken(str(error)) from error

    def finish(self, work: Any) -> None:
        """Wait for it. Raises Broken, also if only the agent knows so far that somebody is gone: a member that waits
        for another one, which has given up already, would hear nothing."""
        if work is None:
            return
        done = _on_gpu(work) if self._nccl is not None else _in_memory(work)
        while not done(LOOK_UP_S):
            if self._link is not None and is_over(self.plan, self._link):
                raise Broken(f"generation {self.plan.generation} is over")
        try:
            work.wait()
        except RuntimeError as error:
            raise Broken(str(error)) from error

    def sum(self, tensor: torch.Tensor) -> None:
        self.finish(self.start_sum(tensor))

    def gather(self, values: list[float]) -> list[list[float]]:
        """Everybody's values, by rank."""
        every = torch.zeros(self.world, len(values), dtype=torch.float64)
        every[self.rank] = torch.tensor(values, dtype=torch.float64)
        self.sum(every)
        rows: list[list[float]] = every.tolist()
        return rows

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        if self._backend is None:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        try:
            work = self._for(tensor).broadcast([tensor], options)
        except RuntimeError as error:
            raise Broken(str(error)) from error
        self.finish(work)

    def retire(self) -> None:
        """Close it in the background. That takes tens of milliseconds, or for ever if an operation still waits for
        somebody who is gone; so nobody may wait for it, and this must not be the last one to hold it."""
        holder, nccl = [self._backend, self._store], self._nccl
        self._backend = self._store = self._nccl = None

        def close() -> None:
            if nccl is not None:
                nccl.abort()  # or a kernel that waits for somebody who is gone would occupy the GPU for ever
            holder.clear()

        _start_within_torch(close, "fairlead-retire")


#: Threads that may be inside torch. If the interpreter ends under one of them, torch aborts the process: a job that is
#: done would end with SIGABRT, and count as failed.
_WITHIN_TORCH: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def _start_within_torch(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    _WITHIN_TORCH.add(thread)
    thread.start()
    return thread


def wait_for_torch_threads(timeout_s: float = EXIT_S) -> bool:
    """Before the interpreter ends: wait until no thread of ours is inside torch. False if one still was in time."""
    late = time.monotonic() + timeout_s
    for thread in list(_WITHIN_TORCH):
        thread.join(max(0.0, late - time.monotonic()))
    return not any(thread.is_alive() for thread in _WITHIN_TORCH)


def _in_memory(work: Any) -> Callable[[float], bool]:
    """Waits for so long, and says whether it is done."""
    done = threading.Event()
    work.get_future().add_done_callback(lambda _: done.set())
    return done.wait


def _on_gpu(work: Any) -> Callable[[float], bool]:
    """The same where a future is done when the work has begun."""

    def done(timeout_s: float) -> bool:
        late = time.monotonic() + timeout_s
        while not work.is_completed():
            if time.monotonic() > late:
                return False
            time.sleep(POLL_S)
        return True

    return done


class Building:
    """A group that a thread builds while training goes on."""

    def __init__(self, plan: Plan, link: Link, room: int = 0) -> None:
        """`room` are bytes of memory to make ready, if new members will need the state."""
        self.plan, self._link, self._room = plan, link, room
        self._group: Group | None = None
        self._error: Broken | None = None
        self._memory: Memory | None = None
        self._leaving = link.name not in plan.members
        self._thread = _start_within_torch(self._build, "fairlead-group")

    @property
    def ready(self) -> bool:
        """Also for a worker that is no member: it has nothing to build."""
        return self._leaving or self._group is not None

    def result(self) -> Group:
        """Raises Broken, also if the agent has given this generation up."""
        while self._thread.is_alive():
            self._thread.join(LOOK_UP_S)
            if is_over(self.plan, self._link):
                raise Broken(f"generation {self.plan.generation} is over")
        if self._group is None:
            raise self._error or Broken("this worker is no member")
        return self._group

    def _build(self) -> None:
        if self._leaving:
            return
        path = path_of(os.environ.get(TOKEN, ""), self.plan.generation)
        if self._room and self.plan.members[0] == self._link.name:
            self._memory = made(path, self._room)  # before the group, so that all others find it after
        try:
            group = Group.build(self.plan, self._link)
            group.memory = self._memory or found(path)
            self._group = group
        except Broken as error:
            self._error = error
            self.drop()

    def drop(self) -> None:
        """It is not needed any more."""
        if self._memory is not None:
            self._memory.forget()


def _meet(plan: Plan, link: Link, rank: int) -> Any:
    """The store at which the members exchange addresses; the leader opens it and says where."""
    wait = timedelta(seconds=BUILD_S)
    if link.fixed:  # torchrun has a store of its own, and says where in the environment
        store, _, _ = next(dist.rendezvous("env://", rank, plan.world, timeout=wait))
        return dist.PrefixStore("fairlead", store)
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, plan.world, True, wait, wait_for_workers=False)
        link.say("store", generation=plan.generation, host="127.0.0.1", port=server.port)
        return server
    link.wait(lambda: link.store(plan.generation) is not None, BUILD_S)
    at = link.store(plan.generation)
    if at is None:
        raise Broken(f"the leader of generation {plan.generation} did not open its store within {BUILD_S:g} s")
    return dist.TCPStore(*at, plan.world, False, wait, wait_for_workers=False)
