"""The invariants of channels: sessions over HTTP 402, and payments up to a maximum.

One key has one voucher for ever, and no two vouchers of a channel overlap. Vouchers stay within the deposit.
A seller has settled, by the chain, at most what was handed out. Every channel ends.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import define

from agentpay.contract.ext.payments import SessionStep
from agentpay.contract.usdc import to_micro
from agentpay_server.chain.channels.codecs import OnchainTerms, Voucher
from agentpay_server.plugins.paywall.channel_settling import Opening

if TYPE_CHECKING:
    from agentpay_lab.simulation.cluster import SimulatedCluster


@define
class KnownChannel:
    """A channel whose opening was handed out.

    Attributes:
        subject: its session or its payment.
        vouchers: keys by the cumulative amounts that were handed out, with what each pays.
        closing_micro: the highest voucher, which a close hands out again: its response may have been lost.
        settled_micro: what the program settled of it; None before its payout.
    """

    subject: str
    opening: OnchainTerms
    vouchers: dict[int, tuple[str, int]]
    closing_micro: int = 0
    settled_micro: int | None = None

    @property
    def is_upto(self) -> bool:
        return self.subject.startswith("txn")

    @property
    def highest_micro(self) -> int:
        """The most that its seller can settle."""
        return self.opening.deposit_micro if self.is_upto else max(self.closing_micro, *self.vouchers, 0)


class ChannelInvariants:
    """`known` are the channels by address, `subjects` all sessions and payments that have one."""

    def __init__(self, violate: Callable[..., None], is_stored: Callable[[str], bool]) -> None:
        self._violate, self._is_stored = violate, is_stored
        self.cluster: SimulatedCluster
        self.known: dict[str, KnownChannel] = {}
        self.of_subject: dict[str, KnownChannel] = {}
        self.subjects: set[str] = set()
        self._of_key: dict[tuple[str, str], tuple[str, int]] = {}
        # By address: a voucher may come before its opening, whose first response was lost.
        self._vouchers: defaultdict[str, dict[int, tuple[str, int]]] = defaultdict(dict)

    def opening_handed_out(self, subject: str, checked: Opening) -> None:
        transaction, opening = checked
        address = str(opening.address)
        if not any(self._is_stored(str(each)) for each in transaction.signatures):
            self._violate("an opening was handed out before it was stored", subject)
        known = self.of_subject.setdefault(subject, KnownChannel(subject, opening, self._vouchers[address]))
        if known.opening != opening:
            self._violate("one session, two channels", subject, known.opening.address, address)
        self.known[address] = known
        self.subjects.add(subject)
        self.cluster.name_channel(address, subject)

    def voucher_handed_out(self, key: str, account_id: str, step: SessionStep, voucher: Voucher) -> None:
        address, cumulative = str(voucher.channel), voucher.cumulative_micro
        known, amount = self.known.get(address), to_micro(step.amount_usdc)
        if self._of_key.setdefault((account_id, key), (address, cumulative)) != (address, cumulative):
            self._violate("one key, two vouchers", key, *self._of_key[account_id, key], address, cumulative)
        within = known is None or cumulative <= known.opening.deposit_micro
        if not within or cumulative != to_micro(step.running_total_usdc):
            self._violate("a voucher exceeds its channel", key, cumulative)
        vouchers = self._vouchers[address]
        if vouchers.setdefault(cumulative, (key, amount))[0] != key:
            self._violate("two keys, one voucher", key, vouchers[cumulative][0], cumulative)
        for before, after in pairwise(sorted(vouchers)):
            if after - vouchers[after][1] < before:
                self._violate("two vouchers overlap", address, before, after)

    def closing_handed_out(self, voucher: Voucher) -> None:
        known, cumulative = self.known.get(str(voucher.channel)), voucher.cumulative_micro
        if known is None:
            return
        if cumulative > known.opening.deposit_micro:
            self._violate("a voucher exceeds its channel", known.subject, cumulative)
        known.closing_micro = max(known.closing_micro, cumulative)

    def paid_out(self, subject: str, settled_micro: int) -> None:
        known = self.of_subject[subject]
        known.settled_micro = settled_micro
        if settled_micro > known.highest_micro:
            self._violate("more was settled than was handed out", subject, settled_micro, known.highest_micro)

    def payout_undone(self, subject: str) -> None:
        self.of_subject[subject].settled_micro = None
