"""Random walks of a payer and a seller that misbehaves, by session over 402, judged by the chain.

    AGENTPAY_WALKS=500 pytest tests/reliability/test_channel_walks.py

Whatever the seller does, and whatever is repeated, lost or closed: a key has one voucher for ever, no voucher
passes the cap, vouchers of a session only rise; at the end every channel is settled, settled and returned are
the cap to the unit, and the account has lost exactly what was settled.
"""

import contextlib
import os
import random
from decimal import Decimal
from typing import Any

import httpx
import pytest
import validators

from agentpay import AgentPay
from agentpay.errors import APIError
from agentpay.types import SessionStep, VoucherReport
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall, SessionMode

WALKS = int(os.environ.get("AGENTPAY_WALKS", "6"))
STEPS = 30
FUNDS = Decimal(100)
CAPS = ("0.01", "0.02", "0.05")
PRICES = ("0.001", "0.002", "0.003")
REFUSALS = {
    "session_cap_exceeded",
    "policy_violation",
    "account_paused",
    "idempotency_conflict",
    "nothing_payable",
    "unreadable_challenge",
    "chain_unavailable",
    "service_unavailable",
    "too_many_sessions",
}
"""What a payer may be told in such a walk: nothing was signed."""


class Walk:
    """One walk; `chance` decides everything."""

    def __init__(self, server: AgentPayServer, shop: Paywall, http: httpx.Client, seed: int) -> None:
        self.server, self.shop, self.http = server, shop, http
        self.chance = random.Random(seed)
        self.client: AgentPay = server.client().with_options(max_retries=0)
        self.account_id = self.client.accounts.create(name=f"Walker {seed}").account_id
        server.sandbox.fund(self.account_id, FUNDS)
        self.vouchers: dict[str, tuple[str, Decimal]] = {}
        self.totals: dict[str, Decimal] = {}
        self.reported: VoucherReport | None = None
        self.keys: list[str] = []
        self.refusals: set[str] = set()
        self.calm()

    def calm(self) -> None:
        self.shop.sell_by_session("/tick", "0.001")

    def step(self) -> None:
        x = self.chance.random()
        if x < 0.65:
            self.buy()
        elif x < 0.75:
            self.shop.sell_by_session(
                "/tick", self.chance.choice(PRICES), mode=self.chance.choice(list(SessionMode))
            )
        elif x < 0.85:
            self.close(is_presented=self.chance.random() < 0.5)
        elif x < 0.95:
            self.server.sandbox.clock.advance(self.chance.choice((1, 61, 1_000, 4_000)))
        else:
            self.client.policies.pause(self.account_id)
            self.buy()
            self.client.policies.resume(self.account_id)

    def buy(self) -> None:
        if self.keys and self.chance.random() < 0.25:
            key = self.chance.choice(self.keys)
        else:
            self.keys.append(key := f"call-{len(self.keys)}")
        cap = self.chance.choice(CAPS)
        for _ in range(3):
            step = self.authorized(key, cap)
            if step is None:
                return
            if step.step == "voucher":
                self.judge(key, step)
            responses = [self.present(step) for _ in range(self.chance.choice((0, 1, 1, 1, 2)))]
            if step.charge_id is not None:
                # A report of its own, or with the next request; refusals count like those of a client.
                statuses = [each.status_code for each in responses if each is not None] or [504]
                report = VoucherReport(charge_id=step.charge_id, status_code=statuses[-1])
                if self.chance.random() < 0.5:
                    self.reported = report
                else:
                    self.client.payments.report_outcome(report.charge_id, status_code=report.status_code)
                return

    def authorized(self, key: str, cap: str) -> SessionStep | None:
        asked = self.asked()
        if asked is None or asked.status_code != 402:
            return None
        previous, self.reported = self.reported, None
        try:
            step = self.client.payments.authorize(
                account_id=self.account_id,
                idempotency_key=key,
                response=asked,
                session_cap=cap,
                previous=previous,
            )
        except APIError as error:
            self.refusals.add(str(error.code))
            return None
        assert isinstance(step, SessionStep)
        return step

    def asked(self) -> httpx.Response | None:
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/tick")
        return None

    def present(self, step: Any) -> httpx.Response | None:
        header = step.header
        if header is not None:
            with contextlib.suppress(httpx.TransportError):
                return self.http.get("/tick", headers={header.name: header.value})
        return None

    def close(self, *, is_presented: bool) -> None:
        for session in self.client.sessions.list(account_id=self.account_id):
            if session.status in ("open", "closing"):
                closing = self.client.sessions.close(session.session_id, present=False)
                if is_presented:
                    self.present(closing)
                return

    def judge(self, key: str, step: SessionStep) -> None:
        voucher = (step.session_id, step.running_total_usdc)
        assert self.vouchers.setdefault(key, voucher) == voucher, "a key has one voucher for ever"
        assert step.running_total_usdc <= step.cap_usdc
        if not step.is_replay:
            before = self.totals.get(step.session_id, Decimal(0))
            assert step.running_total_usdc == before + step.amount_usdc
            self.totals[step.session_id] = step.running_total_usdc

    def end(self) -> None:
        self.calm()
        for _ in range(4):
            self.close(is_presented=True)
            for _ in range(3):
                self.server.sandbox.clock.advance(1_000)
            sessions = list(self.client.sessions.list(account_id=self.account_id))
            if all(session.is_final for session in sessions):
                break
            for session in sessions:
                if session.status in ("open", "closing"):
                    self.client.sessions.close(session.session_id, present=False)
        assert self.refusals <= REFUSALS
        settled = Decimal(0)
        for session in self.client.sessions.list(account_id=self.account_id):
            assert session.is_final, session
            if session.status == "failed":
                assert session.session_id not in self.totals
                continue
            assert session.settled_usdc is not None
            assert session.returned_usdc is not None
            assert session.settled_usdc + session.returned_usdc == session.cap_usdc
            assert session.settled_usdc <= self.totals.get(session.session_id, Decimal(0))
            settled += session.settled_usdc
        balance = self.client.accounts.balance(self.account_id).balance_usdc
        assert balance == FUNDS - settled
        assert self.shop.received_usdc == settled
        budget = self.client.accounts.budget(self.account_id)
        assert budget.reserved_usdc == 0


@pytest.mark.parametrize("seed", range(WALKS))
def test_a_walk_ends_exact_to_the_unit(seed: int) -> None:
    validators.embedded_only("the program of channels is on its chain")
    with (
        AgentPayServer() as server,
        Paywall(server, {}) as shop,
        httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http,
    ):
        walk = Walk(server, shop, http, seed)
        for _ in range(STEPS):
            walk.step()
        walk.end()
