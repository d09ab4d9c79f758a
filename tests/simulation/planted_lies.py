"""Faults of our own making in believing nodes, clocks and old databases (see `planted.py`)."""

import attrs
from planted import Patch, planted

from agentpay_server.accounts.deposits import Deposits
from agentpay_server.database.clock_check import ClockCheck
from agentpay_server.engine import unknown_debits
from agentpay_server.engine.settlement import Settlement
from agentpay_server.plugins.cluster import history
from agentpay_server.plugins.cluster.evidence import Evidence
from agentpay_server.plugins.cluster.replies import Landing
from agentpay_server.sessions import payouts


@planted
def a_status_is_an_outcome(patch: Patch) -> None:
    """The transaction itself is not asked for."""

    async def of_outcome(self, signature, status):
        return Landing(slot=status.slot, error=status.error, programs=(), last_log=None, debits=None)

    patch(Evidence, "of_outcome", of_outcome)


@planted
def an_absence_needs_no_proof(patch: Patch) -> None:
    """A status that is missing for longer than a blockhash lives is enough."""

    async def unchecked(self, *_):
        """Neither the transaction, nor the account's history, nor its balance would contradict it."""

    patch(Evidence, "check_absent", unchecked)
    patch(Settlement, "_check_balance", unchecked)


@planted
def a_clock_is_not_compared_with_the_database_s(patch: Patch) -> None:
    patch(ClockCheck, "difference_us", lambda self, now_us=None: 0)


@planted
def debits_are_not_compared_with_the_books(patch: Patch) -> None:
    patch(unknown_debits, "is_explained", lambda *_: True)
    patch(unknown_debits, "missing_micro", lambda *_: 0)


@planted
def a_deposit_that_a_history_leaves_out_stays_unposted(patch: Patch) -> None:
    async def content(self, account, held_micro):
        """A balance above the books is nothing to look into."""

    patch(Deposits, "_judge_surplus", content)


@planted
def a_lost_payout_of_an_escrow_is_a_lagging_node(patch: Patch) -> None:
    async def content(context, session, account):
        """The next close reads the escrow again."""

    patch(payouts, "_compare", content)


@planted
def the_amounts_of_a_payout_need_no_second_method(patch: Patch) -> None:
    history_of = history.history_of

    def believed(*read, **of):
        found = history_of(*read, **of)
        return (
            found
            if found.payout is None
            else attrs.evolve(found, payout=attrs.evolve(found.payout, left_micro=0))
        )

    patch(history, "history_of", believed)
