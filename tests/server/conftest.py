"""What the tests of the server share: a store on each of the two databases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlead.server.store import Store

if TYPE_CHECKING:
    from postgres import Server

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests of this process, started when the first of them needs it."""
    from postgres import Server, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """A new, empty PostgreSQL database."""
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fairlead.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A new, empty database of each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as store:
        yield store
