"""The embedded chain's ledger in the database: accounts, signatures, credits, and the position."""

from collections.abc import Mapping, Sequence
from typing import Final

from solders.hash import Hash
from sqlalchemy import bindparam, delete, insert, select, update

from agentpay_server.chain.embedded.blocks import SeenMessage
from agentpay_server.chain.embedded.persistence import (
    HISTORY_LENGTH,
    ChainState,
    Credit,
    LedgerMovedError,
    PersistedPage,
)
from agentpay_server.chain.embedded.virtual_machine import Executed
from agentpay_server.chain.protocol import ChainFailure, Deposit, FailureReason, SignatureStatus
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.runner import Database
from agentpay_server.database.tables import (
    chain_accounts,
    chain_credits,
    chain_history,
    chain_signatures,
    chain_state,
)
from agentpay_server.platform.capturing import Restore

_STATE: Final = select(
    chain_state.c.genesis, chain_state.c.slot, chain_state.c.height, chain_state.c.height_since_us
)
_BEGIN: Final = insert(chain_state)
_MOVE: Final = (
    update(chain_state)
    # Only the process that wrote the previous page may write the next one.
    .where(
        chain_state.c.genesis == bindparam("of_genesis"),
        chain_state.c.slot == bindparam("from_slot"),
        chain_state.c.height == bindparam("from_height"),
    )
    .values(
        slot=bindparam("to_slot"),
        height=bindparam("to_height"),
        height_since_us=bindparam("to_height_since_us"),
    )
)
_ACCOUNTS: Final = select(chain_accounts.c.address, chain_accounts.c.account)
_REMOVE_ACCOUNT: Final = delete(chain_accounts).where(chain_accounts.c.address == bindparam("of_address"))
_INSERT_ACCOUNT: Final = insert(chain_accounts)
_INSERT_SIGNATURE: Final = insert(chain_signatures)
_SIGNATURE: Final = select(chain_signatures.c.failure_reason, chain_signatures.c.failure_detail).where(
    chain_signatures.c.signature == bindparam("signature")
)
_NAME: Final = (
    select(chain_signatures.c.signature)
    .where(chain_signatures.c.message_hash == bindparam("message_hash"))
    .limit(1)
)
_SEEN: Final = (
    select(
        chain_signatures.c.signature,
        chain_signatures.c.message_hash,
        chain_signatures.c.height,
        chain_signatures.c.failure_reason,
    )
    .where(chain_signatures.c.height >= bindparam("from_height"))
    .order_by(chain_signatures.c.height)
)
_INSERT_CREDIT: Final = insert(chain_credits)
_CREDITS: Final = (
    select(chain_credits.c.slot, chain_credits.c.signature, chain_credits.c.amount, chain_credits.c.sender)
    .where(
        chain_credits.c.token_account == bindparam("token_account"),
        chain_credits.c.slot > bindparam("after_slot"),
    )
    .order_by(chain_credits.c.slot)
    .limit(bindparam("count"))
)
_INSERT_EXECUTED: Final = insert(chain_history)
_FORGET_EXECUTED: Final = delete(chain_history).where(chain_history.c.slot <= bindparam("up_to_slot"))
_NEWEST: Final = (
    select(chain_history.c.height, chain_history.c.time_us, chain_history.c.executed)
    .order_by(chain_history.c.slot.desc())
    .limit(bindparam("count"))
)
_FORGET_EVERY: Final = 500
"""Old transactions are deleted once in so many."""

_SUCCEEDED: Final = SignatureStatus(is_final=True)
_REFUSED: Final = SignatureStatus(is_final=False, is_refused=True)
_REFUSED_REASON: Final = "refused"


class DatabaseLedger:
    """Stores the pages of one chain in a database that has the chain's tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> tuple[ChainState, Mapping[str, bytes]] | None:
        return await self._database.read(_read)

    async def seen(self, *, from_height: int) -> Sequence[SeenMessage]:
        return await self._database.read(_seen, from_height)

    async def status(self, signature: str) -> SignatureStatus | None:
        return await self._database.read(_status, signature)

    async def name_of(self, message_hash: Hash) -> str | None:
        return await self._database.read(_name_of, message_hash)

    async def credits(self, token_account: str, *, after_slot: int, count: int) -> Sequence[Credit]:
        return await self._database.read(_credits, token_account, after_slot, count)

    async def newest(self, *, count: int) -> Sequence[Executed]:
        return await self._database.read(_newest, count)

    def acknowledge(self, token_account: str, slot: int) -> None:
        """See `Ledger.acknowledge`: the database keeps every credit."""

    def capture(self) -> Restore:
        raise RuntimeError("a chain whose ledger is a database cannot be brought back")

    async def write(self, page: PersistedPage) -> None:
        """Write a page and commit it.

        Raises:
            LedgerMovedError: the ledger is not at `page.before`; nothing was written.
        """
        try:
            await self._database.run(_write, page)
        except ConstraintError as error:
            raise LedgerMovedError("the ledger has pages that this chain did not write") from error


def _read(connection: Connection) -> tuple[ChainState, Mapping[str, bytes]] | None:
    row = connection.execute(_STATE).one_or_none()
    if row is None:
        return None
    genesis, slot, height, height_since_us = row
    state = ChainState(genesis=genesis, slot=slot, height=height, height_since_us=height_since_us)
    return state, {address: bytes(account) for address, account in connection.execute(_ACCOUNTS)}


def _seen(connection: Connection, from_height: int) -> list[SeenMessage]:
    return [
        SeenMessage(
            Hash.from_bytes(bytes(message_hash)),
            height,
            frozenset({signature}) if reason == _REFUSED_REASON else frozenset(),
        )
        for signature, message_hash, height, reason in connection.execute(_SEEN, {"from_height": from_height})
    ]


def _status(connection: Connection, signature: str) -> SignatureStatus | None:
    row = connection.execute(_SIGNATURE, {"signature": signature}).one_or_none()
    if row is None:
        return None
    reason, detail = row
    if reason is None:
        return _SUCCEEDED
    if reason == _REFUSED_REASON:
        return _REFUSED
    return SignatureStatus(is_final=True, failure=ChainFailure(reason=FailureReason(reason), detail=detail))


def _name_of(connection: Connection, message_hash: Hash) -> str | None:
    values = {"message_hash": bytes(message_hash)}
    found: str | None = connection.execute(_NAME, values).scalar_one_or_none()
    return found


def _credits(connection: Connection, token_account: str, after_slot: int, count: int) -> list[Credit]:
    values = {"token_account": token_account, "after_slot": after_slot, "count": count}
    return [
        Credit(
            slot=slot,
            deposit=Deposit(
                signature=signature,
                token_account=token_account,
                amount_micro=amount,
                senders=tuple(senders.split()),
                others=tuple(others.split()),
            ),
        )
        for slot, signature, amount, known in connection.execute(_CREDITS, values)
        for senders, _, others in [known.partition(",")]
    ]


def _newest(connection: Connection, count: int) -> list[Executed]:
    newest_first = [
        Executed.from_bytes(bytes(executed), height=height, time_us=time_us)
        for height, time_us, executed in connection.execute(_NEWEST, {"count": count})
    ]
    return newest_first[::-1]


def _write(connection: Connection, page: PersistedPage) -> None:
    before, after = page.before, page.after
    if before is None:
        values = {
            "genesis": after.genesis,
            "slot": after.slot,
            "height": after.height,
            "height_since_us": after.height_since_us,
        }
        connection.execute(_BEGIN, values)
    else:
        values = {
            "of_genesis": before.genesis,
            "from_slot": before.slot,
            "from_height": before.height,
            "to_slot": after.slot,
            "to_height": after.height,
            "to_height_since_us": after.height_since_us,
        }
        if connection.execute(_MOVE, values).rowcount != 1:
            raise LedgerMovedError(f"the ledger is not at slot {before.slot}, height {before.height}")
    accounts = page.accounts()
    if accounts:
        connection.execute(_REMOVE_ACCOUNT, [{"of_address": address} for address in accounts])
    present = [
        {"address": address, "account": account}
        for address, account in accounts.items()
        if account is not None
    ]
    if present:
        connection.execute(_INSERT_ACCOUNT, present)
    if page.signatures:
        rows = [_signature_row(signature, *known) for signature, known in page.signatures.items()]
        connection.execute(_INSERT_SIGNATURE, rows)
    if page.credits:
        connection.execute(
            _INSERT_CREDIT,
            [
                {
                    "token_account": credit.deposit.token_account,
                    "slot": credit.slot,
                    "signature": credit.deposit.signature,
                    "amount": credit.deposit.amount_micro,
                    "sender": ",".join(map(" ".join, (credit.deposit.senders, credit.deposit.others))),
                }
                for credit in page.credits
            ],
        )

    if page.executed:
        connection.execute(
            _INSERT_EXECUTED,
            [
                {"slot": slot, "height": each.height, "time_us": each.time_us, "executed": bytes(each)}
                for slot, each in page.executed.items()
            ],
        )
        if any(slot % _FORGET_EVERY == 0 for slot in page.executed):
            connection.execute(_FORGET_EXECUTED, {"up_to_slot": max(page.executed) - HISTORY_LENGTH})


def _signature_row(signature: str, status: SignatureStatus, seen: SeenMessage) -> dict[str, object]:
    reason, detail = None, None
    if status.is_refused:
        reason = _REFUSED_REASON
    elif status.failure is not None:
        reason, detail = status.failure.reason.value, status.failure.detail
    return {
        "signature": signature,
        "failure_reason": reason,
        "failure_detail": detail,
        "message_hash": bytes(seen.message_hash),
        "height": seen.height,
    }
