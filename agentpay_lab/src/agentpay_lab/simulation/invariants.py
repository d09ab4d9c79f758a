"""Invariants, checked at the cluster's edge and in the service's responses.

At the edge: a transaction is stored before it is first sent; a subject has one signature that can still land,
and lands once; a key lands once; no limit is exceeded. In responses: a final status never changes, and a
failed transfer never lands. They never read a server's memory or tables.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Final

from attrs import Factory, define
from solders.transaction import VersionedTransaction

from agentpay.contract.ext.payments import Payment
from agentpay.contract.transfers import Transfer, TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay.errors import APIError
from agentpay_lab.simulation.channel_invariants import ChannelInvariants
from agentpay_lab.simulation.cluster import Described, LandedTransaction, SimulatedCluster

_DAY_SECONDS: Final = 24 * 3600.0
_SLACK_SECONDS: Final = 600.0
"""Maximum delay between a decision and its landing, plus two machines' clock difference."""

_FUNDING: Final = ("opening", "channel")
"""Kinds of transactions that lock a cap, of which a part is spent later."""

_FINAL: Final = frozenset({TransferStatus.SETTLED, TransferStatus.REJECTED, TransferStatus.FAILED})


@define
class AccountLimits:
    """The limits of an account, in micro-USDC; None means no limit."""

    single_micro: int | None = None
    daily_micro: int | None = None
    escalation_micro: int | None = None


@define
class Asked:
    """The terms (recipient and amount) of a key's requests, and its transfers' newest status."""

    account_id: str
    terms: set[tuple[str, int]] = Factory(set)
    transfers: dict[str, str] = Factory(dict)


class Invariants:
    """Observes the cluster's edge and the responses to agents.

    Attributes:
        keys: key by transfer, for transfers in responses.
        prices: accounts and prices of payment requests, by key.
        subjects: sent transactions by transfer or session, and kind.
        limits: by token account.
        escrows: token accounts that openings fund.
        paused_since: since when an account is certainly paused.
        spent: spends and their times, by token account.
    """

    def __init__(
        self,
        *,
        violate: Callable[..., None],
        is_stored: Callable[[str], bool],
        now: Callable[[], float],
    ) -> None:
        self._violate, self._is_stored, self._now = violate, is_stored, now
        self.channels = ChannelInvariants(violate, is_stored)
        self._failed: set[str] = set()
        self._messages: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.prices: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        self._landed_keys: dict[str, str] = {}
        self._bought: dict[tuple[str, str], str] = {}
        self._final: dict[str, tuple[Transfer, float]] = {}
        self._sources: dict[str, str] = {}
        self._opened: dict[str, str] = {}
        self.escrows: list[str] = []
        self.session_keys: set[str] = set()
        self.paused_since: dict[str, float] = {}
        self.cluster: SimulatedCluster
        self.asked: dict[str, Asked] = {}
        self.told: dict[str, Transfer] = {}
        self.subjects: defaultdict[tuple[str, str], list[Described]] = defaultdict(list)
        self.landed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.limits: dict[str, AccountLimits] = {}
        self.spent: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self.total_spent: Counter[str] = Counter()

    # --- At the edge of the cluster

    def handed_over(self, about: Described, by: str) -> None:
        if about.subject is None:
            return
        name = (about.subject, about.kind)
        if about.kind == "opening" and about.destination is not None:
            self.escrows.append(about.destination)
        if not any(map(self._is_stored, about.signatures)):
            self._violate("a transaction was sent before it was stored", *name, about.signature[:12], by)
        height = self.cluster.height(self.cluster.slot())
        if height <= about.last_valid_height:
            # One that can no longer land is harmless.
            for other in self.subjects[name]:
                if other.message != about.message:
                    self._check_beside(other, about, height)
        self.subjects[name].append(about)

    def _check_beside(self, other: Described, about: Described, height: int) -> None:
        landed = self.cluster.landings.get(other.signature)
        signatures = (other.signature[:12], about.signature[:12])
        if landed is None and height <= other.last_valid_height:
            self._violate("two signatures can land", about.subject, about.kind, *signatures)
        elif landed is not None and landed.error is None:
            self._violate("signed again after it had landed", about.subject, about.kind, *signatures)

    def in_block(self, landing: LandedTransaction) -> None:
        about = landing.about
        for each in landing.paid_out:
            self._has_landed(each.subject, "payout", about.signature)
            self.channels.paid_out(each.subject, each.settled_micro)
            self._count(each.source, each.settled_micro)
        if about.subject is None or landing.error is not None:
            return
        self._has_landed(about.subject, about.kind, about.signature)
        self._check_spend(landing)
        if about.kind in ("transfer", "payment", "channel"):
            self._check_key(about.subject)

    def _has_landed(self, subject: str, kind: str, signature: str) -> None:
        self.landed[subject, kind].append(signature)
        if len(self.landed[subject, kind]) > 1:
            self._violate("landed twice", subject, kind, *self.landed[subject, kind])
        if subject in self._failed:
            self._violate("landed, though an answer said that it never would", subject, kind)

    def undone(self, landing: LandedTransaction) -> None:
        about = landing.about
        for each in landing.paid_out:
            self.landed[each.subject, "payout"].remove(about.signature)
            self.channels.payout_undone(each.subject)
            self._uncount(each.source, each.settled_micro)
        if about.subject is None or landing.error is not None:
            return
        self.landed[about.subject, about.kind].remove(about.signature)
        self._landed_keys = {key: name for key, name in self._landed_keys.items() if name != about.subject}
        if about.kind not in _FUNDING:
            self._uncount(*self._spent_by(landing))

    def _uncount(self, source: str, taken: int) -> None:
        self.total_spent[source] -= taken
        self.spent[source].append((self._now(), -taken))

    def _spent_by(self, landing: LandedTransaction) -> tuple[str, int]:
        source = landing.about.source
        assert source is not None  # noqa: S101 - it moves USDC
        taken = landing.before.get(source, 0) - landing.after.get(source, 0)
        if landing.about.kind == "closing":
            source = self._sources[str(landing.about.subject)]
            taken -= landing.after.get(source, 0) - landing.before.get(source, 0)
        return source, taken

    def _check_spend(self, landing: LandedTransaction) -> None:
        about = landing.about
        if about.kind in _FUNDING:
            self._sources[str(about.subject)] = str(about.source)
            return
        source, taken = self._spent_by(landing)
        limits = self.limits.get(source, AccountLimits())
        is_transfer = about.kind in ("transfer", "payment")
        if is_transfer and limits.single_micro is not None and taken > limits.single_micro:
            self._violate("the limit of a transfer is passed", about.subject, taken, limits.single_micro)
        self._count(source, taken)

    def _count(self, source: str, taken: int) -> None:
        now, limits, spent = self._now(), self.limits.get(source, AccountLimits()), self.spent[source]
        spent.append((now, taken))
        self.total_spent[source] += taken
        while spent and spent[0][0] < now - (_DAY_SECONDS - _SLACK_SECONDS):
            spent.popleft()
        total = sum(amount for _, amount in spent)
        if limits.daily_micro is not None and total > limits.daily_micro:
            self._violate("the daily limit is passed", source[:12], total, limits.daily_micro)

    def _check_key(self, transfer_id: str) -> None:
        key = self.keys.get(transfer_id)
        if key is None:
            return
        first = self._landed_keys.setdefault(key, transfer_id)
        if first != transfer_id:
            self._violate("one key, two payments", key, first, transfer_id)

    # --- Responses

    def will_ask(self, key: str, account_id: str, to: str, amount_micro: int) -> Asked:
        asked = self.asked.setdefault(key, Asked(account_id))
        asked.terms.add((to, amount_micro))
        return asked

    def answered(self, transfer: Transfer, asked_at: float, asked_micro: int | None = None) -> None:
        """`asked_at` is when the request was sent; a read has no amount."""
        transfer_id, status = transfer.transfer_id, str(transfer.status)
        if asked_micro is not None and to_micro(transfer.amount_usdc) != asked_micro:
            self._violate("the answer is about another transfer", transfer_id, asked_micro)
        final = self._final.get(transfer_id)
        if final is not None:
            was, since = final
            is_news = status in _FINAL or asked_at > since  # Otherwise it may be an old, delayed response.
            if is_news and (status, transfer.tx_signature) != (str(was.status), was.tx_signature):
                self._violate("a final answer has changed", transfer_id, was.status, status)
        elif status in _FINAL:
            self._final[transfer_id] = (transfer, self._now())
        if final is None or status in _FINAL:
            self.told[transfer_id] = transfer
        self._learn(transfer.idempotency_key, transfer.from_, transfer_id, status)

    def will_buy(self, key: str, account_id: str, amount_micro: int) -> None:
        self.asked.setdefault(key, Asked(account_id))
        self.prices[key].add((account_id, amount_micro))

    def authorized(self, key: str, account_id: str, amount_micro: int, payment: Payment) -> None:
        if to_micro(payment.amount_usdc) != amount_micro or payment.account_id != account_id:
            self._violate("the answer is about another payment", payment.transfer_id, amount_micro)
        self._learn(key, account_id, payment.transfer_id, str(payment.status))

    def asked_for(self, key: str, account_id: str) -> None:
        """Note the account of a purchase through a channel."""
        self.asked.setdefault(key, Asked(account_id))

    def authorized_up_to(self, key: str, account_id: str, payment: Payment) -> None:
        """Check a payment up to a maximum, whose amount is final only once it is settled."""
        if payment.account_id != account_id:
            self._violate("the answer is about another payment", payment.transfer_id)
        self.channels.subjects.add(payment.transfer_id)
        self._learn(key, account_id, payment.transfer_id, str(payment.status))

    def handed_out(self, key: str, transfer_id: str, message: str, transaction: VersionedTransaction) -> None:
        """Check a payment's transaction: its holder can land it from now on."""
        if not any(self._is_stored(str(each)) for each in transaction.signatures):
            self._violate("a payment was handed out before it was stored", key, transfer_id)
        if self._messages.setdefault(key, message) != message:
            self._violate("one purchase, two transactions", key, transfer_id)
        self.cluster.name_payment(message, transfer_id)

    def opened(self, key: str, session_id: str, status: str) -> None:
        if status != "failed" and self._opened.setdefault(key, session_id) != session_id:
            self._violate("one key, two sessions", key, self._opened[key], session_id)

    def bought(self, key: str, account_id: str, kind: str) -> None:
        """Check that a key pays in one way, given that it has paid in this one."""
        first = self._bought.setdefault((account_id, key), kind)
        if first != kind:
            self._violate("one key, two purchases", key, first, kind)

    def refused(self, key: str, account_id: str, error: APIError) -> None:
        if error.transfer_id is not None and error.transfer_status is not None:
            self._learn(key, account_id, error.transfer_id, error.transfer_status)

    def forget_responses(self) -> None:
        """Accept other responses than before: the service has lost what it knew."""
        self._final.clear()
        self._bought.clear()
        self._failed.clear()
        self.told.clear()

    def _learn(self, key: str, account_id: str, transfer_id: str, status: str) -> None:
        asked = self.asked.setdefault(key, Asked(account_id))
        asked.transfers[transfer_id] = status
        self.keys[transfer_id] = key
        if status == TransferStatus.SETTLED:
            self.bought(key, account_id, "a transfer")
        has_landed = any(self.landed.get((transfer_id, kind)) for kind in ("transfer", "payment", "channel"))
        if status in ("failed", "rejected"):
            self._failed.add(transfer_id)
            if has_landed:
                self._violate("said to have failed, and has landed", transfer_id, status)
        if has_landed:
            self._check_key(transfer_id)
