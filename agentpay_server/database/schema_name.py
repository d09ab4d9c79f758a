"""What the PostgreSQL schema of a server may be called."""

import re
from typing import Final

DATABASE_SCHEMA: Final = "agentpay"
"""The schema that holds all tables, unless another one is named."""

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


def check_database_schema(name: str) -> str:
    """Return the name of a schema, if a server's tables can live in one of that name.

    The rule allows no name that would need quotes in a statement of an administrator.

    Raises:
        ValueError: they cannot.
    """
    if not _NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        raise ValueError(
            f"{name!r} cannot be the database schema: use up to 63 lower-case letters, digits and "
            "underscores, not starting with a digit or pg_"
        )
    return name
