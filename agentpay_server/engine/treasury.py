"""The treasury's SOL: the balance, whether it suffices for a transaction, and an early warning.

The treasury pays every fee, and lends the rent of every account and escrow. Without SOL, no transaction
lands, and signed ones expire.
"""

import asyncio
import logging
from decimal import Decimal
from typing import Final

from attrs import frozen

from agentpay_server.chain.custody import TREASURY
from agentpay_server.chain.protocol import Blockhash, Chain, ChainUnreachableError
from agentpay_server.chain.signing import fee_lamports
from agentpay_server.ledger.context import Context
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Every

LAMPORTS: Final = 1_000_000_000

RESERVE_LAMPORTS: Final = 20_000_000
"""What new work leaves, so that open sessions can be settled: `engine/funding.py`."""

LOOK_EVERY_SECONDS: Final = 60.0
_TRANSFER_SIGNATURES: Final = 2

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


def sol_text(sol: Decimal) -> str:
    """Return an amount of SOL for people, without an exponent or trailing zeros."""
    text = f"{sol:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
