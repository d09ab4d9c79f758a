"""The RPC node: its methods, by name.

It matches Solana's node in what clients rely on: names, defaults, error codes, and `null` for missing
accounts and transactions.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from solders.account import Account
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from solders.transaction_status import TransactionErrorFieldless, TransactionErrorType

from agentpay_server.chain import parsing
from agentpay_server.chain.embedded.blocks import FIRST_SLOT, slot_at
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.virtual_machine import Executed, has_lookups
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.plugins.node import parsed, rendering
from agentpay_server.plugins.node.jsonrpc import (
    BLOCK_NOT_AVAILABLE,
    CONTEXT_SLOT_NOT_REACHED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    NODE_UNHEALTHY,
    PREFLIGHT_FAILURE,
    SIGNATURE_FAILURE,
    Options,
    Params,
    RpcCall,
    RpcError,
    address,
    invalid_params,
)
from agentpay_server.plugins.node.rendering import account_form, account_json, error_json, error_words

VERSION = "3.0.0"
"""The Solana version that this node emulates."""

Json = Any

Airdrop = Callable[[str, int], Awaitable[str]]
"""Sends lamports to an address and returns the signature."""

_SLOTS_PER_EPOCH: Final = 432_000
_MOST_ADDRESSES: Final = 128
_MOST_ACCOUNT_BYTES: Final = 10 * 1024 * 1024
_MOST_BLOCKS: Final = 500_000
_DETAILS: Final = frozenset({"full", "signatures", "none"})
_MOST_ACCOUNTS: Final = 100
_MOST_FILTERS: Final = 4
_MAX_COMPARED_CHARACTERS: Final = 256
_MOST_AIRDROP_LAMPORTS: Final = 10**15
_MOST_SIGNATURES: Final = 256
_MOST_LINES: Final = 1_000


class Node:
    """Handles calls, on the thread of the chain. Without `airdrop`, it refuses airdrops."""

    def __init__(self, chain: EmbeddedChain, airdrop: Airdrop | None = None) -> None:
        self.chain: Final = chain
        self._airdrop = airdrop
        self._methods: Mapping[str, Callable[[Params], Awaitable[Json]]] = {
            "getAccountInfo": self._account_info,
            "getBalance": self._balance,
            "getBlock": self._block,
            "getBlockHeight": self._block_height,
            "getBlocksWithLimit": self._blocks_with_limit,
            "getEpochInfo": self._epoch_info,
            "getFirstAvailableBlock": self._first_available_block,
            "getGenesisHash": self._genesis_hash,
            "getHealth": self._health,
            "getLatestBlockhash": self._latest_blockhash,
            "getMinimumBalanceForRentExemption": self._rent_exemption,
            "getMultipleAccounts": self._multiple_accounts,
            "getProgramAccounts": self._program_accounts,
            "getRecentPrioritizationFees": self._prioritization_fees,
            "getSignatureStatuses": self._signature_statuses,
            "getSignaturesForAddress": self._signatures_for_address,
            "getSlot": self._slot,
            "getTokenAccountBalance": self._token_account_balance,
            "getTokenAccountsByOwner": self._token_accounts_by_owner,
            "getTransaction": self._transaction,
            "getVersion": self._version,
            "isBlockhashValid": self._is_blockhash_valid,
            "requestAirdrop": self._request_airdrop,
            "sendTransaction": self._send_transaction,
            "simulateTransaction": self._simulate_transaction,
        }

    async def result(self, call: RpcCall) -> Json:
        """Return the result of a call.

        Raises:
            RpcError: the call is refused.
        """
        if call.error is not None:
            raise call.error
        method = self._methods.get(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found")
        try:
            await self.chain.recall()
            return await method(Params(call.params))
        except ChainUnreachableError:
            raise RpcError(NODE_UNHEALTHY, "Node is unhealthy: its ledger does not respond") from None

    def _check(self, options: Options) -> None:
        """Validate the common options: the commitment, and the minimum context slot."""
        options.commitment()
        least = options.count("minContextSlot")
        if least is not None and least > self.chain.slot:
            raise RpcError(
                CONTEXT_SLOT_NOT_REACHED,
                "Minimum context slot has not been reached",
                {"contextSlot": self.chain.slot},
            )

    def _in_context(self, value: Json) -> Json:
        """Return a value with its context: the slot that it is from."""
        return {"context": {"slot": self.chain.slot, "apiVersion": VERSION}, "value": value}

    # --- The identity and the position of the chain

    async def _latest_blockhash(self, params: Params) -> Json:
        self._check(params.options(0))
        blockhash = await self.chain.latest_blockhash()
        return self._in_context(
            {"blockhash": blockhash.value, "lastValidBlockHeight": blockhash.last_valid_block_height}
        )

    async def _is_blockhash_valid(self, params: Params) -> Json:
        text = params.text(0)
        self._check(params.options(1))
        try:
            blockhash = Hash.from_string(text)
        except Exception:  # noqa: BLE001 - solders has a kind of its own for it
            raise invalid_params(f"{text[:64]!r} is not a blockhash") from None
        return self._in_context(await self.chain.is_blockhash_valid(blockhash))

    async def _block_height(self, params: Params) -> Json:
        self._check(params.options(0))
        return await self.chain.block_height()

    async def _slot(self, params: Params) -> Json:
        self._check(params.options(0))
        return slot_at(await self.chain.block_height())

    async def _epoch_info(self, params: Params) -> Json:
        self._check(params.options(0))
        height = await self.chain.block_height()
        slot = slot_at(height)
        return {
            "absoluteSlot": slot,
            "blockHeight": height,
            "epoch": slot // _SLOTS_PER_EPOCH,
            "slotIndex": slot % _SLOTS_PER_EPOCH,
            "slotsInEpoch": _SLOTS_PER_EPOCH,
            "transactionCount": self.chain.transaction_count,
        }

    async def _genesis_hash(self, _params: Params) -> Json:
        return self.chain.genesis_hash

    async def _version(self, _params: Params) -> Json:
        return {"solana-core": VERSION, "feature-set": 0}

    async def _health(self, _params: Params) -> Json:
        await self.chain.block_height()
        return "ok"

    async def _rent_exemption(self, params: Params) -> Json:
        size = params.count(0, most=_MOST_ACCOUNT_BYTES)
        return await self.chain.rent_exemption(size)

    async def _prioritization_fees(self, params: Params) -> Json:
        if params.get(0) is not None:
            params.addresses(0, most=_MOST_ADDRESSES)
        return [{"slot": self.chain.slot, "prioritizationFee": 0}]

    # --- Blocks. Every slot has a block, and most are empty

    async def _first_available_block(self, _params: Params) -> Json:
        return slot_at(self.chain.history.first_height)

    async def _blocks_with_limit(self, params: Params) -> Json:
        first, limit = params.count(0), params.count(1, most=_MOST_BLOCKS)
        self._check(params.options(2))
        first = max(first, slot_at(self.chain.history.first_height))
        return list(range(first, min(first + limit, slot_at(await self.chain.block_height()) + 1)))

    async def _block(self, params: Params) -> Json:
        slot, options = params.count(0), params.options_or_encoding(1)
        self._check(options)
        details = options.choice("transactionDetails", _DETAILS, "full")
        encoding = options.choice("encoding", rendering.TRANSACTION_ENCODINGS, "json")
        most_version = options.count("maxSupportedTransactionVersion", most=255)
        height = await self._height(slot)

        def read(svm: LiteSVM) -> Json:
            executed, decimals = self.chain.history.of_block(height), decimals_on(svm)
            if details == "signatures":
                return {"signatures": [each.signature for each in executed]}
            if details == "none":
                return {}
            return {
                "transactions": [
                    rendering.in_block(each, encoding, most_version, decimals) for each in executed
                ]
            }

        previous = max(height - 1, 0)
        block = {
            "blockHeight": height,
            "blockTime": self.chain.block_time(height),
            "blockhash": str(self.chain.blockhash_at(height)),
            "parentSlot": slot_at(previous),
            "previousBlockhash": str(self.chain.blockhash_at(previous)),
            **await self.chain.read(read),
        }
        return block if not _wants_rewards(options) else {**block, "rewards": []}

    async def _height(self, slot: int) -> int:
        """Return the height of a slot's block.

        Raises:
            RpcError: the block is unknown, or not yet produced.
        """
        height = slot - FIRST_SLOT
        if not self.chain.history.first_height <= height <= await self.chain.block_height():
            raise RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
        return height

    # --- Accounts

    async def _balance(self, params: Params) -> Json:
        wanted = params.address(0)
        self._check(params.options(1))
        return self._in_context(await self.chain.read(lambda svm: svm.get_balance(wanted) or 0))

    async def _account_info(self, params: Params) -> Json:
        return self._in_context((await self._accounts([params.address(0)], params.options(1)))[0])

    async def _multiple_accounts(self, params: Params) -> Json:
        addresses = params.addresses(0, most=_MOST_ACCOUNTS)
        return self._in_context(await self._accounts(addresses, params.options(1), default="base64"))

    async def _accounts(
        self, addresses: Sequence[Pubkey], options: Options, default: str = "binary"
    ) -> list[Json]:
        self._check(options)
        form = account_form(options, default)

        def read(svm: LiteSVM) -> list[Json]:
            return [account_json(svm.get_account(each), form, decimals_on(svm)) for each in addresses]

        return await self.chain.read(read)

    async def _token_account_balance(self, params: Params) -> Json:
        wanted = params.address(0)
        self._check(params.options(1))

        def read(svm: LiteSVM) -> Json:
            account = svm.get_account(wanted)
            if account is None:
                raise invalid_params("could not find account")
            held = parsed.token_account(account)
            if held is None:
                raise invalid_params("not a Token account")
            return parsed.token_amount(held.amount, decimals_on(svm)(held.mint))

        return self._in_context(await self.chain.read(read))

    async def _token_accounts_by_owner(self, params: Params) -> Json:
        wanted, kind, options = params.address(0), params.options(1), params.options(2)
        mint, program = kind.text("mint"), kind.text("programId")
        if (mint is None) == (program is None):
            raise invalid_params("give either mint or programId")
        programs = parsed.TOKEN_PROGRAMS if program is None else (address(program),)
        if not set(programs) <= set(parsed.TOKEN_PROGRAMS):
            raise invalid_params("unrecognized Token program id")
        wanted_mint = None if mint is None else address(mint)

        def matches(account: Account) -> bool:
            held = parsed.token_account(account)
            return held is not None and held.owner == wanted and wanted_mint in (None, held.mint)

        return self._in_context(await self._found(programs, matches, options))

    async def _program_accounts(self, params: Params) -> Json:
        program, options = params.address(0), params.options(1)
        found = await self._found((program,), _account_filter(options), options)
        return self._in_context(found) if options.flag("withContext") else found

    async def _found(
        self, programs: Sequence[Pubkey], matches: Callable[[Account], bool], options: Options
    ) -> list[Json]:
        self._check(options)
        form = account_form(options)

        def read(svm: LiteSVM) -> list[Json]:
            accounts = [found for program in programs for found in svm.get_program_accounts(program)]
            return [
                {"pubkey": str(at), "account": account_json(account, form, decimals_on(svm))}
                for at, account in sorted(accounts, key=lambda found: bytes(found[0]))
                if account.lamports and matches(account)
            ]

        return await self.chain.read(read)

    # --- Sending and simulating transactions

    async def _simulate_transaction(self, params: Params) -> Json:
        text, options = params.text(0), params.options(1)
        self._check(options)
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
        return self._in_context(response)

    async def _send_transaction(self, params: Params) -> Json:
        text, options = params.text(0), params.options(1)
        options.text("preflightCommitment")
        self._check(options)
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

    # --- Past transactions. All of them are final; those before `getFirstAvailableBlock` are unknown, as on a
    # node that prunes.

    async def _signature_statuses(self, params: Params) -> Json:
        signatures = params.signatures(0, most=_MOST_SIGNATURES)
        params.options(1)
        # Wait until the ledger holds every executed transaction.
        await self.chain.read(lambda _: None)
        found = [self.chain.history.get(signature) for signature in signatures]
        return self._in_context([None if executed is None else _status(executed) for executed in found])

    async def _transaction(self, params: Params) -> Json:
        signature, options = params.signature(0), params.options_or_encoding(1)
        self._check(options)
        encoding = options.choice("encoding", rendering.TRANSACTION_ENCODINGS, "json")
        most_version = options.count("maxSupportedTransactionVersion", most=255)

        def read(svm: LiteSVM) -> Json:
            executed = self.chain.history.get(signature)
            if executed is None:
                return None
            return rendering.transaction_json(executed, encoding, most_version, decimals_on(svm))

        return await self.chain.read(read)

    async def _signatures_for_address(self, params: Params) -> Json:
        wanted, options = params.address(0), params.options(1)
        self._check(options)
        limit = options.count("limit", least=1, most=_MOST_LINES) or _MOST_LINES
        before, until = options.signature("before"), options.signature("until")
        await self.chain.read(lambda _: None)
        lines: list[Json] = []
        is_reached = before is None
        for executed in self.chain.history.of_address(wanted):
            if executed.signature == until or len(lines) == limit:
                break
            if is_reached:
                lines.append(_line(executed))
            is_reached = is_reached or executed.signature == before
        return lines


def decimals_on(svm: LiteSVM) -> parsed.Decimals:
    """Return a function from a mint to its decimals; 0 if the mint is missing."""

    def decimals(mint: Pubkey) -> int:
        account = svm.get_account(mint)
        issued = None if account is None else parsed.mint(account)
        return 0 if issued is None else issued.decimals

    return decimals


def _wants_rewards(options: Options) -> bool:
    return options.flag("rewards") or not options.has("rewards")


def _account_filter(options: Options) -> Callable[[Account], bool]:
    """Return whether an account passes all filters of a call's options."""
    filters = [_filter(each) for each in options.items("filters", most=_MOST_FILTERS)]
    return lambda account: all(matches(account) for matches in filters)


def _filter(value: Json) -> Callable[[Account], bool]:
    options = Options(value) if isinstance(value, dict) else Options({})
    size, compared = options.count("dataSize"), options.options("memcmp")
    if size is not None:
        return lambda account: len(account.data) == size
    if compared is None:
        raise invalid_params("a filter is dataSize or memcmp")
    offset, text = compared.count("offset") or 0, compared.text("bytes") or ""
    encoding = compared.choice("encoding", ("base58", "base64"), "base58")
    if len(text) > _MAX_COMPARED_CHARACTERS:
        raise invalid_params("memcmp compares too many bytes")
    try:
        wanted = base64.b64decode(text, validate=True) if encoding == "base64" else parsing.from_base58(text)
    except ValueError:
        raise invalid_params(f"memcmp: bytes is not {encoding}") from None
    return lambda account: account.data[offset : offset + len(wanted)] == wanted


def _encoding(options: Options) -> str:
    return options.choice("encoding", ("base58", "base64"), "base58")


def _is_signed(transaction: VersionedTransaction) -> bool:
    try:
        return all(transaction.verify_with_results())
    except Exception:  # noqa: BLE001 - whatever solders raises, it is not signed
        return False


def _status(executed: Executed) -> Json:
    error = None if executed.error is None else error_json(executed.error)
    return {
        "slot": slot_at(executed.height),
        "confirmations": None,
        "err": error,
        "status": rendering.status_json(error),
        "confirmationStatus": "finalized",
    }


def _line(executed: Executed) -> Json:
    return {
        "signature": executed.signature,
        "slot": slot_at(executed.height),
        "err": None if executed.error is None else error_json(executed.error),
        "memo": rendering.memo_text(executed.transaction),
        "blockTime": executed.time_us // 1_000_000,
        "confirmationStatus": "finalized",
    }
