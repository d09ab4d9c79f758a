"""A Solana cluster behind the `Chain` protocol: which calls it makes and shares, and what they prove.

The rules:

1. A missing status counts only from a node whose position is at least the last reported block height: one URL
   may serve many nodes, and one that lags has not seen every landing.
2. Callers that need heights, blockhashes or statuses at about the same time share a request. A height may be
   slightly old, which is safe; a status is never older than the call for it.
3. Heights, slots and last valid heights are claims, whose plausibility is checked before use
   (`chain_head.py`).
4. No outcome is accepted without the transaction itself (`evidence.py`).
5. The node's cluster is checked again every half minute and after each outage. Responses of another cluster
   are ignored.

`client.py` handles failures of calls, `replies.py` checks the format of responses, `history.py` reads the
history of accounts.
"""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from attrs import evolve
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token.state import Mint

from agentpay_server.chain.clusters import Cluster, ClusterRefusedError, choose_cluster, explorer_url
from agentpay_server.chain.custody import shape_of, transaction_of
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS
from agentpay_server.chain.parsing import json_failure_reason, read_account, read_token_account
from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    KNOWN_BYTES,
    Absence,
    AccountData,
    Blockhash,
    ChainFailure,
    ChainUnreachableError,
    ChannelHistory,
    Cosigned,
    DepositBatch,
    Posted,
    SignatureStatus,
    TokenAccount,
    nothing_posted,
    reported_landing_heights,
)
from agentpay_server.plugins.cluster import chain_head, replies
from agentpay_server.plugins.cluster.chain_head import ChainHead
from agentpay_server.plugins.cluster.client import EndpointRefusesError, RpcCaller, RpcClient, RpcRefusalError
from agentpay_server.plugins.cluster.evidence import Evidence
from agentpay_server.plugins.cluster.fees import Budgets
from agentpay_server.plugins.cluster.history import AccountHistory
from agentpay_server.plugins.cluster.polling import MAX_SIGNATURES, LandingTime, Notices, Poller, Recent
from agentpay_server.plugins.cluster.replies import (
    ChainAccount,
    Landing,
    ReportedStatus,
    malformed,
)
from agentpay_server.plugins.cluster.settings import RpcSettings

_IDENTITY_SECONDS: Final = 30.0
_RENT_SECONDS: Final = 600.0
_MAX_ACCOUNTS: Final = 100
_READS_AT_ONCE: Final = 2  # With more concurrent requests, fewer would be shared.
_MAX_DETAIL: Final = 500
_CONFIRMED: Final = {"commitment": "confirmed"}


class RpcChain:
    """A cluster, reached over JSON-RPC. Bound to one event loop. Created by `connect`.

    `is_surfpool` tells that the endpoint is Surfpool: see `ChainHead`.
    """

    def __init__(
        self, client: RpcCaller, settings: RpcSettings, cluster: Cluster, *, is_surfpool: bool = False
    ) -> None:
        self._client = client
        self._settings = settings
        self._cluster = cluster
        self._identity = Recent(self._check_identity, _IDENTITY_SECONDS)
        self._head = ChainHead(self._call, settings.blockhash_seconds, is_surfpool=is_surfpool)
        self._landings = LandingTime()
        self._budgets = Budgets(settings, self.simulate, self._fetch_prices)
        self._rents: dict[int, Recent[int]] = {}
        self._statuses = Poller(self._fetch_statuses, settings.status_interval_seconds, most=MAX_SIGNATURES)
        self._account_reads = Poller(self._fetch_accounts, 0, most=_MAX_ACCOUNTS, at_once=_READS_AT_ONCE)
        self._history = AccountHistory(self._call, self._head, usdc_mint=cluster.usdc_mint)
        self._evidence = Evidence(self._head, self._history)
        self._notices = Notices(settings.websocket_url, settings.finality.value)

    @property
    def usdc_mint(self) -> str:
        return self._cluster.usdc_mint

    @property
    def genesis_hash(self) -> str:
        """The cluster's permanent identity. Store it with everything that is signed for it."""
        return self._cluster.genesis_hash

    @property
    def cluster_name(self) -> str:
        """See `Chain`: `localnet` for any cluster without a public name."""
        return self._cluster.name or "localnet"

    @property
    def is_test_chain(self) -> bool:
        """See `Chain`: true on a private cluster."""
        return not self._cluster.is_public

    @property
    def landing_seconds(self) -> float:
        """See `Chain`: by the observed landings."""
        seconds = self._settings.landing_seconds
        if seconds is None:
            seconds = self._landings.seconds
        return self._head.block_seconds if seconds is None else seconds

    @property
    def blockhash_life_seconds(self) -> float:
        """See `Chain`: by the observed pace of the cluster."""
        return self._head.blockhash_life_seconds

    @property
    def usual_life_seconds(self) -> float:
        """See `Chain`: by the observed pace of the cluster."""
        return (BLOCKHASH_LIFE_BLOCKS + 1) * self._head.block_seconds

    def explorer_url(self, signature: str) -> str:
        return explorer_url(signature, self._cluster.name or self._settings.url)

    async def latest_blockhash(self) -> Blockhash:
        """Return a confirmed blockhash for a new transaction, at most `blockhash_seconds` old."""
        blockhash, budget = await self._head.blockhash(), self._budgets.current()
        return blockhash if budget is None else evolve(blockhash, compute_budget=budget)

    async def block_height(self) -> int:
        """Return the height of a recent irreversible block."""
        return (await self._head.tip()).block_height

    async def signature_status(
        self, signature: str, *, absence: Absence | None = None
    ) -> SignatureStatus | None:
        """See `Chain`.

        The status is read after every height that `block_height` returned before this call, from a node whose
        position is at least that height.
        """
        if not _is_valid(signature, Signature):
            return None
        asked_at = asyncio.get_running_loop().time()
        slot, status = await self._statuses.answer(signature)
        if status is None:
            self._landings.note_missing(signature)
            self._head.check_stands_at_tip(slot)
            if absence is not None:
                await self._evidence.check_absent(signature, absence)
            return None
        is_irreversible = status.commitment == "finalized"
        # If its block is dropped, a failed transaction may still succeed.
        is_reached = status.commitment == self._settings.finality.value and status.error is None
        if not (is_irreversible or is_reached):
            self._landings.note_missing(signature)
            return SignatureStatus(is_final=False)
        self._landings.note_landed(signature, asked_at)
        landing = await self._evidence.of_outcome(signature, status)
        failure = None if landing.error is None else _failure(landing)
        return SignatureStatus(is_final=True, failure=failure, is_irreversible=is_irreversible)

    async def find_cosigned(
        self, cosigned: Cosigned, *, proof_height: int | None = None
    ) -> SignatureStatus | None:
        is_for_proof = proof_height is not None
        if proof_height is None:
            lines = await self._history.newest(cosigned.token_account, cosigned.after)
        else:
            # The cursor may be a node's invention.
            after = cosigned.after if self._head.is_surfpool else None
            lines = await self._history.proved(
                cosigned.token_account, after, proof_height, first_height=cosigned.first_height
            )
        name = await self._evidence.name_of(cosigned, lines, must_read=is_for_proof)
        status = None if name is None else await self.signature_status(name)
        if status is None:
            if name is not None and is_for_proof:
                raise ChainUnreachableError("a node does not know a transaction that its history lists")
            return None
        failure = None if status.failure is None else evolve(status.failure, chain_signature=name)
        return evolve(status, failure=failure, chain_signature=name)

    async def holds(self, token_account: str, amount_micro: int) -> bool:
        (account,) = await self.account_data([token_account])
        held = None if account is None else account.usdc
        return (0 if held is None else held.amount_micro) >= amount_micro

    async def newest_signature(self, token_account: str) -> str | None:
        return await self._history.newest_signature(token_account)

    async def landing_heights(self, blockhash: str, last_valid_height: int) -> tuple[int, int] | None:
        if self._head.is_surfpool:
            return reported_landing_heights(last_valid_height)
        return await chain_head.landing_heights(
            self._call, await self._head.tip(), blockhash, last_valid_height
        )

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:
        # The last check before an expiry is accepted: take the time to verify the node's cluster.
        self._identity.forget()
        first_slot = replies.read_slot(await self._call("getFirstAvailableBlock"))
        if await chain_head.read_height(self._call, first_slot) > first_height:
            return False
        if self._head.is_surfpool:
            return True
        # Checked even for new blocks, because a node may report a wrong height.
        return await chain_head.has_all_blocks(self._call, await self._head.tip(), first_height, last_height)

    async def wait_for_notice(self, signature: str, seconds: float) -> None:
        """Wait until the status may have changed: until a notification, or for `seconds`."""
        await self._notices.wait(signature, seconds)

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        """See `Chain`.

        Raises:
            ChainUnreachableError: the node did not accept it, or it is unknown whether it did.
            TransactionTooLargeError: `raw` is larger than a packet.
            ValueError: `raw` is not a signed transaction.
        """
        transaction = transaction_of(raw)
        signature, shape = str(transaction.signatures[0]), shape_of(transaction.message)
        # Both before it can land: a later simulation would give another result, and not every node notifies
        # of past events.
        await self._budgets.learn(shape, raw)
        await self._notices.expect(signature)
        try:
            answer = await self._send(raw, skip_preflight=False)
        except RpcRefusalError as refusal:
            if _is_duplicate(refusal):
                return
            if not (even_if_failing and isinstance(_transaction_error(refusal), dict)):
                # A failure that is never recorded on chain: this node does not know the blockhash yet, or the
                # fee payer has no SOL.
                raise
            if "ComputationalBudgetExceeded" in str(_transaction_error(refusal)):
                self._budgets.forget(shape)
            answer = await self._send(raw, skip_preflight=True)
        if answer != signature:
            raise malformed("the signature of another transaction")
        self._landings.note_sent(signature, asyncio.get_running_loop().time(), self.landing_seconds)

    async def simulate(self, raw: bytes) -> int | None:
        """Return how many compute units a transaction would use; None if it would fail."""
        options = {"encoding": "base64", "sigVerify": False, "replaceRecentBlockhash": True, **_CONFIRMED}
        return replies.read_simulation(await self._call("simulateTransaction", _base64(raw), options))

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
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
        (account,) = await self._accounts([address])
        return None if account is None else (account.lamports, len(account.data))

    async def account_data(self, addresses: Sequence[str]) -> list[AccountData | None]:
        """See `Chain`: from a node whose position is at least the last reported one."""
        tip, mint = await self._head.tip(), self.usdc_mint
        # An account may have ten megabytes, and a seller may name any.
        part = {"offset": 0, "length": KNOWN_BYTES}
        options = {"encoding": "base64", "commitment": self._settings.finality.value, "dataSlice": part}
        reply = await self._call("getMultipleAccounts", list(addresses), options)
        if replies.read_position(reply) < tip.slot:
            raise ChainUnreachableError("a node that lags behind shows old accounts")
        accounts = replies.read_accounts(reply, len(addresses))
        return [
            None
            if account is None
            else read_account(address, program=account.program, data=account.data, usdc_mint=mint)
            for address, account in zip(addresses, accounts, strict=True)
        ]

    async def blockhash_slot(self, blockhash: str) -> int | None:
        reply = await self._call("isBlockhashValid", blockhash, _CONFIRMED)
        slot, is_valid = replies.read_validity(reply)
        return slot if is_valid else None

    async def channel_history(
        self, channel: str, *, signer: str, to: str, including: str | None = None
    ) -> ChannelHistory:
        return await self._history.channel_history(channel, signer, to, including)

    async def is_signed_by(self, signature: str, signer: str) -> bool:
        return await self._history.is_signed_by(signature, signer)

    async def rent_exemption(self, size: int) -> int:
        async def fetch() -> int:
            return replies.read_lamports(await self._call("getMinimumBalanceForRentExemption", size))

        return await self._rents.setdefault(size, Recent(fetch, _RENT_SECONDS)).get()

    def deposits(
        self, token_account: str, *, after: str | None, posted: Posted = nothing_posted
    ) -> AsyncIterator[DepositBatch]:
        """See `Chain`. The cursor is a signature."""
        return self._history.deposits(token_account, after=after, posted=posted)

    async def close(self) -> None:
        """Close every connection. Waiting callers get an error."""
        self._statuses.close()
        self._account_reads.close()
        self._budgets.close()
        self._head.close()
        self._history.close()
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
        except ChainUnreachableError:
            # After an outage, the next response may come from another cluster.
            self._identity.forget()
            raise

    async def _check_identity(self) -> None:
        genesis_hash = replies.read_hash(await self._client.call("getGenesisHash"))
        if genesis_hash != self.genesis_hash:
            raise ChainUnreachableError(
                f"the endpoint now serves the cluster {genesis_hash}, not {self.genesis_hash}"
            )

    async def _fetch_prices(self) -> list[int]:
        return replies.read_prices(await self._call("getRecentPrioritizationFees"))

    async def _fetch_statuses(self, signatures: Sequence[str]) -> list[tuple[int, ReportedStatus | None]]:
        options = {"searchTransactionHistory": True}
        reply = await self._call("getSignatureStatuses", list(signatures), options)
        slot, statuses = replies.read_statuses(reply, len(signatures))
        return [(slot, status) for status in statuses]

    async def _send(self, raw: bytes, *, skip_preflight: bool) -> str:
        options = {
            "encoding": "base64",
            "maxRetries": 0,
            "preflightCommitment": "confirmed",  # The same as for blockhashes.
            "skipPreflight": skip_preflight,
        }
        return replies.signature_text(await self._call("sendTransaction", _base64(raw), options))

    async def _accounts(self, addresses: Sequence[str]) -> list[ChainAccount | None]:
        wanted = sorted({address for address in addresses if _is_valid(address, Pubkey)})
        reads = asyncio.gather(*(self._account_reads.answer(address) for address in wanted))
        try:
            # The timeout includes the wait for a turn.
            async with asyncio.timeout(self._settings.timeout_seconds):
                answers = await reads
        except TimeoutError:
            raise ChainUnreachableError("the accounts could not be read in time") from None
        found = dict(zip(wanted, answers, strict=True))
        return [found.get(address) for address in addresses]

    async def _fetch_accounts(self, addresses: Sequence[str]) -> list[ChainAccount | None]:
        # With the finality of settlements: amounts debited in a block that is not final are still reserved.
        options = {"encoding": "base64", "commitment": self._settings.finality.value}
        reply = await self._call("getMultipleAccounts", list(addresses), options)
        return replies.read_accounts(reply, len(addresses))


def _failure(landing: Landing) -> ChainFailure:
    """Return why a transaction failed, by the program of the instruction that failed."""
    detail = f"{landing.error}: {landing.last_log}" if landing.last_log else str(landing.error)
    reason = json_failure_reason(landing.error, landing.programs)
    return ChainFailure(reason=reason, detail=detail[:_MAX_DETAIL])


def _transaction_error(refusal: RpcRefusalError) -> object:
    return refusal.data.get("err") if isinstance(refusal.data, dict) else None


def _is_duplicate(refusal: RpcRefusalError) -> bool:
    # Some nodes report it only in the message. A wrong guess is harmless, because the status decides.
    return _transaction_error(refusal) == "AlreadyProcessed" or "already been processed" in refusal.detail


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _is_valid(text: str, kind: type[Signature] | type[Pubkey]) -> bool:
    try:
        kind.from_string(text)
    except ValueError:
        return False
    return True


# --- Connecting: identifies the cluster, and checks that a server may run on it

_OPTIONS: Final = {"encoding": "base64", "commitment": "confirmed"}

logger: logging.Logger = logging.getLogger(__name__)


def http_client(settings: RpcSettings) -> RpcCaller:
    """Return a client that calls the endpoint of the settings over HTTP."""
    return RpcClient(
        settings.url, timeout_seconds=settings.timeout_seconds, max_connections=settings.max_connections
    )


async def connect(
    settings: RpcSettings,
    *,
    stored_genesis_hash: str | None,
    treasury: str,
    mint_authority: str,
    make_client: Callable[[RpcSettings], RpcCaller] | None = None,
) -> RpcChain:
    """Connect to the cluster behind an endpoint, if a server may run on it.

    For a new database, `stored_genesis_hash` is None, and the caller must store `RpcChain.genesis_hash`
    before anything is signed. Warnings are logged if the treasury has no SOL, or if `mint_authority` cannot
    mint on a private cluster. `make_client` None means a client over HTTP.

    Raises:
        ClusterRefusedError: the server must not run on this cluster with these settings, or the endpoint
            refuses every request.
        ChainUnreachableError: the endpoint did not respond.
    """
    client = (make_client or http_client)(settings)
    try:
        cluster = choose_cluster(
            replies.read_hash(await client.call("getGenesisHash")),
            stored_genesis_hash=stored_genesis_hash,
            usdc_mint=settings.usdc_mint,
            allow_mainnet=settings.allow_mainnet,
        )
        reply = await client.call("getMultipleAccounts", [cluster.usdc_mint, treasury], _OPTIONS)
        mint, payer = replies.read_accounts(reply, 2)
        _check_mint(cluster, mint, mint_authority)
        if payer is None or not payer.lamports:
            logger.warning("the fee payer %s holds no SOL: until it does, no transaction lands", treasury)
        is_surfpool = not cluster.is_public and replies.read_is_surfpool(await client.call("getVersion"))
    except BaseException as error:
        await client.close()
        if isinstance(error, EndpointRefusesError):
            message = f"the RPC endpoint refuses to be used: {error}; check --rpc-url"
            raise ClusterRefusedError(message) from error
        raise
    return RpcChain(client, settings, cluster, is_surfpool=is_surfpool)


def _check_mint(cluster: Cluster, account: ChainAccount | None, mint_authority: str) -> None:
    if account is None:
        raise ClusterRefusedError(
            f"the cluster has no USDC mint at {cluster.usdc_mint}: create one there, with {USDC_DECIMALS} "
            f"decimals and {mint_authority} as its authority, or set another mint"
        )
    if account.program != str(TOKEN_PROGRAM):
        raise ClusterRefusedError(f"{cluster.usdc_mint} is not a mint of the Token program")
    try:
        mint = Mint.from_bytes(account.data)
    except ValueError:
        raise ClusterRefusedError(f"{cluster.usdc_mint} is not a mint") from None
    if mint.decimals != USDC_DECIMALS:
        raise ClusterRefusedError(
            f"the mint {cluster.usdc_mint} has {mint.decimals} decimals, USDC has {USDC_DECIMALS}"
        )
    if not cluster.is_public and str(mint.mint_authority) != mint_authority:
        logger.warning(
            "the authority of the mint %s is %s, not %s: the sandbox cannot fund accounts",
            cluster.usdc_mint,
            mint.mint_authority,
            mint_authority,
        )
