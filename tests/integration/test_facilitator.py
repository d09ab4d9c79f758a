"""The local facilitator: what sellers' packages ask it, what it settles, and what it says when it fails.

Which transactions pay the requirements is decided by `check_payment`, and tested there.
"""

import asyncio
import base64
import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import rpc_world
from attrs import evolve
from fee_payers import lose_replies_to_fee_payers
from payer import Payer
from receivers import eventually
from server_world import Funded
from solders.keypair import Keypair
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay import AgentPay, InvalidRequestError
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.plugins.facilitator import service
from agentpay_server.plugins.facilitator.settling import CheckedPayment, FeePayer, check_payment
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms

pytestmark = [
    pytest.mark.embedded_chain("it is the chain that it settles on"),
    pytest.mark.plugin("facilitator"),
]

NETWORKS = {2: "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1", 1: "solana-devnet"}
"""What a facilitator calls the test cluster, by version."""
PRICE = 1_000


def post(server: AgentPayServer, path: str, content: object) -> Any:
    answer = httpx.post(f"{server.facilitator_url}{path}", json=content, verify=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def supported(server: AgentPayServer) -> dict[str, Any]:
    return dict(httpx.get(f"{server.facilitator_url}/supported", verify=False).json())


class Case:
    """A payment of 0.001 of 1 USDC to be verified, with everything that a test may change."""

    def __init__(self, server: AgentPayServer, account: Account, seller: Account) -> None:
        self.server, self.account, self.seller = server, account, seller
        (self.fee_payer,) = supported(server)["signers"]["solana:*"]
        self.requirements: dict[str, Any] = {
            "scheme": "exact",
            "network": NETWORKS[2],
            "asset": rpc_world.USDC,
            "amount": str(PRICE),
            "payTo": seller.chain_address,
            "maxTimeoutSeconds": 60,
            "extra": {"feePayer": self.fee_payer},
        }
        self._asked = json.dumps({"x402Version": 2, "accepts": [self.requirements]}).encode()

    def signed(self, amount_micro: int = PRICE) -> bytes:
        """Return a transaction that pays an amount to the seller."""

        def change(terms: ChallengeTerms) -> ChallengeTerms:
            (leg,) = terms.legs
            return evolve(terms, legs=(evolve(leg, amount_micro=amount_micro),))

        asked = httpx.Response(402, headers={"payment-required": base64.b64encode(self._asked).decode()})
        return Payer(self.server, self.account).payment(asked, change=change).raw

    def request(self, raw: bytes | None = None, version: int = 2) -> dict[str, Any]:
        transaction = base64.b64encode(self.signed() if raw is None else raw).decode()
        requirements = dict(self.requirements)
        payload: dict[str, Any] = {"x402Version": version, "payload": {"transaction": transaction}}
        if version == 2:
            payload["accepted"] = dict(requirements)
        else:
            requirements["network"] = NETWORKS[1]
            requirements["maxAmountRequired"] = requirements.pop("amount")
            payload |= {"scheme": "exact", "network": NETWORKS[1]}
        return {"x402Version": version, "paymentPayload": payload, "paymentRequirements": requirements}

    def verify(self, request: object) -> Any:
        return post(self.server, "/verify", request)

    def settle(self, request: object) -> Any:
        return post(self.server, "/settle", request)

    def told(self, request: object) -> tuple[bool, str | None]:
        """Settle, and return whether it succeeded, and the reason if not."""
        result = self.settle(request)
        return result["success"], result.get("errorReason")

    def refused(self, request: object) -> str:
        """Verify and settle what neither accepts, and return the reason."""
        verified, settled = self.verify(request), self.settle(request)
        assert (verified["isValid"], settled["success"], settled["transaction"]) == (False, False, "")
        assert verified["invalidReason"] == settled["errorReason"]
        assert verified["invalidMessage"]
        assert self.received == UNPAID
        return str(settled["errorReason"])

    def is_on_chain(self, signature: str) -> bool:
        return any(signature == each.signature for each in self.server.transactions)

    @property
    def received(self) -> str:
        return str(self.server.client().accounts.balance(self.seller.account_id).balance_usdc)


PAID, UNPAID = "0.001000", "0.000000"
ONCE = (False, "duplicate_settlement")
ANOTHER = (False, "idempotency_conflict")


@pytest.fixture
def case(server: AgentPayServer, client: AgentPay, funded: Funded) -> Case:
    return Case(server, funded("1"), client.accounts.create(name="Seller"))


# --- What it accepts ---------------------------------------------------------------------------------------


def test_supported_lists_kinds_and_fee_payers(server: AgentPayServer) -> None:
    told = supported(server)
    assert {kind["x402Version"]: kind["network"] for kind in told["kinds"]} == NETWORKS
    assert {kind["scheme"] for kind in told["kinds"]} == {"exact"}
    assert {kind["extra"]["feePayer"] for kind in told["kinds"]} == set(told["signers"]["solana:*"])


@pytest.mark.parametrize("version", [2, 1])
def test_a_payment_is_verified_then_settled_once(case: Case, version: int) -> None:
    request, payer = case.request(version=version), case.account.chain_address
    assert case.verify(request) == {"isValid": True, "payer": payer}
    settled = case.settle(request)
    assert (settled["success"], settled["payer"], settled["network"]) == (True, payer, NETWORKS[version])
    assert case.server.transactions.one(signature=settled["transaction"]).error is None
    again = case.settle(request)
    assert (again["success"], again["errorReason"], again["transaction"]) == (*ONCE, "")
    assert not case.verify(request)["isValid"]
    # It is a duplicate after its blockhash expired too; one that has not settled then cannot.
    expired = case.request(version=version)
    case.server.sandbox.clock.advance(3_600)
    again = case.settle(request)
    assert (again["errorReason"], again["payer"]) == ("duplicate_settlement", payer)
    assert case.settle(expired)["errorReason"] == "transaction_simulation_failed"
    assert case.received == PAID


def test_one_payment_is_settled_for_each_name_that_a_payer_gives(case: Case) -> None:
    def named(name: str) -> dict[str, Any]:
        request = case.request()
        request["paymentPayload"]["extensions"] = {"payment-identifier": {"info": {"id": name}}}
        # What a seller adds does not hide it.
        request["paymentRequirements"]["extensions"] = {}
        return request

    assert supported(case.server)["extensions"] == ["payment-identifier"]
    before = case.server.sandbox.snapshot()
    first, second = named("order-7-of-monday"), named("order-7-of-monday")
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(case.told, (first, second)))
    assert sorted(told, key=lambda each: each[0]) == [ANOTHER, (True, None)]
    # The payer chooses the name, so the payment that settled is a duplicate with it too.
    settled, other = (first, second) if told[0][0] else (second, first)
    assert (case.told(settled), case.told(other)) == (ONCE, ANOTHER)
    with case.server.sandbox.fault("facilitator:settles_twice", times=2):
        assert (case.told(settled), case.told(other)) == ((True, None), ANOTHER)
    assert (case.told(named("order-8-of-monday"))[0], case.received) == (True, "0.002000")
    # Not for itself: a node lost this one.
    lost = named("order-5-of-monday")
    with pytest.MonkeyPatch.context() as patch:
        lose_replies_to_fee_payers(patch, is_sent=False)
        assert case.told(lost) == (False, "settlement_pending")
    assert case.told(lost) == (True, None)
    # A name whose payment may still land is taken; one whose payment cannot is free.
    with case.server.sandbox.fault("facilitator:pending", times=1):
        assert case.told(named("order-9-of-monday")) == (False, "settlement_pending")
    assert case.told(named("order-9-of-monday")) == ANOTHER
    late = named("order-10-of-monday")
    case.server.sandbox.clock.advance(3_600)
    assert case.told(late)[1] == "transaction_simulation_failed"
    assert case.told(named("order-10-of-monday"))[0]
    # The chain decides: what a snapshot took back does not count.
    case.server.sandbox.restore(before)
    assert case.told(named("order-7-of-monday"))[0]
    settle = f"{case.server.facilitator_url}/settle"
    malformed = httpx.post(settle, json=named("short"), verify=False)
    assert (malformed.status_code, "must be 16 to 128" in malformed.json()["error"]) == (400, True)


def test_concurrent_settlements_of_one_payment_succeed_once(case: Case) -> None:
    request = case.request()
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: case.settle(request)["success"], range(8)))
    assert sum(told) == 1


# --- What it refuses ---------------------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({}, PRICE + 1, "amount_mismatch"),
    ({"asset": "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"}, PRICE, "mint_mismatch"),
    ({"scheme": "upto"}, PRICE, "unsupported_scheme"),
    ({"network": "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"}, PRICE, "invalid_network"),
    ({"extra": {}}, PRICE, "missing_fee_payer"),
    ({"extra": {"feePayer": str(Keypair().pubkey())}}, PRICE, "not_managed"),
    ({"payTo": "somebody"}, PRICE, "invalid_payment_requirements"),
    ({"amount": "0"}, PRICE, "invalid_payment_requirements"),
    ({"amount": "9000000"}, 9_000_000, "transaction_simulation_failed"),
]


def test_other_requirements_and_payments_are_refused(case: Case) -> None:
    for changed, amount_micro, reason in REFUSED:
        other = Case(case.server, case.account, case.seller)
        raw = other.signed(amount_micro)
        other.requirements |= changed
        assert reason in other.refused(other.request(raw))
    request = case.request()
    request["paymentPayload"]["accepted"]["network"] = "solana:4uhcVJyU9pJkvQyS88uRDiswHXSCkY3z"
    assert case.refused(request) == "network_mismatch"
    # Altered, unsigned, and none.
    raw, unsigned = bytearray(case.signed()), VersionedTransaction.from_bytes(case.signed())
    raw[-1] ^= 1
    blank = VersionedTransaction.populate(unsigned.message, [Signature.default()] * len(unsigned.signatures))
    for each in (bytes(raw), bytes(blank), b"", b"\x00" * 200, b"\xff" * 1_300):
        case.refused(case.request(each))


def test_what_cannot_be_read_gets_a_verdict_or_is_refused(server: AgentPayServer, case: Case) -> None:
    request = case.request()
    undecodable = "invalid_exact_svm_payload_transaction_could_not_be_decoded"
    for text in ("%%%", "AAA", "é", "A" * 40_000):
        request["paymentPayload"]["payload"]["transaction"] = text
        assert case.refused(request) == undecodable
    version_3 = b'{"paymentPayload": {"x402Version": 3}}'
    for body in (b"", b"[]", b"{}", b"null", b'{"paymentPayload": 1}', b"\xff", version_3):
        for path in ("/verify", "/settle"):
            url, headers = f"{server.facilitator_url}{path}", {"content-type": "application/json"}
            answer = httpx.post(url, content=body, headers=headers)
            assert (answer.status_code, list(answer.json())) == (400, ["error"]), body


# --- Around ------------------------------------------------------------------------------------------------


def test_pages_in_browsers_and_other_hosts_cannot_use_it(server: AgentPayServer, case: Case) -> None:
    url = f"{server.facilitator_url}/settle"
    form = httpx.post(url, content=b"{}", headers={"content-type": "text/plain"})
    bare = httpx.post(url, content=b"{}")
    rebound = httpx.get(f"{server.facilitator_url}/supported", headers={"host": "evil.example"})
    crossed = httpx.post(url, json=case.request(), headers={"origin": "https://evil.example"})
    statuses = [response.status_code for response in (form, bare, rebound, crossed)]
    assert statuses == [415, 415, 421, 403]
    assert httpx.get(url).status_code == 405
    assert httpx.post(f"{server.facilitator_url}/supported", json={}).status_code == 405
    assert httpx.get(f"{server.facilitator_url}/else").status_code == 404


def test_the_fee_payer_has_sol_and_is_stable_for_a_chain(server: AgentPayServer, case: Case) -> None:
    case.settle(case.request())
    call = {"jsonrpc": "2.0", "id": 1, "method": "getBalance", "params": [case.fee_payer]}
    lamports = httpx.post(server.rpc_url, json=call).json()["result"]["value"]
    assert lamports == 10 * 10**9 - 2 * 5_000 - 1
    server.sandbox.reset()
    assert supported(server)["signers"]["solana:*"] == [case.fee_payer]


# --- Faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "told", "received", "later"),
    [
        ("pending", (False, "settlement_pending"), PAID, ONCE),
        ("false_success", (True, None), UNPAID, (True, None)),
        ("false_failure", (False, "transaction_failed"), PAID, ONCE),
        ("forgets", (False, "settlement_pending"), UNPAID, (True, None)),
    ],
)
def test_a_faulty_facilitator_says_one_thing_and_does_another(
    case: Case, fault: str, told: tuple[bool, str | None], received: str, later: tuple[bool, str | None]
) -> None:
    request = case.request()
    with case.server.sandbox.fault(f"facilitator:{fault}", times=1):
        result = case.settle(request)
    assert (result["success"], result.get("errorReason")) == told
    assert case.received == received
    # The signature shows on chain what the facilitator does not say.
    if result["transaction"]:
        assert case.is_on_chain(result["transaction"]) == (received == PAID)
    # The fault is over: the same payment gets the truth.
    assert case.told(request) == later
    assert case.received == PAID


def test_a_facilitator_that_settles_twice_reports_the_one_payment_again_and_while_it_is_being_settled(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, broadcast = case.request(), FeePayer.broadcast
    checked: list[bytes] = []
    all_checked = asyncio.Event()

    def counted(raw: bytes, terms: ChallengeTerms, *, fee_payers: Collection[str]) -> CheckedPayment:
        checked.append(raw)
        if len(checked) == 4:
            all_checked.set()
        return check_payment(raw, terms, fee_payers=fee_payers)

    async def once_all_are_checked(fee_payer: FeePayer, transaction: VersionedTransaction) -> str:
        await all_checked.wait()
        return await broadcast(fee_payer, transaction)

    monkeypatch.setattr(FeePayer, "broadcast", once_all_are_checked)
    monkeypatch.setattr(service, "check_payment", counted)
    with case.server.sandbox.fault("facilitator:settles_twice"), ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: case.settle(request), range(4)))
        results.append(case.settle(request))
    assert [result["success"] for result in results] == [True] * 5
    assert len({result["transaction"] for result in results}) == 1
    assert case.received == PAID


def test_a_settlement_whose_reply_is_lost_is_pending_and_not_failed(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seller that is told of a failure asks for another payment."""
    request = case.request()
    with monkeypatch.context() as patched:
        lose_replies_to_fee_payers(patched)
        result = case.settle(request)
    assert (result["success"], result["errorReason"]) == (False, "settlement_pending")
    assert case.is_on_chain(result["transaction"])
    assert case.received == PAID
    assert case.told(request) == ONCE


def test_a_slow_facilitator_settles_before_it_responds(case: Case) -> None:
    request, url = case.request(), f"{case.server.facilitator_url}/settle"
    with case.server.sandbox.fault("facilitator:slow", delay_ms=60_000), pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=request, verify=False, timeout=httpx.Timeout(30, read=1))
    # On a busy machine, the caller may give up before it settles.
    eventually(lambda: case.received == PAID)


def test_faults_of_the_facilitator_count_settlements_of_sound_payments(case: Case) -> None:
    sandbox = case.server.sandbox
    sandbox.set_fault("facilitator:false_success", times=2)
    assert not case.settle(case.request(case.signed(PRICE + 1)))["success"]
    assert case.verify(case.request())["isValid"]
    assert [fault.times for fault in sandbox.faults()] == [2]
    assert case.settle(case.request())["success"]
    assert [fault.times for fault in sandbox.faults()] == [1]
    sandbox.clear_faults()
    assert sandbox.faults().data == ()


def test_an_invalid_fault_of_the_facilitator_names_what_is_allowed(server: AgentPayServer) -> None:
    with pytest.raises(InvalidRequestError, match="settles_twice"):
        server.sandbox.set_fault("facilitator:steals")
    with pytest.raises(InvalidRequestError, match="delay_ms"):
        server.sandbox.set_fault("facilitator:slow")
    with pytest.raises(InvalidRequestError, match="delay_ms"):
        server.sandbox.set_fault("facilitator:pending", delay_ms=5)
