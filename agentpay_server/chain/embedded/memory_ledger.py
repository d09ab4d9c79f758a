"""The embedded chain's ledger in memory: it ends with the process, and can be captured and restored."""

from collections import deque
from collections.abc import Mapping, Sequence

from attrs import frozen
from solders.account import Account
from solders.hash import Hash
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.deposits import RecentCredits
from agentpay_server.chain.embedded.executed import Executed
from agentpay_server.chain.embedded.persistence import (
    HISTORY_LENGTH,
    ChainState,
    Credit,
    LedgerMovedError,
    PersistedPage,
)
from agentpay_server.chain.embedded.seen_messages import SeenMessage
from agentpay_server.chain.embedded.virtual_machine import serialized
from agentpay_server.chain.protocol import SignatureStatus
from agentpay_server.platform.capturing import Restore, captured


@frozen
class _Signed:
    """The outcome of a signature, and its message if the machine has seen that."""

    status: SignatureStatus
    seen: SeenMessage | None


class MemoryLedger:
    """Keeps the pages of one chain. Its coroutines never suspend."""

    def __init__(self) -> None:
        self._state: ChainState | None = None
        self._accounts: dict[Pubkey, Account | None] = {}
        self._signatures: dict[str, _Signed] = {}
        self._names: dict[Hash, str] = {}
        self._credits = RecentCredits()
        self._newest: deque[Executed] = deque(maxlen=HISTORY_LENGTH)

    async def read(self) -> tuple[ChainState, Mapping[str, bytes]] | None:
        if self._state is None:
            return None
        accounts = serialized(self._accounts)
        return self._state, {address: data for address, data in accounts.items() if data is not None}

    async def seen(self, *, from_height: int) -> Sequence[SeenMessage]:
        found = (signed.seen for signed in self._signatures.values())
        recent = [seen for seen in found if seen is not None and seen.height >= from_height]
        return sorted(recent, key=lambda seen: seen.height)

    async def status(self, signature: str) -> SignatureStatus | None:
        signed = self._signatures.get(signature)
        return None if signed is None else signed.status

    async def name_of(self, message_hash: Hash) -> str | None:
        return self._names.get(message_hash)

    async def credits(self, token_account: str, *, after_slot: int, count: int) -> Sequence[Credit]:
        return self._credits.after(token_account, after_slot)[:count]

    async def newest(self, *, count: int) -> Sequence[Executed]:
        return list(self._newest)[-count:]

    async def write(self, page: PersistedPage) -> None:
        if page.before != self._state:
            raise LedgerMovedError("the ledger is not where this page begins")
        self._state = page.after
        for address, account in page.first_accounts.items():
            key = Pubkey.from_string(address)
            self._accounts[key] = None if account is None else Account.from_bytes(account)
        for executed in page.executed.values():
            self._accounts.update(executed.after)
            self._newest.append(executed)
        for signature, status in page.statuses.items():
            seen = page.seen.get(signature)
            self._signatures[signature] = _Signed(status, seen)
            if seen is not None:
                self._names[seen.message_hash] = signature
        for credit in page.credits:
            self._credits.add(credit)

    def acknowledge(self, token_account: str, slot: int) -> None:
        """See `Ledger.acknowledge`: posted credits are forgotten."""
        self._credits.forget(token_account, slot)

    def capture(self) -> Restore:
        return captured(self, "_state", "_accounts", "_newest", "_signatures", "_names", "_credits")
