"""A saved scene builds the same balances and policies again, whatever happened before."""

import contextlib
import tomllib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import httpx
import validators
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from agentpay import AgentPay, AgentPayError
from agentpay.contract.policies import POLICY_FIELDS
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.cli import main
from agentpay_server.testkit.scenes.building import build
from agentpay_server.testkit.scenes.document import parse_scene
from agentpay_server.testkit.scenes.saving import save

NAMES = ("a", "b", "c")
USDC = st.integers(1, 4_000_000).map(lambda micro: Decimal(micro).scaleb(-6))
LIMIT = st.none() | USDC
NAME = st.sampled_from(NAMES)
POLICY = st.fixed_dictionaries(
    {},
    optional={
        "max_single_transfer": LIMIT,
        "max_daily_spend": LIMIT,
        "escalation_threshold": LIMIT,
        "require_memo": st.booleans(),
        "paused": st.booleans(),
        "categories": st.none() | st.lists(st.sampled_from(["data", "travel"]), max_size=2, unique=True),
        "allowed_counterparties": st.none() | st.lists(st.sampled_from([*NAMES, "outside"]), max_size=2),
    },
)
ACT = st.one_of(
    st.tuples(st.just("pay"), NAME, st.sampled_from([*NAMES, "outside"]), USDC, st.sampled_from([None, "m"])),
    st.tuples(st.just("session"), NAME, st.sampled_from([*NAMES, "outside"]), USDC, USDC, st.booleans()),
    st.tuples(st.just("policy"), NAME, POLICY),
    st.tuples(st.just("decide"), st.booleans()),
)


class World:
    """Three accounts, and what hypothesis does to them; refusals are part of it."""

    def __init__(self, server: AgentPayServer) -> None:
        self.server, self.client = server, server.client()
        self.ids = {name: self.client.accounts.create(name=name).account_id for name in NAMES}
        for account_id in self.ids.values():
            server.sandbox.fund(account_id, 10)
        self.ids["outside"] = server.sandbox.create_token_account().usdc_token_account

    def pay(self, from_: str, to: str, amount: Decimal, memo: str | None) -> None:
        self.client.transfers.create(from_=self.ids[from_], to=self.ids[to], amount=amount, memo=memo)

    def session(self, from_: str, to: str, cap: Decimal, charge: Decimal, is_closed: bool) -> None:
        sessions = self.client.sessions
        session = sessions.open(
            account_id=self.ids[from_], to=self.ids[to], cap_usdc=max(cap, Decimal("0.01"))
        )
        with contextlib.suppress(AgentPayError):
            sessions.charge(session.session_id, amount=charge)
        if is_closed:
            sessions.close(session.session_id)

    def policy(self, name: str, change: dict[str, Any]) -> None:
        if change.get("allowed_counterparties"):
            change["allowed_counterparties"] = [self.ids[to] for to in change["allowed_counterparties"]]
        if change:
            self.client.policies.update(self.ids[name], **change)

    def decide(self, is_approved: bool) -> None:
        for waiting in self.client.approvals.list(limit=1).data:
            decide = self.client.approvals.approve if is_approved else self.client.approvals.reject
            decide(waiting.transfer_id)


def state(client: AgentPay) -> list[Any]:
    details = sorted(client.accounts.list_details(limit=100), key=lambda each: each.name)
    names = {each.account_id: each.name for each in details}
    found = []
    for account in details:
        policy = {field: getattr(account.policy, field) for field in POLICY_FIELDS}
        if policy["allowed_counterparties"] is not None:
            policy["allowed_counterparties"] = [
                names.get(to, "outside") for to in policy["allowed_counterparties"]
            ]
        found.append((account.name, account.balance_usdc, account.spent_usdc, policy))
    return found


def content(saved: str) -> dict[str, Any]:
    """Return what a scene says; sessions and transfers of one moment have no order."""
    return {**(scene := tomllib.loads(saved)), "history": sorted(scene.get("history", []), key=str)}


@given(acts=st.lists(ACT, max_size=12))
@settings(max_examples=25, deadline=None)
def test_a_saved_scene_has_the_same_balances_and_policies(acts: list[Any]) -> None:
    validators.embedded_only("a scene is built on it")
    with AgentPayServer() as server:
        world = World(server)
        for kind, *arguments in acts:
            act: Callable[..., None] = getattr(world, kind)
            with contextlib.suppress(AgentPayError):
                act(*arguments)
        before, saved = state(server.client()), server.save_scene()
    with AgentPayServer() as server:
        build(server.client(), parse_scene(saved))
        assert state(server.client()) == before
        assert content(server.save_scene()) == content(saved)


SCENE = """
[accounts.a]
name = "A"
balance_usdc = 20
policy = {max_daily_spend = 10, max_single_transfer = 3, escalation_threshold = 2}

[[sellers]]
name = "models"
price = "0.5"
protocols = ["x402_upto"]

[[sellers]]
name = "vouchers"
price = "0.1"
protocols = ["mpp_session"]

[[webhooks]]
url = "inbox"
events = ["transfer.settled"]
"""


def test_what_a_scene_cannot_hold_is_named(tmp_path: Any) -> None:
    validators.embedded_only("a scene is built on it")
    with AgentPayServer() as server:
        client = server.client()
        path = tmp_path / "scene.toml"
        path.write_text(SCENE, "utf-8")
        built = server.build_scene(path)
        account_id = built.accounts["a"]
        built.paywalls["models"].sell_upto("/", "0.5", charge="0.2")
        for name, cap in (("models", None), ("vouchers", "2")):
            auth = PaymentAuth(client, account_id=account_id, session_cap=cap)
            with httpx.Client(auth=auth, trust_env=False) as http:
                assert http.get(built.sellers[name], extensions={"payment_key": name}).status_code == 200
        outside = server.sandbox.create_token_account().usdc_token_account
        for amount in ("2.5", "3.5"):
            with contextlib.suppress(AgentPayError):
                client.transfers.create(from_=account_id, to=outside, amount=amount)
        client.policies.update(account_id, max_single_transfer=None)
        saved, before = save(client), client.accounts.details(account_id)
        options = ["--url", server.listen(), "--key", server.operator_key]
        printed = CliRunner().invoke(main, ["scene", "save", *options])
    assert saved.left_out == (
        "Left out: inboxes of the test kit, which end with their server: 1.",
        "Left out: sellers of open sessions, which are sessions of the service in the scene: 1.",
        "Left out: transfers that are rejected, which the present policy and balance would not repeat: 1.",
    )
    for line in saved.left_out:
        assert f"# {line}" in saved.text
        assert line in printed.stderr
    with AgentPayServer() as server:
        again = build(server.client(), parse_scene(saved.text))
        after = server.client().accounts.details(again.accounts["a"])
        assert (after.balance_usdc, after.spent_usdc, after.reserved_usdc) == (
            before.balance_usdc,
            before.spent_usdc,
            before.reserved_usdc,
        )
        assert [each.amount_usdc for each in server.client().approvals.list()] == [Decimal("2.5")]
