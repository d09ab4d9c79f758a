"""A chain with scripted trouble, over the embedded one that executes for real.

Trouble is a list of acts. An act stands in for one call: it is given the real call to make (or not to), and
whatever it returns or raises is what the service sees.

    chain.next("send", reply_lost)             the next send executes, and its answer is lost
    chain.next("send", passed, dropped)        the second one from now is accepted and never executed
    chain.next_payment(reply_lost)             the same for the next payment, whatever else is sent
    chain.at(7, down)                          the chain does not answer the seventh call from now
    chain.is_down = True                       all calls fail, until it is False again
"""

import asyncio
import random
import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from solders.transaction import VersionedTransaction

from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.protocol import (
    Absence,
    AccountData,
    Blockhash,
    ChainUnreachableError,
    ChannelHistory,
    Cosigned,
    DepositBatch,
    Posted,
    SignatureStatus,
    TokenAccount,
    nothing_posted,
)

Proceed = Callable[[], Awaitable[Any]]
Act = Callable[["FaultyChain", Proceed], Awaitable[Any]]

_PAYMENT = "send of a payment"


async def passed(chain: "FaultyChain", proceed: Proceed) -> Any:
    """No trouble."""
    return await proceed()


async def down(chain: "FaultyChain", proceed: Proceed) -> Any:
    """The request does not arrive."""
    raise ChainUnreachableError("scripted: the request was lost")


async def reply_lost(chain: "FaultyChain", proceed: Proceed) -> Any:
    """The request arrives, its answer does not."""
    await proceed()
    raise ChainUnreachableError("scripted: the reply was lost")


async def dropped(chain: "FaultyChain", proceed: Proceed) -> None:
    """A send is accepted, and never executed."""


async def repeated(chain: "FaultyChain", proceed: Proceed) -> Any:
    """The network delivers a request twice."""
    await proceed()
    return await proceed()


async def goes_down(chain: "FaultyChain", proceed: Proceed) -> Any:
    """The request does not arrive, nor does any other from now on."""
    chain.is_down = True
    raise ChainUnreachableError("scripted: the chain went away")


async def goes_down_after(chain: "FaultyChain", proceed: Proceed) -> Any:
    """The request arrives; its answer does not, and nothing after it."""
    await proceed()
    chain.is_down = True
    raise ChainUnreachableError("scripted: the chain went away with the reply")


async def expiring(chain: "FaultyChain", proceed: Proceed) -> Any:
    """Every blockhash that was read expires just before the call."""
    chain.inner.expire_blockhash()
    return await proceed()


async def expiring_after(chain: "FaultyChain", proceed: Proceed) -> Any:
    """Every blockhash that was read expires just after the call."""
    result = await proceed()
    chain.inner.expire_blockhash()
    return result


async def lagging(chain: "FaultyChain", proceed: Proceed) -> Any:
    """The node stops following the chain for five looks: neither new blocks nor new transactions show."""
    chain.lag(5)
    return await proceed()


async def not_final(chain: "FaultyChain", proceed: Proceed) -> Any:
    """Executed transactions are known at once, and final only after three looks."""
    chain.not_final(3)
    return await proceed()


def before(action: Callable[[], object]) -> Act:
    """Do something just before the call."""

    async def act(chain: "FaultyChain", proceed: Proceed) -> Any:
        action()
        return await proceed()

    return act


def after(action: Callable[[], object]) -> Act:
    """Do something just after the call."""

    async def act(chain: "FaultyChain", proceed: Proceed) -> Any:
        result = await proceed()
        action()
        return result

    return act


def transfer_of(raw: bytes) -> str:
    """Return the transfer_id or session_id that a transaction's memo begins with; empty if it has none."""
    found = re.search(rb"(txn|sess)_[0-9a-z]{26}", raw)
    return found[0].decode() if found else ""


class FaultyChain:
    """`Chain`, with trouble where it is scripted."""

    def __init__(self, inner: EmbeddedChain, *, chance: random.Random | None = None) -> None:
        self.inner = inner
        self.is_down = False
        self.calls: list[str] = []
        """The names of all calls so far."""
        self.sent: list[tuple[str, bytes]] = []
        """Signature and bytes of what was handed over, each time that it was."""
        self.sent_to_succeed: list[str] = []
        """Signatures of transactions sent with `even_if_failing=False`."""
        self.black_holes: set[str] = set()
        """Sends that are accepted and never executed: signatures, transfer_ids, or `*` for all."""
        self.landed_before: set[str] = set()
        """Signatures of what succeeded in an earlier life of the chain."""
        self._swallowed_next = False
        self._chance = chance
        self._acts: dict[str, deque[Act]] = defaultdict(deque)
        self._acts_at: dict[int, Act] = {}
        self._lag_looks = 0
        self._lag_height = 0
        self._lag_known: set[str] = set()
        self._looks_before_final = 0
        self._looks: dict[str, int] = defaultdict(int)

    def next(self, call: str, *acts: Act) -> None:
        """Let `acts` stand in for the next calls of this name."""
        self._acts[call].extend(acts)

    def next_payment(self, *acts: Act) -> None:
        """Let `acts` stand in for the next sends of transfers and of steps of sessions.

        Records of policies, which are written whenever their writer comes to it, take none of them, nor does
        transactions resent because a black hole loses them.
        """
        self._acts[_PAYMENT].extend(acts)

    def swallow_next_payment(self) -> None:
        """Let the next transfer or session that is not in a black hole yet fall into one with its send."""
        self._swallowed_next = True

    def at(self, count: int, act: Act) -> None:
        """Let `act` stand in for the call that is the `count`-th from now, whatever it is; 1 is the next."""
        self._acts_at[len(self.calls) + count] = act

    def clear(self) -> None:
        """End all trouble."""
        self.is_down = False
        self.black_holes.clear()
        self.script_ends()

    def script_ends(self) -> None:
        """Forget the acts that were never needed, and their remains; black holes stay."""
        self._acts.clear()
        self._acts_at.clear()
        self._swallowed_next = False
        self._lag_looks = self._looks_before_final = 0

    def lag(self, looks: int) -> None:
        """Show the chain as it is now for this many reads of a signature."""
        self._lag_looks = looks
        self._lag_height = self.inner._blocks.height()
        self._lag_known = set(self.inner._statuses)

    def not_final(self, looks: int) -> None:
        """Show every transaction as not final for its first `looks` looks."""
        self._looks_before_final = looks

    def landed(self) -> list[str]:
        """Return the signatures of all transactions that succeeded."""
        now = [
            signature
            for signature, status in self.inner._statuses.items()
            if status.is_final and status.failure is None
        ]
        return [*self.landed_before, *now]

    @property
    def usdc_mint(self) -> str:
        return self.inner.usdc_mint

    @property
    def cluster_name(self) -> str:
        return self.inner.cluster_name

    @property
    def is_test_chain(self) -> bool:
        return self.inner.is_test_chain

    @property
    def landing_seconds(self) -> float:
        return self.inner.landing_seconds

    @property
    def blockhash_life_seconds(self) -> float:
        return self.inner.blockhash_life_seconds

    @property
    def usual_life_seconds(self) -> float:
        return self.inner.usual_life_seconds

    def explorer_url(self, signature: str) -> str:
        return self.inner.explorer_url(signature)

    async def latest_blockhash(self) -> Blockhash:
        return await self._call("latest_blockhash", self.inner.latest_blockhash)

    async def block_height(self) -> int:
        async def proceed() -> int:
            return self._lag_height if self._lag_looks else await self.inner.block_height()

        return await self._call("block_height", proceed)

    async def signature_status(
        self, signature: str, *, absence: Absence | None = None
    ) -> SignatureStatus | None:
        async def proceed() -> SignatureStatus | None:
            status = await self.inner.signature_status(signature, absence=absence)
            if self._lag_looks:
                self._lag_looks -= 1
                return status if signature in self._lag_known else None
            if status is not None and self._looks[signature] < self._looks_before_final:
                self._looks[signature] += 1
                return SignatureStatus(is_final=False)
            return status

        return await self._call("signature_status", proceed)

    async def find_cosigned(
        self, cosigned: Cosigned, *, proof_height: int | None = None
    ) -> SignatureStatus | None:
        return await self._call(
            "find_cosigned", lambda: self.inner.find_cosigned(cosigned, proof_height=proof_height)
        )

    async def holds(self, token_account: str, amount_micro: int) -> bool:
        return await self._call("holds", lambda: self.inner.holds(token_account, amount_micro))

    async def newest_signature(self, token_account: str) -> str | None:
        return await self._call("newest_signature", lambda: self.inner.newest_signature(token_account))

    async def landing_heights(self, blockhash: str, last_valid_height: int) -> tuple[int, int] | None:
        return await self._call(
            "landing_heights", lambda: self.inner.landing_heights(blockhash, last_valid_height)
        )

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:
        return await self._call("knows_blocks", lambda: self.inner.knows_blocks(first_height, last_height))

    async def wait_for_notice(self, signature: str, seconds: float) -> None:
        await self.inner.wait_for_notice(signature, seconds)

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        signature = str(VersionedTransaction.from_bytes(raw).signatures[0])
        self.sent.append((signature, raw))
        if not even_if_failing:
            self.sent_to_succeed.append(signature)
        subject = transfer_of(raw)
        names = {signature, subject, "*"}
        is_payment = bool(subject) and not self.black_holes & names
        if is_payment and self._swallowed_next:
            self._swallowed_next = False
            self.black_holes.add(subject)

        async def proceed() -> None:
            if not self.black_holes & names:
                await self.inner.send(raw, even_if_failing=even_if_failing)

        await self._call("send", proceed, *[_PAYMENT] * is_payment)

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        return await self._call("token_accounts", lambda: self.inner.token_accounts(addresses))

    async def deposits(
        self, token_account: str, *, after: str | None, posted: Posted = nothing_posted
    ) -> AsyncIterator[DepositBatch]:
        async def proceed() -> list[DepositBatch]:
            return [batch async for batch in self.inner.deposits(token_account, after=after, posted=posted)]

        for batch in await self._call("deposits", proceed):
            yield batch

    async def account_size(self, address: str) -> tuple[int, int] | None:
        return await self._call("account_size", lambda: self.inner.account_size(address))

    async def account_data(self, addresses: Sequence[str]) -> list[AccountData | None]:
        return await self._call("account_data", lambda: self.inner.account_data(addresses))

    async def blockhash_slot(self, blockhash: str) -> int | None:
        return await self._call("blockhash_slot", lambda: self.inner.blockhash_slot(blockhash))

    async def channel_history(
        self, channel: str, *, signer: str, to: str, including: str | None = None
    ) -> ChannelHistory:
        def proceed() -> Awaitable[ChannelHistory]:
            return self.inner.channel_history(channel, signer=signer, to=to, including=including)

        return await self._call("channel_history", proceed)

    async def is_signed_by(self, signature: str, signer: str) -> bool:
        return await self._call("is_signed_by", lambda: self.inner.is_signed_by(signature, signer))

    async def rent_exemption(self, size: int) -> int:
        return await self._call("rent_exemption", lambda: self.inner.rent_exemption(size))

    async def _call(self, name: str, proceed: Proceed, *also: str) -> Any:
        self.calls.append(name)
        act = self._acts_at.pop(len(self.calls), None)
        for kind in (name, *also):
            if act is None and self._acts[kind]:
                act = self._acts[kind].popleft()
        await self._wander()
        if self.is_down:
            raise ChainUnreachableError("scripted: the chain is down")
        result = await (proceed() if act is None else act(self, proceed))
        await self._wander()
        return result

    async def _wander(self) -> None:
        """Let others run first, as often as chance says: a call of a real chain always takes a while."""
        if self._chance is not None:
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)


TROUBLE = {
    "reply lost": reply_lost,
    "dropped": dropped,
    "delivered twice": repeated,
    "expired": expiring,
    "expired after it": expiring_after,
    "lagging": lagging,
    "not final": not_final,
    "not sent": down,
}


FAULTS: dict[str, Act] = {
    "request lost": down,
    "reply lost": reply_lost,
    "delivered twice": repeated,
    "chain gone": goes_down,
    "chain gone with the reply": goes_down_after,
    "blockhash expired before": expiring,
    "blockhash expired after": expiring_after,
    "node lags": lagging,
    "not final": not_final,
}
