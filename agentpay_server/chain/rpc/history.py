"""The history of a token account as nodes report it: its transactions, with their deposits and debits.

One URL may serve many nodes, and a node may lack what another has reported. A gap in a history would be a
lost deposit, or a payment that seems absent, so pages of several calls must join.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from attrs import frozen

from agentpay_server.chain.channels.evidence import history_of
from agentpay_server.chain.protocol import (
    ChainUnreachableError,
    ChannelHistory,
    Debit,
    Deposit,
    DepositBatch,
    Posted,
    nothing_posted,
)
from agentpay_server.chain.rpc import blocks
from agentpay_server.chain.rpc.chain_head import ChainHead
from agentpay_server.chain.rpc.deposits import read_landed, read_movement
from agentpay_server.chain.rpc.polling import Recent
from agentpay_server.chain.rpc.replies import HistoryLine, malformed, read_history, read_signed

_MAX_LINES: Final = 1_000
"""Maximum number of transactions that a node returns in one page."""

_SHARED_SECONDS: Final = 30.0
"""How long searches use a page's cursor."""

_MAX_SHARED: Final = 1_000
"""Maximum number of accounts whose newest lines are kept."""

_DEPOSIT_BATCH: Final = 100
# Foreign transactions may have any version. All versions have the balances by account, which are read.
_ANY_VERSION: Final = 255
_CONFIRMED: Final = {"commitment": "confirmed"}
_FINALIZED: Final = {"commitment": "finalized"}
_NO_OPTIONS: Final[Mapping[str, object]] = {}

Call = Callable[..., Awaitable[object]]


@frozen
class _Newest:
    """The newest lines of an account since a cursor, shared by the searches for its payments.

    Attributes:
        after: the cursor.
        until: when it is replaced, in the event loop's time: the page grows while its cursor stays.
        lines: the page.
    """

    after: str | None
    until: float
    lines: Recent[list[HistoryLine]]

    async def since(self, after: str | None) -> list[HistoryLine] | None:
        """Return the newest lines since another cursor, or None if that is older."""
        lines = await self.lines.get()
        if after == self.after:
            return lines
        place = next((place for place, line in enumerate(lines) if line.signature == after), None)
        return None if place is None else lines[:place]


class AccountHistory:
    """Reads the transactions of token accounts and their deposits of one mint."""

    def __init__(self, call: Call, head: ChainHead, *, usdc_mint: str) -> None:
        self._call = call
        self._head = head
        self._usdc_mint = usdc_mint
        self._newest: dict[str, _Newest] = {}
        self._pages: dict[str, Recent[Mapping[str, HistoryLine]]] = {}

    async def newest(self, token_account: str, after: str | None) -> list[HistoryLine]:
        """Return an account's newest transactions since a cursor, including reversible ones, newest first.

        One page of one node's report, at most a block old: enough to find a transaction, but no proof of
        absence.
        """
        now = asyncio.get_running_loop().time()
        shared = self._newest.get(token_account)
        lines = None if shared is None or now >= shared.until else await shared.since(after)
        if lines is None:
            if len(self._newest) >= _MAX_SHARED:
                del self._newest[next(iter(self._newest))]
            max_age_seconds = 0.0 if self._head.is_surfpool else self._head.block_seconds
            recent = Recent(partial(self._newest_page, token_account, after), max_age_seconds)
            self._newest[token_account] = _Newest(after, now + _SHARED_SECONDS, recent)
            lines = await recent.get()
        return lines

    def close(self) -> None:
        """Stop requests; waiting callers get an error."""
        for shared in self._newest.values():
            shared.lines.close()
        for page in self._pages.values():
            page.close()

    async def _newest_page(self, token_account: str, after: str | None) -> list[HistoryLine]:
        return await self._page(token_account, {"limit": _MAX_LINES, **_until(after), **_CONFIRMED})

    async def irreversible(self, token_account: str) -> Mapping[str, HistoryLine]:
        """Return an account's newest irreversible transactions by signature, at most a block old."""
        page = self._pages.get(token_account)
        if page is None:
            if len(self._pages) >= _MAX_SHARED:
                del self._pages[next(iter(self._pages))]
            fetch = partial(self._irreversible_page, token_account)
            page = self._pages[token_account] = Recent(fetch, self._head.block_seconds)
        return await page.get()

    async def _irreversible_page(self, token_account: str) -> Mapping[str, HistoryLine]:
        lines = await self._page(token_account, {"limit": _MAX_LINES, **_FINALIZED})
        return {line.signature: line for line in lines if line.finalized}

    async def newest_signature(self, token_account: str) -> str | None:
        """Return the signature of an account's newest irreversible transaction."""
        page = await self._page(token_account, {"limit": 1, **_FINALIZED})
        return page[0].signature if page and page[0].finalized else None

    async def proved(
        self, token_account: str, after: str | None, height: int, *, first_height: int = 0
    ) -> list[HistoryLine]:
        """Return an account's transactions since a cursor, as of the block at a height or later.

        Reversible ones are included, because a missing transaction counts as proved absent.

        Args:
            token_account: the account; it has a transaction.
            after: the cursor; None for the whole history.
            height: the height that the node must have reached.
            first_height: transactions in lower blocks are left out.

        Raises:
            ChainUnreachableError: no node proves that it knows the whole history.
        """
        # Emulators treat it as a filter and leave out older transactions; as a single node they cannot lag.
        tip = await self._head.tip()
        slot = tip.slot
        at_tip = _NO_OPTIONS if self._head.is_surfpool else {"minContextSlot": slot}
        # The index of accounts may lag behind the node's blocks. A node returns a block only once its
        # transactions are indexed.
        if not self._head.is_surfpool and await blocks.read_height(self._call, slot) < height:
            raise ChainUnreachableError("a node that lags behind shows an old history")
        first_slot = 0
        if first_height and not self._head.is_surfpool:
            first_slot = await blocks.slot_of(self._call, tip, first_height) or 0
        lines = await self._whole(token_account, after, at_tip, first_slot=first_slot)
        if lines and after is None and lines[-1].slot >= first_slot:
            await self._check_joins(token_account, lines[-1].signature, None)
        if not lines:
            # A node whose index is empty or lags responds like one without new transactions.
            page = await self._page(token_account, {"limit": 1, **at_tip, **_FINALIZED})
            if after is None or [line.signature for line in page] != [after]:
                raise ChainUnreachableError("a node does not know the history of an account that has one")
        return [line for line in lines if line.slot >= first_slot]

    async def deposits(
        self, token_account: str, *, after: str | None, posted: Posted = nothing_posted
    ) -> AsyncIterator[DepositBatch]:
        """See `DepositSource`. The cursor is a signature."""
        history = await self._irreversible(token_account, after)
        known = await posted() if history else ()
        for start in range(0, len(history), _DEPOSIT_BATCH):
            lines = history[start : start + _DEPOSIT_BATCH]
            found = [
                await self._movement(line.signature, token_account)
                for line in lines
                if not line.failed and line.signature not in known
            ]
            yield DepositBatch(
                deposits=tuple(each for each in found if isinstance(each, Deposit)),
                debits=tuple(each for each in found if isinstance(each, Debit)),
                cursor=lines[-1].signature,
            )

    async def channel_history(
        self, channel: str, signer: str, to: str, including: str | None
    ) -> ChannelHistory:
        """See `Chain.channel_history`. Two replies must agree, as on a deposit."""

        async def read() -> ChannelHistory:
            lines = await self._irreversible(channel, None)
            if including is not None and including not in {line.signature for line in lines}:
                raise ChainUnreachableError("a node does not know a channel's transaction (yet)")
            landed = [
                read_landed(
                    await self._transaction(line.signature),
                    signature=line.signature,
                    to=to,
                    usdc_mint=self._usdc_mint,
                )
                for line in lines
                if not line.failed
            ]
            return history_of((each for each in landed if each is not None), channel, signer=signer)

        found = await read()
        if await read() != found:
            raise ChainUnreachableError("a node reports the transactions of a channel in two ways")
        return found

    async def is_signed_by(self, signature: str, signer: str) -> bool:
        """See `Chain.is_signed_by`. The transaction's own bytes prove it."""
        reply = await self._transaction(signature, encoding="base64")
        if reply is None:
            raise ChainUnreachableError("the node lists a transaction that it does not have (yet)")
        transaction = read_signed(reply, signature)
        if transaction is None:
            # Of a version that this service never signs, but another holder of the key may.
            return True
        message = transaction.message
        signers = message.account_keys[: message.header.num_required_signatures]
        return signer in map(str, signers)

    async def _irreversible(self, token_account: str, after: str | None) -> list[HistoryLine]:
        """Return the irreversible transactions of an account since a cursor, oldest first."""
        lines = await self._whole(token_account, after)
        # Not every node applies the commitment. Lines after a reversible one must wait for it.
        return list(itertools.takewhile(lambda line: line.finalized, reversed(lines)))

    async def _whole(
        self,
        token_account: str,
        after: str | None,
        more: Mapping[str, object] = _NO_OPTIONS,
        *,
        first_slot: int = 0,
    ) -> list[HistoryLine]:
        """Return all transactions of an account since a cursor, newest first.

        Ends at the first page that goes back beyond `first_slot`.
        """
        lines: list[HistoryLine] = []
        seen: set[str] = set()
        while True:
            # A node that does not know a page's start may return an empty page, as at the end of the history.
            # So every page but the first begins with the last line of the previous page.
            overlap = lines[-1:]
            options: dict[str, object] = {"limit": _MAX_LINES, **more, **_until(after), **_FINALIZED}
            options |= {"before": lines[-2].signature} if overlap else {}
            page = await self._page(token_account, options)
            if overlap and [line.signature for line in page[:1]] != [overlap[0].signature]:
                raise ChainUnreachableError("a node does not know the history that another node has reported")
            new = page[len(overlap) :]
            if not seen.isdisjoint(line.signature for line in new):
                raise malformed("a history that repeats itself")
            lines += new
            seen |= {line.signature for line in new}
            if len(page) < _MAX_LINES or lines[-1].slot < first_slot:
                break
        if after and lines:
            await self._check_joins(token_account, lines[-1].signature, after)
        return lines

    async def _check_joins(self, token_account: str, oldest: str, after: str | None) -> None:
        """Raise unless the line before the oldest one is the cursor, so that none is missing.

        Without a cursor, the oldest line must be the first of the history.

        A node that does not know the cursor returns an incomplete history.
        """
        page = await self._page(token_account, {"limit": 1, "before": oldest, **_FINALIZED})
        if [line.signature for line in page] != ([] if after is None else [after]):
            raise ChainUnreachableError("a node's history does not go back to where it was read last")

    async def _page(self, token_account: str, options: Mapping[str, object]) -> list[HistoryLine]:
        """Return a page of an account's history, newest first."""
        return read_history(await self._call("getSignaturesForAddress", token_account, dict(options)))

    async def _movement(self, signature: str, token_account: str) -> Deposit | Debit | None:
        """Return what a transaction changed. Two replies must agree on a deposit: nothing else proves it."""

        async def read() -> Deposit | Debit | None:
            return read_movement(
                await self._transaction(signature),
                signature=signature,
                token_account=token_account,
                usdc_mint=self._usdc_mint,
            )

        found = await read()
        if isinstance(found, Deposit) and await read() != found:
            raise ChainUnreachableError("a node reports a deposit in two ways")
        return found

    async def _transaction(self, signature: str, *, encoding: str = "jsonParsed") -> object:
        options = {"encoding": encoding, "maxSupportedTransactionVersion": _ANY_VERSION, **_FINALIZED}
        return await self._call("getTransaction", signature, options)


def _until(after: str | None) -> dict[str, object]:
    return {"until": after} if after else {}
