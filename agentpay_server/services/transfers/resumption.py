"""Taking up transfers under way that nobody drives: after a start, and after a driver has failed.

Who drives what is a lease on the transfer's row, in real time: two processes over one database leave each
other's transfers alone for as long as the other renews its leases. Should both drive one for a moment, no
harm is done (`services/settlement.py`).
"""

import asyncio
from typing import Final

from agentpay_server.clock import real_now_us
from agentpay_server.context import Context
from agentpay_server.database.connection import Connection
from agentpay_server.domain.transfers import LEASE_US
from agentpay_server.services.settlement import Settlement
from agentpay_server.services.transfers.settling import TransferSteps
from agentpay_server.store import transfers as store
from agentpay_server.store.transfers import TransferRecord

_BATCH: Final = 100


class Resumption:
    """Finds transfers that nobody drives, and drives them."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._settlement = settlement

    async def free_all(self) -> None:
        """Void all leases, where no other process can hold any: whoever held them is gone."""
        await self._context.database.run(store.free_all)

    async def is_any_abandoned(self) -> bool:
        """Return whether there is a transfer under way that nobody drives."""
        return await self._context.database.read(self._is_any_abandoned)

    async def take_up(self) -> "list[asyncio.Task[TransferRecord]]":
        """Renew the leases of what is driven here, and drive what nobody drives, one batch of it.

        Returns:
            The drivers of the transfers that had none.
        """
        claimed = await self._context.database.run(self._claim)
        return [
            self._settlement.drive(
                transfer.transfer_id, transfer.signed, TransferSteps(self._context, transfer)
            )
            for transfer in claimed
        ]

    def _claim(self, connection: Connection) -> list[TransferRecord]:
        until_us = real_now_us() + LEASE_US
        store.lease(connection, list(self._settlement.driven), until_us)
        claimed = self._abandoned(connection, lock=True)
        store.lease(connection, [transfer.transfer_id for transfer in claimed], until_us)
        return claimed

    def _is_any_abandoned(self, connection: Connection) -> bool:
        return bool(self._abandoned(connection, lock=False))

    def _abandoned(self, connection: Connection, *, lock: bool) -> list[TransferRecord]:
        # A manual clock belongs to a single process: whatever is not driven here is driven nowhere.
        horizon_us = real_now_us() + (LEASE_US if self._context.clock.is_manual else 0)
        driven = self._settlement.driven
        found = store.abandoned(connection, horizon_us, _BATCH + len(driven), lock=lock)
        return [transfer for transfer in found if transfer.transfer_id not in driven]
