"""The treasury's SOL: the balance, an early warning, and whether it can pay for new work (interface F5).

The treasury pays every fee, and lends the rent of every account and escrow. Without SOL, no transaction
lands, and signed ones expire. So it is asked before anything is signed. New work leaves a reserve of
0.02 SOL, which only closes, settlements and re-signings may spend: a treasury that runs empty never strands
the money in an escrow.

The balance is remembered for some seconds, and what was promised since is subtracted. If it is far above the
reserve, each process subtracts its own promises. Otherwise the unit of work that signs adds its lamports to
one row, which all servers over one database share: together they never promise more than the treasury has.
"""

import asyncio
import logging
from decimal import Decimal
from typing import Final

from attrs import evolve, frozen
from sqlalchemy import bindparam, func, literal_column, select

from agentpay.contract.errors import ErrorCode
from agentpay_server.chain.custody import TREASURY
from agentpay_server.chain.protocol import Blockhash, Chain, ChainUnreachableError
from agentpay_server.chain.signing import fee_lamports
from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import run_again_if_late
from agentpay_server.database.tables import CounterRecord, chain_transactions, counters
from agentpay_server.engine.fees import LAMPORTS, Cost, sol
from agentpay_server.ledger.accounts import COUNTERS
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import State
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem, chain_unavailable
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Every
from agentpay_server.platform.tasks import SingleFlight

RESERVE_LAMPORTS: Final = 20_000_000
"""What new work leaves, so that open sessions can be settled."""

LOOK_EVERY_SECONDS: Final = 60.0
_TRANSFER_SIGNATURES: Final = 2

PLENTY_LAMPORTS: Final = 2 * LAMPORTS
"""Far above the reserve: more than all servers together can promise before they read the balance again."""

REMEMBERED_SECONDS: Final = 10.0

_UNREAD_LAMPORTS: Final = PLENTY_LAMPORTS // 4
"""What a process promises from such a balance before it reads it again."""

_PROMISED: Final = "treasury_promised"

# One statement, hence one state of the database.
_COMMITMENTS: Final = select(
    select(counters.c.value).where(counters.c.name == bindparam("counter")).scalar_subquery(),
    select(func.coalesce(func.sum(chain_transactions.c.fee + chain_transactions.c.rent), 0))
    .where(chain_transactions.c.state == literal_column(f"'{State.PENDING}'"))
    .scalar_subquery(),
)

logger: logging.Logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class TreasuryFunds:
    """`can_pay`: the treasury can pay for a new transfer, which leaves the reserve."""

    sol: Decimal
    can_pay: bool


class Treasury:
    """Reads the balance once a minute in real time, and warns if it is low.

    `chain` is without the sandbox's faults.
    """

    def __init__(self, context: Context, chain: Chain) -> None:
        self._chain = chain
        self._clock = context.clock
        self.address: str = context.signer.address(TREASURY)
        self._low_sol = context.settings.treasury_low_sol
        self._is_low = False
        self._every = Every(LOOK_EVERY_SECONDS)

    async def next_due_us(self) -> int | None:
        """Return None on a manual clock before the next read: advancing it has no effect."""
        return self._every.due_us(self._clock)

    async def run_due(self) -> bool:
        """If the chain does not respond, the next run retries."""
        if not self._every.is_due:
            return False
        self._every.restart()
        try:
            await self.read()
        except ChainUnreachableError:
            return False
        return True

    async def lamports(self) -> int:
        """Return the balance in lamports."""
        found = await self._chain.account_size(self.address)
        return 0 if found is None else found[0]

    async def read(self) -> TreasuryFunds:
        """Return the balance, and log a warning if it has fallen below the threshold."""
        lamports, blockhash = await asyncio.gather(self.lamports(), self._chain.latest_blockhash())
        sol = Decimal(lamports) / LAMPORTS
        is_low = sol < self._low_sol
        if is_low and not self._is_low:
            log(
                logger,
                logging.WARNING,
                "treasury.low",
                address=self.address,
                sol=f"{sol:f}",
                threshold_sol=f"{self._low_sol:f}",
            )
        self._is_low = is_low
        return TreasuryFunds(sol=sol, can_pay=lamports >= RESERVE_LAMPORTS + transfer_fee(blockhash))


def transfer_fee(blockhash: Blockhash) -> int:
    """Return the maximum cost, in lamports."""
    return fee_lamports(_TRANSFER_SIGNATURES, blockhash.compute_budget)


class FundsChangedError(Exception):
    """The remembered balance does not suffice: read it again."""


@frozen(kw_only=True)
class Funds:
    """What the treasury can pay for.

    Attributes:
        lamports: its balance above the reserve, less what was in flight just before it was read; or a part
            of it, if it is far above the reserve.
        promised: running total of the lamports promised before it was read.
        is_plenty: whether it is far above the reserve. If so, the running total is that of this process,
            otherwise that of all servers.
        is_remembered: whether it was read for an earlier request.
    """

    lamports: int
    promised: int
    is_plenty: bool = False
    is_remembered: bool = False


class TreasuryFunding:
    """Reads what the treasury can pay for, and promises it."""

    def __init__(self, context: Context, treasury: Treasury) -> None:
        self._database = context.database
        self._treasury = treasury
        # In process, the balance costs nothing to read.
        self._is_remembering = bool(context.chain.landing_seconds)
        self._reading: SingleFlight[None, Funds] = SingleFlight(context.tasks)
        self._remembered: Funds | None = None
        self._until = 0.0
        # Running totals of what this process has promised: now, and when the balance was read.
        self._promised_here = 0
        self._promised_before = 0

    async def read(self) -> Funds:
        """Return what the treasury can pay for.

        Raises:
            Problem: `chain_unavailable`.
        """
        try:
            return await self._read_shared()
        except ChainUnreachableError:
            raise chain_unavailable() from None

    async def _read_shared(self) -> Funds:
        if not self._is_remembering:
            return await self._read()
        if self._remembered is not None and asyncio.get_running_loop().time() < self._until:
            return self._remembered
        # Requests share a read, and its failure: none waits for the failures of others.
        reading = self._reading.start(None, self._read_and_remember)
        await asyncio.wait({reading})
        if reading.cancelled():
            raise ChainUnreachableError("the server stops")
        return reading.result()

    async def _read_and_remember(self) -> Funds:
        found = await self._read()
        self._remembered = evolve(found, is_remembered=True)
        self._until = asyncio.get_running_loop().time() + REMEMBERED_SECONDS
        return found

    async def _read(self) -> Funds:
        # Promises from now on may or may not be in the balance already.
        here = self._promised_here
        lamports = await self._treasury.lamports() - RESERVE_LAMPORTS
        is_first = here - self._promised_before < _UNREAD_LAMPORTS
        self._promised_before = here
        if lamports >= PLENTY_LAMPORTS and is_first:
            return Funds(lamports=_UNREAD_LAMPORTS, promised=here, is_plenty=True)
        promised, pending = await self._database.read(_commitments)
        if promised is None:
            await run_again_if_late(self._database, _begin)
            promised, pending = await self._database.read(_commitments)
        assert promised is not None  # noqa: S101 - the row is never deleted
        # What was promised and is no longer in flight has left the balance, which is read after that.
        lamports = await self._treasury.lamports() - RESERVE_LAMPORTS - pending
        if lamports >= PLENTY_LAMPORTS:
            return Funds(lamports=_UNREAD_LAMPORTS, promised=here, is_plenty=True)
        return Funds(lamports=lamports, promised=promised)

    def promise(self, connection: Connection, funds: Funds, cost: Cost) -> None:
        """Promise the lamports of new work. Call it last before signing, in the same unit of work.

        Raises:
            Problem: `chain_unavailable`; the treasury cannot pay.
            FundsChangedError: the balance must be read again.
        """
        if not cost.lamports:
            return
        if funds.is_plenty:
            # If the unit of work fails, too much is subtracted, which is harmless.
            self._promised_here += cost.lamports
            promised = self._promised_here
        else:
            promised = COUNTERS.changed(connection, _PROMISED, add={"value": cost.lamports}).value
        promised -= funds.promised
        if promised > funds.lamports:
            self._remembered = None
            is_part = funds.is_plenty and promised > cost.lamports
            if funds.is_remembered or is_part:
                raise FundsChangedError
            raise self._short(funds, cost)

    async def is_enough_for(self, cost: Cost) -> bool:
        """Return whether the treasury can pay for an operator's work, which promises nothing.

        Raises:
            ChainUnreachableError: the balance cannot be read.
        """
        return (await self._read_shared()).lamports >= cost.lamports

    def _short(self, funds: Funds, cost: Cost) -> Problem:
        return Problem(
            ErrorCode.CHAIN_UNAVAILABLE,
            f"The treasury {self._treasury.address} has {sol(max(funds.lamports, 0))} SOL left above its "
            f"reserve of {sol(RESERVE_LAMPORTS)} SOL, and this needs {sol(cost.lamports)} SOL. Nothing was "
            "signed; send SOL to the treasury, then retry.",
            says_what_to_do=True,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )


def _commitments(connection: Connection) -> tuple[int | None, int]:
    ((promised, pending),) = connection.execute(_COMMITMENTS, {"counter": _PROMISED})
    return promised, int(pending)


def _begin(connection: Connection) -> None:
    if _commitments(connection)[0] is None:
        COUNTERS.insert(connection, CounterRecord(_PROMISED, 0))
