"""The kill matrix: operations by the points at which a process dies. A row says what is judged.

A row is one operation: how it is requested of the server that will die, how the caller goes on after the
restart, and a judge, who looks at the chain and the tables. The caller knows only that no answer came.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
from attrs import define, frozen
from killing import Child, Prepared, Survey, child, expiring

from agentpay_server import AgentPayServer

# The first page that a server writes is that of its start.
CHAIN = ("chain.executed@2", "chain.written@2")
ANSWERED = "answered"
"""No failpoint: the process is killed when it has answered."""

BOTH = ("file", "postgres")


def landed(it: Prepared) -> set[str]:
    """Return the signatures that the chain of a place has executed, read from a copy of it."""
    with TemporaryDirectory() as scratch, it.copied(Path(scratch), "data").served() as server:
        return it.place.survey(server).landed()


@define
class Row:
    """One operation, in the hands of one caller.

    Attributes:
        it: the place.
        points: where the server dies, and then those that take over.
        known: what `prepare` returned.
        variant: what rows of the same class differ in.
        around: what ends with the case.
        name: of the operation, in the identifiers of its cells.
        at: where a single server dies.
        pairs: where the first one dies, and then the one that takes over.
        stores: what the place is.
        on_validator: the points of its cells on a real validator, which is not copied.
        options: of the servers that die.
        prepare: readies a template, once for each store.
    """

    it: Prepared
    points: tuple[str, ...]
    known: Any
    variant: Any
    around: ExitStack

    name: ClassVar[str]
    at: ClassVar[tuple[str, ...]]
    pairs: ClassVar[tuple[tuple[str, str], ...]] = ()
    stores: ClassVar[tuple[str, ...]] = BOTH
    on_validator: ClassVar[tuple[tuple[str, ...], ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    prepare: ClassVar[Callable[[Prepared], Any]] = staticmethod(landed)

    @property
    def point(self) -> str:
        return self.points[0]

    @classmethod
    def variants(cls) -> Mapping[str, Any]:
        """Return what rows of this class differ in, by name."""
        return {"": None}

    @classmethod
    def in_gate(cls, points: tuple[str, ...], variant: Any) -> bool:
        """Tell whether each run of the gate runs a cell: single kill points."""
        return len(points) == 1

    # --- The life that ends, and the lives that end again

    def request(self) -> tuple[str, str, object]:
        """Return what is requested of the server that will die: method, path and body."""
        raise NotImplementedError

    def arrive(self, dying: Child) -> None:
        """Do what comes before it."""

    def ask(self, dying: Child) -> Any:
        method, path, body = self.request()
        return dying.request(method, path, self.it.key, body)

    def begin(self, dying: Child) -> None:
        """Request it, and nobody answers."""
        self.arrive(dying)
        expiring(self.it, dying, self.point)
        answer = self.ask(dying)
        assert (answer is None) is (self.point != ANSWERED)

    def end(self, dying: Child) -> None:
        if self.point == ANSWERED:
            dying.kill()
        else:
            dying.assert_killed()

    def recover(self, dying: Child) -> None:
        """Go on with a server that will be killed too. Not every recovery passes every point."""
        self.ask(dying)
        dying.kill()

    # --- The last life

    def served(self) -> AbstractContextManager[AgentPayServer]:
        return self.it.served()

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        """Go on, as the caller would, and assert that it happened once, or not at all."""
        raise NotImplementedError

    def run(self) -> None:
        armed = None if self.point == ANSWERED else self.point
        dying = self.around.enter_context(child(self.it, armed, *self.options))
        self.begin(dying)
        self.end(dying)
        for point in self.points[1:]:
            with child(self.it, point, *self.options) as another:
                self.recover(another)
        with self.served() as server:
            self.judge(server, self.it.place.survey(server))


@frozen
class Cell:
    """A row, on a store, at one point or at several of them."""

    store: str
    row: type[Row]
    variant: str
    points: tuple[str, ...]

    def __str__(self) -> str:
        name = "-".join(filter(None, (self.row.name, self.variant)))
        return f"{self.store}-{name}-{'+'.join(self.points)}"

    def run(self, it: Prepared, known: Any) -> None:
        with ExitStack() as around:
            self.row(it, self.points, known, self.row.variants()[self.variant], around).run()

    def parameter(self) -> Any:
        marks: list[Any] = []
        if self.store == "validator":
            marks += [pytest.mark.validator, pytest.mark.plugin("cluster")]
        elif not self.row.in_gate(self.points, self.row.variants()[self.variant]):
            marks += [pytest.mark.matrix]
        return pytest.param(self, id=str(self), marks=marks)


def cells_of(rows: Iterable[type[Row]]) -> Iterator[Cell]:
    for row in rows:
        for store in row.stores:
            for variant in row.variants():
                for points in (*((each,) for each in row.at), *row.pairs):
                    yield Cell(store, row, variant, points)
        yield from (Cell("validator", row, "", points) for points in row.on_validator)
