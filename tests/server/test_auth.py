"""Who asks, and what they may see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.server.auth import CODE_S, EAGER_S, MOST_SESSIONS_EACH, SESSION_S, Auth, Caller, Role, Sight, digest
from fairlead.server.store import Conflict, Store, User


class Time:
    """A clock that tests turn."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/fairlead.db") as store:
        yield store


@pytest.fixture
def auth(users: Store, clock: Time) -> Auth:
    return Auth(users, clock=clock)


def ann(auth: Auth, role: Role = Role.USER) -> Caller:
    caller = auth.by_token(auth.add("ann", role, now=0.0))
    assert caller is not None
    return caller


def test_a_token_is_of_256_bits_and_only_its_hash_is_kept(auth: Auth, users: Store) -> None:
    token = auth.add("ann", Role.USER, now=7.0)
    assert len(token) >= 43
    (kept,) = users.users()
    assert kept == User("ann", "user", digest(token), 7.0, False)
    assert token not in repr(kept)


def test_a_user_is_known_by_their_token_and_by_no_other(auth: Auth) -> None:
    token = auth.add("ann", Role.VIEWER, now=0.0)
    known = auth.by_token(token)
    assert known is not None
    assert (known.name, known.role, known.by_cookie) == ("ann", Role.VIEWER, False)
    assert auth.by_token(token + "x") is None
    assert auth.by_token("") is None
    assert auth.by_token("\ud800") is None


def test_a_hash_is_not_a_token(auth: Auth) -> None:
    assert auth.by_token(digest(auth.add("ann", Role.USER, now=0.0))) is None


def test_a_name_can_be_taken_once(auth: Auth) -> None:
    auth.add("ann", Role.USER, now=0.0)
    with pytest.raises(Conflict, match="ann"):
        auth.add("ann", Role.ADMIN, now=0.0)


@pytest.mark.parametrize("name", ["", "Ann", "a b", "../x", "-a", ".a", "a" * 64, "ä", "a\n"])
def test_a_name_that_could_be_mistaken_is_refused(auth: Auth, name: str) -> None:
    with pytest.raises(InvalidSpec, match="user name"):
        auth.add(name, Role.USER, now=0.0)


def test_somebody_who_is_removed_is_unknown_at_once_with_their_sessions_and_codes(auth: Auth) -> None:
    auth.add("root", Role.ADMIN, now=0.0)
    token = auth.add("ann", Role.USER, now=0.0)
    caller = auth.by_token(token)
    assert caller is not None
    session, code = auth.open_session(caller), auth.make_code(caller)
    assert auth.remove("ann")
    assert auth.by_token(token) is None
    assert auth.by_session(session) is None
    assert auth.redeem(code) is None
    assert not auth.still_valid(caller)
    assert not auth.remove("ann")


def test_somebody_who_comes_again_under_the_same_name_has_no_old_session(auth: Auth) -> None:
    auth.add("root", Role.ADMIN, now=0.0)
    caller = ann(auth)
    session = auth.open_session(caller)
    auth.remove("ann")
    auth.add("ann", Role.USER, now=0.0)
    assert auth.by_session(session) is None
    assert not auth.still_valid(caller)


def test_the_last_admin_cannot_be_removed(auth: Auth) -> None:
    auth.add("root", Role.ADMIN, now=0.0)
    with pytest.raises(Conflict, match="only admin"):
        auth.remove("root")
    auth.add("boss", Role.ADMIN, now=0.0)
    assert auth.remove("root")


def test_what_another_process_changes_is_seen_after_a_refresh(auth: Auth, users: Store, clock: Time) -> None:
    token = "a token of their own"
    users.put_user(User("ann", "user", digest(token), 0.0, False))
    assert auth.by_token(token) is None
    assert not auth.wants_refresh(missed=True)
    clock.now += EAGER_S
    assert auth.wants_refresh(missed=True)
    auth.refresh()
    assert auth.by_token(token) is not None


@pytest.mark.parametrize(
    "user", [User("ann", "user", digest("t"), 0.0, True), User("ann", "king", digest("t"), 0.0, False)]
)
def test_somebody_who_is_disabled_or_of_an_unknown_role_is_nobody(auth: Auth, users: Store, user: User) -> None:
    users.put_user(user)
    auth.refresh()
    assert auth.by_token("t") is None
    assert auth.users() == []


def test_a_session_shows_who_one_is_until_it_ends(auth: Auth, clock: Time) -> None:
    session = auth.open_session(ann(auth))
    known = auth.by_session(session)
    assert known is not None
    assert (known.name, known.by_cookie) == ("ann", True)
    clock.now += SESSION_S
    assert auth.by_session(session) is None


def test_a_session_that_was_closed_is_over(auth: Auth) -> None:
    session = auth.open_session(ann(auth))
    auth.close_session(session)
    assert auth.by_session(session) is None


def test_a_code_opens_one_session_and_only_soon(auth: Auth, clock: Time) -> None:
    caller = ann(auth)
    code = auth.make_code(caller)
    session = auth.redeem(code)
    assert session is not None
    assert auth.by_session(session) is not None
    assert auth.redeem(code) is None
    late = auth.make_code(caller)
    clock.now += CODE_S
    assert auth.redeem(late) is None


def test_of_too_many_sessions_the_oldest_end(auth: Auth) -> None:
    caller = ann(auth)
    sessions = [auth.open_session(caller) for _ in range(MOST_SESSIONS_EACH + 3)]
    alive = [auth.by_session(session) is not None for session in sessions]
    assert alive == [False] * 3 + [True] * MOST_SESSIONS_EACH


@pytest.mark.parametrize(
    ("role", "owner", "sight"),
    [
        (Role.USER, "ann", Sight.ALL),
        (Role.USER, "bob", Sight.ROW),
        (Role.VIEWER, "bob", Sight.FATE),
        (Role.VIEWER, "ann", Sight.ALL),
        (Role.ADMIN, "bob", Sight.ALL),
    ],
)
def test_what_one_sees_of_a_job_depends_on_the_role_and_the_owner(role: Role, owner: str, sight: Sight) -> None:
    assert Caller("ann", role).sight(owner) is sight
