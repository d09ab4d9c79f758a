"""Sellers built with the packages of the field, unchanged, paid by an account of the service.

Each runs in a separate environment, against our facilitator or our chain. The tests assert the resource
in the payer's hands and the money on chain. The marker `peers` is on tests that take long to install.
"""

import itertools
import json
import re
import select
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import environments
import httpx
import pytest
import validators
from attrs import frozen
from channel_payer import ChannelPayer, challenge_in, decoded, entry_in, receipt_of
from solders.keypair import Keypair

from agentpay.contract.accounts import Account
from agentpay.contract.ext.payments import Payment
from agentpay_server import AgentPayServer
from agentpay_server.paywall import HostilePayer, Trick

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "how-to" / "test-x402-server.md"
X402_PYTHON = ("x402[svm,fastapi]==2.25.0", "uvicorn>=0.38,<1")
X402_NODE = (
    "express@5",
    "@x402/core@2.27.0",
    "@x402/express@2.27.0",
    "@x402/svm@2.27.0",
    "@solana/kit@5.5.1",
)
X402_V1 = ("express@4", "x402-express@1.2.0", "viem@2.56.0")
MPP_NODE = ("@solana/mpp@0.6.0", "mppx@0.11.0", "viem@2.56.0", "@solana/kit@6.5.0")
PAY_KIT = ("solana-pay-kit==0.10.0", "fastapi>=0.110,<1", "uvicorn>=0.38,<1")

_START_SECONDS = 60
_UNPAID = {Trick.TRUNCATED, Trick.OTHER_AMOUNT, Trick.WITHDRAWN}
_PRICE_MICRO = 1_000
# Facilitators wait for a cluster for half a minute, and their clients with them.
_PATIENT = httpx.Timeout(65)


@frozen
class World:
    """A server whose accounts buy and sell."""

    server: AgentPayServer
    payer: Account
    seller: Account
    partner: Account

    def environment(self, **more: str) -> dict[str, str]:
        """The output of the peers' programs."""
        fee_payer = Keypair()
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "requestAirdrop",
            "params": [str(fee_payer.pubkey()), 10**10],
        }
        assert "result" in httpx.post(self.server.rpc_url, json=call).json()
        return {
            "FACILITATOR_URL": self.server.facilitator_url,
            "RPC_URL": self.server.rpc_url,
            "PAY_TO": self.seller.chain_address,
            "PARTNER": self.partner.chain_address,
            "FEE_PAYER": json.dumps(list(bytes(fee_payer))),
            "PORT": "0",
            **more,
        }

    def balances(self) -> tuple[int, int, int]:
        """The balances of payer, seller and partner, in micro-USDC."""
        accounts = self.server.client().accounts
        held = [
            accounts.balance(account.account_id).balance_usdc
            for account in (self.payer, self.seller, self.partner)
        ]
        return tuple(int(usdc * 10**6) for usdc in held)  # type: ignore[return-value]


@pytest.fixture
def world() -> Iterator[World]:
    validators.embedded_only("the peers work on its chain")
    with AgentPayServer(clock="system") as server:
        client = server.client()
        payer, seller, partner = (
            client.accounts.create(name=name) for name in ("Payer", "Seller", "Partner")
        )
        server.sandbox.fund(payer.account_id, 10)
        yield World(server, payer, seller, partner)


@contextmanager
def shop(command: list[str], directory: Path, environment: dict[str, str]) -> Iterator[httpx.Client]:
    """Run the program of a seller until it prints its URL; return a client of it."""
    with environments.running(command, environment=environment, directory=directory) as process:
        assert process.stdout is not None
        said = []
        while not (said and said[-1].startswith('{"url"')):
            ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
            line = process.stdout.readline() if ready else ""
            assert line, f"the shop did not start: {''.join(said)[-2000:]}"
            said.append(line)
        url = json.loads(said[-1])["url"]
        # On a busy machine, a seller may close an idle connection while the next request is sent.
        limits = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.HTTPTransport(retries=20, limits=limits)
        with httpx.Client(base_url=url, timeout=_PATIENT, transport=transport) as http:
            yield http


def python_shop(packages: tuple[str, ...], program: str, world: World, **more: str) -> Any:
    interpreter = environments.python(*packages)
    command = [str(interpreter), "-W", "ignore", str(HERE / "shops" / program)]
    return shop(command, HERE, world.environment(**more))


def node_shop(packages: tuple[str, ...], program: str, world: World, **more: str) -> Any:
    directory = environments.node(*packages)
    copy = environments.placed(directory, program, (HERE / "shops" / program).read_text("utf-8"))
    return shop(["node", str(copy)], directory, world.environment(**more))


def buy(
    world: World, http: httpx.Client, path: str, *, method: str = "GET", without: str = ""
) -> tuple[httpx.Response, Payment]:
    """Buy a path, and return the response and the payment; `without` hides a header of the 402."""
    asked = http.request(method, path)
    assert asked.status_code == 402, asked.text
    payment = world.server.client().payments.authorize(
        account_id=world.payer.account_id,
        idempotency_key=f"purchase-{next(_numbers)}",
        origin=str(http.base_url).rstrip("/"),
        url=str(asked.url),
        method=method,
        headers=[(name, value) for name, value in asked.headers.multi_items() if name != without],
        body=asked.text,
    )
    assert payment.header is not None
    response = http.request(method, path, headers={payment.header.name: payment.header.value})
    return response, payment


def bought(world: World, http: httpx.Client, path: str, *, partner_micro: int = 0, **options: Any) -> Payment:
    """Buy a path, and check who has paid what; the same payment again must not move money."""
    before = world.balances()
    response, payment = buy(world, http, path, **options)
    assert (response.status_code, response.json()) == (200, {"weather": "rain"}), response.text
    expected = (
        before[0] - _PRICE_MICRO,
        before[1] + _PRICE_MICRO - partner_micro,
        before[2] + partner_micro,
    )
    assert world.balances() == expected
    settled = world.server.client().payments.get(payment.transfer_id)
    assert (settled.status, settled.tx_signature is not None) == ("settled", True)
    assert payment.header is not None
    header = {payment.header.name: payment.header.value}
    http.request(options.get("method", "GET"), path, headers=header)
    assert world.balances() == expected
    return settled


_numbers = itertools.count(1)

X402_SHOPS: dict[str, Callable[..., AbstractContextManager[httpx.Client]]] = {
    "PyPI x402": lambda world, **more: python_shop(X402_PYTHON, "x402_python.py", world, **more),
    "npm @x402/express": lambda world, **more: node_shop(X402_NODE, "x402_node.mjs", world, **more),
}


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", X402_SHOPS)
def test_a_seller_with_the_x402_package_is_paid(world: World, name: str) -> None:
    with X402_SHOPS[name](world) as http:
        bought(world, http, "/plain")
        bought(world, http, "/plain", method="POST")
        bought(world, http, "/external-id")
        bought(world, http, "/upfront")
        memos = [transaction.memo for transaction in world.server.transactions]
        assert memos.count("order-42") == 1


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", X402_SHOPS)
def test_a_seller_whose_handler_fails_does_not_settle(world: World, name: str) -> None:
    with X402_SHOPS[name](world) as http:
        before = world.balances()
        response, _ = buy(world, http, "/boom")
        assert (response.status_code, world.balances()) == (500, before)


@pytest.mark.peers
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", X402_SHOPS)
def test_a_hostile_payer_gets_nothing_unpaid_from_a_seller_with_the_x402_package(
    world: World, name: str
) -> None:
    payer = HostilePayer(world.server)
    with X402_SHOPS[name](world) as http, X402_SHOPS[name](world) as other:
        for attempt in payer.attack(http, "/plain", other=other):
            assert not attempt.is_cheated, attempt
            paid = Decimal(0) if attempt.trick in _UNPAID else Decimal("0.001")
            assert attempt.paid_usdc == paid, attempt


@pytest.mark.peers
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", X402_SHOPS)
@pytest.mark.parametrize(
    ("fault", "trick", "served", "paid"),
    [
        ("slow", "honest", 1, "0.001"),
        ("pending", "honest", 0, "0.001"),
        ("false_success", "honest", 1, "0"),
        ("false_failure", "honest", 0, "0.001"),
        ("settles_twice", "replay", 1, "0.001"),
        ("forgets", "honest", 0, "0"),
    ],
)
def test_what_a_seller_with_the_x402_package_does_behind_a_faulty_facilitator(
    world: World, name: str, fault: str, trick: str, served: int, paid: str
) -> None:
    """Facts about the packages: they believe what their facilitator says."""
    payer = HostilePayer(world.server)
    delay_ms = 1 if fault == "slow" else None
    with (
        X402_SHOPS[name](world) as http,
        world.server.sandbox.fault(f"facilitator:{fault}", delay_ms=delay_ms),
    ):
        attempt = payer.attempt(trick, http, "/plain")
    assert (attempt.served, attempt.paid_usdc) == (served, Decimal(paid)), attempt


@pytest.mark.peers
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", X402_SHOPS)
def test_a_seller_that_suggests_a_blockhash_is_paid(world: World, name: str) -> None:
    with X402_SHOPS[name](world, HINT_RPC_URL=world.server.rpc_url) as http:
        bought(world, http, "/plain")


@pytest.mark.peers
@pytest.mark.timeout(700)
def test_a_seller_of_x402_version_1_is_paid(world: World) -> None:
    with node_shop(X402_V1, "x402_v1.mjs", world) as http:
        bought(world, http, "/plain")


@pytest.mark.peers
@pytest.mark.timeout(700)
def test_a_seller_with_the_mpp_package_is_paid(world: World) -> None:
    with node_shop(MPP_NODE, "mpp_node.mjs", world) as http:
        bought(world, http, "/plain")
        bought(world, http, "/external-id")
        bought(world, http, "/sponsored")
        bought(world, http, "/split", partner_micro=100)
        bought(world, http, "/split-sponsored", partner_micro=100)
        memos = [transaction.memo for transaction in world.server.transactions]
        assert (memos.count("order-42"), memos.count("fee")) == (1, 2)


@pytest.mark.peers
@pytest.mark.timeout(700)
@pytest.mark.parametrize(("protocol", "without"), [("mpp", "payment-required"), ("x402_v2", "")])
def test_a_seller_with_pay_kit_is_paid(world: World, protocol: str, without: str) -> None:
    with python_shop(PAY_KIT, "paykit.py", world) as http:
        assert bought(world, http, "/plain", without=without).protocol == protocol


@pytest.mark.peers
@pytest.mark.timeout(700)
def test_a_seller_of_sessions_is_paid_by_vouchers(world: World) -> None:
    """Our program and codecs with the package that sells sessions: opening, replays, close, to the unit."""
    mint = world.server._running.server.context.chain.usdc_mint
    payer = ChannelPayer(world.server, world.payer)
    with python_shop(PAY_KIT, "paykit_session.py", world, MINT=mint) as http:
        challenge = challenge_in(http.get("/tick"))
        opening = payer.opening(challenge, 10_000)
        world.server.sandbox.create_token_account(owner=str(opening.payee))
        header = payer.open_header(challenge, opening)
        assert [http.get("/tick", headers=header).status_code for _ in range(2)] == [200, 200]
        assert payer.channel(opening).is_of(opening)

        def pay(cumulative: int, action: str = "voucher") -> httpx.Response:
            return http.get(
                "/tick", headers=payer.voucher_header(challenge, opening, cumulative, action=action)
            )

        assert [pay(total).status_code for total in (1_000, 2_000, 3_001, 3_001)] == [200] * 4
        assert pay(2_000).status_code == 402
        assert pay(10_001).status_code == 402
        closed = pay(3_001, "close")
        assert closed.status_code == 200, closed.text
        assert receipt_of(closed)["refunded"] == "6999"
    # The rest of the rounding is the program's.
    assert world.balances() == (10_000_000 - 3_001, 0, 99)


@pytest.mark.peers
@pytest.mark.timeout(700)
def test_the_service_pays_a_seller_of_sessions(world: World) -> None:
    mint = world.server._running.server.context.chain.usdc_mint
    client, account_id = world.server.client(), world.payer.account_id

    def authorized(http: httpx.Client, key: str) -> Any:
        asked = http.get("/tick")
        return client.payments.authorize(
            account_id=account_id, idempotency_key=key, response=asked, session_cap="0.01"
        )

    def present(http: httpx.Client, step: Any) -> httpx.Response:
        assert step.header is not None
        response = http.get("/tick", headers={step.header.name: step.header.value})
        assert response.status_code == 200, response.text
        return response

    with python_shop(PAY_KIT, "paykit_session.py", world, MINT=mint) as http:
        payee = decoded(challenge_in(http.get("/tick"))["request"])["recipient"]
        world.server.sandbox.create_token_account(owner=payee)
        opening = authorized(http, "call-0")
        assert opening.step == "open"
        present(http, opening)
        for number in range(5):
            step = authorized(http, f"call-{number}")
            assert (step.step, step.amount_usdc) == ("voucher", Decimal("0.001"))
            assert present(http, step).json() == {"weather": "rain"}
            # As after a lost reply: the same voucher, charged once.
            again = authorized(http, f"call-{number}")
            assert (again.is_replay, again.charge_id) == (True, step.charge_id)
            present(http, again)
            client.payments.report_outcome(step.charge_id, status_code=200)
        closed = present(http, client.sessions.close(opening.session_id, present=False))
        assert receipt_of(closed)["refunded"] == "5000"
    # 333 hundredths of a percent of 5,000 are 166.5; the rest of the rounding is the program's.
    assert world.balances() == (10_000_000 - 5_000, 0, 166)


@pytest.mark.peers
@pytest.mark.timeout(700)
def test_a_seller_up_to_a_maximum_takes_what_it_charges(world: World) -> None:
    """Our program with the facilitator and the server of the package, paid by a payer of ours."""
    mint = world.server._running.server.context.chain.usdc_mint
    payer = ChannelPayer(world.server, world.payer)
    with node_shop(X402_NODE, "x402_upto.mjs", world, MINT=mint) as http:
        for path, status, taken in (("/some", 200, 3_777), ("/none", 200, 0), ("/boom", 500, 0)):
            before = world.balances()
            asked = http.get(path)
            assert asked.status_code == 402, asked.text
            header = payer.upto_header(entry_in(asked))
            served = http.get(path, headers=header)
            assert served.status_code == status, served.text
            assert world.balances() == (before[0] - taken, before[1] + taken, before[2])
            # The same payment again moves nothing.
            http.get(path, headers=header)
            assert world.balances() == (before[0] - taken, before[1] + taken, before[2])


@pytest.mark.peers
@pytest.mark.timeout(700)
def test_the_service_pays_a_seller_up_to_a_maximum(world: World) -> None:
    """Our service with the facilitator and the server of the package: to the unit, from the chain."""
    mint = world.server._running.server.context.chain.usdc_mint
    with node_shop(X402_NODE, "x402_upto.mjs", world, MINT=mint) as http:
        paid_upto(world, http, {"/some": (200, 3_777), "/none": (200, 0), "/boom": (500, 0)})


@pytest.mark.peers
@pytest.mark.timeout(700)
def test_the_service_pays_pay_kit_up_to_a_maximum(world: World) -> None:
    with python_shop(PAY_KIT, "paykit_upto.py", world) as http:
        # The package responds 402 where a handler has failed or charged nothing.
        paid_upto(world, http, {"/some": (200, 3_777), "/boom": (402, 0)})


def paid_upto(world: World, http: httpx.Client, routes: dict[str, tuple[int, int]]) -> None:
    """Buy each route, up to 0.01 USDC, and check what the seller took, by the chain."""
    for path, (status, taken) in routes.items():
        before = world.balances()
        served, payment = buy(world, http, path)
        assert (served.status_code, payment.protocol) == (status, "x402_upto"), served.text
        settled = world.server.client().payments.get(payment.transfer_id)
        assert (settled.status, settled.amount_usdc) == ("settled", Decimal(taken) / 10**6)
        assert world.balances() == (before[0] - taken, before[1] + taken, before[2])
        # The same payment again moves nothing.
        assert payment.header is not None
        http.get(path, headers={payment.header.name: payment.header.value})
        assert world.balances() == (before[0] - taken, before[1] + taken, before[2])


# --- The documentation -------------------------------------------------------------------------------------


def documented(name: str) -> str:
    """Return a program of the page for sellers."""
    found = re.search(rf"`{re.escape(name)}`.*?\n```\w+\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.timeout(700)
def test_the_documented_shop_in_python_runs(world: World, tmp_path: Path) -> None:
    serve = (
        "import json, socket, uvicorn, shop\n"
        "sock = socket.socket(); sock.bind(('127.0.0.1', 0))\n"
        "print(json.dumps({'url': f'http://127.0.0.1:{sock.getsockname()[1]}'}), flush=True)\n"
        "uvicorn.Server(uvicorn.Config(shop.app, log_level='warning')).run(sockets=[sock])\n"
    )
    (tmp_path / "shop.py").write_text(documented("shop.py"))
    command = [str(environments.python(*X402_PYTHON)), "-c", serve]
    with shop(command, tmp_path, world.environment()) as http:
        bought(world, http, "/forecast")


@pytest.mark.timeout(700)
def test_the_documented_shop_in_node_runs(world: World) -> None:
    directory = environments.node(*X402_NODE)
    program = environments.placed(directory, "shop.mjs", documented("shop.mjs"))
    with shop(["node", str(program)], directory, world.environment()) as http:
        bought(world, http, "/forecast")
