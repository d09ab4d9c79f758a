"""A seller's own key: pays the fees of the payments that it receives, and broadcasts them.

Requests test SOL from an RPC node when it has little left, so it works only on test chains.
"""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import (
    associated_token_address,
    create_associated_token_account_idempotent,
)
from agentpay_server.testkit.node.jsonrpc import RpcCall, RpcError
from agentpay_server.testkit.node.methods import Node

Rpc = Callable[..., Awaitable[Any]]
"""Calls a method of an RPC node and returns its result; an error is an `RpcError`."""

CONFIRM_SECONDS: Final = 30.0

_MIN_LAMPORTS: Final = 1_000_000_000
_AIRDROP_LAMPORTS: Final = 10 * _MIN_LAMPORTS
_PAUSE_SECONDS: Final = 0.2
_BASE64: Final = {"encoding": "base64"}
_CONFIRMED: Final = ("confirmed", "finalized")


class NotConfirmedError(Exception):
    """The transaction may or may not land."""


class FailedOnChainError(Exception):
    """A transaction landed and failed, moving nothing; `error` is as the node reports it."""

    def __init__(self, error: object) -> None:
        super().__init__(f"the transaction failed on chain: {error}")
        self.error = error


class SimulationFailedError(Exception):
    """A transaction would not land now; the message is the node's error."""


def rpc_of(node: Node) -> Rpc:
    """Call a node in this process, on the thread that owns its chain."""

    async def call(method: str, *params: Any) -> Any:  # noqa: ANN401 - JSON
        return await node.result(RpcCall(None, method, params))

    return call


def keypair_of(*names: str) -> Keypair:
    """Derive a key from names: the same in every process, and known to everyone. Only for test SOL."""
    return Keypair.from_seed(hashlib.sha256("\n".join(("agentpay test seller", *names)).encode()).digest())


def completed(transaction: VersionedTransaction, keypair: Keypair) -> VersionedTransaction:
    """Sign if the transaction has a slot for the key."""
    message = transaction.message
    keys = message.account_keys[: message.header.num_required_signatures]
    signatures: list[Signature] = list(transaction.signatures)
    if keypair.pubkey() not in keys or len(signatures) != len(keys):
        return transaction
    signatures[keys.index(keypair.pubkey())] = keypair.sign_message(to_bytes_versioned(message))
    return VersionedTransaction.populate(message, signatures)


class FeePayer:
    def __init__(self, keypair: Keypair, rpc: Rpc) -> None:
        self._keypair = keypair
        self._rpc = rpc
        self._airdrops = asyncio.Lock()
        self.address: str = str(keypair.pubkey())

    async def ready(self) -> None:
        """Request test SOL, if little is left."""
        if await self._lamports() >= _MIN_LAMPORTS:
            return
        async with self._airdrops:
            # Another task may have requested it meanwhile.
            if await self._lamports() < _MIN_LAMPORTS:
                signature = await self._rpc("requestAirdrop", self.address, _AIRDROP_LAMPORTS)
                await self.confirmed(signature)

    async def ensure_token_accounts(self, owners: Sequence[str], mint: str) -> None:
        """Create those of the owners' associated token accounts that are missing."""
        addresses = [associated_token_address(owner, mint) for owner in owners]
        found = (await self._rpc("getMultipleAccounts", addresses))["value"]
        missing = [owner for owner, account in zip(owners, found, strict=True) if account is None]
        if missing:
            await self.create_token_accounts(missing, mint)

    async def create_token_accounts(self, owners: Iterable[str], mint: str) -> None:
        """Create the owners' associated token accounts, at the cost of this key. Repeatable."""
        await self.ready()
        payer = self._keypair.pubkey()
        steps = [
            create_associated_token_account_idempotent(
                payer=payer, owner=Pubkey.from_string(owner), mint=Pubkey.from_string(mint)
            )
            for owner in owners
        ]
        latest = (await self._rpc("getLatestBlockhash"))["value"]["blockhash"]
        message = Message.new_with_blockhash(steps, payer, Hash.from_string(latest))
        await self.confirmed(await self.broadcast(VersionedTransaction(message, [self._keypair])))

    def completed(self, transaction: VersionedTransaction) -> VersionedTransaction:
        """Sign if the transaction has a slot for this key."""
        return completed(transaction, self._keypair)

    async def simulate(self, transaction: VersionedTransaction) -> None:
        """Raise `SimulationFailedError` unless the transaction would land now.

        A signature or money may be missing, or it may have already landed.
        """
        try:
            response = await self._rpc(
                "simulateTransaction", _text(transaction), {**_BASE64, "sigVerify": True}
            )
        except RpcError as error:
            raise SimulationFailedError(error.message) from None
        if response["value"]["err"] is not None:
            raise SimulationFailedError(str(response["value"]["err"]))

    async def has_landed(self, transaction: VersionedTransaction) -> bool:
        """Return whether a completed transaction has landed without an error.

        Its first signature is that of its fee payer, which is the same whenever the key signs it.
        """
        signatures = [str(signature) for signature in transaction.signatures[:1]]
        if not signatures:
            return False
        options = {"searchTransactionHistory": True}
        (status,) = (await self._rpc("getSignatureStatuses", signatures, options))["value"]
        return status is not None and status["err"] is None

    async def broadcast(self, transaction: VersionedTransaction) -> str:
        signature: str = await self._rpc(
            "sendTransaction", _text(transaction), {**_BASE64, "skipPreflight": True}
        )
        return signature

    async def confirmed(self, signature: str, *, within_seconds: float = CONFIRM_SECONDS) -> None:
        """Wait until a transaction has landed; `NotConfirmedError` if not in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_seconds
        while True:
            (status,) = (await self._rpc("getSignatureStatuses", [signature]))["value"]
            if status is not None and status["confirmationStatus"] in _CONFIRMED:
                break
            if loop.time() >= deadline:
                raise NotConfirmedError(f"{signature} has not landed within {within_seconds:.0f} seconds")
            await asyncio.sleep(_PAUSE_SECONDS)
        if status["err"] is not None:
            raise FailedOnChainError(status["err"])

    async def _lamports(self) -> int:
        lamports: int = (await self._rpc("getBalance", self.address))["value"]
        return lamports


def _text(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode("ascii")
