"""A chain that fails when it is told to: what the sandbox arms, over any chain that executes.

A fault changes what the service is told, or what becomes of a send, never what a transaction does. While none
is armed and nothing of an earlier one is left, every call goes straight through.

No fault tells a lie that a real chain could not tell: a transaction that has landed is never shown as missing
above its last valid block height, since that would be proof that it never will.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import define, evolve
from solders.transaction import VersionedTransaction

from agentpay_server.chain.protocol import (
    Blockhash,
    Booked,
    ChainUnavailableError,
    Cosigned,
    DepositBatch,
    SignatureStatus,
    TokenAccount,
    WatchedChain,
    nothing_booked,
)

LOOKS_UNTIL_KNOWN: Final = 5
"""How often a slow chain is asked for a transaction before it knows of it: 0.6 s of a driver's pauses."""


class ChainFault(StrEnum):
    """How the chain fails."""

    DOWN = "chain_down"
    """No call is answered."""

    REPLY_LOST = "chain_reply_lost"
    """A send executes, and its answer is lost."""

    NEVER_LANDS = "chain_never_lands"
    """A send is accepted and never executes. Its blockhash expires: at once where the fault is counted, and
    else when it is disarmed."""

    SLOW = "chain_slow"
    """A transaction is not known for the first looks at it."""


@define
class _Hidden:
    """A transaction that a slow chain does not show yet, and the block height that it stands at meanwhile."""

    looks_left: int
    height: int


class FaultyChain:
    """`WatchedChain`, with the faults that are armed.

    Args:
        inner: the chain that executes.
        expire: lets the valid blockhash of `inner` expire; None where time alone does.
    """

    def __init__(self, inner: WatchedChain, expire: Callable[[], None] | None = None) -> None:
        self.inner = inner
        self._expire = expire
        self._armed: dict[ChainFault, int | None] = {}
        self._hidden: dict[str, _Hidden] = {}
        self._shown: set[str] = set()
        self._swallowed: set[str] = set()
        # Whether any of these holds anything: one look at it is all that a call costs.
        self._is_troubled = False

    def arm(self, fault: ChainFault, times: int | None) -> None:
        """Let a fault happen `times` times from now on, None until it is disarmed."""
        self._armed[fault] = times
        self._is_troubled = True

    def disarm(self, fault: ChainFault) -> None:
        """Let a fault happen no more."""
        if fault is ChainFault.SLOW:
            self._hidden.clear()
        if fault in self._armed:
            self._end(fault)
        self._note_trouble()

    def times(self, fault: ChainFault) -> int | None:
        """Return how often a fault is still to happen: None until it is disarmed, 0 where it is not armed."""
        return self._armed.get(fault, 0)

    def capture(self) -> Callable[[], None]:
        """Return what brings back the faults that are armed now, and what is left of earlier ones."""
        armed, hidden = self._armed.copy(), _copied(self._hidden)
        shown, swallowed = self._shown.copy(), self._swallowed.copy()

        def restore() -> None:
            self._armed, self._hidden = armed.copy(), _copied(hidden)
            self._shown, self._swallowed = shown.copy(), swallowed.copy()
            self._note_trouble()

        return restore

    @property
    def usdc_mint(self) -> str:
        """Address of the USDC mint."""
        return self.inner.usdc_mint

    @property
    def cluster_name(self) -> str:
        """That of the chain within."""
        return self.inner.cluster_name

    @property
    def is_test_chain(self) -> bool:
        """Whether money on it is worthless."""
        return self.inner.is_test_chain

    @property
    def landing_seconds(self) -> float:
        """How long after a send it is hardly worth asking what became of it."""
        return self.inner.landing_seconds

    @property
    def blockhash_life_seconds(self) -> float:
        """How long a transaction may land after it was signed."""
        return self.inner.blockhash_life_seconds

    def explorer_url(self, signature: str) -> str:
        """Where a person can look a transaction up."""
        return self.inner.explorer_url(signature)

    async def latest_blockhash(self) -> Blockhash:
        """Return a blockhash for a new transaction."""
        self._take_call()
        return await self.inner.latest_blockhash()

    async def block_height(self) -> int:
        """Return the height of the newest block; what a slow chain does not show yet, it holds back with."""
        self._take_call()
        height = await self.inner.block_height()
        return min((hidden.height for hidden in self._hidden.values()), default=height)

    async def signature_status(self, signature: str) -> SignatureStatus | None:
        """Return what became of a transaction; None for the first looks at one that is slow."""
        self._take_call()
        status = await self.inner.signature_status(signature)
        hidden = self._hidden.get(signature)
        if hidden is None:
            return status
        hidden.looks_left -= 1
        if hidden.looks_left == 0:
            del self._hidden[signature]
            # It is slow once, however often it is sent again.
            self._shown.add(signature)
            self._note_trouble()
        return None

    async def find_cosigned(
        self, cosigned: Cosigned, *, is_for_proof: bool = False
    ) -> SignatureStatus | None:
        """Return what became of a transaction that somebody else broadcasts."""
        self._take_call()
        return await self.inner.find_cosigned(cosigned, is_for_proof=is_for_proof)

    async def newest_signature(self, token_account: str) -> str | None:
        """Return what names the newest transaction of a token account."""
        self._take_call()
        return await self.inner.newest_signature(token_account)

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:
        """Return whether the chain knows all signatures in the blocks from one height to another."""
        self._take_call()
        return await self.inner.knows_blocks(first_height, last_height)

    async def wait_for_notice(self, signature: str, seconds: float) -> None:
        """Return once it may be worth asking for the status again, after `seconds` at the latest."""
        await self.inner.wait_for_notice(signature, seconds)

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        """Hand a signed transaction over: to be executed, to be lost, or with its answer lost."""
        self._take_call()
        if not self._is_troubled:
            await self.inner.send(raw, even_if_failing=even_if_failing)
            return
        signature = str(VersionedTransaction.from_bytes(raw).signatures[0])
        if signature in self._swallowed:
            return
        if ChainFault.NEVER_LANDS in self._armed:
            self._swallowed.add(signature)
            if self._armed[ChainFault.NEVER_LANDS] is not None:
                self._let_expire()
            self._count(ChainFault.NEVER_LANDS)
            return
        if ChainFault.SLOW in self._armed and signature not in self._hidden.keys() | self._shown:
            # Read before the send, so that the height shown meanwhile proves nothing about it.
            height = await self.inner.block_height()
            self._hidden[signature] = _Hidden(LOOKS_UNTIL_KNOWN, height)
            self._count(ChainFault.SLOW)
        await self.inner.send(raw, even_if_failing=even_if_failing)
        if ChainFault.REPLY_LOST in self._armed:
            self._count(ChainFault.REPLY_LOST)
            raise ChainUnavailableError("the sandbox has lost the chain's answer")

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """Return the USDC token accounts at `addresses`; None where there is none, or one of another mint."""
        self._take_call()
        return await self.inner.token_accounts(addresses)

    async def deposits(
        self, token_account: str, *, after: str | None, booked: Booked = nothing_booked
    ) -> AsyncIterator[DepositBatch]:
        """Yield what came into a token account since a cursor."""
        self._take_call()
        async for batch in self.inner.deposits(token_account, after=after, booked=booked):
            yield batch

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """Return lamports and bytes of data of any account; None where there is none."""
        self._take_call()
        return await self.inner.account_size(address)

    async def rent_exemption(self, size: int) -> int:
        """Return the lamports that keep an account of `size` bytes of data alive for good."""
        self._take_call()
        return await self.inner.rent_exemption(size)

    def _take_call(self) -> None:
        if self._is_troubled and ChainFault.DOWN in self._armed:
            self._count(ChainFault.DOWN)
            raise ChainUnavailableError("the sandbox has taken the chain down")

    def _count(self, fault: ChainFault) -> None:
        """Note that a fault has happened; the last of its times ends it."""
        times = self._armed.get(fault)
        if times is None:
            return
        if times > 1:
            self._armed[fault] = times - 1
        else:
            self._end(fault)
            self._note_trouble()

    def _end(self, fault: ChainFault) -> None:
        del self._armed[fault]
        if fault is ChainFault.SLOW:
            self._shown.clear()
        if fault is ChainFault.NEVER_LANDS and self._swallowed:
            self._let_expire()

    def _let_expire(self) -> None:
        """Make it certain that what was lost never lands; where that is up to time, go on losing it."""
        if self._expire is not None:
            self._expire()
            self._swallowed.clear()

    def _note_trouble(self) -> None:
        self._is_troubled = bool(self._armed or self._hidden or self._swallowed)


def _copied(hidden: Mapping[str, _Hidden]) -> dict[str, _Hidden]:
    return {signature: evolve(each) for signature, each in hidden.items()}
