"""All that a policy may see, frozen: the time, the live jobs, the nodes, and who holds which GPUs.

A policy over a few hundred jobs reads `jobs`; one that must stay quick over ten thousand reads `columns`, the
same facts as numpy arrays. `Table` keeps those arrays up to date row by row as jobs change, so that a snapshot
costs a copy and not a rebuild.

Legend: J live jobs in order of arrival, N nodes in the order of `nodes`, R rows of the table, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairlead.core.memo import Memo
from fairlead.core.types import Allocation, Belief, Job, Node, Phase
from fairlead.core.usage import Ledger

Floats = NDArray[np.float64]

T = TypeVar("T")


class TrueRates(NamedTuple):
    """What a job would do in some configurations, and how much it has left, in one unit of work."""

    #: Units of work per second; 0 where the job cannot run.
    rate_C: tuple[float, ...]
    left: float
    #: Units of work in a step, so that rate / batch is steps per second; 1 where the job counts no samples.
    batch: float


class StepTimes(Protocol):
    """True step times, for policies that declare themselves oracles. A job that knows no steps counts seconds as such.

    Not how fast a job runs now, but what it would do on other GPUs: what a perfect profiler would know.
    """

    def steps_left(self, job_id: str) -> float:
        """Steps after the epoch under way, at the batch its user chose."""

    def step_s(self, job_id: str, gpus: int) -> float:
        """Seconds of one step on so many GPUs of as few nodes as possible; infinite where it cannot run."""


class StepOracle(StepTimes, Protocol):
    """The same for any GPU type, and beside other jobs."""

    def rates(self, job_id: str, configurations: Sequence[tuple[str, int, int, tuple[str, ...]]]) -> TrueRates:
        """At the batch that the job has now, by (GPU type, nodes, GPUs, partners); partners by their `workload`."""

    def batch_s(self, job_id: str) -> Mapping[int, float]:
        """By each batch size that the job will ever use: seconds of its whole work at it, on the GPUs it asked for.

        Neither when it will use them nor for how long. One that knows no batch sizes has one, of 1.
        """

    def workload(self, job_id: str) -> str:
        """What the job is to those beside it: jobs of the same name slow others down alike."""


#: What a job asks for: how many GPUs, of which types (empty = any). Jobs share few distinct demands.
Demand = tuple[int, tuple[str, ...]]

#: Whom a job is counted to: queue and tenant.
Account = tuple[str, str]


class Columns(NamedTuple):
    """The live jobs as arrays, one entry per job, in order of arrival."""

    ids: tuple[str, ...]
    gpus_J: Floats
    submitted_at_J: Floats
    priority_J: Floats
    preemptible_J: Floats
    #: GPUs of the current allocation; 0 while it waits.
    held_J: Floats
    #: 1 while it has no processes, be it because it never started or because it was stopped; else 0.
    pending_J: Floats
    #: GPU-seconds and seconds spent RUNNING, until now.
    service_gpu_s_J: Floats
    run_s_J: Floats
    #: Now for a job that is RUNNING, -inf for one that never ran.
    last_ran_at_J: Floats
    #: When its phase last changed.
    since_J: Floats
    #: The run time the user promised; inf where there is no promise.
    estimate_s_J: Floats
    #: Index into `demands`.
    demand_J: NDArray[np.int64]
    demands: tuple[Demand, ...]
    #: Index into `accounts`.
    account_J: NDArray[np.int64]
    accounts: tuple[Account, ...]


class NodeColumns(NamedTuple):
    """The nodes as arrays, one entry per node, in the order of `Snapshot.nodes`."""

    ids: tuple[str, ...]
    #: GPUs that no job in `Snapshot.allocations` holds; 0 on nodes where nothing new may be placed.
    free_N: NDArray[np.int64]
    #: Something new may be placed here.
    open_N: NDArray[np.bool_]
    #: Index into `gpu_types`.
    type_N: NDArray[np.int64]
    gpu_types: tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    """One moment of the cluster. Its mappings must not be changed by whoever holds it."""

    now: float
    #: Live jobs that may run now, in order of arrival: none that was cancelled or put on hold, that waits for others
    #: to succeed, or for its time to be tried again.
    jobs: Mapping[str, Job]
    #: In an order that does not depend on their names, nor on which joined first (`core.node_order`).
    nodes: Mapping[str, Node]
    #: What each job was last told to hold; jobs that hold nothing are absent.
    allocations: Mapping[str, Allocation]
    #: Per node, the GPUs in `allocations` as a bit mask: what a plan that keeps everyone may not touch.
    assigned: Mapping[str, int]
    #: Per node, the GPUs nobody new can use yet: those assigned and those still being released.
    held: Mapping[str, int]
    #: Some GPU is held by more than one job.
    shared: bool = False
    #: Nodes that were given back (`Release`), and those asked for again (`Rent`) that did not join yet. Neither is
    #: healthy, and no node is in both. One that failed by itself is in none.
    released: frozenset[str] = frozenset()
    coming: frozenset[str] = frozenset()
    #: GPU-seconds one job would have had so far with an equal share; see `Job.fair_from_gpu_s`.
    fair_gpu_s: float = 0.0
    #: By model: what earlier and other jobs that train it have taught of it.
    lore: Mapping[str, Belief] = field(default_factory=dict)
    #: Jobs that may not run but have processes: they are cancelled or on hold, and on their way out.
    barred: tuple[Job, ...] = ()
    #: What jobs have used and use.
    ledger: Ledger = field(default_factory=Ledger)
    #: What the policy left behind with its last plan (`Plan.memo`).
    memo: Memo = field(default_factory=dict)
    #: Ids of the live jobs that may not run now.
    absent: frozenset[str] = frozenset()
    #: True remaining seconds of a job, for policies that declare themselves oracles; only the simulator has one.
    oracle: Callable[[str], float] | None = None
    #: For the same policies, where their world can tell.
    step_oracle: StepOracle | None = None
    #: `jobs` as the state made it; a policy that wraps another may show it fewer.
    _schedulable: Mapping[str, Job] = field(default_factory=dict, compare=False, repr=False)
    _table: Table | None = field(default=None, compare=False, repr=False)
    _node_table: NodeTable | None = field(default=None, compare=False, repr=False)
    _version: tuple[int, int] = field(default=(-1, -1), compare=False, repr=False)

    def is_live(self, job_id: str) -> bool:
        """The job has not ended, although it may not be in `jobs`: on hold, say, or hidden by a policy around this one.

        What a policy remembers of such a job it should keep, for when it comes back.
        """
        return job_id in self.jobs or job_id in self._schedulable or job_id in self.absent

    @property
    def usage(self) -> Mapping[tuple[str, str], float]:
        """GPU-seconds held so far by (queue, tenant); what is long past counts less (`core.usage`)."""
        using = ((job.spec, job.allocation.total, job.accounted_at) for job in (*self.jobs.values(), *self.barred))
        return self.ledger.at(self.now, using)

    @property
    def columns(self) -> Columns:
        cached: Columns | None = self.__dict__.get("_columns")  # functools.cached_property takes a lock each time
        if cached is None:
            cached = self.__dict__["_columns"] = self._make_columns()
        return cached

    @property
    def node_columns(self) -> NodeColumns:
        cached: NodeColumns | None = self.__dict__.get("_node_columns")
        if cached is None:
            cached = self.__dict__["_node_columns"] = self._make_node_columns()
        return cached

    def _make_columns(self) -> Columns:
        if self._table is not None and self._table.version == self._version[0]:
            return self._table.columns(tuple(self.jobs), self.now)
        table = Table()  # the state moved on since this snapshot was taken: build its arrays anew
        for job in self.jobs.values():
            table.put(job)
        return table.columns(tuple(self.jobs), self.now)

    def _make_node_columns(self) -> NodeColumns:
        if self._node_table is not None and self._node_table.version == self._version[1]:
            return self._node_table.columns(tuple(self.nodes))
        table = NodeTable()
        for node in self.nodes.values():
            table.put(node)
            table.use(node.id, self.assigned.get(node.id, 0).bit_count())
        return table.columns(tuple(self.nodes))


_GPUS, _SUBMITTED, _PREEMPTIBLE, _ESTIMATE, _DEMAND, _ACCOUNT = range(6)  # never change
_PRIORITY, _HELD, _PENDING, _SERVICE, _RUN, _LAST_RAN, _SINCE, _AT, _RUNNING = range(6, 15)


class Table:
    """The columns of the live jobs, kept current row by row. Only `State` writes to it.

    Rows are in order of arrival. A finished job leaves a dead row; when these outnumber the living, the table is
    packed, so the cost per change does not grow with the number of jobs that came before.
    """

    def __init__(self) -> None:
        self._cells_CR = np.zeros((15, 64))
        self._alive_R = np.zeros(64, dtype=bool)
        self._row: dict[str, int] = {}
        self._end = 0
        self._demands: dict[Demand, int] = {}
        self._accounts: dict[Account, int] = {}
        #: Changes with every write; a snapshot remembers it to know whether the table still speaks of its moment.
        self.version = 0

    def put(self, job: Job) -> None:
        """Add a job, or overwrite its row."""
        self.version += 1
        row = self._row.get(job.spec.id)
        cells = self._cells_CR
        if row is None:
            if self._end == cells.shape[1]:
                self._make_room()
                cells = self._cells_CR
            row = self._row[job.spec.id] = self._end
            self._end += 1
            self._alive_R[row] = True
            spec = job.spec
            cells[_GPUS, row] = spec.gpus
            cells[_SUBMITTED, row] = job.submitted_at
            cells[_PREEMPTIBLE, row] = spec.preemptible
            cells[_ESTIMATE, row] = np.inf if spec.estimate_s is None else spec.estimate_s
            cells[_DEMAND, row] = self._demands.setdefault((spec.gpus, spec.gpu_types), len(self._demands))
            cells[_ACCOUNT, row] = self._accounts.setdefault((spec.queue, spec.tenant), len(self._accounts))
        cells[_PRIORITY, row] = job.spec.priority
        cells[_HELD, row] = job.allocation.total
        cells[_PENDING, row] = job.phase is Phase.PENDING
        cells[_SERVICE, row] = job.service_gpu_s
        cells[_RUN, row] = job.run_s
        cells[_LAST_RAN, row] = -np.inf if job.last_ran_at is None else job.last_ran_at
        cells[_SINCE, row] = job.since
        cells[_AT, row] = job.accounted_at
        cells[_RUNNING, row] = job.phase is Phase.RUNNING

    def drop(self, job_id: str) -> None:
        self.version += 1
        self._alive_R[self._row.pop(job_id)] = False
        if self._end > 64 and self._end > 2 * len(self._row):
            self._pack()

    def columns(self, ids: tuple[str, ...], now: float) -> Columns:
        """A copy for the moment `now`; `ids` are the table's jobs in order."""
        used = self._cells_CR[:, : self._end]
        cells = used.copy() if self._end == len(self._row) else used.take(self._living(), axis=1)
        elapsed = np.maximum(0.0, now - cells[_AT])
        running_s = cells[_RUNNING] * elapsed
        cells[_SERVICE] += cells[_HELD] * running_s
        cells[_RUN] += running_s
        np.copyto(cells[_LAST_RAN], now, where=cells[_RUNNING] > 0)
        return Columns(
            ids=ids,
            gpus_J=cells[_GPUS],
            submitted_at_J=cells[_SUBMITTED],
            priority_J=cells[_PRIORITY],
            preemptible_J=cells[_PREEMPTIBLE],
            held_J=cells[_HELD],
            pending_J=cells[_PENDING],
            service_gpu_s_J=cells[_SERVICE],
            run_s_J=cells[_RUN],
            last_ran_at_J=cells[_LAST_RAN],
            since_J=cells[_SINCE],
            estimate_s_J=cells[_ESTIMATE],
            demand_J=cells[_DEMAND].astype(np.int64),
            demands=tuple(self._demands),
            account_J=cells[_ACCOUNT].astype(np.int64),
            accounts=tuple(self._accounts),
        )

    def _make_room(self) -> None:
        if len(self._row) < self._end // 2:
            self._pack()
            return
        self._cells_CR = np.concatenate([self._cells_CR, np.zeros_like(self._cells_CR)], axis=1)
        self._alive_R = np.concatenate([self._alive_R, np.zeros_like(self._alive_R)])

    def _living(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._alive_R[: self._end])

    def _pack(self) -> None:
        living = self._living()
        self._cells_CR[:, : len(living)] = self._cells_CR[:, living]
        self._alive_R[:] = False
        self._alive_R[: len(living)] = True
        self._row = {job_id: row for row, job_id in enumerate(self._row)}
        self._end = len(living)
        self._demands = self._only_used(_DEMAND, self._demands)
        self._accounts = self._only_used(_ACCOUNT, self._accounts)

    def _only_used(self, column: int, known: dict[T, int]) -> dict[T, int]:
        """Those that no living job has any more would make every decision a little slower, for ever."""
        used, renumbered = np.unique(self._cells_CR[column, : self._end].astype(np.int64), return_inverse=True)
        values = tuple(known)
        self._cells_CR[column, : self._end] = renumbered
        return {values[old]: new for new, old in enumerate(used.tolist())}


class _NodeOrder(NamedTuple):
    """How the rows of a node table become columns: row of each node and new number of each type, None if as it is."""

    ids: tuple[str, ...]
    row_N: NDArray[np.int64] | None
    renumbered_T: NDArray[np.int64] | None
    gpu_types: tuple[str, ...]


_NO_ORDER = _NodeOrder((), None, None, ())


class NodeTable:
    """The columns of the nodes, kept current. A lost node stays, with no free GPUs. Only `State` writes to it."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._types: dict[str, int] = {}
        self._order = _NO_ORDER  # of the last columns: most snapshots want the same
        self._cells_CN = np.zeros((3, 64), dtype=np.int64)  # GPU type; size, 0 while nothing new may be placed; used
        self.version = 0

    def put(self, node: Node) -> None:
        self.version += 1
        row = self._row.setdefault(node.id, len(self._row))
        if row == self._cells_CN.shape[1]:
            self._cells_CN = np.concatenate([self._cells_CN, np.zeros_like(self._cells_CN)], axis=1)
        kind = self._types.setdefault(node.gpu_type, len(self._types))
        if self._cells_CN[0, row] != kind:
            self._order = _NO_ORDER
        self._cells_CN[0, row] = kind
        self._cells_CN[1, row] = node.gpus if node.open else 0

    def use(self, node_id: str, gpus: int) -> None:
        """So many more GPUs of the node are taken (fewer, if negative)."""
        self.version += 1
        self._cells_CN[2, self._row[node_id]] += gpus

    def columns(self, ids: tuple[str, ...]) -> NodeColumns:
        """A copy; `ids` are the table's nodes, in the order that the columns are to have."""
        order = self._order
        if ids != order.ids:
            order = self._order = self._ordered(ids)
        cells_CN = self._cells_CN[:, : len(ids)]
        if order.row_N is not None:
            cells_CN = cells_CN[:, order.row_N]
        type_N, size_N, used_N = cells_CN
        free_N = np.maximum(0, size_N - used_N)
        type_N = type_N.copy() if order.renumbered_T is None else order.renumbered_T[type_N]
        return NodeColumns(order.ids, free_N, size_N > 0, type_N, order.gpu_types)

    def _ordered(self, ids: tuple[str, ...]) -> _NodeOrder:
        row_N = np.array([self._row[node_id] for node_id in ids], dtype=np.int64)
        types = tuple(self._types)
        gpu_types = tuple(dict.fromkeys(types[kind] for kind in self._cells_CN[0, row_N].tolist()))
        in_place = bool((row_N == np.arange(len(ids))).all())
        number = {name: kind for kind, name in enumerate(gpu_types)}
        renumbered_T = np.array([number.get(name, 0) for name in types], dtype=np.int64)  # nodes can change their type
        return _NodeOrder(ids, None if in_place else row_N, None if gpu_types == types else renumbered_T, gpu_types)
