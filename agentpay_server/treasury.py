"""The treasury's SOL: the balance, whether it suffices for a transaction, and an early warning.

The treasury pays every fee, and lends the rent of every account and escrow. Without SOL, no transaction
lands, and signed ones expire.
"""

import asyncio
import logging
import math
from decimal import Decimal
from typing import Final

from attrs import frozen

from agentpay_server.chain.custody import TREASURY
from agentpay_server.chain.protocol import Blockhash, Chain, ChainUnavailableError
from agentpay_server.clock import SECOND_US, real_now_us
from agentpay_server.context import Context
from agentpay_server.logs import log

LAMPORTS: Final = 1_000_000_000

LOOK_EVERY_US: Final = 60 * SECOND_US
_SIGNATURE_LAMPORTS: Final = 5_000
_TRANSFER_SIGNATURES: Final = 2
_MICRO: Final = 1_000_000

logger: logging.Logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class Funds:
    """`can_pay`: the treasury can pay for a transfer and stay rent-exempt, as the chain requires."""

    sol: Decimal
    can_pay: bool


class Treasury:
    """Reads the balance once a minute in real time, and warns if it is low.

    `chain` is without the sandbox's faults.
    """

    def __init__(self, context: Context, chain: Chain) -> None:
        self._chain = chain
        self._clock = context.clock
        self._address = context.signer.address(TREASURY)
        self._low_sol = context.settings.treasury_low_sol
        self._is_low = False
        self._next_look_us = 0

    async def next_due_us(self) -> int | None:
        """Return None on a manual clock before the next read: advancing it has no effect."""
        wait_us = max(self._next_look_us - real_now_us(), 0)
        return None if wait_us and self._clock.is_manual else self._clock.now_us() + wait_us

    async def run_due(self) -> bool:
        """If the chain does not respond, the next run retries."""
        if real_now_us() < self._next_look_us:
            return False
        self._next_look_us = real_now_us() + LOOK_EVERY_US
        try:
            await self.look()
        except ChainUnavailableError:
            return False
        return True

    async def look(self) -> Funds:
        """Return the balance, and log a warning if it has fallen below the threshold."""
        found, rent_exempt, blockhash = await asyncio.gather(
            self._chain.account_size(self._address),
            self._chain.rent_exemption(0),
            self._chain.latest_blockhash(),
        )
        lamports = 0 if found is None else found[0]
        sol = Decimal(lamports) / LAMPORTS
        is_low = sol < self._low_sol
        if is_low and not self._is_low:
            log(
                logger,
                logging.WARNING,
                "treasury.low",
                address=self._address,
                sol=f"{sol:f}",
                threshold_sol=f"{self._low_sol:f}",
            )
        self._is_low = is_low
        return Funds(sol=sol, can_pay=lamports >= rent_exempt + transfer_fee(blockhash))


def transfer_fee(blockhash: Blockhash) -> int:
    """Return the maximum cost, in lamports."""
    fee = _SIGNATURE_LAMPORTS * _TRANSFER_SIGNATURES
    budget = blockhash.compute_budget
    if budget is None:
        return fee
    return fee + math.ceil(budget.unit_limit * budget.unit_price_micro_lamports / _MICRO)
