"""SIGKILL at random moments under load, again and again on the same data: every key pays once (P1, deep).

The load is transfers, or sessions that are opened, charged and closed: what was answered has happened, once.

AGENTPAY_DEEP_SECONDS=3600 AGENTPAY_DEEP_SEED=7 nox -s deep -- tests/reliability/test_kill_random.py
"""

import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from killing import Child, Directory, Postgres, Prepared, Survey, child, prepared

from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

CALLERS = 8
LONGEST_LIFE_SECONDS = 1.0
AMOUNT = "0.000001"
"""The least there is: what the payer has lasts for as long as anybody asks."""


def usdc(micro: int) -> str:
    return f"{micro / 10**6:.6f}"


def deep_seconds() -> float:
    return float(os.environ.get("AGENTPAY_DEEP_SECONDS", "60"))


class Transfers:
    """A load of transfers, and what callers were told of them.

    Args:
        it: the place, and who pays whom in it.
    """

    keys_per_round = 200
    callers_per_key = 1

    def __init__(self, it: Prepared) -> None:
        self._it = it
        self._answered: dict[str, str] = {}

    def call(self, server: Child, key: str) -> bool:
        """Send a key, note what settled, and return whether the server is still there."""
        answer = server.request("POST", "/v1/transfers", self._it.key, self._it.transfer(key, AMOUNT))
        if answer is not None and answer.status_code == 200:
            transfer_id = answer.json()["transfer_id"]
            assert self._answered.setdefault(key, transfer_id) == transfer_id
        return answer is not None

    def judge(self, server: AgentPayServer) -> None:
        """Compare all that is known of them, now that all have come to their end."""
        it, survey = self._it, Survey(server)
        transfers = survey.rows("transfers")
        assert {(row["status"], row["error"]) for row in transfers} <= {("settled", None)}
        by_key = {row["idempotency_key"]: row for row in transfers}
        assert len(by_key) == len(transfers)
        # No response reported a transfer that did not happen.
        assert {key: by_key[key]["transfer_id"] for key in self._answered} == self._answered
        assert {row["tx_signature"] for row in transfers} <= survey.landed()
        paid = len(transfers)
        accounts = {row["account_id"]: row for row in survey.rows("accounts")}
        assert accounts[it.payer]["balance"] == 100_000_000 - paid
        assert accounts[it.payee]["balance"] == paid
        assert accounts[it.payer]["in_flight"] == 0
        entries = survey.rows("entries")
        assert len(entries) == 1 + 2 * len(transfers)
        events = [row["type"] for row in survey.rows("events")]
        assert events.count("transfer.settled") == events.count("transfer.initiated") == len(transfers)
        survey.assert_conserved()


class Sessions:
    """A load of sessions, each used by several callers at once, and what they were told of them.

    Args:
        it: the place, and who pays whom in it.
    """

    keys_per_round = 40
    callers_per_key = 2
    cap_micro = 8
    charges = 10
    """Of one unit each: some more than there is room for."""

    def __init__(self, it: Prepared) -> None:
        self._it = it
        self._opened: dict[str, str] = {}
        self._charged: dict[str, set[str]] = defaultdict(set)
        self._settled: dict[str, str] = {}

    def call(self, server: Child, key: str) -> bool:
        """Use a session from its opening to its end, and return whether the server still responds."""
        terms = {"account_id": self._it.payer, "to": self._it.payee, "cap_usdc": usdc(self.cap_micro)}
        answer = self._ask(server, "/ext/v1/sessions", {**terms, "idempotency_key": key})
        if answer is None:
            return False
        assert answer["status"] in ("open", "closing", "settled"), answer
        session_id = answer["session_id"]
        assert self._opened.setdefault(key, session_id) == session_id
        for number in range(self.charges):
            charge = {"amount": usdc(1), "idempotency_key": str(number)}
            answer = self._ask(server, f"/ext/v1/sessions/{session_id}/charges", charge)
            if answer is None:
                return False
            if "error" not in answer:
                self._charged[session_id].add(str(number))
            else:
                assert answer["error"] in ("session_closed", "session_cap_exceeded"), answer
        # One in five stays open.
        if key.endswith(("0", "5")):
            return True
        answer = self._ask(server, f"/ext/v1/sessions/{session_id}/close")
        if answer is None:
            return False
        assert answer["status"] == "settled", answer
        assert self._settled.setdefault(session_id, answer["settled_usdc"]) == answer["settled_usdc"]
        return True

    def _ask(self, server: Child, path: str, body: object = None) -> dict[str, Any] | None:
        """Return an answer; None when the server is gone, or so busy that it does not know one yet."""
        answer = server.request("POST", path, self._it.key, body)
        return None if answer is None or answer.status_code == 503 else answer.json()

    def judge(self, server: AgentPayServer) -> None:
        """Close what is open, and compare all that is known of them."""
        it, survey = self._it, Survey(server)
        for row in survey.rows("sessions", status="open"):
            server.sessions.close(row["session_id"])
        sessions = {row["session_id"]: row for row in survey.rows("sessions")}
        assert {row["status"] for row in sessions.values()} <= {"settled"}
        # No response reported a session that does not exist, and no key has two.
        by_key = {row["idempotency_key"]: row["session_id"] for row in sessions.values()}
        assert len(by_key) == len(sessions)
        assert {key: by_key[key] for key in self._opened} == self._opened
        made: dict[str, set[str]] = defaultdict(set)
        for charge in survey.rows("session_charges"):
            made[charge["session_id"]].add(charge["idempotency_key"])
        for session_id, row in sessions.items():
            # Every charge that was answered is settled, and no more than is written down.
            assert self._charged[session_id] <= made[session_id]
            assert row["running_total"] == len(made[session_id]) <= self.cap_micro
            assert self._settled.get(session_id, usdc(row["running_total"])) == usdc(row["running_total"])
        used = [
            row[name] for row in sessions.values() for name in ("tx_signature", "settlement_tx_signature")
        ]
        assert len({*used}) == 2 * len(sessions)
        assert {*used} <= survey.landed()
        assert not {row["escrow_token_account"] for row in sessions.values()} & survey.balances().keys()
        paid = sum(row["running_total"] for row in sessions.values())
        accounts = {row["account_id"]: row for row in survey.rows("accounts")}
        payer, payee = accounts[it.payer], accounts[it.payee]
        assert (payer["balance"], payee["balance"]) == (100_000_000 - paid, paid)
        assert (payer["in_flight"], payer["cap_holds"], payer["spent_total"]) == (0, 0, paid)
        entries = [row["amount"] for row in survey.rows("entries", type="session_settlement")]
        assert (len(entries), sum(entries)) == (len(sessions), paid)
        events = [row["type"] for row in survey.rows("events")]
        assert events.count("session.opened") == events.count("session.settled") == len(sessions)
        full = [row for row in sessions.values() if row["running_total"] == self.cap_micro]
        assert events.count("session.cap_reached") == len(full)
        survey.assert_conserved()


Work = Transfers | Sessions


def load(work: Work, server: Child, keys: list[str]) -> None:
    """Send every key from several callers until the server is gone."""
    waiting = iter(keys)

    def call() -> None:
        for key in waiting:
            if not work.call(server, key):
                return

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()


def killed_rounds(it: Prepared, work: Work, seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    keys: list[str] = []
    end = time.monotonic() + seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        rounds += 1
        keys += [f"{rounds}-{number}" for number in range(work.keys_per_round)]
        # Requests with a response are repeated too, and must get the same response.
        sent = chance.sample(keys, min(len(keys), 2 * work.keys_per_round))
        with child(it) as server:
            killer = threading.Timer(chance.uniform(0, LONGEST_LIFE_SECONDS), server.kill)
            killer.start()
            load(work, server, [key for key in sent for _ in range(work.callers_per_key)])
            killer.join()
    with it.served() as server:
        # Once more, and everything comes to its end.
        server.sandbox.clock.advance(0)
        work.judge(server)


def seed_of_run() -> int:
    seed = int(os.environ.get("AGENTPAY_DEEP_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"AGENTPAY_DEEP_SEED={seed}")  # noqa: T201 - shown with a failure, to repeat it
    return seed


@pytest.mark.parametrize("work", [Transfers, Sessions])
def test_keys_pay_once_through_a_few_random_kills_under_load(tmp_path: Path, work: type[Work]) -> None:
    it = prepared(Directory(tmp_path / "data"))
    killed_rounds(it, work(it), 4, seed_of_run())


@pytest.mark.deep
@pytest.mark.parametrize("work", [Transfers, Sessions])
@pytest.mark.parametrize("place", ["file", "postgres"])
def test_keys_pay_once_through_random_kills_under_load_for_the_requested_time(
    tmp_path: Path, place: str, work: type[Work]
) -> None:
    it = prepared(Postgres.made() if place == "postgres" else Directory(tmp_path / "data"))
    killed_rounds(it, work(it), deep_seconds(), seed_of_run())
