"""A seller's part in a payment: checks it, signs as the fee payer, and broadcasts it.

The checks are as strict as the strictest peer, and pure functions. x402 requires one order of instructions.
MPP requires the transfers and memos of the challenge, and nothing else; only a payer who pays the fee may
also create the token accounts of the splits. Neither accepts a transaction in which the seller's fee payer
takes part: its signature must pay the fee and nothing else.

The fee payer's key requests test SOL from an RPC node when it has little left, so it works only on test
chains.
"""

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final

from attrs import frozen
from solders.hash import Hash
from solders.instruction import CompiledInstruction, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain.custody import transaction_of
from agentpay_server.chain.instructions import (
    ASSOCIATED_TOKEN_PROGRAM,
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    USDC_DECIMALS,
    associated_token_address,
    create_associated_token_account_idempotent,
)
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.plugins.node.jsonrpc import INTERNAL_ERROR, PREFLIGHT_FAILURE, RpcCall, RpcError
from agentpay_server.plugins.node.methods import Node
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Leg, Protocol

MAX_UNITS: Final = 200_000
"""Maximum compute-unit limit that sellers of MPP accept."""

MAX_UNIT_PRICE: Final = 5_000_000
"""Maximum price of a compute unit, in millionths of a lamport."""

_LIGHTHOUSE: Final = Pubkey.from_string("L2TExMFKdjpN9kozasaurPirfHy9P8sbXoAN1qA3S95")
_MIN_STEPS: Final = 3
_MAX_STEPS: Final = 6
_OPTIONAL_STEPS: Final = ("fourth", "fifth", "sixth")
_INVALID: Final = "invalid_exact_svm_payload"

UNDECODABLE: Final = f"{_INVALID}_transaction_could_not_be_decoded"
DUPLICATE: Final = "duplicate_settlement"
CONFLICT: Final = "idempotency_conflict"
"""Another payment has the name of this one."""

PENDING: Final = "settlement_pending"
"""The payment was broadcast, and whether it lands is unknown."""

Rpc = Callable[..., Awaitable[Any]]
"""Calls a method of an RPC node and returns its result; an error is an `RpcError`."""

Name = tuple[str, ...]
"""What a payer calls a payment: whose name it is, the kind of name, and the name."""

_NAMES_MAX: Final = 1_000
"""How many names of payments are remembered."""

CONFIRM_SECONDS: Final = 30.0

_MIN_LAMPORTS: Final = 1_000_000_000
_AIRDROP_LAMPORTS: Final = 10 * _MIN_LAMPORTS
_PAUSE_SECONDS: Final = 0.2
_BASE64: Final = {"encoding": "base64"}
_CONFIRMED: Final = ("confirmed", "finalized")


class InvalidPaymentError(ValueError):
    """`reason` is an x402 error code; `payer` is empty if unknown.

    `transaction` is the signature of a payment that may still land, else empty.
    """

    def __init__(self, reason: str, message: str, payer: str = "", *, transaction: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.payer = payer
        self.transaction = transaction


@frozen(kw_only=True)
class CheckedPayment:
    """A transaction that pays the terms, if the chain accepts it.

    The signature slot of the seller's fee payer may be empty. `message_hash` does not depend on signatures.
    `names` are what the payer calls the payment.
    """

    transaction: VersionedTransaction
    message_hash: str
    payer: str
    names: tuple[Name, ...] = ()

    @property
    def signature(self) -> str:
        """Signature of whoever pays the fee, once the transaction is complete."""
        return str(self.transaction.signatures[0])


@frozen
class _Step:
    """An instruction with its accounts looked up."""

    program: Pubkey
    accounts: tuple[str, ...]
    data: bytes


def check_payment(raw: bytes, terms: ChallengeTerms, *, fee_payers: Collection[str]) -> CheckedPayment:
    """Return the transaction in `raw`, if it pays `terms`, whose mint is an address, and does nothing else.

    Only a simulation shows whether its signatures are valid and the payer has the money. `fee_payers` are the
    addresses that the seller signs with.
    """
    transaction = decoded(raw, undecodable=UNDECODABLE, unreadable=f"{_INVALID}_transaction")
    message = transaction.message
    keys = [str(key) for key in message.account_keys]
    _require_fee_payer(keys, terms, fee_payers)
    steps = [_step(instruction, message.account_keys) for instruction in message.instructions]
    payer = _payer(steps)
    # A memo only proves that the accounts that it lists have signed.
    moving = [step for step in steps if step.program != MEMO_PROGRAM]
    if any(address in fee_payers for step in moving for address in step.accounts):
        raise InvalidPaymentError(
            f"{_INVALID}_transaction_fee_payer_transferring_funds",
            "the fee payer takes part in the payment",
            payer,
        )
    try:
        if terms.protocol is Protocol.MPP:
            _check_mpp(steps, terms, next(iter(keys), ""))
        else:
            _check_x402(steps, terms)
    except InvalidPaymentError as refused:
        refused.payer = payer
        raise
    return CheckedPayment(
        transaction=transaction,
        message_hash=str(MessageV0.hash_raw_message(to_bytes_versioned(message))),
        payer=payer,
    )


def decoded(raw: bytes, *, undecodable: str, unreadable: str) -> VersionedTransaction:
    """Return a transaction without address look-up tables; otherwise the reason for the refusal is given."""
    try:
        transaction = transaction_of(raw)
    except Exception:  # noqa: BLE001 - solders raises several types
        raise InvalidPaymentError(undecodable, "the transaction cannot be decoded") from None
    message = transaction.message
    if isinstance(message, MessageV0) and message.address_table_lookups:
        raise InvalidPaymentError(unreadable, "the transaction uses address look-up tables")
    return transaction


def _step(instruction: CompiledInstruction, keys: Sequence[Pubkey]) -> _Step:
    try:
        accounts = tuple(str(keys[index]) for index in instruction.accounts)
        return _Step(keys[instruction.program_id_index], accounts, bytes(instruction.data))
    except IndexError:
        raise InvalidPaymentError(UNDECODABLE, "an instruction names an account that is missing") from None


def _require_fee_payer(keys: Sequence[str], terms: ChallengeTerms, fee_payers: Collection[str]) -> None:
    if terms.fee_payer is None and any(key in fee_payers for key in keys):
        # The seller completes the signature of its key wherever a transaction names it.
        raise InvalidPaymentError(
            "invalid_exact_svm_fee_payer_mismatch", "the payer must pay the fee: the seller did not offer to"
        )
    if terms.fee_payer is not None and keys[:1] != [terms.fee_payer]:
        raise InvalidPaymentError(
            "invalid_exact_svm_fee_payer_mismatch", f"the fee payer must be {terms.fee_payer}"
        )


def _payer(steps: Sequence[_Step]) -> str:
    """Return the authority of the first checked transfer."""
    return next((step.accounts[3] for step in steps if _is_transfer(step)), "")


def _is_transfer(step: _Step) -> bool:
    is_checked = step.data[:1] == b"\x0c" and len(step.data) == 10
    return step.program == TOKEN_PROGRAM and is_checked and len(step.accounts) >= 4


# --- x402


def _check_x402(steps: Sequence[_Step], terms: ChallengeTerms) -> None:
    (leg,) = terms.legs
    if not _MIN_STEPS <= len(steps) <= _MAX_STEPS:
        raise InvalidPaymentError(
            f"{_INVALID}_transaction_instructions_length",
            f"the transaction has {len(steps)} instructions; {_MIN_STEPS} to {_MAX_STEPS} are accepted",
        )
    _check_budget(steps[0], steps[1])
    transfer, optional = steps[2], steps[_MIN_STEPS:]
    if not _is_transfer(transfer):
        raise InvalidPaymentError(
            f"{_INVALID}_no_transfer_instruction", "the third instruction is not a checked transfer"
        )
    for name, step in zip(_OPTIONAL_STEPS, optional, strict=False):
        if step.program not in (MEMO_PROGRAM, _LIGHTHOUSE):
            raise InvalidPaymentError(
                f"{_INVALID}_unknown_{name}_instruction",
                f"the {name} instruction calls {step.program}; only memos may follow the transfer",
            )
    _check_x402_transfer(transfer, leg, terms.mint)
    if leg.memo is not None:
        memos = [step.data for step in optional if step.program == MEMO_PROGRAM]
        if len(memos) != 1:
            raise InvalidPaymentError(f"{_INVALID}_memo_count", "the transaction must have exactly one memo")
        if memos[0] != leg.memo.encode():
            raise InvalidPaymentError(f"{_INVALID}_memo_mismatch", "the memo must be that of the challenge")


def _check_budget(limit: _Step, price: _Step) -> None:
    prefix = f"{_INVALID}_transaction_instructions_compute"
    if limit.program != COMPUTE_BUDGET_PROGRAM or limit.data[:1] != b"\x02" or len(limit.data) != 5:
        raise InvalidPaymentError(
            f"{prefix}_limit_instruction", "the first instruction must set the compute-unit limit"
        )
    if price.program != COMPUTE_BUDGET_PROGRAM or price.data[:1] != b"\x03" or len(price.data) != 9:
        raise InvalidPaymentError(
            f"{prefix}_price_instruction", "the second instruction must set the compute-unit price"
        )
    if _number(price) > MAX_UNIT_PRICE:
        raise InvalidPaymentError(
            f"{prefix}_price_instruction_too_high", f"the compute-unit price is above {MAX_UNIT_PRICE}"
        )


def _check_x402_transfer(step: _Step, leg: Leg, mint: str) -> None:
    if step.accounts[1] != mint:
        raise InvalidPaymentError(f"{_INVALID}_mint_mismatch", f"the mint must be {mint}")
    if step.accounts[2] != associated_token_address(leg.recipient, mint):
        raise InvalidPaymentError(
            f"{_INVALID}_recipient_mismatch", f"the recipient must be the token account of {leg.recipient}"
        )
    if _number(step) != leg.amount_micro:
        raise InvalidPaymentError(
            f"{_INVALID}_amount_mismatch",
            f"the amount is {_number(step)}; it must be exactly {leg.amount_micro}",
        )


# --- MPP


def _check_mpp(steps: Sequence[_Step], terms: ChallengeTerms, fee_payer: str) -> None:
    left = list(steps)
    for leg in terms.legs:
        transfer = next((step for step in left if _pays(step, leg, terms.mint)), None)
        if transfer is None:
            raise InvalidPaymentError(
                "payment_invalid", f"no transfer of {leg.amount_micro} to {leg.recipient}"
            )
        left.remove(transfer)
        if leg.memo is not None:
            memo = next((s for s in left if s.program == MEMO_PROGRAM and s.data == leg.memo.encode()), None)
            if memo is None:
                raise InvalidPaymentError("payment_invalid", "a memo of the challenge is missing")
            left.remove(memo)
    for step in left:
        if terms.fee_payer is not None or not _is_creation(step, terms, fee_payer):
            _check_extra(step)


def _pays(step: _Step, leg: Leg, mint: str) -> bool:
    return (
        _is_transfer(step)
        and step.accounts[1:3] == (mint, associated_token_address(leg.recipient, mint))
        and _number(step) == leg.amount_micro
        and step.data[9] == USDC_DECIMALS
    )


def _is_creation(step: _Step, terms: ChallengeTerms, fee_payer: str) -> bool:
    """Return whether a step creates the token account of a split, unless it exists, for the fee payer."""
    if step.program != ASSOCIATED_TOKEN_PROGRAM or step.data != b"\x01" or len(step.accounts) != 6:
        return False
    payer, account, owner, *rest = step.accounts
    return (
        payer == fee_payer
        and owner in {leg.recipient for leg in terms.legs[1:]}
        and account == associated_token_address(owner, terms.mint)
        and rest == [terms.mint, str(SYSTEM_PROGRAM), str(TOKEN_PROGRAM)]
    )


def _check_extra(step: _Step) -> None:
    """Refuse every instruction beyond the transfers and memos, except a modest compute budget."""
    if step.program != COMPUTE_BUDGET_PROGRAM:
        raise InvalidPaymentError("payment_invalid", f"unexpected instruction of {step.program}")
    check_budget(step.data, max_units=MAX_UNITS)


def check_budget(data: bytes, *, max_units: int) -> None:
    """Refuse an instruction of the compute budget unless it sets a modest limit or price."""
    number = int.from_bytes(data[1:], "little")
    is_limit, is_price = ((data[:1], len(data)) == form for form in ((b"\x02", 5), (b"\x03", 9)))
    if not (is_limit or is_price):
        raise InvalidPaymentError("payment_invalid", "unsupported instruction of the compute budget")
    if is_limit and number > max_units:
        raise InvalidPaymentError("payment_invalid", f"the compute-unit limit is above {max_units}")
    if is_price and number > MAX_UNIT_PRICE:
        raise InvalidPaymentError("payment_invalid", f"the compute-unit price is above {MAX_UNIT_PRICE}")


def _number(step: _Step) -> int:
    """Return the amount of a transfer, or the price of a compute unit."""
    return int.from_bytes(step.data[1:9], "little")


# --- The fee payer and the chain


class FailedOnChainError(RpcError):
    """A transaction landed and failed, moving nothing."""


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

    async def prepare(self, owners: Sequence[str], mint: str) -> None:
        """Get ready, and create those of the owners' associated token accounts that are missing."""
        await self.ready()
        addresses = [associated_token_address(owner, mint) for owner in owners]
        found = (await self._rpc("getMultipleAccounts", addresses))["value"]
        missing = [owner for owner, account in zip(owners, found, strict=True) if account is None]
        payer = self._keypair.pubkey()
        if missing:
            await self.execute(
                create_associated_token_account_idempotent(
                    payer=payer, owner=Pubkey.from_string(owner), mint=Pubkey.from_string(mint)
                )
                for owner in missing
            )

    async def execute(self, steps: Iterable[Instruction]) -> None:
        """Execute instructions that need no other signature."""
        latest = (await self._rpc("getLatestBlockhash"))["value"]["blockhash"]
        blockhash = Hash.from_string(latest)
        message = Message.new_with_blockhash(list(steps), self._keypair.pubkey(), blockhash)
        await self.confirmed(await self.broadcast(VersionedTransaction(message, [self._keypair])))

    def completed(self, transaction: VersionedTransaction) -> VersionedTransaction:
        """Sign if the transaction has a slot for this key."""
        return completed(transaction, self._keypair)

    async def simulate(self, transaction: VersionedTransaction) -> None:
        """Raise `RpcError` unless the transaction would land now.

        A signature or money may be missing, or it may have already landed.
        """
        options = {**_BASE64, "sigVerify": True}
        error = (await self._rpc("simulateTransaction", _text(transaction), options))["value"]["err"]
        if error is not None:
            raise RpcError(PREFLIGHT_FAILURE, str(error))

    async def has_landed(self, transaction: VersionedTransaction) -> bool:
        """Return whether a completed transaction has landed without an error."""
        return await self._landing(transaction) is True

    async def may_land(self, transaction: VersionedTransaction) -> bool:
        """Return whether a completed transaction has landed without an error, or can."""
        has_landed = await self._landing(transaction)
        if has_landed is None:
            blockhash = str(transaction.message.recent_blockhash)
            has_landed = (await self._rpc("isBlockhashValid", blockhash))["value"]
        return has_landed

    async def _landing(self, transaction: VersionedTransaction) -> bool | None:
        """Return whether a transaction has landed without an error, or with one; None if it has not landed.

        Its first signature is that of its fee payer, which is the same whenever the key signs it.
        """
        signatures = [str(signature) for signature in transaction.signatures[:1]]
        if not signatures:
            return False
        options = {"searchTransactionHistory": True}
        (status,) = (await self._rpc("getSignatureStatuses", signatures, options))["value"]
        return None if status is None else status["err"] is None

    async def settle(self, checked: CheckedPayment, *, waits: bool = True) -> str:
        """Broadcast a completed payment, and return its signature; `waits` until it has landed.

        Raises:
            InvalidPaymentError: it failed on chain, or `PENDING`: it may still land.
        """
        try:
            await self.broadcast(checked.transaction)
            if waits:
                await self.confirmed(checked.signature)
        except FailedOnChainError as error:
            raise InvalidPaymentError("transaction_failed", str(error), checked.payer) from None
        except RpcError:
            # A node that does not respond may have the transaction all the same.
            raise pending(checked) from None
        return checked.signature

    async def broadcast(self, transaction: VersionedTransaction) -> str:
        signature: str = await self._rpc(
            "sendTransaction", _text(transaction), {**_BASE64, "skipPreflight": True}
        )
        return signature

    async def confirmed(self, signature: str) -> None:
        """Wait until a transaction has landed; `RpcError` if not in time: it may still land."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONFIRM_SECONDS
        while True:
            (status,) = (await self._rpc("getSignatureStatuses", [signature]))["value"]
            if status is not None and status["confirmationStatus"] in _CONFIRMED:
                break
            if loop.time() >= deadline:
                message = f"{signature} has not landed within {CONFIRM_SECONDS:.0f} seconds"
                raise RpcError(INTERNAL_ERROR, message)
            await asyncio.sleep(_PAUSE_SECONDS)
        if status["err"] is not None:
            raise FailedOnChainError(INTERNAL_ERROR, f"the transaction failed on chain: {status['err']}")

    async def _lamports(self) -> int:
        lamports: int = (await self._rpc("getBalance", self.address))["value"]
        return lamports


class Settling:
    """Lets one payment be settled for each message and each name, because payers may sign again by mistake.

    A name makes no duplicate acceptable: the payer chooses it, and sellers would serve the payment twice.
    """

    def __init__(self, fee_payer: FeePayer) -> None:
        self._fee_payer = fee_payer
        self._busy: set[str | Name] = set()
        # The payments that were broadcast.
        self._named: dict[Name, CheckedPayment] = {}

    def capture(self) -> Restore:
        return captured(self, "_named")

    @contextlib.asynccontextmanager
    async def claimed(self, checked: CheckedPayment) -> AsyncIterator[None]:
        """Settle a payment in this context.

        Raises:
            InvalidPaymentError: it is being settled (`DUPLICATE`), or another payment with its name is, has
                landed or can land (`CONFLICT`).
        """
        if checked.message_hash in self._busy:
            raise InvalidPaymentError(DUPLICATE, "this payment is being settled", checked.payer)
        for name in self._busy.intersection(checked.names):
            raise _conflict(checked, name)
        identities: set[str | Name] = {checked.message_hash, *checked.names}
        self._busy |= identities
        try:
            for name in checked.names:
                other = self._named.get(name, checked)
                is_other = other.message_hash != checked.message_hash
                if is_other and await self._fee_payer.may_land(other.transaction):
                    raise _conflict(checked, name)
            yield
        finally:
            self._busy -= identities

    def sent(self, checked: CheckedPayment) -> None:
        """Note that a payment is about to be broadcast, or was."""
        self._named |= dict.fromkeys(checked.names, checked)
        while len(self._named) > _NAMES_MAX:
            del self._named[next(iter(self._named))]


def _conflict(checked: CheckedPayment, name: Sequence[str]) -> InvalidPaymentError:
    reason = f"another payment has this {name[-2]}: present that one again"
    return InvalidPaymentError(CONFLICT, reason, checked.payer)


def _text(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode("ascii")


def pending(checked: CheckedPayment) -> InvalidPaymentError:
    """Return the refusal of a payment that was broadcast, and may still land."""
    return InvalidPaymentError(
        PENDING,
        f"{checked.signature} has not landed yet: look it up before you ask for another payment",
        checked.payer,
        transaction=checked.signature,
    )
