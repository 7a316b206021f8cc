"""Addresses of databases as users write them. Standard library only: light verbs need it, too."""

from __future__ import annotations

import re

#: How the address of a PostgreSQL database begins; the second names a driver, as the service does.
POSTGRES = ("postgresql://", "postgresql+psycopg://", "postgres://")

#: What stands where a password was.
HIDDEN = "***"


def is_postgres(address: object) -> bool:
    return isinstance(address, str) and address.startswith(POSTGRES)


def without_password(address: str) -> str:
    """For messages, files and results."""
    hidden = re.sub(r"(://[^:/?#]*):.*@", rf"\1:{HIDDEN}@", address)
    return re.sub(r"([?&]password=)[^&]*", rf"\1{HIDDEN}", hidden)
