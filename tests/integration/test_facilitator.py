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


@pytest.fixture
def account(funded: Funded) -> Account:
    return funded("1")


@pytest.fixture
def seller(client: AgentPay) -> Account:
    return client.accounts.create(name="Seller")


def post(server: AgentPayServer, path: str, content: object) -> Any:
    answer = httpx.post(f"{server.facilitator_url}{path}", json=content, verify=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def fee_payer(server: AgentPayServer) -> str:
    kinds = httpx.get(f"{server.facilitator_url}/supported", verify=False).json()["kinds"]
    return str(kinds[0]["extra"]["feePayer"])


class Case:
    """A payment to be verified, with everything that a test may change."""

    def __init__(self, server: AgentPayServer, account: Account, seller: Account) -> None:
        self._payer = Payer(server, account)
        self.payer = account.chain_address
        self.requirements: dict[str, Any] = {
            "scheme": "exact",
            "network": NETWORKS[2],
            "asset": rpc_world.USDC,
            "amount": str(PRICE),
            "payTo": seller.chain_address,
            "maxTimeoutSeconds": 60,
            "extra": {"feePayer": fee_payer(server)},
        }
        self._asked = json.dumps({"x402Version": 2, "accepts": [self.requirements]}).encode()

    def signed(self, amount_micro: int = PRICE) -> bytes:
        """Return a transaction that pays an amount to the seller."""

        def change(terms: ChallengeTerms) -> ChallengeTerms:
            (leg,) = terms.legs
            return evolve(terms, legs=(evolve(leg, amount_micro=amount_micro),))

        asked = httpx.Response(402, headers={"payment-required": base64.b64encode(self._asked).decode()})
        return self._payer.payment(asked, change=change).raw

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


@pytest.fixture
def case(server: AgentPayServer, account: Account, seller: Account) -> Case:
    return Case(server, account, seller)


# --- What it accepts ---------------------------------------------------------------------------------------


def test_supported_lists_kinds_and_fee_payers(server: AgentPayServer) -> None:
    told = httpx.get(f"{server.facilitator_url}/supported", verify=False).json()
    assert [(kind["x402Version"], kind["network"]) for kind in told["kinds"]] == [
        (2, "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"),
        (1, "solana-devnet"),
    ]
    assert {kind["scheme"] for kind in told["kinds"]} == {"exact"}
    assert told["signers"] == {"solana:*": [fee_payer(server)]}


@pytest.mark.parametrize("version", [2, 1])
def test_a_payment_is_verified_then_settled_once(
    server: AgentPayServer, client: AgentPay, case: Case, seller: Account, version: int
) -> None:
    request = case.request(version=version)
    assert post(server, "/verify", request) == {"isValid": True, "payer": case.payer}
    settled = post(server, "/settle", request)
    assert (settled["success"], settled["payer"], settled["network"]) == (
        True,
        case.payer,
        NETWORKS[version],
    )
    assert server.transactions.one(signature=settled["transaction"]).error is None
    again = post(server, "/settle", request)
    assert (again["success"], again["errorReason"], again["transaction"]) == (
        False,
        "duplicate_settlement",
        "",
    )
    assert not post(server, "/verify", request)["isValid"]
    assert str(client.accounts.balance(seller.account_id).balance_usdc) == "0.001000"


def test_a_settled_payment_is_a_duplicate_after_its_blockhash_expired(
    server: AgentPayServer, case: Case, account: Account, seller: Account
) -> None:
    request = case.request()
    assert post(server, "/settle", request)["success"]
    server.sandbox.clock.advance(3_600)
    again = post(server, "/settle", request)
    assert (again["errorReason"], again["payer"]) == ("duplicate_settlement", case.payer)
    expired = Case(server, account, seller).request()
    server.sandbox.clock.advance(3_600)
    assert post(server, "/settle", expired)["errorReason"] == "transaction_simulation_failed"


def test_concurrent_settlements_of_one_payment_succeed_once(server: AgentPayServer, case: Case) -> None:
    request = case.request()
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: post(server, "/settle", request)["success"], range(8)))
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


def test_other_requirements_and_payments_are_refused(
    server: AgentPayServer, client: AgentPay, account: Account, seller: Account
) -> None:
    for changed, amount_micro, reason in REFUSED:
        case = Case(server, account, seller)
        raw = case.signed(amount_micro)
        case.requirements |= changed
        request = case.request(raw)
        verified, settled = post(server, "/verify", request), post(server, "/settle", request)
        assert (verified["isValid"], settled["success"], settled["transaction"]) == (False, False, ""), reason
        assert reason in verified["invalidReason"]
        assert verified["invalidReason"] == settled["errorReason"]
        assert verified["invalidMessage"]
        assert client.accounts.balance(seller.account_id).balance_usdc == 0, reason
    request = Case(server, account, seller).request()
    request["paymentPayload"]["accepted"]["network"] = "solana:4uhcVJyU9pJkvQyS88uRDiswHXSCkY3z"
    assert post(server, "/verify", request)["invalidReason"] == "network_mismatch"


def test_an_altered_or_unsigned_payment_is_refused(server: AgentPayServer, case: Case) -> None:
    raw = bytearray(case.signed())
    raw[-1] ^= 1
    unsigned = VersionedTransaction.from_bytes(case.signed())
    blank = VersionedTransaction.populate(unsigned.message, [Signature.default()] * len(unsigned.signatures))
    for changed in (bytes(raw), bytes(blank), b"", b"\x00" * 200, b"\xff" * 1_300):
        assert not post(server, "/verify", case.request(changed))["isValid"]
        assert not post(server, "/settle", case.request(changed))["success"]


def test_what_cannot_be_read_gets_a_verdict_or_is_refused(server: AgentPayServer, case: Case) -> None:
    request = case.request()
    undecodable = "invalid_exact_svm_payload_transaction_could_not_be_decoded"
    for text in ("%%%", "AAA", "é", "A" * 40_000):
        request["paymentPayload"]["payload"]["transaction"] = text
        verified, settled = post(server, "/verify", request), post(server, "/settle", request)
        assert (verified["isValid"], settled["success"]) == (False, False)
        assert verified["invalidReason"] == settled["errorReason"] == undecodable
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
    assert (form.status_code, bare.status_code, rebound.status_code, crossed.status_code) == (
        415,
        415,
        421,
        403,
    )
    assert httpx.get(url).status_code == 405
    assert httpx.post(f"{server.facilitator_url}/supported", json={}).status_code == 405
    assert httpx.get(f"{server.facilitator_url}/else").status_code == 404


def test_the_fee_payer_has_sol_and_is_stable_for_a_chain(server: AgentPayServer, case: Case) -> None:
    address = fee_payer(server)
    post(server, "/settle", case.request())
    call = {"jsonrpc": "2.0", "id": 1, "method": "getBalance", "params": [address]}
    lamports = httpx.post(server.rpc_url, json=call).json()["result"]["value"]
    assert lamports == 10 * 10**9 - 2 * 5_000 - 1
    server.sandbox.reset()
    assert fee_payer(server) == address


# --- Faults ------------------------------------------------------------------------------------------------


def _received(client: AgentPay, seller: Account) -> str:
    return str(client.accounts.balance(seller.account_id).balance_usdc)


PAID, UNPAID = "0.001000", "0.000000"


@pytest.mark.parametrize(
    ("fault", "told", "received", "later"),
    [
        ("pending", (False, "settlement_pending"), PAID, (False, "duplicate_settlement")),
        ("false_success", (True, None), UNPAID, (True, None)),
        ("false_failure", (False, "transaction_failed"), PAID, (False, "duplicate_settlement")),
        ("forgets", (False, "settlement_pending"), UNPAID, (True, None)),
    ],
)
def test_a_faulty_facilitator_says_one_thing_and_does_another(
    server: AgentPayServer,
    client: AgentPay,
    case: Case,
    seller: Account,
    fault: str,
    told: tuple[bool, str | None],
    received: str,
    later: tuple[bool, str | None],
) -> None:
    request = case.request()
    with server.sandbox.fault(f"facilitator:{fault}", times=1):
        result = post(server, "/settle", request)
    assert (result["success"], result.get("errorReason")) == told
    assert _received(client, seller) == received
    # The signature shows on chain what the facilitator does not say.
    if result["transaction"]:
        is_on_chain = any(result["transaction"] == each.signature for each in server.transactions)
        assert is_on_chain == (received == PAID)
    # The fault is over: the same payment gets the truth.
    again = post(server, "/settle", request)
    assert (again["success"], again.get("errorReason")) == later
    assert _received(client, seller) == PAID


def test_a_facilitator_that_settles_twice_reports_the_one_payment_again_and_while_it_is_being_settled(
    server: AgentPayServer,
    client: AgentPay,
    case: Case,
    seller: Account,
    monkeypatch: pytest.MonkeyPatch,
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
    with server.sandbox.fault("facilitator:settles_twice"), ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: post(server, "/settle", request), range(4)))
        results.append(post(server, "/settle", request))
    assert [result["success"] for result in results] == [True] * 5
    assert len({result["transaction"] for result in results}) == 1
    assert _received(client, seller) == PAID


def test_a_settlement_whose_reply_is_lost_is_pending_and_not_failed(
    server: AgentPayServer,
    client: AgentPay,
    case: Case,
    seller: Account,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A seller that is told of a failure asks for another payment."""
    request = case.request()
    with monkeypatch.context() as patched:
        lose_replies_to_fee_payers(patched)
        result = post(server, "/settle", request)
    assert (result["success"], result["errorReason"]) == (False, "settlement_pending")
    assert any(result["transaction"] == each.signature for each in server.transactions)
    assert _received(client, seller) == PAID
    assert post(server, "/settle", request)["errorReason"] == "duplicate_settlement"


def test_a_slow_facilitator_settles_before_it_responds(
    server: AgentPayServer, client: AgentPay, case: Case, seller: Account
) -> None:
    request = case.request()
    url = f"{server.facilitator_url}/settle"
    with server.sandbox.fault("facilitator:slow", delay_ms=60_000), pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=request, verify=False, timeout=httpx.Timeout(30, read=1))
    # On a busy machine, the caller may give up before it settles.
    eventually(lambda: _received(client, seller) == PAID)


def test_faults_of_the_facilitator_count_settlements_of_sound_payments(
    server: AgentPayServer, client: AgentPay, case: Case
) -> None:
    unsound = case.request(case.signed(PRICE + 1))
    server.sandbox.set_fault("facilitator:false_success", times=2)
    assert not post(server, "/settle", unsound)["success"]
    assert post(server, "/verify", case.request())["isValid"]
    assert [fault.times for fault in server.sandbox.faults()] == [2]
    assert post(server, "/settle", case.request())["success"]
    assert [fault.times for fault in server.sandbox.faults()] == [1]
    server.sandbox.clear_faults()
    assert server.sandbox.faults().data == ()


def test_an_invalid_fault_of_the_facilitator_names_what_is_allowed(server: AgentPayServer) -> None:
    with pytest.raises(InvalidRequestError, match="settles_twice"):
        server.sandbox.set_fault("facilitator:steals")
    with pytest.raises(InvalidRequestError, match="delay_ms"):
        server.sandbox.set_fault("facilitator:slow")
    with pytest.raises(InvalidRequestError, match="delay_ms"):
        server.sandbox.set_fault("facilitator:pending", delay_ms=5)
