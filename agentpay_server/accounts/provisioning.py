"""Provisions accounts on chain: funds authority addresses, creates token accounts (interface A10).

On a cluster, where a transaction takes time, accounts requested at about the same time share one. It is
atomic: if the chain rejects it, each account is tried separately, so that one bad account does not affect the
others. Nothing is stored before or during it, and repeating it is harmless.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from agentpay_server.chain import transactions
from agentpay_server.chain.custody import fee_lamports, spending_key
from agentpay_server.chain.instructions import TOKEN_ACCOUNT_BYTES
from agentpay_server.chain.protocol import ChainFailure, ChainUnreachableError, SignedTransaction
from agentpay_server.engine.broadcast import Landed
from agentpay_server.engine.funding import Cost
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger.context import Context
from agentpay_server.platform.failpoints import Operation

COLLECTING_SECONDS: Final = 0.02
"""How long the first request waits for others: little, compared to the landing of a transaction."""


_SIGNATURES: Final = 1


class _RefusedError(ChainUnreachableError):
    """The chain executed the transaction, and it failed."""


_Waiting = tuple[int, "asyncio.Future[SignedTransaction | None]"]
"""The key index of an account to provision, and the future of its caller."""


class Provisioning:
    """Provisions accounts on chain, in batches."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._chain = context.chain
        self._settlement = settlement
        self._waiting: list[_Waiting] = []

    async def cost(self) -> Cost:
        """Return what provisioning an account takes from the treasury, at most.

        Raises:
            ChainUnreachableError: the chain did not respond.
        """
        chain = self._chain
        blockhash = await chain.latest_blockhash()
        rent = await chain.rent_exemption(0) + await chain.rent_exemption(TOKEN_ACCOUNT_BYTES)
        return Cost(fees=fee_lamports(_SIGNATURES, blockhash.compute_budget), rent=rent)

    async def provision(self, key_index: int) -> SignedTransaction | None:
        """Provision the account of a spending key, retrying until it exists.

        Returns:
            The transaction that provisioned it, if it could still be undone.

        Raises:
            ChainUnreachableError: the outcome is unknown.
        """
        if not self._chain.landing_seconds:
            # Transactions execute at once: sharing one saves nothing.
            return await self._landed([key_index])
        end: asyncio.Future[SignedTransaction | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key_index, end))
        if len(self._waiting) == 1:
            self._context.tasks.start(self._collect()).add_done_callback(self._abandon)
        return await end

    def _abandon(self, collecting: "asyncio.Task[None]") -> None:
        """Fail the waiting callers if the collecting task was cancelled."""
        if collecting.cancelled():
            waiting, self._waiting = self._waiting, []
            _fail(waiting, ChainUnreachableError("the server stops"))

    async def _collect(self) -> None:
        """Provision all accounts that join within a moment, with the fewest transactions."""
        await asyncio.sleep(COLLECTING_SECONDS)
        waiting, self._waiting = self._waiting, []
        starts = range(0, len(waiting), transactions.MOST_PROVISIONED)
        parts = [waiting[start : start + transactions.MOST_PROVISIONED] for start in starts]
        try:
            await asyncio.gather(*(self._together(part) for part in parts))
        finally:
            # A task that is cancelled before its first turn never runs: fail its callers here.
            _fail(waiting, ChainUnreachableError("the server stops"))

    async def _together(self, several: Sequence[_Waiting]) -> None:
        """Provision some accounts, in one transaction if possible, and notify their callers."""
        error: Exception = ChainUnreachableError("the server stops")
        try:
            signed = await self._landed([key_index for key_index, _ in several])
            for _, end in several:
                if not end.done():
                    end.set_result(signed)
        except _RefusedError as refusal:
            error = refusal
            if len(several) > 1:
                await asyncio.gather(*(self._together([each]) for each in several))
        except Exception as caught:  # noqa: BLE001
            # Pass any error on to the waiting callers, which would otherwise wait forever.
            error = caught
        finally:
            _fail(several, error)

    async def _landed(self, key_indexes: Sequence[int]) -> SignedTransaction | None:
        """Land one transaction that provisions all accounts; return it if it could still be undone."""
        chain, signer = self._chain, self._context.signer
        while True:
            present = await asyncio.gather(
                *(chain.account_size(signer.address(spending_key(key_index))) for key_index in key_indexes)
            )
            signed = transactions.provision_accounts(
                signer,
                await chain.latest_blockhash(),
                usdc_mint=chain.usdc_mint,
                present_lamports={
                    key_index: 0 if size is None else size[0]
                    for key_index, size in zip(key_indexes, present, strict=True)
                },
                rent_exempt_lamports=await chain.rent_exemption(0),
            )
            patience_seconds = self._context.settings.settlement_wait_seconds
            outcome = await self._settlement.broadcaster.outcome(
                signed, operation=Operation.ACCOUNT, is_new=True, patience_seconds=patience_seconds
            )
            if isinstance(outcome, Landed):
                return None if outcome.is_irreversible else signed
            if isinstance(outcome, ChainFailure):
                raise _RefusedError(f"the chain refused to provision an account: {outcome.detail}")


def _fail(several: Sequence[_Waiting], error: Exception) -> None:
    for _, end in several:
        if not end.done():
            end.set_exception(error)
