"""The orders of a trial: how each is sold, what goes wrong with it, and how it ended on the chain."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final, TypeAlias

from attrs import evolve, frozen

from agentpay_lab.crash_test.run import PRICE_USDC
from agentpay_server.paywall import Mode, SessionMode, UptoMode

LEAST_PAID: Final = 10
"""A trial that paid for fewer orders proves little: most kinds of kills and sellers did not occur."""

_BLOCK_LINES: Final = 8
"""The longest repetition that is found in a timeline."""

SellerMode: TypeAlias = Mode | SessionMode | UptoMode


class TrialProtocol(StrEnum):
    """How a seller is paid: an exact price at once, or through a channel on chain."""

    X402_V2 = "x402_v2"
    X402_V1 = "x402_v1"
    MPP = "mpp"
    SESSION = "session"
    """By session of MPP: the payer opens a channel, and pays with a voucher."""

    UPTO = "upto"
    """x402 `upto`: the payer locks the price in a channel, and the seller takes what the request has cost."""

    @property
    def has_channels(self) -> bool:
        """Whether each purchase is paid through a channel."""
        return self in (TrialProtocol.SESSION, TrialProtocol.UPTO)

    @property
    def modes(self) -> type[SellerMode]:
        """How its sellers can behave."""
        return _MODES.get(self, Mode)

    @property
    def kills(self) -> tuple["Kill", ...]:
        """When its payers are killed."""
        landing = Kill.OPENED if self.has_channels else Kill.LANDED
        return Kill.ASKED, Kill.PAID, landing, Kill.RANDOM


_MODES: Final[dict[TrialProtocol, type[SellerMode]]] = {
    TrialProtocol.SESSION: SessionMode,
    TrialProtocol.UPTO: UptoMode,
}


class Kill(StrEnum):
    """When the payer is killed."""

    ASKED = "when the seller has asked for payment"
    PAID = "when the seller has received the payment"
    LANDED = "when the payment has landed"
    OPENED = "when its channel has opened"
    RANDOM = "at a random moment"


@frozen(kw_only=True)
class TrialOrder:
    """An order, and what goes wrong with it.

    Attributes:
        name: its name, which is also the memo of an exact payment on the chain.
        mode: how the seller behaves.
        kill: when the payer is killed, at the first try; None if it is not.
        kill_after: for a random moment: seconds after the order was sent.
        loses_reply: whether the service's reply to the first payment is lost.
    """

    name: str
    mode: SellerMode
    protocol: TrialProtocol
    kill: Kill | None
    kill_after: float = 0.0
    loses_reply: bool = False

    @property
    def story(self) -> str:
        """What goes wrong, as a sentence."""
        parts = [f"The seller is {self.mode.value}"]
        if self.kill is not None:
            parts.append(f"the payer is killed {self.kill.value}")
        if self.loses_reply:
            parts.append("the service's reply to the payment is lost")
        return f"{', '.join(parts)}."

    @property
    def is_honest(self) -> bool:
        """Whether the seller is."""
        return self.mode is self.protocol.modes("honest")

    def simpler(self) -> Iterator["TrialOrder"]:
        """Yield orders with less going wrong, the simplest first."""
        honest = evolve(self, mode=self.protocol.modes("honest"))
        last = Kill.PAID if self.protocol.has_channels else Kill.LANDED
        for kill in dict.fromkeys((None, self.kill, last)):
            for base in (honest, self):
                simpler = evolve(base, kill=kill, loses_reply=False)
                if simpler != self and (simpler.kill is not None or not simpler.is_honest):
                    yield simpler


@frozen(kw_only=True)
class TimelineEntry:
    """Something that happened to an order: seconds since the order was first sent, and what."""

    seconds: Decimal
    what: str


def collapsed(timeline: Sequence[TimelineEntry]) -> Iterator[TimelineEntry]:
    """Yield a timeline in which what repeats is shown once, with how often it came."""
    place = 0
    while place < len(timeline):
        size, times = _repeated([entry.what for entry in timeline[place:]])
        block = timeline[place : place + size]
        if times > 1 and size == 1:
            yield evolve(block[0], what=f"{block[0].what} ({times} times)")
        else:
            yield from block
            if times > 1:
                again = timeline[place + size]
                yield evolve(again, what=f"the last {size} lines again ({times - 1} times)")
        place += size * times


def _repeated(words: Sequence[str]) -> tuple[int, int]:
    """Return the length of what comes first, and how often it comes in a row: mostly (1, 1)."""
    for size in range(1, min(_BLOCK_LINES, len(words) // 2) + 1):
        times = 1
        while words[times * size : (times + 1) * size] == words[:size]:
            times += 1
        if times > 1:
            return size, times
    return 1, 1


@frozen(kw_only=True)
class Bought:
    """The result of an order, counted on the chain.

    Attributes:
        order: its name.
        protocol: how it was sold.
        story: what went wrong around it.
        asked: how often the payer was asked for it.
        result: the payer's last word: `served`, `refused`, `failed`, or empty.
        landed: how many payments landed; by `session` and `upto`, from how many channels it was paid.
        paid_usdc: their sum.
    """

    order: str
    protocol: TrialProtocol
    story: str
    asked: int
    result: str
    landed: int
    paid_usdc: Decimal
    timeline: tuple[TimelineEntry, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether it was paid more than once, or for more than its price."""
        return self.landed > 1 or self.paid_usdc > PRICE_USDC

    @property
    def payments(self) -> str:
        """How it was paid, such as `paid 2 times, 0.020000 USDC`."""
        if not self.protocol.has_channels:
            return f"paid {self.landed} times, {self.paid_usdc} USDC"
        channels = "1 channel" if self.landed == 1 else f"{self.landed} channels"
        return f"paid {self.paid_usdc} USDC through {channels}, for a price of {PRICE_USDC}"


@frozen(kw_only=True)
class TrialReport:
    """The verdict of a trial.

    Attributes:
        protocols: how the sellers were paid.
        first_wrong: the first order that was paid twice or too much; None if none was.
        shortest: the shortest run found that still fails; None if none failed, or none could be repeated.
        stray_usdc: paid from the payer's accounts, and for no order.
        last_lines: what the payer wrote last on standard error, if it ended without being killed.
    """

    seed: int
    protocols: tuple[TrialProtocol, ...]
    orders: tuple[Bought, ...]
    kills: int
    first_wrong: str | None
    shortest: Bought | None
    stray_usdc: Decimal
    seconds: int
    last_lines: tuple[str, ...] = ()

    @property
    def paid(self) -> int:
        """For how many orders something was paid."""
        return sum(1 for each in self.orders if each.landed)

    @property
    def has_passed(self) -> bool:
        """Whether enough was paid, and nothing twice, too much or for no order."""
        return self.first_wrong is None and not self.stray_usdc and self.paid >= LEAST_PAID
