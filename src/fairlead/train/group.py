"""The workers of one generation, connected: a gloo or NCCL process group that is nobody's default group.

Every generation has a store of its own, at its leader's, so that nothing stale is ever found. To build a group takes
milliseconds, and is done by a thread while the training goes on.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from fairlead.train.link import Link, Plan
from fairlead.train.memory import SHARED, Memory, found, path_of
from fairlead.train.wire import TOKEN

#: Torch does not say that it exports these.
dist: Any = torch.distributed

#: Until everybody is there, and until a collective has failed; whoever dies is noticed by its closed connections.
BUILD_S, COLLECTIVE_S = 60.0, 1800.0

#: How often whoever waits in a collective looks whether the agent has given the generation up.
LOOK_UP_S = 0.1


class Broken(Exception):
    """A member is gone, so what was being done together cannot be completed."""


class Group:
    """Collectives over one generation. Alone, they are nothing."""

    def __init__(self, plan: Plan, rank: int, backend: Any | None, link: Link | None = None) -> None:
        self.plan, self.rank, self.world = plan, rank, plan.world
        #: For handing the state to new members, if it was made ready.
        self.memory: Memory | None = None
        self._backend, self._link = backend, link

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
        return Group(plan, rank, backend, link)

    def start_sum(self, tensor: torch.Tensor) -> Any:
        """Add up in place over all members, in the background; `finish` waits for it."""
        if self._backend is None:
            return None
        try:
            return self._backend.allreduce([tensor], dist.AllreduceOptions())
        except RuntimeError as error:
            raise Broken(str(error)) from error

    def finish(self, work: Any) -> None:
        """Wait for it. Raises Broken, also if only the agent knows so far that somebody is gone: a member that waits
        for another one, which has given up already, would hear nothing."""
        if work is None:
            return
        done = threading.Event()
        work.get_future().add_done_callback(lambda _: done.set())
        while not done.wait(LOOK_UP_S):
            newer = self._link.plan if self._link is not None else None
            if newer is not None and newer.broken and newer.generation > self.plan.generation:
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
            work = self._backend.broadcast([tensor], options)
        except RuntimeError as error:
            raise Broken(str(error)) from error
        self.finish(work)

    def retire(self) -> None:
        """Close it in the background. That takes tens of milliseconds, or for ever if an operation still waits for
        somebody who is gone; so nobody may wait for it, and this must not be the last one to hold it."""
        holder, self._backend = [self._backend], None
        threading.Thread(target=holder.clear, name="fairlead-retire", daemon=True).start()


class Building:
    """A group that a thread builds while training goes on."""

    def __init__(self, plan: Plan, link: Link, room: int = 0) -> None:
        """`room` are bytes of memory to make ready, if new members will need the state."""
        self.plan, self._link, self._room = plan, link, room
        self._group: Group | None = None
        self._error: Broken | None = None
        self._leaving = link.name not in plan.members
        self._thread = threading.Thread(target=self._build, name="fairlead-group", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Also for a worker that is no member: it has nothing to build."""
        return self._leaving or self._group is not None

    def result(self) -> Group:
        """Raises Broken, also if the agent has given this generation up."""
        while self._thread.is_alive():
            self._thread.join(LOOK_UP_S)
            newer = self._link.plan
            if newer is not None and newer.broken and newer.generation > self.plan.generation:
                raise Broken(f"generation {self.plan.generation} is over")
        if self._group is None:
            raise self._error or Broken("this worker is no member")
        return self._group

    def _build(self) -> None:
        if self._leaving:
            return
        path = path_of(os.environ.get(TOKEN, ""), self.plan.generation)
        memory = None
        if self._room and self.plan.members[0] == self._link.name and SHARED.is_dir():
            memory = Memory(path, self._room)  # before the group, so that all others find it after
        try:
            group = Group.build(self.plan, self._link)
            group.memory = memory or found(path)
            self._group = group
        except Broken as error:
            self._error = error


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
