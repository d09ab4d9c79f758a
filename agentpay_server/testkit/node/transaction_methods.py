"""Methods of the RPC node that send or simulate transactions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from solders.account import Account
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from solders.transaction_status import TransactionErrorFieldless, TransactionErrorType

from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.virtual_machine import has_lookups
from agentpay_server.testkit.node import rendering
from agentpay_server.testkit.node.errors import (
    INTERNAL_ERROR,
    PREFLIGHT_FAILURE,
    SIGNATURE_FAILURE,
    RpcError,
    invalid_params,
)
from agentpay_server.testkit.node.group import Json, Method, MethodGroup, decimals_on
from agentpay_server.testkit.node.params import Options, Params, address
from agentpay_server.testkit.node.rendering import account_form, account_json
from agentpay_server.testkit.node.transaction_errors import error_json, error_words

Airdrop = Callable[[str, int], Awaitable[str]]
"""Sends lamports to an address and returns the signature."""

_MOST_AIRDROP_LAMPORTS: Final = 10**15


class TransactionMethods(MethodGroup):
    """Sends and simulates transactions, and requests airdrops."""

    def __init__(self, chain: EmbeddedChain, airdrop: Airdrop | None) -> None:
        super().__init__(chain)
        self._airdrop = airdrop

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "requestAirdrop": self._request_airdrop,
            "sendTransaction": self._send_transaction,
            "simulateTransaction": self._simulate_transaction,
        }

    async def _simulate_transaction(self, params: Params) -> Json:
        text, options = params.text(0), params.options(1)
        self.check(options)
        transaction = rendering.read_transaction(text, _encoding(options))
        with_signatures, replaces = options.flag("sigVerify"), options.flag("replaceRecentBlockhash")
        if with_signatures and replaces:
            raise invalid_params("sigVerify may not be used with replaceRecentBlockhash")
        accounts = options.options("accounts")
        addresses: list[Pubkey] = []
        if accounts is not None:
            most = len(transaction.message.account_keys)
            addresses = [address(item) for item in accounts.items("addresses", most=most)]
        if with_signatures and not _is_signed(transaction):
            raise RpcError(SIGNATURE_FAILURE, "Transaction signature verification failure")
        response, error, after = await self._simulated(transaction, with_blockhash=not replaces)
        meta: TransactionMetadata | None = response.pop("meta")
        if options.flag("innerInstructions") and meta is not None:
            response["innerInstructions"] = rendering.inner_instructions(
                meta, transaction.message.account_keys
            )
        if accounts is not None and error is None:
            form = account_form(accounts, "base64")

            def read(svm: LiteSVM) -> list[Json]:
                found = [after[each] if each in after else svm.get_account(each) for each in addresses]
                return [account_json(account, form, decimals_on(svm)) for account in found]

            response["accounts"] = await self.chain.read(read)
        if replaces:
            blockhash = await self.chain.latest_blockhash()
            response["replacementBlockhash"] = {
                "blockhash": blockhash.value,
                "lastValidBlockHeight": blockhash.last_valid_block_height,
            }
        return self.in_context(response)

    async def _send_transaction(self, params: Params) -> Json:
        text, options = params.text(0), params.options(1)
        options.text("preflightCommitment")
        self.check(options)
        transaction = rendering.read_transaction(text, _encoding(options))
        signature, is_signed = str(transaction.signatures[0]), _is_signed(transaction)
        if options.flag("skipPreflight"):
            # Like a node, accept a transaction that can never land, and drop it.
            if is_signed and not has_lookups(transaction):
                await self.chain.send(bytes(transaction))
            return signature
        if not is_signed:
            raise RpcError(SIGNATURE_FAILURE, "Transaction signature verification failure")
        response, error, _ = await self._simulated(transaction, with_blockhash=True)
        if error is not None:
            del response["meta"]
            message = f"Transaction simulation failed: {error_words(error)}"
            raise RpcError(PREFLIGHT_FAILURE, message, response)
        await self.chain.send(bytes(transaction))
        return signature

    async def _simulated(
        self, transaction: VersionedTransaction, *, with_blockhash: bool
    ) -> tuple[dict[str, Json], TransactionErrorType | None, Mapping[Pubkey, Account]]:
        """Simulate a transaction; return the result as JSON, the error, and the accounts afterwards."""
        # Callers verify signatures, because the machine's check stops at the first missing one.
        result = await self.chain.simulate(transaction, with_signatures=False, with_blockhash=with_blockhash)
        error: TransactionErrorType | None = None
        meta: TransactionMetadata | None = None
        after: Mapping[Pubkey, Account] = {}
        if isinstance(result, FailedTransactionMetadata):
            error, meta = result.err(), result.meta()
        elif isinstance(result, TransactionErrorFieldless):
            error = result
        else:
            meta, after = result.meta(), dict(result.post_accounts())
        response: dict[str, Json] = {
            "accounts": None,
            "err": None if error is None else error_json(error),
            "fee": None if meta is None else meta.fee(),
            "innerInstructions": None,
            "loadedAccountsDataSize": 0,
            "logs": [] if meta is None else meta.logs(),
            "meta": meta,
            "replacementBlockhash": None,
            "returnData": None if meta is None else rendering.return_data(meta),
            "unitsConsumed": 0 if meta is None else meta.compute_units_consumed(),
        }
        return response, error, after

    async def _request_airdrop(self, params: Params) -> Json:
        wanted, lamports = params.address(0), params.count(1, most=_MOST_AIRDROP_LAMPORTS)
        if self._airdrop is None:
            raise RpcError(INTERNAL_ERROR, "This node gives no SOL away")
        return await self._airdrop(str(wanted), lamports)


def _encoding(options: Options) -> str:
    return options.choice("encoding", ("base58", "base64"), "base58")


def _is_signed(transaction: VersionedTransaction) -> bool:
    try:
        return all(transaction.verify_with_results())
    except Exception:  # noqa: BLE001 - whatever solders raises, it is not signed
        return False
