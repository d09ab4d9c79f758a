"""Statements, compiled once: what the connections of both engines run in the place of SQLAlchemy.

SQLAlchemy compiles a statement once; what it does again at each execution takes several times as long as the
driver itself, and was most of what a transfer cost. Here a compiled statement is kept as its text, the order
of its parameters and the columns that need converting.
"""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from sqlalchemy import Dialect, Executable, Insert, Select

from agentpay_server.database.connection import Parameters

Row = Sequence[Any]


@frozen
class Prepared:
    """A statement as a driver takes it.

    Attributes:
        text: with the places of its parameters, as the driver writes them.
        names: the parameters, in the order of their places.
        constants: the values of those that the statement itself names.
        convert: makes a row as the tables define it of one as the driver returns it; None for the same.
    """

    text: str
    names: tuple[str, ...]
    constants: dict[str, Any]
    convert: Callable[[Row], Row] | None

    def positional(self, parameters: Parameters) -> list[Any]:
        """Return the values of the parameters in the order of their places."""
        constants = self.constants
        if not constants:
            return [parameters[name] for name in self.names]
        return [parameters[name] if name in parameters else constants[name] for name in self.names]


class Preparer:
    """Compiles statements for one engine, and remembers them.

    Args:
        dialect: the engine's, with positional parameters.
        converter: returns what converts the rows of a SELECT, or None where nothing has to be.
    """

    def __init__(
        self,
        dialect: Dialect,
        converter: Callable[[Select[Any]], Callable[[Row], Row] | None] = lambda _: None,
    ) -> None:
        self._dialect = dialect
        self._converter = converter
        self._prepared: dict[tuple[Executable, tuple[str, ...]], Prepared] = {}

    def prepared(self, statement: Executable, parameters: Parameters) -> Prepared:
        """Return a statement as it is run with parameters of these names.

        Raises:
            KeyError: the statement has no parameter of such a name.
        """
        # Statements are constants of the store's modules: there are as many entries as there are of those.
        # The names are part of the key because an INSERT has the columns that it is given.
        key = (statement, tuple(parameters))
        found = self._prepared.get(key)
        if found is None:
            found = self._prepared[key] = self._prepare(statement, parameters)
        return found

    def _prepare(self, statement: Executable, parameters: Parameters) -> Prepared:
        # Told that it is for many rows, an INSERT does not ask for the `seq` that it was given.
        compiled = statement.compile(  # type: ignore[attr-defined]
            dialect=self._dialect,
            column_keys=list(parameters) if isinstance(statement, Insert) else None,
            for_executemany=isinstance(statement, Insert),
        )
        names = tuple(compiled.positiontup or ())
        unknown = set(parameters).difference(names)
        if unknown:
            raise KeyError(f"the statement has no parameters {sorted(unknown)}")
        # A value that the statement itself names, None included, is no parameter of the caller's.
        constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        convert = self._converter(statement) if isinstance(statement, Select) else None
        return Prepared(str(compiled), names, constants, convert)
