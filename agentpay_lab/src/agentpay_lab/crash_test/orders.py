"""The plan of a crash test, its orders, what goes wrong with each, and how it ended on the chain."""

import sys
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

from attrs import define, evolve, field, frozen

from agentpay_server.paywall import Mode, SessionMode, UptoMode

PRICE_USDC: Final = Decimal("0.01")
CHARGE_USDC: Final = Decimal("0.006")
"""The cost of a request by `upto`; the price is its maximum."""

SPEED: Final = 3
"""The chain's seconds per real second: a payment expires after 20 real seconds."""

_OUR_PAYER: Final = Path(__file__).with_name("adapters") / "payer.py"
_CAP_PURCHASES_PER_SECOND: Final = 0.5
_LEAST_CAP_PURCHASES: Final = 5
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
    MCP = "mcp"
    """By x402 for a tool of an MCP server."""

    SESSION = "session"
    """By session of MPP: the payer opens a channel, and pays with a voucher."""

    UPTO = "upto"
    """x402 `upto`: the payer locks the price in a channel, and the seller takes what the request has cost."""

    @property
    def has_channels(self) -> bool:
        """Whether each purchase is paid through a channel."""
        return self in (TrialProtocol.SESSION, TrialProtocol.UPTO)

    @property
    def of_paywall(self) -> str:
        """The protocol of an exact payment, as a paywall knows it."""
        return "x402_v2" if self is TrialProtocol.MCP else self.value

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


@frozen(kw_only=True)
class TrialPlan:
    """The plan of a crash test.

    Attributes:
        command: starts the payer; empty for our own, whose account then has a limit, whose servers are killed
            and whose books are compared.
        seconds: how long the trial takes, or our own payers buy; a failure is repeated for some more.
        orders: the most orders for each agent.
        protocols: the protocols of the sellers.
        agents: payers that buy at the same time.
        servers: number of processes; more than one requires PostgreSQL.
        database_url: PostgreSQL database; None for an SQLite file.
        keep: a new directory for data and logs; None for a temporary one.
    """

    command: tuple[str, ...] = ()
    seed: int
    seconds: float
    orders: int
    protocols: tuple[TrialProtocol, ...] = (TrialProtocol.X402_V2, TrialProtocol.MPP)
    agents: int = 1
    servers: int = 1
    database_url: str | None = field(default=None, repr=False)
    keep: Path | None = None

    @property
    def is_ours(self) -> bool:
        """Whether the payer is our own."""
        return not self.command

    @property
    def payer(self) -> tuple[str, ...]:
        """The command that starts a payer."""
        return self.command or (sys.executable, "-P", str(_OUR_PAYER))

    @property
    def cap_usdc(self) -> Decimal | None:
        """The daily limit of our own payer's account, below what it wants to buy."""
        if not self.is_ours:
            return None
        return PRICE_USDC * max(int(self.seconds * _CAP_PURCHASES_PER_SECOND), _LEAST_CAP_PURCHASES)

    @property
    def speed(self) -> int:
        """The chain's seconds per real second."""
        # The expiry of a voucher is compared with the clocks of payer, seller and chain.
        return 1 if any(each.has_channels for each in self.protocols) else SPEED


@define
class Deadline:
    """When no more orders are given, by the monotonic clock; it can be now."""

    at: float

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.at - time.monotonic()

    @property
    def has_come(self) -> bool:
        """Whether it is past."""
        return self.left <= 0

    def end(self) -> None:
        self.at = 0.0


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
        is_repeated: whether it is asked for again although it was served.
    """

    name: str
    mode: SellerMode
    protocol: TrialProtocol
    kill: Kill | None
    kill_after: float = 0.0
    loses_reply: bool = False
    is_repeated: bool = False

    @property
    def story(self) -> str:
        """What goes wrong, as a sentence."""
        parts = [f"The seller is {self.mode.value}"]
        if self.kill is not None:
            parts.append(f"the payer is killed {self.kill.value}")
        if self.loses_reply:
            parts.append("the service's reply to the payment is lost")
        if self.is_repeated:
            parts.append("the order is given again after it was served")
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
        seller: how its seller behaved.
        protocol: how it was sold.
        story: what went wrong around it.
        asked: how often the payer was asked for it.
        result: the payer's last word: `served`, `refused`, `failed`, or empty.
        landed: how many payments landed; by `session` and `upto`, from how many channels it was paid.
        paid_usdc: their sum.
    """

    order: str
    seller: SellerMode
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
class Reconciliation:
    """What the chain, the books and the limit of our own payer's account say in the end.

    Attributes:
        cap_usdc: the daily limit of the account.
        settled_usdc: paid for orders, according to the chain.
        undecided: payments without an outcome in time.
        differences: a sentence for each difference between a purchase, the chain and the books.
        server_kills: how often a server was killed.
    """

    cap_usdc: Decimal
    settled_usdc: Decimal
    undecided: int
    differences: tuple[str, ...]
    server_kills: int

    @property
    def over_cap_usdc(self) -> Decimal:
        """How much was paid above the limit."""
        return max(self.settled_usdc - self.cap_usdc, Decimal(0))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the test has failed; empty if it has passed."""
        faults = {
            f"{self.over_cap_usdc} USDC were paid over the limit": self.over_cap_usdc > 0,
            f"{self.undecided} payments had no outcome in time": self.undecided > 0,
            f"books and chain differ in {len(self.differences)} places": bool(self.differences),
        }
        return tuple(reason for reason, is_so in faults.items() if is_so)


@frozen(kw_only=True)
class TrialReport:
    """The verdict of a trial.

    Attributes:
        protocols: how the sellers were paid.
        first_wrong: the first order that was paid twice or too much; None if none was.
        shortest: the shortest run found that still fails; None if none failed, or none could be repeated.
        stray_usdc: paid from the payer's accounts, and for no order.
        last_lines: what the payer wrote last on standard error, if it ended without being killed.
        reconciliation: None for a payer that is not our own.
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
    reconciliation: Reconciliation | None = None

    @property
    def paid(self) -> int:
        """For how many orders something was paid."""
        return sum(1 for each in self.orders if each.landed)

    @property
    def least_paid(self) -> int:
        """How many orders must be paid: what our own payer's test proves is in its books too."""
        return LEAST_PAID if self.reconciliation is None else 1

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the books of our own payer are wrong; empty if they are not."""
        return () if self.reconciliation is None else self.reconciliation.reasons

    @property
    def has_passed(self) -> bool:
        """Whether enough was paid, nothing twice, too much or for no order, and the books are right."""
        is_clean = self.first_wrong is None and not self.stray_usdc and not self.reasons
        return is_clean and self.paid >= self.least_paid
