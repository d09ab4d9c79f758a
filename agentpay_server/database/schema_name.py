"""The rules for the name of a server's PostgreSQL schema."""

import re
from typing import Final

DATABASE_SCHEMA: Final = "agentpay"
"""The default schema for all tables."""

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


def check_database_schema(name: str) -> str:
    """Return the name if it is a valid schema name.

    Names that need quotes in SQL are invalid, so that administrators can type the rest.

    Raises:
        ValueError: the name is not valid.
    """
    if not _NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        raise ValueError(
            f"{name!r} cannot be the database schema: use up to 63 lower-case letters, digits and "
            "underscores, not starting with a digit or pg_"
        )
    return name
