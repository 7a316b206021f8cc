"""Who asks, and what they may see: users with roles and tokens, one-time login codes, and sessions of browsers.

A token is 256 random bits, and only its SHA-256 is kept: nobody can guess it, so nothing slower is needed. Sessions and
codes live in memory and end with the process. Everything here but `refresh`, `add` and `remove` is quick and touches no
disk, so that the event loop may call it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from threading import Lock

from fairlead.core.errors import InvalidSpec
from fairlead.server.store import Conflict, Store, User

#: How old the table of users may become before it is read again, and how soon an unknown token may ask for that.
FRESH_S, EAGER_S = 5.0, 1.0
CODE_S = 120.0
SESSION_S = 12 * 3600.0
MOST_SESSIONS_EACH = 20
MOST_CODES_EACH = 20

NAME = r"[a-z0-9_][a-z0-9_.-]{0,62}"

#: A token can be told from other secrets, should one be found where it does not belong.
TOKEN_PREFIX = "fl_"


class Role(StrEnum):
    """What a user may do. A viewer changes nothing, a user rules their own jobs, an admin everything."""

    VIEWER = "viewer"
    USER = "user"
    ADMIN = "admin"


_ROLES: frozenset[str] = frozenset(Role)


class Sight(IntEnum):
    """How much of a job somebody may see."""

    #: That it is there: a row of a list.
    ROW = 0
    #: How it fares, but not what it runs.
    FATE = 1
    #: Its document and its logs as well.
    ALL = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has shown who they are."""

    name: str
    role: Role
    #: Whether a cookie showed it: then they may only read.
    by_cookie: bool = False
    #: What stands in the table of users; it changes when they get another token.
    token_hash: str = field(default="", repr=False)

    def sight(self, owner: str) -> Sight:
        if self.role is Role.ADMIN or self.name == owner:
            return Sight.ALL
        return Sight.FATE if self.role is Role.VIEWER else Sight.ROW


@dataclass(frozen=True, slots=True)
class _Pass:
    """A session, or a code for one."""

    name: str
    token_hash: str
    ends_at: float


def make_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Auth:
    """The users of a store, as they were a few seconds ago, and who is logged in. Any thread may call it."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = Lock()
        self._changing = Lock()  # users are looked up before they are written
        self._by_hash: Mapping[str, User] = {}
        self._by_name: Mapping[str, User] = {}
        self._read_at = -FRESH_S
        self._sessions: dict[str, _Pass] = {}
        self._codes: dict[str, _Pass] = {}
        self.refresh()

    # -- users --

    def refresh(self) -> None:
        """Read the table of users."""
        read_at = self._clock()
        users = [user for user in self._store.users() if not user.disabled and user.role in _ROLES]
        self._by_hash, self._by_name = ({getattr(u, key): u for u in users} for key in ("token_hash", "name"))
        self._read_at = read_at

    def wants_refresh(self, *, missed: bool = False) -> bool:
        """Is it time to? `missed`: an unknown token has come, which may be that of a new user."""
        return self._clock() - self._read_at >= (EAGER_S if missed else FRESH_S)

    def users(self) -> list[User]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def add(self, name: str, role: Role, *, now: float) -> str:
        """A new user; their token, which nobody can ask for again."""
        if not re.fullmatch(NAME, name):
            raise InvalidSpec(f"user name {name!r} is not allowed; expected 1 to 63 of a-z 0-9 . _ -, no . or - first")
        token = make_token()
        with self._changing:
            if any(user.name == name for user in self._store.users()):
                raise Conflict(f"there is a user {name!r} already; remove them first to give them a new token")
            self.adopt(name, role, token, now=now)
        return token

    def adopt(self, name: str, role: Role, token: str, *, now: float) -> None:
        """Let this token be that user's, new or not: how the owner of a server of their own gets in."""
        self._store.put_user(User(name, role.value, digest(token), now, False))
        self.refresh()

    def remove(self, name: str) -> bool:
        """Was there one? Their sessions end too; their jobs stay."""
        with self._changing:
            admins = {user.name for user in self._store.users() if user.role == Role.ADMIN and not user.disabled}
            if admins == {name}:
                raise Conflict(f"{name!r} is the only admin; make another one first")
            removed = self._store.remove_user(name)
        self.refresh()
        return removed

    # -- who asks --

    def by_token(self, token: str) -> Caller | None:
        hashed = digest(token)
        user = self._by_hash.get(hashed)
        if user is None or not hmac.compare_digest(user.token_hash, hashed):
            return None
        return Caller(user.name, Role(user.role), token_hash=user.token_hash)

    def by_session(self, session: str) -> Caller | None:
        known = self._sessions.get(digest(session))
        if known is None or known.ends_at <= self._clock():
            return None
        user = self._by_name.get(known.name)
        if user is None or not hmac.compare_digest(user.token_hash, known.token_hash):
            return None
        return Caller(user.name, Role(user.role), by_cookie=True, token_hash=user.token_hash)

    def still_valid(self, caller: Caller) -> bool:
        """For those who stay connected: are they still who they were?"""
        user = self._by_name.get(caller.name)
        return user is not None and user.token_hash == caller.token_hash and user.role == caller.role

    # -- browsers --

    def open_session(self, caller: Caller) -> str:
        """The value of a new cookie."""
        return self._issue(self._sessions, caller, SESSION_S, MOST_SESSIONS_EACH)

    def close_session(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(digest(session), None)

    def make_code(self, caller: Caller) -> str:
        """A word by which a browser can open a session, once and soon."""
        return self._issue(self._codes, caller, CODE_S, MOST_CODES_EACH)

    def redeem(self, code: str) -> str | None:
        """The value of a new cookie, if the code is good."""
        with self._lock:
            known = self._codes.pop(digest(code), None)
        if known is None or known.ends_at <= self._clock():
            return None
        user = self._by_name.get(known.name)
        if user is None or not hmac.compare_digest(user.token_hash, known.token_hash):
            return None
        return self.open_session(Caller(user.name, Role(user.role), token_hash=user.token_hash))

    def _issue(self, passes: dict[str, _Pass], caller: Caller, lasts_s: float, most: int) -> str:
        secret, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            for key in [key for key, known in passes.items() if known.ends_at <= now]:
                del passes[key]
            theirs = [key for key, known in passes.items() if known.name == caller.name]
            for key in theirs[: max(0, len(theirs) - most + 1)]:
                del passes[key]  # the oldest: a dictionary keeps its order
            passes[digest(secret)] = _Pass(caller.name, caller.token_hash, now + lasts_s)
        return secret
