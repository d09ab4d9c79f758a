"""Compiled statements, which both engines run without SQLAlchemy.

SQLAlchemy caches compilation, but its other work per execution takes several times as long as the driver's,
and dominated the cost of a transfer.
"""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from sqlalchemy import Dialect, Executable, Insert, Select, UpdateBase

from agentpay_server.database.connection import Parameters

Row = Sequence[Any]


@frozen
class Prepared:
    """A statement in the form that a driver takes.

    Attributes:
        names: the parameters in the order of the placeholders.
        constants: parameters that the statement itself sets.
        convert: converts a row from the driver's types to the tables'; None if they are equal.
    """

    text: str
    names: tuple[str, ...]
    constants: dict[str, Any]
    convert: Callable[[Row], Row] | None

    def positional(self, parameters: Parameters) -> list[Any]:
        """Return the values of the parameters in the order of the placeholders."""
        constants = self.constants
        if not constants:
            return [parameters[name] for name in self.names]
        return [parameters[name] if name in parameters else constants[name] for name in self.names]


class Preparer:
    """Compiles statements for one engine, and caches them.

    `dialect` has positional parameters; `converter` returns `Prepared.convert` for a statement with rows.
    """

    def __init__(
        self,
        dialect: Dialect,
        converter: Callable[[Select[Any] | UpdateBase], Callable[[Row], Row] | None] = lambda _: None,
    ) -> None:
        self._dialect = dialect
        self._converter = converter
        self._prepared: dict[tuple[Executable, tuple[str, ...]], Prepared] = {}

    def prepared(self, statement: Executable, parameters: Parameters) -> Prepared:
        """Return a statement compiled for the names of `parameters`.

        Raises:
            KeyError: the statement lacks one of these parameters.
        """
        # Statements are module constants, which bounds the cache. The key includes the names, because they
        # decide the columns of an INSERT.
        key = (statement, tuple(parameters))
        found = self._prepared.get(key)
        if found is None:
            found = self._prepared[key] = self._prepare(statement, parameters)
        return found

    def _prepare(self, statement: Executable, parameters: Parameters) -> Prepared:
        is_insert = isinstance(statement, Insert)
        # The parameters of INSERT … VALUES are its columns; INSERT … SELECT lists them itself.
        is_of_values = isinstance(statement, Insert) and statement.select is None
        # Compiled for many rows, an INSERT does not return the generated `seq`.
        compiled = statement.compile(  # type: ignore[attr-defined]
            dialect=self._dialect,
            column_keys=list(parameters) if is_of_values else None,
            for_executemany=is_insert,
        )
        names = tuple(compiled.positiontup or ())
        unknown = set(parameters).difference(names)
        if unknown:
            raise KeyError(f"the statement has no parameters {sorted(unknown)}")
        # The statement itself sets these values, which may be None.
        constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        convert = self._converter(statement) if isinstance(statement, Select | UpdateBase) else None
        return Prepared(str(compiled), names, constants, convert)
