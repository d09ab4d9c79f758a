"""What to do about a channel, given what the chain shows of it. Pure functions.

    open ── a caller closes it: its seller gets the highest voucher to settle ──────────► closing
    open ── idle, too old, two refusals, or the seller has ended it on chain ───────────► closing
    closing ── not sealed in time: the service requests the close, on chain ────────────► closing
    closing ── the grace period is over: the service seals it and pays it out ──────────► closing
    closing ── it is paid out ──────────────────────────────────────────────────────────► settled

Only the chain decides: what a seller says, or what a receipt says, changes nothing here. All times are
microseconds since 1970.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from attrs import frozen

from agentpay_server.chain.channels.codecs import ChannelAccount, OnchainStatus
from agentpay_server.chain.protocol import Payout
from agentpay_server.platform.clock import SECOND_US

SEAL_US: Final = 60 * SECOND_US
"""How long the seller has to seal a channel after a close, and to pay out one that it has sealed."""

MARGIN_US: Final = 2 * SECOND_US
"""How long after the grace period the service seals: the chain's clock may be behind."""

IN_FLIGHT_US: Final = 30 * SECOND_US
"""How long, in real time, a voucher whose outcome nobody has reported prevents the next one."""

MAX_REFUSALS: Final = 2
MAX_OPENINGS: Final = 10
OPENINGS_WITHIN_US: Final = 3_600 * SECOND_US
MAX_SLOT_DISTANCE: Final = 300
"""How far the slot that a seller names for an opening may be from the chain's."""


class Act(Enum):
    """What to do about a closing channel."""

    WAIT = "wait"
    REQUEST = "request"
    """Request the close on chain: the grace period begins."""

    SEAL = "seal"
    """Seal it after the grace period, and pay it out."""

    PAY_OUT = "pay_out"
    """Pay out a channel that is sealed already."""

    POST = "post"
    """It is paid out: post what the account got back."""


@frozen(kw_only=True)
class Due:
    """What to do about a channel, and when."""

    act: Act
    at_us: int


def next_act(found: ChannelAccount | None, *, force_us: int) -> Due:
    """Return what is due for a closing channel.

    Args:
        found: the channel as the chain shows it; None once its account is gone.
        force_us: from when on the service acts in place of the seller.
    """
    if found is None or found.status is OnchainStatus.DISTRIBUTED:
        return Due(act=Act.POST, at_us=0)
    if found.status is OnchainStatus.SEALED:
        return Due(act=Act.PAY_OUT, at_us=force_us)
    if found.status is OnchainStatus.CLOSING:
        return Due(act=Act.SEAL, at_us=found.deadline * SECOND_US + MARGIN_US)
    return Due(act=Act.REQUEST, at_us=force_us)


def is_ended_by_seller(found: ChannelAccount | None) -> bool:
    """Return whether an open session's channel accepts no vouchers any more."""
    return found is None or found.status is not OnchainStatus.OPEN


@frozen(kw_only=True)
class ChannelPayout:
    """What became of a channel that was paid out.

    Attributes:
        signature: of the transaction.
        settled_micro: what its beneficiaries have of the cap; the account got the rest.
        deposited_micro: what the account got beyond what its channels returned, once for the transaction.
        is_short: whether the account got less than the channels that share the transaction should return.
    """

    signature: str
    settled_micro: int
    deposited_micro: int
    is_short: bool

    def is_beyond(self, handed_out_micro: int) -> bool:
        """Return whether the books do not explain it, given the most that they let its seller settle."""
        return self.is_short or self.settled_micro > handed_out_micro


def payout_of(payout: Payout, session_id: str, *, cap_micro: int, owed: Mapping[str, int]) -> ChannelPayout:
    """Return what became of a channel.

    Args:
        payout: the transaction that paid it out.
        session_id: the channel's session.
        cap_micro: what was paid into the channel.
        owed: by session, what no voucher proves as settled, of all channels of the account that it pays out.
    """
    left, returned_micro = max(payout.gained_micro, 0), 0
    for each in sorted(owed):
        part = min(left, owed[each])
        left -= part
        if each == session_id:
            returned_micro = part
    return ChannelPayout(
        signature=payout.signature,
        settled_micro=cap_micro - returned_micro,
        deposited_micro=left,
        is_short=len(owed) > 1 and payout.gained_micro < sum(owed.values()),
    )
