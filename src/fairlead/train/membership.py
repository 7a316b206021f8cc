"""A worker's way from one generation to the next: planned, when all are ready; or at once, when somebody is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

from fairlead.train.group import Broken, Building, Group
from fairlead.train.link import Link, Plan, is_over

#: Until a worker whose group has failed says so, if the agent has not noticed a death by then.
STUCK_S = 3.0


class Membership:
    """The present group, and the next one while it is being built."""

    def __init__(
        self,
        link: Link,
        enter: Callable[[Group], None],
        go_on: Callable[[Group], None],
        leave: Callable[[], NoReturn],
        room: Callable[[], int],
    ) -> None:
        """`enter` brings everybody in a new group to the same state, and may raise Broken; `go_on` is for those who
        have it already; `leave` ends the process; `room` are the bytes of the state."""
        self._link, self._enter, self._go_on, self._leave, self._room = link, enter, go_on, leave, room
        self.group: Group | None = None
        self._next: Building | None = None

    @property
    def next_is_ready(self) -> bool:
        """This worker could change over now."""
        return self._next is not None and self._next.ready

    @property
    def next_plan(self) -> Plan:
        """Of the generation that is being built."""
        assert self._next is not None
        return self._next.plan

    @property
    def broken(self) -> bool:
        """Somebody was lost, so the present group will never complete anything again."""
        return self.group is not None and is_over(self.group.plan, self._link)

    def prepare(self) -> bool:
        """Build the group of the next generation, if there is one, while this one trains on. Whether that was begun."""
        plan, group = self._link.plan, self.group
        if plan is None or group is None or plan.generation <= group.plan.generation:
            return False
        if self._next is not None and self._next.plan == plan:
            return False
        grows = not set(plan.members) <= set(group.plan.members)
        leads = plan.members[0] == self._link.name
        self._drop_next()
        self._next = Building(plan, self._link, room=self._room() if grows and leads else 0)
        return True

    def change(self) -> None:
        """To the next generation, for which everybody is ready."""
        assert self._next is not None
        old, following = self.group, self._next
        if self._link.name not in following.plan.members:
            self._leave()
        stay = old is not None and set(following.plan.members) <= set(old.plan.members)
        try:
            # Who has trained together until this step and nobody else: no word needs to be exchanged.
            self._become(following.result(), self._go_on if stay else self._enter)
        except Broken as broken:
            self._link.say("stuck", generation=following.plan.generation, why=str(broken))
            self.rejoin()
        if old is not None:
            old.retire()

    def rejoin(self) -> None:
        """Wait for a generation that includes this worker, and join it; again if somebody is lost meanwhile."""
        done, first = (self.group.plan.generation, False) if self.group else (0, True)
        if self.group is not None:
            self.group.retire()  # whoever still waits for us there should know
        while True:
            # Who has lost the others may only join one that begins with everybody saying how far they are.
            newer = partial(self._is_newer, after=done, any_kind=first)
            if not first and not self._link.wait(newer, STUCK_S):
                self._link.say("stuck", generation=done, why="the others are gone, but nobody has died")
            self._link.wait(newer)
            first = False
            plan = self._link.plan
            assert plan is not None
            done = plan.generation
            if self._link.name not in plan.members:
                self._leave()
            try:
                if self._next is None or self._next.plan != plan:
                    self._drop_next()
                    self._next = Building(plan, self._link)
                self._become(self._next.result(), self._enter)
                return
            except Broken as broken:
                self.group = None
                self._link.say("stuck", generation=done, why=str(broken))  # or the others would wait for us

    def _drop_next(self) -> None:
        if self._next is not None:
            self._next.drop()
            self._next = None

    def _is_newer(self, *, after: int, any_kind: bool) -> bool:
        plan = self._link.plan
        return plan is not None and plan.generation > after and (any_kind or plan.broken)

    def _become(self, group: Group, enter: Callable[[Group], None]) -> None:
        try:
            enter(group)
        finally:
            if group.memory is not None:
                group.memory.forget()
                group.memory = None
        self.group, self._next = group, None
