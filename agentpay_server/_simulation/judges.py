"""What must be true at every moment, judged at the edge of the cluster and by what the service has answered.

At the edge: a transaction is stored before it is first sent; a subject has one signature that can still land;
it lands once; a key lands once; no limit is passed. Of answers: what is final never changes, and what was
said to have failed never lands. Nothing here looks into a server or a table.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Final

from agentpay.contract.payments import Payment
from attrs import Factory, define
from solders.transaction import VersionedTransaction

from agentpay.contract.transfers import Transfer, TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay.errors import APIError
from agentpay_server._simulation.cluster import Cluster, Described, Landed

_DAY_SECONDS: Final = 24 * 3600.0
_SLACK_SECONDS: Final = 600.0
"""How far apart a decision and its landing can be, and the clocks of two machines, together."""

_FINAL: Final = frozenset({TransferStatus.SETTLED, TransferStatus.REJECTED, TransferStatus.FAILED})


@define
class Limits:
    """What an account may spend, in micro-USDC; None is without limit."""

    single_micro: int | None = None
    daily_micro: int | None = None
    escalation_micro: int | None = None


@define
class Asked:
    """What is known of an idempotency key.

    Attributes:
        account_id: the account that is to pay.
        terms: whom and how much, for each way in which it was asked for.
        transfers: the transfers that answers have named, with the newest status of each.
    """

    account_id: str
    terms: set[tuple[str, int]] = Factory(set)
    transfers: dict[str, str] = Factory(dict)


class Judges:
    """Watches the edge of the cluster and the answers to agents.

    Args:
        violate: reports what must never be.
        is_stored: tells whether a commit holds a signature.
        now: seconds since the world began.

    Attributes:
        asked: what was asked for, by key.
        keys: the key of every transfer that an answer has named.
        prices: out of which account payments behind a 402 were asked for, and for how much, by key.
        told: the newest answer about each transfer.
        subjects: every transfer and session of which a transaction was handed over, with those transactions.
        landed: what has landed and succeeded, by subject and kind.
        limits: what each account may spend, by its token account.
        escrows: the token accounts that openings pay into.
        paused_since: since when each account that is paused for certain has been, by its identifier.
        spent: what each account has spent, by its token account, and when.
    """

    def __init__(
        self,
        *,
        violate: Callable[..., None],
        is_stored: Callable[[str], bool],
        now: Callable[[], float],
    ) -> None:
        self._violate, self._is_stored, self._now = violate, is_stored, now
        self._failed: set[str] = set()
        self._messages: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.prices: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        self._landed_keys: dict[str, str] = {}
        self._final: dict[str, tuple[Transfer, float]] = {}
        self._sources: dict[str, str] = {}
        self._opened: dict[str, str] = {}
        self.escrows: list[str] = []
        self.paused_since: dict[str, float] = {}
        self.cluster: Cluster
        self.asked: dict[str, Asked] = {}
        self.told: dict[str, Transfer] = {}
        self.subjects: defaultdict[tuple[str, str], list[Described]] = defaultdict(list)
        self.landed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.limits: dict[str, Limits] = {}
        self.spent: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self.total_spent: Counter[str] = Counter()

    # --- At the edge of the cluster

    def handed_over(self, about: Described, by: str) -> None:
        """Judge a transaction that is handed over for the first time."""
        if about.subject is None:
            return
        name = (about.subject, about.kind)
        if about.kind == "opening" and about.destination is not None:
            self.escrows.append(about.destination)
        if not any(map(self._is_stored, about.signatures)):
            self._violate("a transaction was sent before it was stored", *name, about.signature[:12], by)
        height = self.cluster.height(self.cluster.slot())
        if height <= about.last_valid_height:
            # One that can no longer land does no harm.
            for other in self.subjects[name]:
                if other.message != about.message:
                    self._judge_beside(other, about, height)
        self.subjects[name].append(about)

    def _judge_beside(self, other: Described, about: Described, height: int) -> None:
        landed = self.cluster.landings.get(other.signature)
        signatures = (other.signature[:12], about.signature[:12])
        if landed is None and height <= other.last_valid_height:
            self._violate("two signatures can land", about.subject, about.kind, *signatures)
        elif landed is not None and landed.error is None:
            self._violate("signed again after it had landed", about.subject, about.kind, *signatures)

    def in_block(self, landing: Landed) -> None:
        """Judge a transaction that is in a block now."""
        about = landing.about
        if about.subject is None or landing.error is not None:
            return
        name = (about.subject, about.kind)
        self.landed[name].append(about.signature)
        if len(self.landed[name]) > 1:
            self._violate("landed twice", *name, *self.landed[name])
        if about.subject in self._failed:
            self._violate("landed, though an answer said that it never would", *name)
        self._judge_spend(landing)
        if about.kind in ("transfer", "payment"):
            self._judge_key(about.subject)

    def undone(self, landing: Landed) -> None:
        """Forget a transaction that has vanished with its block."""
        about = landing.about
        if about.subject is None or landing.error is not None:
            return
        self.landed[about.subject, about.kind].remove(about.signature)
        self._landed_keys = {key: name for key, name in self._landed_keys.items() if name != about.subject}
        if about.kind != "opening":
            source, taken = self._spent_by(landing)
            self.total_spent[source] -= taken
            self.spent[source].append((self._now(), -taken))

    def _spent_by(self, landing: Landed) -> tuple[str, int]:
        """Return the token account that a transaction spends from, and how much."""
        source = landing.about.source
        assert source is not None  # noqa: S101 - it moves USDC
        taken = landing.before.get(source, 0) - landing.after.get(source, 0)
        if landing.about.kind == "closing":
            source = self._sources[str(landing.about.subject)]
            taken -= landing.after.get(source, 0) - landing.before.get(source, 0)
        return source, taken

    def _judge_spend(self, landing: Landed) -> None:
        about, now = landing.about, self._now()
        if about.kind == "opening":
            self._sources[str(about.subject)] = str(about.source)
            return
        source, taken = self._spent_by(landing)
        limits, spent = self.limits.get(source, Limits()), self.spent[source]
        spent.append((now, taken))
        self.total_spent[source] += taken
        is_transfer = about.kind in ("transfer", "payment")
        if is_transfer and limits.single_micro is not None and taken > limits.single_micro:
            self._violate("the limit of a transfer is passed", about.subject, taken, limits.single_micro)
        while spent and spent[0][0] < now - (_DAY_SECONDS - _SLACK_SECONDS):
            spent.popleft()
        total = sum(amount for _, amount in spent)
        if limits.daily_micro is not None and total > limits.daily_micro:
            self._violate("the daily limit is passed", source[:12], total, limits.daily_micro)

    def _judge_key(self, transfer_id: str) -> None:
        key = self.keys.get(transfer_id)
        if key is None:
            return
        first = self._landed_keys.setdefault(key, transfer_id)
        if first != transfer_id:
            self._violate("one key, two payments", key, first, transfer_id)

    # --- Answers

    def will_ask(self, key: str, account_id: str, to: str, amount_micro: int) -> Asked:
        """Note that a transfer is about to be asked for."""
        asked = self.asked.setdefault(key, Asked(account_id))
        asked.terms.add((to, amount_micro))
        return asked

    def answered(self, transfer: Transfer, asked_at: float, asked_micro: int | None = None) -> None:
        """Judge what the service says of a transfer.

        Args:
            transfer: the answer.
            asked_at: when the question was put.
            asked_micro: what was asked for, where it was asked for.
        """
        transfer_id, status = transfer.transfer_id, str(transfer.status)
        if asked_micro is not None and to_micro(transfer.amount_usdc) != asked_micro:
            self._violate("the answer is about another transfer", transfer_id, asked_micro)
        final = self._final.get(transfer_id)
        if final is not None:
            was, since = final
            is_news = status in _FINAL or asked_at > since  # Else it may have been on its way for long.
            if is_news and (status, transfer.tx_signature) != (str(was.status), was.tx_signature):
                self._violate("a final answer has changed", transfer_id, was.status, status)
        elif status in _FINAL:
            self._final[transfer_id] = (transfer, self._now())
        if final is None or status in _FINAL:
            self.told[transfer_id] = transfer
        self._learn(transfer.idempotency_key, transfer.from_, transfer_id, status)

    def will_buy(self, key: str, account_id: str, amount_micro: int) -> None:
        """Note that a payment is about to be asked for."""
        self.asked.setdefault(key, Asked(account_id))
        self.prices[key].add((account_id, amount_micro))

    def authorized(self, key: str, account_id: str, amount_micro: int, payment: Payment) -> None:
        """Judge what the service says of a payment when it is asked for it."""
        if to_micro(payment.amount_usdc) != amount_micro or payment.account_id != account_id:
            self._violate("the answer is about another payment", payment.transfer_id, amount_micro)
        self._learn(key, account_id, payment.transfer_id, str(payment.status))

    def handed_out(self, key: str, transfer_id: str, message: str, transaction: VersionedTransaction) -> None:
        """Judge the transaction of a payment: from now on anybody can have it land."""
        if not any(self._is_stored(str(each)) for each in transaction.signatures):
            self._violate("a payment was handed out before it was stored", key, transfer_id)
        if self._messages.setdefault(key, message) != message:
            self._violate("one purchase, two transactions", key, transfer_id)
        self.cluster.name_payment(message, transfer_id)

    def opened(self, key: str, session_id: str, status: str) -> None:
        """Judge what the service says of the session of a key."""
        if status != "failed" and self._opened.setdefault(key, session_id) != session_id:
            self._violate("one key, two sessions", key, self._opened[key], session_id)

    def refused(self, key: str, account_id: str, error: APIError) -> None:
        """Judge an error that names a transfer."""
        if error.transfer_id is not None and error.transfer_status is not None:
            self._learn(key, account_id, error.transfer_id, error.transfer_status)

    def _learn(self, key: str, account_id: str, transfer_id: str, status: str) -> None:
        asked = self.asked.setdefault(key, Asked(account_id))
        asked.transfers[transfer_id] = status
        self.keys[transfer_id] = key
        has_landed = any(self.landed.get((transfer_id, kind)) for kind in ("transfer", "payment"))
        if status in ("failed", "rejected"):
            self._failed.add(transfer_id)
            if has_landed:
                self._violate("said to have failed, and has landed", transfer_id, status)
        if has_landed:
            self._judge_key(transfer_id)
