"""The whole service on a real validator: what it does, what it refuses, what it says while that is away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bounds
import json_rpc_server
import pytest
import rpc_proxy
import rpc_service
import rpc_world
from click.testing import CliRunner
from rpc_proxy import RpcProxy
from rpc_service import Service
from solders.keypair import Keypair
from surfpool import Surfpool

from agentpay_server import AgentPayServer, Settings, StartRefusedError
from agentpay_server.cli import main
from agentpay_server.cli import process as _process  # noqa: F401 - loaded while coverage is measured
from agentpay_server.cli import serve as _serve  # noqa: F401
from agentpay_server.contract import sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]

MAINNET = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"
DEVNET = "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG"


def genesis(value: str) -> rpc_proxy.Act:
    async def act(forward: rpc_proxy.Forward) -> Any:
        return json_rpc_server.result(value)

    return act


@pytest.fixture
async def proxy(surfpool: Surfpool) -> AsyncIterator[RpcProxy]:
    async with rpc_proxy.in_front_of(surfpool.url) as running:
        yield running


@pytest.fixture
async def service(surfpool: Surfpool) -> AsyncIterator[Service]:
    async with rpc_service.serving(surfpool) as running:
        yield running


# --- What it does


async def test_accounts_requested_together_share_transactions(
    surfpool: Surfpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for all requests to join on a busy machine.
    bounds.shorten(monkeypatch, provisioning_seconds=2.0)
    async with rpc_service.serving(surfpool) as service:
        parties = await asyncio.gather(*(service.account() for _ in range(25)))
        assert len({party.usdc_token_account for party in parties}) == 25
        assert [await service.held(party) for party in parties] == [0] * 25
        watched = await service.rows("chain_transactions", state="confirmed")
        made = {row["subject_id"]: row["signature"] for row in watched}
        assert {party.account_id for party in parties} <= made.keys()
        most = -(-len(parties) // bounds.value("accounts_in_one_transaction"))
        assert len({made[party.account_id] for party in parties}) == most


async def test_an_account_that_cannot_be_created_does_not_block_others(
    surfpool: Surfpool, service: Service
) -> None:
    await service.account()
    # Another owner's account is at the address of the token account of the third account from now.
    taken = service.token_account_of(4)
    program = "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"
    surfpool.call("surfnet_setAccount", taken, {"lamports": 10**9, "data": "00", "owner": program})
    answers = await asyncio.gather(
        *(service.http.post("/v1/accounts", json={"name": f"{number}"}) for number in range(5))
    )
    assert sorted(answer.status_code for answer in answers) == [201, 201, 201, 201, 503]
    listed = (await service.http.get("/v1/accounts")).json()["data"]
    assert len(listed) == 5
    assert taken not in {account["usdc_token_account"] for account in listed}
    assert {answer.json().get("error") for answer in answers} == {None, "chain_unavailable"}


async def test_simulated_compute_limits_suffice_for_every_operation(
    surfpool: Surfpool, proxy: RpcProxy
) -> None:
    fees = {"priority_fee_micro_lamports": 1_000, "priority_fee_cap_micro_lamports": 5_000}
    settings = Settings(onchain_memo="full")
    async with rpc_service.serving(surfpool, url=proxy.url, settings=settings, **fees) as service:
        payer, *payees = await asyncio.gather(*(service.account() for _ in range(12)))
        await service.until_answered(f"/ext/v1/sandbox/accounts/{payer.account_id}/fund", {"amount": "100"})
        sent = 0
        for payee in payees[:4]:
            for memo in ("", "a", "é" * 100):
                sent += 1
                answer = await service.transfer(f"{sent}", payer, payee, "1", memo=memo)
                assert answer.status_code == 200, answer.text
        for number, payee in enumerate(payees[:3]):
            terms = {"account_id": payer.account_id, "to": payee.account_id, "cap_usdc": "5"}
            session = await service.until_answered(
                "/ext/v1/sessions", {**terms, "idempotency_key": f"session {number}"}
            )
            charge = {"amount": f"{number + 1}", "idempotency_key": f"{number}"}
            await service.until_answered(f"/ext/v1/sessions/{session['session_id']}/charges", charge)
            closed = await service.until_answered(f"/ext/v1/sessions/{session['session_id']}/close", {})
            assert closed["status"] == "settled"
        for limit in (1, 20, 300):
            await service.http.put(
                f"/v1/accounts/{payer.account_id}/policy",
                json={"max_single_transfer": limit, "categories": ["data"] * bool(limit > 1)},
            )

            async def is_written() -> bool:
                detail = await service.until_read(f"/ext/v1/console/accounts/{payer.account_id}")
                return bool(detail["policy_record"]["version"] == detail["policy_version"])

            await rpc_service.eventually(is_written)
        assert await service.held(payer) == 100_000_000 - sent * 1_000_000 - 6_000_000
        # One for each kind, not one for each transaction.
        assert 0 < proxy.requests["simulateTransaction"] <= 12


async def test_a_transfer_to_a_not_yet_stored_account_becomes_its_deposit(
    service: Service,
) -> None:
    payer, context = await service.account("10"), service.runtime.context
    address = service.token_account_of(2)
    await service.open_token_account_of(2)

    async def is_there() -> bool:
        return (await context.chain.token_accounts([address]))[0] is not None

    await rpc_service.eventually(is_there)
    paid = (await service.transfer("key", payer, address, "4")).json()
    account = await service.account()
    assert account.usdc_token_account == address

    async def history() -> list[tuple[str, str, str]]:
        page = await service.until_read(f"/v1/accounts/{account.account_id}/transactions")
        return [(entry["type"], entry["amount_usdc"], entry["tx_signature"]) for entry in page["data"]]

    async def is_posted() -> bool:
        return bool(await history())

    await rpc_service.eventually(is_posted)
    assert await history() == [("deposit", "4.000000", paid["tx_signature"])]


# --- While the cluster is away


async def is_ready(service: Service, status: int) -> bool:
    answer = await service.http.get("/readyz")
    assert answer.json().get("not_ready") in (None, ["chain"])
    return answer.status_code == status


async def test_requests_fail_while_the_endpoint_is_down_and_recover_automatically(
    surfpool: Surfpool, proxy: RpcProxy
) -> None:
    async with rpc_service.serving(
        surfpool, url=proxy.url, websocket_url=None, timeout_seconds=0.3
    ) as service:
        payer, payee = await service.account("10"), await service.account()
        balance = f"/v1/accounts/{payer.account_id}/balance"
        for trouble in (
            rpc_proxy.request_lost,
            rpc_proxy.silent,
            rpc_proxy.rate_limited,
            rpc_proxy.overloaded,
        ):
            proxy.always("*", trouble)
            for answer in (
                await service.http.get(balance),
                await service.transfer(trouble.__name__, payer, payee, "1"),
                await service.http.post("/v1/accounts", json={"name": "x"}),
            ):
                assert (answer.status_code, answer.json()["error"]) == (503, "chain_unavailable")
                assert answer.headers["retry-after"].isdecimal()
                assert "transfer_id" not in answer.json()
            # The height of a moment ago counts as an answer.
            await rpc_service.eventually(lambda: is_ready(service, 503))
            # Operations without the chain continue.
            history = await service.http.get(f"/v1/accounts/{payer.account_id}/transactions")
            assert history.status_code == 200
            proxy.clear()
            await rpc_service.eventually(lambda: is_ready(service, 200))
            assert (await service.http.get(balance)).json()["balance_usdc"] == "10.000000"
        assert await service.held(payee) == 0


# --- Where it refuses to


async def serve(*options: str, **environment: str) -> tuple[int, str]:
    """Return the exit code and output of a server that does not start."""
    # In a thread of this process: importing all that a process needs takes a second.
    runner, command = CliRunner(env=environment), ["serve", "--port", "0", *options]
    async with asyncio.timeout(rpc_service.PATIENCE_SECONDS):
        result = await asyncio.to_thread(runner.invoke, main, command)
    assert "Traceback" not in result.output
    return result.exit_code, " ".join(result.output.replace("\u2502", " ").split())


async def test_mainnet_requires_allow_mainnet_and_persistent_keys(
    proxy: RpcProxy, service: Service, tmp_path: Path
) -> None:
    proxy.always("getGenesisHash", genesis(MAINNET))
    where = ["--rpc-url", proxy.url, "--data-dir", str(tmp_path)]
    code, said = await serve(*where)
    assert code == 1
    assert "--allow-mainnet" in said
    code, said = await serve("--rpc-url", proxy.url, "--allow-mainnet")
    assert code == 1
    assert "forgets the keys" in said
    code, said = await serve(*where, "--allow-mainnet", "--clock", "manual")
    assert code == 1
    assert "manual clock" in said


async def test_a_seed_does_not_determine_keys_on_a_cluster(
    surfpool: Surfpool, proxy: RpcProxy, service: Service, tmp_path: Path
) -> None:
    addresses: set[str] = set()
    for _ in range(2):
        async with rpc_service.serving(surfpool, seed=7) as seeded:
            addresses.add(seeded.token_account_of(1))
    assert len(addresses) == 2
    proxy.always("getGenesisHash", genesis(MAINNET))
    mainnet = {"url": proxy.url, "websocket_url": None, "allow_mainnet": True}
    with pytest.raises(StartRefusedError, match="start without a seed"):
        async with rpc_service.serving(surfpool, data_dir=tmp_path, seed=7, **mainnet):
            pass


async def test_a_database_of_one_chain_is_not_used_with_another(
    surfpool: Surfpool, proxy: RpcProxy, service: Service, tmp_path: Path
) -> None:
    with AgentPayServer(data_dir=tmp_path / "embedded"):
        pass
    code, said = await serve("--rpc-url", proxy.url, "--data-dir", str(tmp_path / "embedded"))
    assert code == 1
    assert "database belongs to" in said
    proxy.always("getGenesisHash", genesis(DEVNET))
    rpc_world.put_mint(surfpool, str(Keypair().pubkey()), address=rpc_world.USDC_OF_DEVNET)
    async with rpc_service.serving(surfpool, url=proxy.url, websocket_url=None, data_dir=tmp_path / "devnet"):
        pass
    proxy.clear()
    code, said = await serve("--rpc-url", proxy.url, "--data-dir", str(tmp_path / "devnet"))
    assert code == 1
    assert DEVNET in said


async def test_on_a_public_cluster_every_operation_of_the_sandbox_is_forbidden(
    surfpool: Surfpool, proxy: RpcProxy, tmp_path: Path
) -> None:
    proxy.always("getGenesisHash", genesis(DEVNET))
    rpc_world.put_mint(surfpool, str(Keypair().pubkey()), address=rpc_world.USDC_OF_DEVNET)
    async with rpc_service.serving(surfpool, url=proxy.url, websocket_url=None, data_dir=tmp_path) as service:
        account = await service.account()
        body = {"amount": "1", "name": "x", "seconds": 1}
        for endpoint in sandbox.SANDBOX_ENDPOINTS:
            path = endpoint.path.format(
                account_id=account.account_id, name="chain_down", snapshot_id="snap_none"
            )
            names = {field.name for field in endpoint.request.__attrs_attrs__} if endpoint.request else set()
            sent = {name: value for name, value in body.items() if name in names} or None
            answer = await service.http.request(endpoint.method, path, json=sent)
            assert (answer.status_code, answer.json()["error"]) == (403, "forbidden"), endpoint
            assert "public cluster" in answer.json()["message"]


async def test_a_mint_other_than_the_stored_one_is_refused(
    surfpool: Surfpool, service: Service, tmp_path: Path
) -> None:
    mint = str(Keypair().pubkey())
    rpc_world.put_mint(surfpool, mint, address=mint)
    async with rpc_service.serving(surfpool, data_dir=tmp_path):
        pass
    with pytest.raises(StartRefusedError, match=f"hold the mint {rpc_world.USDC}, not {mint}"):
        async with rpc_service.serving(surfpool, data_dir=tmp_path, usdc_mint=mint):
            pass
