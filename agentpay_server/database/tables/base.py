"""Columns that all tables share."""

from typing import Final

from sqlalchemy import BigInteger, Column, Integer, MetaData

metadata: Final = MetaData()


def seq() -> Column[int]:
    """Return the column that orders rows by insertion."""
    return Column("seq", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True)
