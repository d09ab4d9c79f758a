"""A Solana cluster behind the `Chain` protocol: which calls are made, how they are shared, what they prove.

The rules:

1. A missing status counts only from a node whose position is at least the last reported block height: there
   may be many nodes behind one URL, and one that lags has not seen what has landed.
2. Heights, blockhashes and statuses are requested once for all callers that need them at about the same time.
   A height may be slightly old, which is on the safe side; a status is never older than the call for it.
3. Heights, slots and last valid heights are claims, and checked for plausibility before use (`tips.py`).
4. The node's cluster is checked again every half minute and after each outage. Responses of another cluster
   are ignored.

`client.py` handles failures of calls, `replies.py` checks the format of responses.
"""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay_server.chain.clusters import Cluster, explorer_url
from agentpay_server.chain.parsing import json_failure_reason, read_token_account
from agentpay_server.chain.protocol import (
    Blockhash,
    Booked,
    ChainUnavailableError,
    Cosigned,
    Deposit,
    DepositBatch,
    Failure,
    SignatureStatus,
    TokenAccount,
    nothing_booked,
)
from agentpay_server.chain.rpc import blocks, replies
from agentpay_server.chain.rpc.client import RpcCaller, RpcRefusalError
from agentpay_server.chain.rpc.cosigned import CosignedSearch
from agentpay_server.chain.rpc.deposits import read_deposit
from agentpay_server.chain.rpc.fees import Budgets
from agentpay_server.chain.rpc.polling import MAX_SIGNATURES, Poller, Recent
from agentpay_server.chain.rpc.replies import ChainAccount, Simulation, Status, malformed
from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.chain.rpc.tips import Tips
from agentpay_server.chain.rpc.websocket import Notices
from agentpay_server.chain.signing import shape_of, transaction_of

_IDENTITY_SECONDS: Final = 30.0
_RENT_SECONDS: Final = 600.0
_MAX_ACCOUNTS: Final = 100
_READS_AT_ONCE: Final = 2  # With more concurrent requests, fewer would be shared.
_MAX_HISTORY_LINES: Final = 1_000
_DEPOSIT_BATCH: Final = 100
# Foreign transactions may have any version; the balances by account, which are read, are alike in all.
_ANY_VERSION: Final = 255
_MAX_DETAIL: Final = 500
_NO_OPTIONS: Final[Mapping[str, object]] = {}
_CONFIRMED: Final = {"commitment": "confirmed"}
_FINALIZED: Final = {"commitment": "finalized"}


class RpcChain:
    """A cluster, reached over JSON-RPC. Bound to one event loop. Created by `connect`.

    Args:
        client: calls the endpoint.
        settings: how to use it.
        cluster: the expected cluster.
        is_emulator: whether the endpoint emulates a cluster. An emulator is one honest node, and counts
            blocks differently.
    """

    def __init__(
        self, client: RpcCaller, settings: RpcSettings, cluster: Cluster, *, is_emulator: bool = False
    ) -> None:
        self._client = client
        self._settings = settings
        self._cluster = cluster
        self._is_emulator = is_emulator
        self._identity = Recent(self._check_identity, _IDENTITY_SECONDS)
        self._tips = Tips(self._call, settings.blockhash_seconds)
        self._budgets = Budgets(settings, self.simulate, self._fetch_prices)
        self._rents: dict[int, Recent[int]] = {}
        self._statuses = Poller(self._fetch_statuses, settings.status_interval_seconds, most=MAX_SIGNATURES)
        self._account_reads = Poller(self._fetch_accounts, 0, most=_MAX_ACCOUNTS, at_once=_READS_AT_ONCE)
        self._cosigned = CosignedSearch(self._call)
        self._notices = Notices(settings.websocket_url, settings.finality.value)

    @property
    def usdc_mint(self) -> str:
        """Address of the USDC mint of the cluster."""
        return self._cluster.usdc_mint

    @property
    def genesis_hash(self) -> str:
        """The cluster's permanent identity; store it with everything that is signed for it."""
        return self._cluster.genesis_hash

    @property
    def cluster_name(self) -> str:
        """The name of a public cluster; `localnet` for any other."""
        return self._cluster.name or "localnet"

    @property
    def is_test_chain(self) -> bool:
        """Whether it is a private cluster; on public ones the sandbox is disabled."""
        return not self._cluster.is_public

    @property
    def landing_seconds(self) -> float:
        """How long to wait after a send before asking for the status."""
        seconds = self._settings.landing_seconds
        return self._tips.block_seconds if seconds is None else seconds

    @property
    def blockhash_life_seconds(self) -> float:
        """How long a transaction may land after it was signed, by the observed pace of the cluster."""
        return self._tips.blockhash_life_seconds

    def explorer_url(self, signature: str) -> str:
        """Link to a transaction in a block explorer (interface T11)."""
        return explorer_url(signature, self._cluster.name or self._settings.url)

    async def latest_blockhash(self) -> Blockhash:
        """Return a blockhash for a new transaction, confirmed, at most `blockhash_seconds` old."""
        blockhash, budget = await self._tips.blockhash(), self._budgets.current()
        return blockhash if budget is None else evolve(blockhash, compute_budget=budget)

    async def block_height(self) -> int:
        """Return the height of a recent block that cannot be undone."""
        return (await self._tips.tip()).block_height

    async def signature_status(self, signature: str) -> SignatureStatus | None:
        """Return the status of a transaction; None if the chain has not seen it (yet).

        It is read after every height that `block_height` returned before this call, from a node whose
        position is at least that height.
        """
        if not _is_signature(signature):
            return None
        slot, status = await self._statuses.answer(signature)
        if status is None:
            self._tips.check_stands_at_tip(slot)
            return None
        is_irreversible = status.commitment == "finalized"
        # A failure that disappears with its block could still become a success.
        is_reached = status.commitment == self._settings.finality.value and status.error is None
        is_final = is_irreversible or is_reached
        failure = None
        if is_final and status.error is not None:
            failure = await self._failure(signature, status)
        return SignatureStatus(is_final=is_final, failure=failure, is_irreversible=is_irreversible)

    async def find_cosigned(
        self, cosigned: Cosigned, *, is_for_proof: bool = False
    ) -> SignatureStatus | None:
        """Return the status of a transaction whose fee another party pays (see `Chain`)."""
        source = cosigned.token_account
        if is_for_proof:
            lines = await self._proved_history(source, cosigned.after)
        else:
            options = {"limit": _MAX_HISTORY_LINES} | ({"until": cosigned.after} if cosigned.after else {})
            reply = await self._call("getSignaturesForAddress", source, {**options, **_CONFIRMED})
            lines = replies.read_history(reply)
        name = await self._cosigned.name(cosigned, lines, must_read=is_for_proof)
        status = None if name is None else await self.signature_status(name)
        if status is None:
            if name is not None and is_for_proof:
                raise ChainUnavailableError("a node does not know a transaction that its history lists")
            return None
        failure = None if status.failure is None else evolve(status.failure, chain_signature=name)
        return evolve(status, failure=failure, chain_signature=name)

    async def holds(self, token_account: str, amount_micro: int) -> bool:
        """Return whether a token account holds at least an amount of micro-USDC (see `Chain`)."""
        tip = await self._tips.tip()
        # With the finality of settlements: what is booked is on chain then, however often an account is paid.
        options = {"encoding": "base64", "commitment": self._settings.finality.value}
        reply = await self._call("getMultipleAccounts", [token_account], options)
        if replies.read_position(reply) < tip.slot:
            raise ChainUnavailableError("a node that lags behind shows an old balance")
        (account,) = replies.read_accounts(reply, 1)
        held = None
        if account is not None:
            held = read_token_account(
                token_account, program=account.program, data=account.data, usdc_mint=self.usdc_mint
            )
        return (0 if held is None else held.amount_micro) >= amount_micro

    async def newest_signature(self, token_account: str) -> str | None:
        """Return what names the newest transaction of a token account that cannot be undone."""
        page = await self._history_page(token_account, {"limit": 1})
        return page[0].signature if page and page[0].finalized else None

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:
        """Return whether the node knows all signatures in the blocks from one height to another."""
        # The last check before an expiry is accepted, so take the time to verify the node's cluster.
        self._identity.forget()
        first_slot = replies.read_slot(await self._call("getFirstAvailableBlock"))
        if await blocks.read_height(self._call, first_slot) > first_height:
            return False
        # Emulators of a cluster have no history to lose, and count empty blocks differently.
        if self._is_emulator:
            return True
        # Even for new blocks: a block that a node has is below its position, whatever height it reports.
        return await blocks.has_all_blocks(self._call, await self._tips.tip(), first_height, last_height)

    async def wait_for_notice(self, signature: str, seconds: float) -> None:
        """Wait until the status may have changed: until a notification, or for `seconds`."""
        await self._notices.wait(signature, seconds)

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        """Send a signed transaction. Returning means only that it was handed over.

        Args:
            raw: the transaction.
            even_if_failing: whether to send it even if the node expects it to fail: only a failure on chain
                is final.

        Raises:
            ChainUnavailableError: the node did not accept it, or it is unknown whether it did.
            TransactionTooLargeError: `raw` is larger than a packet.
            ValueError: `raw` is not a signed transaction.
        """
        transaction = transaction_of(raw)
        signature, shape = str(transaction.signatures[0]), shape_of(transaction.message)
        # Both before it can land: afterwards a simulation would give another result, and not every node
        # notifies of past events.
        await self._budgets.learn(shape, raw)
        await self._notices.expect(signature)
        try:
            answer = await self._send(raw, skip_preflight=False)
        except RpcRefusalError as refusal:
            if _is_duplicate(refusal):
                return
            if not (even_if_failing and isinstance(_transaction_error(refusal), dict)):
                # The failure would not be recorded on chain, and should not: this node does not know the
                # blockhash (yet), or the fee payer has no SOL.
                raise
            if "ComputationalBudgetExceeded" in str(_transaction_error(refusal)):
                self._budgets.forget(shape)
            answer = await self._send(raw, skip_preflight=True)
        if answer != signature:
            raise malformed("the signature of another transaction")

    async def simulate(self, raw: bytes) -> Simulation:
        """Return the result of simulating a transaction now, without sending it."""
        options = {"encoding": "base64", "sigVerify": False, "replaceRecentBlockhash": True, **_CONFIRMED}
        return replies.read_simulation(await self._call("simulateTransaction", _base64(raw), options))

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """Return the USDC token accounts at `addresses`; None for one that is missing or of another mint."""
        accounts = await self._accounts(addresses)
        return [
            None
            if account is None
            else read_token_account(
                address, program=account.program, data=account.data, usdc_mint=self.usdc_mint
            )
            for address, account in zip(addresses, accounts, strict=True)
        ]

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """Return lamports and bytes of data of any account; None if it does not exist."""
        (account,) = await self._accounts([address])
        return None if account is None else (account.lamports, len(account.data))

    async def rent_exemption(self, size: int) -> int:
        """Return the lamports that exempt an account of `size` bytes from rent."""

        async def fetch() -> int:
            return replies.read_lamports(await self._call("getMinimumBalanceForRentExemption", size))

        return await self._rents.setdefault(size, Recent(fetch, _RENT_SECONDS)).get()

    async def deposits(
        self, token_account: str, *, after: str | None, booked: Booked = nothing_booked
    ) -> AsyncIterator[DepositBatch]:
        """Yield the deposits since a cursor, which is a signature (see `DepositSource`)."""
        history = await self._history(token_account, after)
        known = await booked() if history else ()
        for start in range(0, len(history), _DEPOSIT_BATCH):
            lines = history[start : start + _DEPOSIT_BATCH]
            found = [
                await self._deposit(line.signature, token_account)
                for line in lines
                if not line.failed and line.signature not in known
            ]
            deposits = tuple(deposit for deposit in found if deposit is not None)
            yield DepositBatch(deposits=deposits, cursor=lines[-1].signature)

    async def close(self) -> None:
        """Close every connection; waiting callers get an error."""
        self._statuses.close()
        self._account_reads.close()
        self._budgets.close()
        self._tips.close()
        recents: list[Recent[Any]] = [self._identity, *self._rents.values()]
        for recent in recents:
            recent.close()
        await self._notices.close()
        await self._client.close()

    # --- Calls

    async def _call(self, method: str, *params: object) -> object:
        await self._identity.get()
        try:
            return await self._client.call(method, *params)
        except RpcRefusalError:
            raise
        except ChainUnavailableError:
            # The next response may come from another cluster.
            self._identity.forget()
            raise

    async def _check_identity(self) -> None:
        genesis_hash = replies.read_hash(await self._client.call("getGenesisHash"))
        if genesis_hash != self.genesis_hash:
            raise ChainUnavailableError(
                f"the endpoint now serves the cluster {genesis_hash}, not {self.genesis_hash}"
            )

    async def _fetch_prices(self) -> list[int]:
        return replies.read_prices(await self._call("getRecentPrioritizationFees"))

    async def _fetch_statuses(self, signatures: Sequence[str]) -> list[tuple[int, Status | None]]:
        options = {"searchTransactionHistory": True}
        reply = await self._call("getSignatureStatuses", list(signatures), options)
        slot, statuses = replies.read_statuses(reply, len(signatures))
        return [(slot, status) for status in statuses]

    async def _failure(self, signature: str, status: Status) -> Failure:
        """Return why a transaction failed irreversibly, which requires reading its instructions."""
        options = {"encoding": "json", "maxSupportedTransactionVersion": 0, **_CONFIRMED}
        reply = await self._call("getTransaction", signature, options)
        calls = replies.Calls(programs=(), last_log=None)
        if reply is not None:
            calls = replies.read_calls(reply, signature)
        detail = f"{status.error}: {calls.last_log}" if calls.last_log else str(status.error)
        reason = json_failure_reason(status.error, calls.programs)
        return Failure(reason=reason, detail=detail[:_MAX_DETAIL])

    async def _send(self, raw: bytes, *, skip_preflight: bool) -> str:
        options = {
            "encoding": "base64",
            "maxRetries": 0,
            "preflightCommitment": "confirmed",  # The same as for blockhashes.
            "skipPreflight": skip_preflight,
        }
        return replies.signature_text(await self._call("sendTransaction", _base64(raw), options))

    async def _accounts(self, addresses: Sequence[str]) -> list[ChainAccount | None]:
        wanted = sorted({address for address in addresses if _is_address(address)})
        reads = asyncio.gather(*(self._account_reads.answer(address) for address in wanted))
        try:
            # Includes the wait for a turn.
            async with asyncio.timeout(self._settings.timeout_seconds):
                answers = await reads
        except TimeoutError:
            raise ChainUnavailableError("the accounts could not be read in time") from None
        found = dict(zip(wanted, answers, strict=True))
        return [found.get(address) for address in addresses]

    async def _fetch_accounts(self, addresses: Sequence[str]) -> list[ChainAccount | None]:
        # With the finality of settlements: amounts that left in a block that is not final are still reserved.
        options = {"encoding": "base64", "commitment": self._settings.finality.value}
        reply = await self._call("getMultipleAccounts", list(addresses), options)
        return replies.read_accounts(reply, len(addresses))

    async def _history(self, token_account: str, after: str | None) -> list[replies.HistoryLine]:
        """Return the irreversible transactions of an account since a cursor, oldest first."""
        lines = await self._whole_history(token_account, after)
        # Not every node applies the commitment. Lines after a reversible one must wait for it.
        return list(itertools.takewhile(lambda line: line.finalized, reversed(lines)))

    async def _proved_history(self, token_account: str, after: str | None) -> list[replies.HistoryLine]:
        """Return an account's transactions since a cursor, of a node that has seen the last reported height.

        Lines that the node calls reversible are not left out: what is missing here counts as proved absent.
        """
        # Emulators take it for a filter and leave out what is older; none of their nodes lags behind another.
        slot = (await self._tips.tip()).slot
        at_tip = _NO_OPTIONS if self._is_emulator else {"minContextSlot": slot}
        if not self._is_emulator:
            # The index of accounts may lag behind the node's own blocks. A node returns a block only once its
            # transactions are in the index, and refuses it until then.
            await blocks.read_height(self._call, slot)
        lines = await self._whole_history(token_account, after, at_tip)
        if lines and after is None:
            await self._check_joins(token_account, lines[-1].signature, None)
        if not lines:
            # A node whose index of accounts is empty or behind returns the same as one with nothing new.
            page = await self._history_page(token_account, {"limit": 1, **at_tip})
            if after is None or [line.signature for line in page] != [after]:
                raise ChainUnavailableError("a node does not know the history of an account that has one")
        return lines

    async def _whole_history(
        self, token_account: str, after: str | None, more: Mapping[str, object] = _NO_OPTIONS
    ) -> list[replies.HistoryLine]:
        """Return the transactions of an account since a cursor that the node reports, newest first."""
        lines: list[replies.HistoryLine] = []
        seen: set[str] = set()
        while True:
            # A node that does not know a page's start may return an empty page, as at the end of the history:
            # every page but the first begins with the last line of the previous page.
            overlap = lines[-1:]
            options: dict[str, object] = {"limit": _MAX_HISTORY_LINES, **more}
            options |= {"until": after} if after else {}
            options |= {"before": lines[-2].signature} if overlap else {}
            page = await self._history_page(token_account, options)
            if overlap and [line.signature for line in page[:1]] != [overlap[0].signature]:
                raise ChainUnavailableError("a node does not know the history that another node has reported")
            new = page[len(overlap) :]
            if not seen.isdisjoint(line.signature for line in new):
                raise malformed("a history that repeats itself")
            lines += new
            seen |= {line.signature for line in new}
            if len(page) < _MAX_HISTORY_LINES:
                break
        if after and lines:
            await self._check_joins(token_account, lines[-1].signature, after)
        return lines

    async def _history_page(
        self, token_account: str, options: dict[str, object]
    ) -> list[replies.HistoryLine]:
        """Return a page of an account's history, newest first."""
        reply = await self._call("getSignaturesForAddress", token_account, {**options, **_FINALIZED})
        return replies.read_history(reply)

    async def _check_joins(self, token_account: str, oldest: str, after: str | None) -> None:
        """Raise unless the line before the oldest one is the cursor, so that none is missing in between.

        Without a cursor, nothing may be before it.

        A node that has forgotten the cursor, or does not know it yet, returns what it has.
        """
        page = await self._history_page(token_account, {"limit": 1, "before": oldest})
        if [line.signature for line in page] != ([] if after is None else [after]):
            raise ChainUnavailableError("a node's history does not go back to where it was read last")

    async def _deposit(self, signature: str, token_account: str) -> Deposit | None:
        options = {"encoding": "jsonParsed", "maxSupportedTransactionVersion": _ANY_VERSION, **_FINALIZED}
        reply = await self._call("getTransaction", signature, options)
        return read_deposit(reply, signature=signature, token_account=token_account, usdc_mint=self.usdc_mint)


def _transaction_error(refusal: RpcRefusalError) -> object:
    return refusal.data.get("err") if isinstance(refusal.data, dict) else None


def _is_duplicate(refusal: RpcRefusalError) -> bool:
    # Some nodes report it only in the message. A wrong guess is harmless: the status decides.
    return _transaction_error(refusal) == "AlreadyProcessed" or "already been processed" in refusal.detail


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _is_signature(text: str) -> bool:
    try:
        Signature.from_string(text)
    except ValueError:
        return False
    return True


def _is_address(text: str) -> bool:
    try:
        Pubkey.from_string(text)
    except ValueError:
        return False
    return True
