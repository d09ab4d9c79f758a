"""The local facilitator: what sellers' packages ask it, and every payment that it must refuse.

The table of refusals is that of the field's own facilitators; where they differ, the stricter one's.
"""

import asyncio
import base64
import json
import struct
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import money
import pytest
import rpc_world
from fee_payers import lose_replies_to_fee_payers
from payer import Payer, account_key
from receivers import eventually
from server_world import Funded
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token.associated import get_associated_token_address
from solders.transaction import VersionedTransaction
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account, transfer_checked
from spl.token.models import TransferCheckedParams

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

USDC = rpc_world.USDC
USDC_OF_DEVNET = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"
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


def memo(text: str) -> Instruction:
    return Instruction(MEMO_PROGRAM_ID, text.encode(), [])


def fee_payer(server: AgentPayServer) -> str:
    kinds = httpx.get(f"{server.facilitator_url}/supported", verify=False).json()["kinds"]
    return str(kinds[0]["extra"]["feePayer"])


class Case:
    """A payment to be verified, with everything that a test may change."""

    def __init__(self, server: AgentPayServer, account: Account, seller: Account) -> None:
        self._server, self._account = server, account
        self.fee_payer = fee_payer(server)
        self.payer = account.chain_address
        self.requirements: dict[str, Any] = {
            "scheme": "exact",
            "network": NETWORKS[2],
            "asset": USDC,
            "amount": str(PRICE),
            "payTo": seller.chain_address,
            "maxTimeoutSeconds": 60,
            "extra": {"feePayer": self.fee_payer},
        }
        self.steps: list[Instruction] = [
            set_compute_unit_limit(30_000),
            set_compute_unit_price(1),
            self.transfer(seller.chain_address),
            memo("nonce"),
        ]
        self.is_legacy = False

    def transfer(self, owner: str, amount_micro: int = PRICE, mint: str = USDC) -> Instruction:
        token = Pubkey.from_string(mint)
        return transfer_checked(
            TransferCheckedParams(
                program_id=TOKEN_PROGRAM_ID,
                source=Pubkey.from_string(self._account.usdc_token_account),
                dest=get_associated_token_address(Pubkey.from_string(owner), token),
                owner=Pubkey.from_string(self.payer),
                mint=token,
                amount=amount_micro,
                decimals=6,
            )
        )

    def signed(self) -> bytes:
        async def work(context: Any) -> bytes:
            blockhash = Hash.from_string((await context.chain.latest_blockhash()).value)
            payer = Pubkey.from_string(self.fee_payer)
            message: Message | MessageV0 = (
                Message.new_with_blockhash(self.steps, payer, blockhash)
                if self.is_legacy
                else MessageV0.try_compile(payer, self.steps, [], blockhash)
            )
            key = await account_key(context, self._account.account_id)
            payload = to_bytes_versioned(message)
            count = message.header.num_required_signatures
            signatures = [
                Signature.from_bytes(context.signer.sign(key, payload))
                if str(address) == self.payer
                else Signature.default()
                for address in message.account_keys[:count]
            ]
            return bytes(VersionedTransaction.populate(message, signatures))

        return money.on_owner(self._server, work)

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


@pytest.mark.parametrize(
    "change",
    [
        lambda case: case.steps.pop(),
        lambda case: case.steps.append(memo("another")),
        lambda case: setattr(case, "is_legacy", True),
        lambda case: case.steps.__setitem__(0, set_compute_unit_limit(1_400_000)),
        lambda case: case.requirements["extra"].__setitem__("memo", "nonce"),
        lambda case: _signed_memo(case, case.fee_payer),
        lambda case: _signed_memo(case, case.payer),
    ],
    ids=[
        "no memo",
        "two memos",
        "limit of 1.4 M",
        "legacy message",
        "the seller's memo",
        "a memo that lists the fee payer",
        "a memo that lists the payer",
    ],
)
def test_harmless_deviations_are_accepted(
    server: AgentPayServer, case: Case, change: Callable[[Case], object]
) -> None:
    change(case)
    assert post(server, "/settle", case.request())["success"]


# --- What it refuses ---------------------------------------------------------------------------------------


def _signed_memo(case: Case, signer: str) -> None:
    listed = [AccountMeta(Pubkey.from_string(signer), is_signer=True, is_writable=True)]
    case.steps[3] = Instruction(MEMO_PROGRAM_ID, b"signed", listed)


def _other_order(case: Case) -> None:
    case.steps[0], case.steps[1] = case.steps[1], case.steps[0]


def _second_transfer(case: Case) -> None:
    case.steps.append(case.transfer(case.requirements["payTo"], 1))


def _unchecked(case: Case) -> None:
    checked = case.steps[2]
    source, _, destination, owner = checked.accounts
    case.steps[2] = Instruction(
        checked.program_id, struct.pack("<BQ", 3, PRICE), [source, destination, owner]
    )


def _creation(case: Case) -> None:
    owner = Pubkey.from_string(case.requirements["payTo"])
    payer, token = Pubkey.from_string(case.payer), Pubkey.from_string(USDC)
    case.steps[3] = create_idempotent_associated_token_account(payer, owner, token)


def _wrong_recipient(case: Case) -> None:
    case.steps[2] = case.transfer(case.payer)


def _fee_payer_pays(case: Case) -> None:
    accounts = list(case.steps[2].accounts)
    accounts[3] = AccountMeta(Pubkey.from_string(case.fee_payer), is_signer=True, is_writable=False)
    case.steps[2] = Instruction(case.steps[2].program_id, bytes(case.steps[2].data), accounts)


def _amount(amount: int) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        case.steps[2] = case.transfer(case.requirements["payTo"], amount)

    return change


def _requirement(**changed: Any) -> Callable[[Case], None]:
    return lambda case: case.requirements.update(changed)


def _steps(count: int) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        case.steps = [*case.steps[:3], *[memo(str(n)) for n in range(count - 3)]][:count]

    return change


def _too_much(case: Case) -> None:
    case.requirements["amount"] = "9000000"
    case.steps[2] = case.transfer(case.requirements["payTo"], 9_000_000)


REFUSED: Sequence[tuple[str, Callable[[Case], None], str]] = [
    ("another order", _other_order, "compute_limit_instruction"),
    ("a second transfer", _second_transfer, "unknown_fifth_instruction"),
    ("an unchecked transfer", _unchecked, "no_transfer_instruction"),
    ("an account is created", _creation, "unknown_fourth_instruction"),
    ("another recipient", _wrong_recipient, "recipient_mismatch"),
    ("the fee payer pays", _fee_payer_pays, "fee_payer_transferring_funds"),
    ("one more", _amount(PRICE + 1), "amount_mismatch"),
    ("one less", _amount(PRICE - 1), "amount_mismatch"),
    ("two instructions", _steps(2), "instructions_length"),
    ("seven instructions", _steps(7), "instructions_length"),
    (
        "a high price of units",
        lambda case: case.steps.__setitem__(1, set_compute_unit_price(5_000_001)),
        "compute_price_instruction_too_high",
    ),
    (
        "another memo",
        lambda case: case.requirements["extra"].__setitem__("memo", "order-42"),
        "memo_mismatch",
    ),
    ("another mint", _requirement(asset=USDC_OF_DEVNET), "mint_mismatch"),
    ("another scheme", _requirement(scheme="upto"), "unsupported_scheme"),
    ("mainnet", _requirement(network="solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"), "invalid_network"),
    ("no fee payer", _requirement(extra={}), "missing_fee_payer"),
    ("another fee payer", _requirement(extra={"feePayer": str(Keypair().pubkey())}), "not_managed"),
    ("no address", _requirement(payTo="somebody"), "invalid_payment_requirements"),
    ("no amount", _requirement(amount="0"), "invalid_payment_requirements"),
    ("more than the payer has", _too_much, "transaction_simulation_failed"),
]


def test_every_other_deviation_is_refused(
    server: AgentPayServer, client: AgentPay, account: Account, seller: Account
) -> None:
    for name, change, reason in REFUSED:
        case = Case(server, account, seller)
        change(case)
        request = case.request()
        verified, settled = post(server, "/verify", request), post(server, "/settle", request)
        refusal = (verified["isValid"], settled["success"], settled["transaction"])
        assert refusal == (False, False, ""), name
        assert reason in verified["invalidReason"], name
        assert verified["invalidReason"] == settled["errorReason"]
        assert verified["invalidMessage"]
        assert client.accounts.balance(seller.account_id).balance_usdc == 0, name


def test_an_altered_or_unsigned_payment_is_refused(server: AgentPayServer, case: Case) -> None:
    raw = bytearray(case.signed())
    raw[-1] ^= 1
    unsigned = VersionedTransaction.from_bytes(case.signed())
    blank = VersionedTransaction.populate(unsigned.message, [Signature.default()] * len(unsigned.signatures))
    for changed in (bytes(raw), bytes(blank), b"", b"\x00" * 200, b"\xff" * 1_300):
        assert not post(server, "/verify", case.request(changed))["isValid"]
        assert not post(server, "/settle", case.request(changed))["success"]


@pytest.mark.parametrize("text", ["%%%", "AAA", "é", "A" * 40_000])
def test_a_transaction_that_is_not_base64_gets_a_verdict(
    server: AgentPayServer, case: Case, text: str
) -> None:
    request = case.request()
    request["paymentPayload"]["payload"]["transaction"] = text
    verified, settled = post(server, "/verify", request), post(server, "/settle", request)
    assert (verified["isValid"], settled["success"]) == (False, False)
    assert (
        verified["invalidReason"]
        == settled["errorReason"]
        == "invalid_exact_svm_payload_transaction_could_not_be_decoded"
    )


def test_bodies_nest_up_to_64_deep_and_extensions_without_limit(server: AgentPayServer, case: Case) -> None:
    def told(levels: int, extensions: str) -> httpx.Response:
        request = case.request()
        schema = '{"properties": ' * (levels - 1) + "{}" + "}" * (levels - 1)
        request["paymentPayload"]["accepted"]["outputSchema"] = "schema"
        request["paymentPayload"]["extensions"] = "here"
        return httpx.post(
            f"{server.facilitator_url}/verify",
            content=json.dumps(request).replace('"schema"', schema).replace('"here"', extensions),
            headers={"content-type": "application/json"},
        )

    deep = '{"bazaar": ' + '{"a": [' * 2_000 + "]}" * 2_000 + "}"
    assert told(61, deep).json()["isValid"]
    assert told(62, "{}").status_code == 400
    assert "deeper than 64" in told(62, "{}").json()["error"]
    assert told(1_500, "{}").status_code == 400


def test_a_payment_in_two_networks_is_refused(server: AgentPayServer, case: Case) -> None:
    request = case.request()
    request["paymentPayload"]["accepted"]["network"] = "solana:4uhcVJyU9pJkvQyS88uRDiswHXSCkY3z"
    assert post(server, "/verify", request)["invalidReason"] == "network_mismatch"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"paymentPayload": 1}',
        b"\xff",
        b'{"paymentPayload": {"x402Version": 3}}',
    ],
)
def test_an_invalid_request_is_refused(server: AgentPayServer, body: bytes) -> None:
    for path in ("/verify", "/settle"):
        answer = httpx.post(
            f"{server.facilitator_url}{path}", content=body, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, list(answer.json())) == (400, ["error"])


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


def test_the_facilitator_accepts_a_payment_of_payer(
    server: AgentPayServer, account: Account, case: Case
) -> None:
    challenge = {"x402Version": 2, "accepts": [case.requirements]}
    header = base64.b64encode(httpx.Request("GET", "http://x", json=challenge).content).decode()
    payment = Payer(server, account).payment(httpx.Response(402, headers={"payment-required": header}))
    assert post(server, "/settle", case.request(payment.raw))["success"]


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


def test_a_facilitator_that_settles_twice_reports_the_one_payment_again(
    server: AgentPayServer, client: AgentPay, case: Case, seller: Account
) -> None:
    request = case.request()
    with server.sandbox.fault("facilitator:settles_twice"):
        results = [post(server, "/settle", request) for _ in range(3)]
    assert [result["success"] for result in results] == [True] * 3
    assert len({result["transaction"] for result in results}) == 1
    assert _received(client, seller) == PAID


def test_a_facilitator_that_settles_twice_reports_a_payment_that_is_being_settled(
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
    assert [result["success"] for result in results] == [True] * 4
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
    server: AgentPayServer, client: AgentPay, case: Case, seller: Account, account: Account
) -> None:
    unsound = Case(server, account, seller)
    unsound.steps[2] = unsound.transfer(account.chain_address)
    server.sandbox.set_fault("facilitator:false_success", times=2)
    assert not post(server, "/settle", unsound.request())["success"]
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
