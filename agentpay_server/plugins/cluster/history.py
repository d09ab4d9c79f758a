"""The history of a token account as nodes report it: its transactions, with their deposits and debits.

One URL may serve many nodes, and a node may lack what another has reported. A gap in a history would be a
lost deposit, or a payment that seems absent, so pages of several calls must join.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final

from attrs import frozen

from agentpay_server.chain import parsing
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.evidence import KEPT_ACCOUNTS, KEPT_BYTES, Call, Landed, history_of
from agentpay_server.chain.instructions import USDC_DECIMALS
from agentpay_server.chain.protocol import (
    ChainUnreachableError,
    ChannelHistory,
    Debit,
    Deposit,
    DepositBatch,
    Posted,
    nothing_posted,
)
from agentpay_server.plugins.cluster import chain_head
from agentpay_server.plugins.cluster.chain_head import ChainHead
from agentpay_server.plugins.cluster.polling import Recent
from agentpay_server.plugins.cluster.replies import (
    HistoryLine,
    count,
    exactly,
    malformed,
    member,
    read_history,
    read_signed,
    read_transaction,
    signature_text,
)

# --- Deposits and debits
#
# Both are changes of the reported balance by a transaction, whatever instructions caused them.

_MAX_U64_DIGITS: Final = 20
_MAX_DATA_CHARACTERS: Final = 13_985
"""The length in base58 of 10,240 bytes, the most that a program can pass to another."""

_PROGRAMS: Final = frozenset({str(codecs.PROGRAM), str(codecs.ED25519_PROGRAM)})


def read_movement(
    reply: object, *, signature: str, token_account: str, usdc_mint: str
) -> Deposit | Debit | None:
    """Return the change of a token account by a `getTransaction` result in the encoding `jsonParsed`.

    Raises:
        ChainUnreachableError: the result is about another transaction, or malformed.
    """
    found = _changes(reply, signature=signature, usdc_mint=usdc_mint)
    if found is None:
        return None
    transaction, before, after = found
    gained = after.get(token_account, 0) - before.get(token_account, 0)
    if gained < 0:
        recipients = [address for address, amount in after.items() if amount > before.get(address, 0)]
        return Debit(
            signature=signature,
            signatures=tuple(map(signature_text, member(transaction, "signatures", list))),
            token_account=token_account,
            amount_micro=-gained,
            recipient=recipients[0] if len(recipients) == 1 else None,
        )
    if gained == 0:
        return None
    senders = tuple(address for address, amount in before.items() if amount > after.get(address, 0))
    return Deposit(
        signature=signature,
        token_account=token_account,
        amount_micro=gained,
        senders=senders,
        others=tuple(each for each in before if each not in (token_account, *senders)),
    )


def read_landed(reply: object, *, signature: str, usdc_mint: str) -> Landed | None:
    """Return what a transaction did; None if it failed.

    Raises:
        ChainUnreachableError: the result is about another transaction, or malformed.
    """
    found = _changes(reply, signature=signature, usdc_mint=usdc_mint)
    if found is None:
        return None
    transaction, before, after = found
    called = {
        count(line, "index"): [_call(step) for step in member(line, "instructions", list)]
        for line in member(member(reply, "meta", dict), "innerInstructions", list)
    }
    steps = member(member(transaction, "message", dict), "instructions", list)
    return Landed(
        signature=signature,
        before=before,
        after=after,
        steps=[(_call(step), called.get(index, ())) for index, step in enumerate(steps)],
    )


def _call(step: object) -> Call:
    """Return an instruction; without content if it is unreadable, or of a program that proves nothing.

    Strangers write instructions, so none of them may make a history unreadable.
    """
    program = member(step, "programId", str)
    if program not in _PROGRAMS:
        return Call(program, (), b"")
    accounts: list[object] = member(step, "accounts", list)
    data = member(step, "data", str)
    try:
        content = parsing.from_base58(data) if len(data) <= _MAX_DATA_CHARACTERS else b""
    except ValueError:
        content = b""
    addresses = [exactly(address, str, "account") for address in accounts[:KEPT_ACCOUNTS]]
    return Call(program, addresses, content[:KEPT_BYTES])


def _changes(
    reply: object, *, signature: str, usdc_mint: str
) -> tuple[dict[str, Any], dict[str, int], dict[str, int]] | None:
    """Return a transaction, and the balances before and after it; None if it failed."""
    if reply is None:
        raise ChainUnreachableError("the node lists a transaction that it does not have (yet)")
    transaction, meta = read_transaction(reply, signature), member(reply, "meta", dict)
    if "err" not in meta:
        raise malformed("no information on whether it failed")
    if meta["err"] is not None:
        return None
    keys = [
        member(key, "pubkey", str)
        for key in member(member(transaction, "message", dict), "accountKeys", list)
    ]
    before = _balances(meta, "preTokenBalances", keys, usdc_mint)
    after = _balances(meta, "postTokenBalances", keys, usdc_mint)
    return transaction, before, after


def _balances(meta: object, name: str, keys: list[str], usdc_mint: str) -> dict[str, int]:
    """Return the balances of USDC accounts, by address."""
    balances: dict[str, int] = {}
    for line in member(meta, name, list):
        index = count(line, "accountIndex")
        if index >= len(keys):
            raise malformed("a balance of an account that is not listed")
        if member(line, "mint", str) != usdc_mint:
            continue
        amount = member(line, "uiTokenAmount", dict)
        if count(amount, "decimals") != USDC_DECIMALS:
            raise malformed("USDC without its six decimals")
        if keys[index] in balances:
            raise malformed("two balances of one account")
        balances[keys[index]] = _amount(member(amount, "amount", str))
    return balances


def _amount(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_U64_DIGITS):
        raise malformed("an amount that is not a number")
    return int(text)


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

    def __init__(self, call: chain_head.Call, head: ChainHead, *, usdc_mint: str) -> None:
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
        if not self._head.is_surfpool and await chain_head.read_height(self._call, slot) < height:
            raise ChainUnreachableError("a node that lags behind shows an old history")
        first_slot = 0
        if first_height and not self._head.is_surfpool:
            first_slot = await chain_head.slot_of(self._call, tip, first_height) or 0
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
        """See `Chain`. The cursor is a signature."""
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
            mint = self._usdc_mint
            landed = [
                read_landed(await self.transaction(line.signature), signature=line.signature, usdc_mint=mint)
                for line in lines
                if not line.failed
            ]
            succeeded = (each for each in landed if each is not None)
            return history_of(succeeded, channel, signer=signer, to=to, usdc_mint=mint)

        found = await read()
        if await read() != found:
            raise ChainUnreachableError("a node reports the transactions of a channel in two ways")
        return found

    async def is_signed_by(self, signature: str, signer: str) -> bool:
        """See `Chain.is_signed_by`. The transaction's own bytes prove it."""
        reply = await self.transaction(signature, "base64")
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
                await self.transaction(signature),
                signature=signature,
                token_account=token_account,
                usdc_mint=self._usdc_mint,
            )

        found = await read()
        if isinstance(found, Deposit) and await read() != found:
            raise ChainUnreachableError("a node reports a deposit in two ways")
        return found

    async def transaction(
        self, signature: str, encoding: str = "jsonParsed", commitment: str = "finalized"
    ) -> object:
        """Return the result of `getTransaction`, unchecked; None if the node does not know it."""
        options = {
            "encoding": encoding,
            "maxSupportedTransactionVersion": _ANY_VERSION,
            "commitment": commitment,
        }
        return await self._call("getTransaction", signature, options)


def _until(after: str | None) -> dict[str, object]:
    return {"until": after} if after else {}
