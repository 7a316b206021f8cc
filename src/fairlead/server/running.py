"""One process: the store, the controller and the HTTP server, from the first step to the last.

Beginning is in an order in which whatever can fail fails before anything is touched that others see: the directory and
its lock, the port, the machine, the database, the loop, HTTP; then the address is announced. The main thread does
nothing but wait for signals. Killing the process at any time is safe: jobs have supervisors of their own, and the next
start takes up where this one was.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

import uvicorn

from fairlead import __version__
from fairlead.backends.descriptors import raise_limit
from fairlead.backends.machine import describe
from fairlead.core.errors import BackendError, FairleadError
from fairlead.core.loop import Cadence
from fairlead.core.types import Phase
from fairlead.server.api import Settings, make_app
from fairlead.server.api.wire import make_server
from fairlead.server.auth import NAME, Auth, Role, digest, make_token
from fairlead.server.cluster import check, join, note_run
from fairlead.server.config import Config
from fairlead.server.controller import Controller, ControlOptions
from fairlead.server.directory import Directory, JobNumbers, Running, account
from fairlead.server.launching import LaunchRules
from fairlead.server.listening import listen, names, reachable
from fairlead.server.outlook import Rules
from fairlead.server.resources import request_of
from fairlead.server.service import Service, Terms
from fairlead.server.store import Store

log = logging.getLogger(__name__)

#: Seconds that HTTP gets to begin, and to finish what it is answering at the end.
BEGIN_S, FINISH_S = 30.0, 5
#: Beyond a job's own grace period, until it is given up that it stops.
BEYOND_GRACE_S = 30.0

#: Seconds that one thread keeps the interpreter while others wait for it. Decisions are long and answers short, and
#: whoever answers needs it several times.
SWITCH_S = 0.0005

Tell = Callable[[str], None]


def _calm_the_interpreter() -> None:
    """So that nobody who asks waits for what is no business of theirs."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what is there now stays: no need to look at it again
    gc.set_threshold(50_000, 20, 100)


class Plane:
    """A control plane in this process. `start` and `stop` once each, in the main thread."""

    def __init__(self, directory: Directory, config: Config) -> None:
        self._directory, self._config = directory, config
        self._lock: int | None = None
        self._store: Store | None = None
        self._numbers: JobNumbers | None = None
        self._service: Service | None = None
        self._http: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._token = ""
        self.url = ""
        #: What a person should know of the start.
        self.notices: list[str] = []

    # -- beginning -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when it is ready. Raises FairleadError with everything undone."""
        try:
            self._directory.prepare()
            self._lock = self._directory.lock()
            self._directory.withdraw()  # of one that was killed
            keys = self._config.server
            listener = listen(keys.host, keys.port)
            port = listener.getsockname()[1]
            self._start_loop()
            self._start_http(listener, port)
            self.url = f"http://{reachable(keys.host)}:{port}"
            file = None if self._config.file is None else str(self._config.file)
            self._directory.announce(Running(os.getpid(), self.url, time.time(), __version__, file))
        except BaseException:
            self._abandon()
            raise

    def _start_loop(self) -> None:
        config = self._config
        keys = config.cluster
        machine = describe(
            gpus=keys.gpus,
            nodes=keys.nodes or None,
            price_per_hour=keys.price_per_hour,
            speeds=keys.speeds or None,
        )
        options = control_options(config)
        url = config.database_url(self._directory.path)
        found = check(self._directory, url)
        self._store = store = Store.open(url)
        self._numbers = join(self._directory, store, found)
        self._directory.jobs.mkdir(mode=0o700, exist_ok=True)
        self.controller = controller = Controller(store, machine, self._directory.jobs, options)
        controller.start()
        note_run(self._directory, store, found)
        self.notices += [*filter(None, (machine.notice, found.pair.notice)), *controller.notices]
        auth = Auth(store)
        self._token = settle_owner(self._directory, store, auth)
        rules = Rules(options.make_policy, Cadence.parse(options.cadence))
        terms = Terms(
            policy=options.policy,
            rules=rules,
            queues=config.queues,
            most_live_jobs_each=config.jobs.max_live_per_user,
        )
        self._service = Service(store, controller, auth=auth, log_files=controller.backend.logs, terms=terms)

    def _start_http(self, listener: socket.socket, port: int) -> None:
        assert self._service is not None
        keys = self._config.server
        settings = Settings(
            hosts=names(keys.host, keys.hosts),
            cookie=f"fairlead_session_{port}",
            secure=keys.https,
            largest_body_bytes=keys.max_body,
            requests_per_s=keys.rate,
            requests_burst=max(1, int(2 * keys.rate)),
            head_timeout_s=keys.header_timeout,
            body_timeout_s=keys.body_timeout,
            idle_timeout_s=keys.idle_timeout,
            most_connections=(connections := room_for_connections(keys.max_connections, raise_limit())),
            most_streams=min(Settings.most_streams, max(1, connections // 2)),
        )
        self._app = make_app(self._service, settings)
        self.controller.on_turn = self._app.state.metrics.turned
        _calm_the_interpreter()
        self._http = http = make_server(
            self._app,
            settings,
            log_config=None,
            proxy_headers=keys.https,  # without a proxy anybody could claim to be anywhere
            timeout_graceful_shutdown=FINISH_S,
        )
        self._thread = threading.Thread(target=http.run, args=([listener],), name="fairlead-http", daemon=True)
        self._thread.start()
        until = time.monotonic() + BEGIN_S
        while not http.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise BackendError("the HTTP server did not start; what went wrong stands above")
            time.sleep(0.01)

    def login_url(self) -> str:
        """By which the owner's browser gets in, once and soon."""
        assert self._service is not None
        caller = self._service.auth.by_token(self._token)
        assert caller is not None, "the owner was adopted at the start"
        return f"{self.url}/login?code={quote(self._service.auth.make_code(caller))}"

    # -- in between ----------------------------------------------------------------------------------------------

    def failure(self) -> str | None:
        """Why it cannot go on; None if all is well."""
        if (why := self.controller.failure()) is not None:
            return why
        return None if self._thread is not None and self._thread.is_alive() else "the HTTP server has ended"

    @property
    def running(self) -> list[str]:
        """Jobs with processes."""
        live = self.controller.published.live.values()
        return [job.id for job in live if job.phase is not Phase.PENDING and not job.phase.final]

    # -- ending --------------------------------------------------------------------------------------------------

    def wind_down(self) -> threading.Thread:
        """Begin to ask every job to save and stop; the thread ends when they have, or had time enough."""
        assert self._store is not None
        grace_s = [0.0]
        for row in self._store.jobs(self.running).values():
            with suppress(FairleadError):  # of one that today's rules would refuse
                grace_s.append(request_of(row).grace_period)
        timeout_s = max(*grace_s, self._config.jobs.grace_period) + BEYOND_GRACE_S
        stopping = threading.Thread(
            target=lambda: self.controller.stop(keep_jobs=False, timeout_s=timeout_s), name="fairlead-stop", daemon=True
        )
        stopping.start()
        return stopping

    def keep_jobs(self) -> None:
        """End the loop, and leave the jobs to their supervisors."""
        self.controller.stop(keep_jobs=True)

    def close(self) -> None:
        """After the loop has ended, or was given up: HTTP, the database, and the files by which others find us."""
        self._stop_http()
        if self._service is not None:
            self._service.close()
        self._directory.withdraw()
        if self._store is not None:
            self._store.close()
        self._release()

    def vanish(self) -> None:
        """End without waiting for the loop, as a crash would, but with the address withdrawn. Does not return."""
        self._stop_http()
        self._directory.withdraw()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _stop_http(self) -> None:
        if self._http is None or self._thread is None:
            return
        self._app.state.streams.close()
        self._http.should_exit = True
        self._thread.join(FINISH_S + 5.0)

    def _abandon(self) -> None:
        """A start that failed half-way."""
        self._stop_http()
        if self._service is not None:
            self.controller.stop(keep_jobs=True)
            self._service.close()
        if self._lock is not None:
            self._directory.withdraw()
        if self._store is not None:
            self._store.close()
        self._release()

    def _release(self) -> None:
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def room_for_connections(wanted: int, descriptors: int) -> int:
    """How many connections there may be: with the log that each of them may read, two thirds of all descriptors. The
    rest is for the loop: the database, and the files and supervisors of jobs."""
    room = max(1, min(wanted, descriptors // 3))
    if room < wanted:
        log.warning("%d open files are allowed, so that there are at most %d connections", descriptors, room)
    return room


def control_options(config: Config) -> ControlOptions:
    scheduler, jobs = config.scheduler, config.jobs
    return ControlOptions(
        policy=scheduler.policy,
        cadence=scheduler.cadence,
        queues=config.queues,
        minimum_run_s=scheduler.minimum_run,
        preempt_unsaved=scheduler.preempt_unsaved,
        drain_lead_s=scheduler.drain_lead,
        half_life_s=scheduler.half_life,
        launch=LaunchRules(
            report_s=scheduler.report_interval,
            nice=jobs.nice,
            grace_s=jobs.grace_period,
            default_env=jobs.default_env,
            work_roots=tuple(os.path.expanduser(each) for each in jobs.work_roots),
        ),
    )


# -- whose it is -------------------------------------------------------------------------------------------------------


def settle_owner(directory: Directory, store: Store, auth: Auth) -> str:
    """The account that runs the server is its admin, by the token in the state directory. Returns the token."""
    token = directory.read_token()
    if token is None:
        token = make_token()
        directory.write_token(token)
    known = store.user_by_token_hash(digest(token))
    if known is None or known.disabled or known.role != Role.ADMIN:
        name = owner_name(account(os.geteuid())) if known is None else known.name
        auth.adopt(name, Role.ADMIN, token, now=time.time())
    return token


def owner_name(unix: str) -> str:
    """A Unix account's name as a user's name may be."""
    name = re.sub(r"[^a-z0-9_.-]+", "-", unix.lower()).lstrip(".-")[:63]
    return name if re.fullmatch(NAME, name) else "owner"


# -- signals -----------------------------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """A signal came before the start was over."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run(directory: Directory, config: Config, *, keep_jobs: bool, tell: Tell, ready: Callable[[Plane], None]) -> int:
    """Be a server until a signal ends it; the exit code. Belongs to the main thread.

    SIGINT and SIGTERM stop the jobs, unless they are to be kept; SIGUSR1 keeps them, and so does a terminal that goes
    away. A second SIGINT leaves those that have not stopped yet.
    """
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    _handle(_interrupt)
    plane = Plane(directory, config)
    try:
        plane.start()
    except Interrupted as interrupted:
        tell(f"{interrupted}: stopped before it was ready")
        return 128 + interrupted.number
    _handle(lambda number, _: came.put(number))
    ready(plane)
    return _attend(plane, came, keep_jobs=keep_jobs, tell=tell)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def _handle(handler: Callable[[int, object], None]) -> None:
    attended = sys.stderr.isatty() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # as it is under nohup
    for number in _ENDING:
        # Without a terminal, SIGHUP only means that somebody takes us for a server that reads its configuration again.
        signal.signal(number, handler if number is not signal.SIGHUP or attended else signal.SIG_IGN)


def _interrupt(number: int, _: object) -> None:
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)  # once is enough
    raise Interrupted(number)


def _attend(plane: Plane, came: queue.SimpleQueue[int], *, keep_jobs: bool, tell: Tell) -> int:
    number = None
    while number is None:
        with suppress(queue.Empty):
            number = came.get(timeout=0.5)
        if number is None and (why := plane.failure()) is not None:
            tell(f"error: {why}; the server ends{_run_on(len(plane.running))}")
            plane.keep_jobs()
            plane.close()
            return 1
    if keep_jobs or number in (signal.SIGUSR1, signal.SIGHUP):
        tell(f"{signal.Signals(number).name}: stops{_run_on(len(plane.running))}")
        plane.keep_jobs()
    else:
        _stop_jobs(plane, came, number, tell)
    plane.close()
    tell("stopped")
    return 0


def _stop_jobs(plane: Plane, came: queue.SimpleQueue[int], number: int, tell: Tell) -> None:
    before = plane.running
    if before:
        again = "; Ctrl-C again leaves them" if number == signal.SIGINT else ""
        tell(f"{signal.Signals(number).name}: stops; asks {_counted(len(before))} to save and stop{again}")
    else:
        tell(f"{signal.Signals(number).name}: stops")
    stopping, told = plane.wind_down(), 0
    while stopping.is_alive():
        stopping.join(0.1)
        still = set(plane.running)
        gone = sum(job not in still for job in before)
        if gone != told:
            tell(f"{gone} of {_counted(len(before))} stopped")
            told = gone
        with suppress(queue.Empty):
            if came.get_nowait() != signal.SIGTERM and stopping.is_alive():
                left = len(before) - gone
                tell(f"leaves {_counted(left)} that have not stopped yet; the next `fairlead up` sees to them")
                plane.vanish()
    if late := plane.running:
        tell(f"{_counted(len(late))} did not stop in time; the next `fairlead up` sees to them")


def _counted(jobs: int) -> str:
    return f"{jobs} job{'s' * (jobs != 1)}"


def _run_on(count: int) -> str:
    """Of those that are left to themselves; empty if nobody is."""
    told = f"; {_counted(count)} {'runs' if count == 1 else 'run'} on, and the next `fairlead up` takes over"
    return told if count else ""
