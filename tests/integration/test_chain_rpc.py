"""JSON-RPC of the embedded chain, as clients of Solana use it: solana-py, @solana/kit, and bytes by hand."""

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import embedded_node
import httpx
import money
import pytest
import rpc_world
import surfpool
import validators
import websockets
from command_line import next_json, processing
from server_world import START
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.models import TokenAccountOpts, TxOpts
from solana.rpc.websocket_api import SolanaWsClient
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import transfer_checked
from spl.token.models import TransferCheckedParams

from agentpay_server import AgentPayServer

pytestmark = [pytest.mark.embedded_chain("it is the chain that is served"), pytest.mark.plugin("node")]

USDC = rpc_world.USDC
SOL = 10**9
SHOWN = {"encoding": "jsonParsed", "maxSupportedTransactionVersion": 0}
KIT = ("@solana/kit@8.4.0", "@solana-program/system@0.14.1", "@solana-program/token@0.16.1")


def memo_of(text: str) -> Instruction:
    return Instruction(MEMO_PROGRAM_ID, text.encode(), [])


@pytest.fixture
def server() -> Iterator[AgentPayServer]:
    with AgentPayServer(clock=START) as running:
        yield running


def ask(server: AgentPayServer, method: str, *params: Any) -> Any:
    """Return the whole answer to a call."""
    call = {"jsonrpc": "2.0", "id": 7, "method": method, "params": list(params)}
    answer = httpx.post(server.rpc_url, json=call, verify=False)  # No certificates are loaded for plain HTTP.
    assert answer.status_code == 200
    assert answer.json()["id"] == 7
    return answer.json()


def result(server: AgentPayServer, method: str, *params: Any) -> Any:
    answer = ask(server, method, *params)
    assert "error" not in answer, answer
    return answer["result"]


def refused(server: AgentPayServer, method: str, *params: Any) -> Any:
    return ask(server, method, *params)["error"]


def payer_with(server: AgentPayServer, lamports: int = SOL) -> Keypair:
    payer = Keypair()
    result(server, "requestAirdrop", str(payer.pubkey()), lamports)
    return payer


def blockhash_of(server: AgentPayServer) -> Hash:
    return Hash.from_string(result(server, "getLatestBlockhash")["value"]["blockhash"])


def giving(
    server: AgentPayServer,
    payer: Keypair,
    lamports: int = 5 * 10**6,
    *,
    to: Pubkey | None = None,
    blockhash: Hash | None = None,
    text: str = "",
) -> VersionedTransaction:
    """Return a signed transaction that gives SOL away."""
    give = transfer(
        TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to or Keypair().pubkey(), lamports=lamports)
    )
    steps = [give, memo_of(text)] if text else [give]
    blockhash = blockhash or blockhash_of(server)
    return VersionedTransaction(Message.new_with_blockhash(steps, payer.pubkey(), blockhash), [payer])


def text_of(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode()


BASE64 = {"encoding": "base64"}


# --- Clients -----------------------------------------------------------------------------------------------


async def use_solana_py(url: str, payee: str, token_account: str) -> None:
    """Typical use of a chain through solana-py."""
    async with AsyncClient(url, Confirmed) as client:
        assert await client.is_connected()
        payer = Keypair()
        funded = await client.request_airdrop(payer.pubkey(), SOL)
        await client.confirm_transaction(funded.value)
        assert (await client.get_balance(payer.pubkey())).value == SOL
        latest = (await client.get_latest_blockhash()).value
        give = transfer(
            TransferParams(
                from_pubkey=payer.pubkey(), to_pubkey=Pubkey.from_string(payee), lamports=5_000_000
            )
        )
        message = MessageV0.try_compile(payer.pubkey(), [give, memo_of("hello")], [], latest.blockhash)
        transaction = VersionedTransaction(message, [payer])
        simulated = (await client.simulate_transaction(transaction, sig_verify=True)).value
        assert (simulated.err, bool(simulated.logs)) == (None, True)
        signature = (await client.send_transaction(transaction, TxOpts(preflight_commitment=Confirmed))).value
        assert signature == transaction.signatures[0]
        (status,) = (await client.get_signature_statuses([signature])).value
        assert status is not None
        assert status.err is None
        for encoding in ("json", "jsonParsed", "base64", "base58"):
            found = (
                await client.get_transaction(signature, encoding, max_supported_transaction_version=0)
            ).value
            assert found is not None
            assert found.transaction.meta is not None
            assert found.transaction.meta.fee == 5_000
        (line, *_) = (await client.get_signatures_for_address(payer.pubkey(), limit=1)).value
        assert (line.signature, line.memo) == (signature, "[5] hello")
        height = (await client.get_block_height()).value
        assert height <= latest.last_valid_block_height
        assert (await client.get_epoch_info()).value.block_height >= height
        held = (await client.get_token_account_balance(Pubkey.from_string(token_account))).value
        assert held.ui_amount_string == "1.5"
        mint = TokenAccountOpts(mint=Pubkey.from_string(USDC))
        owner = Pubkey.from_string(payee)
        assert [
            str(each.pubkey) for each in (await client.get_token_accounts_by_owner(owner, mint)).value
        ] == [token_account]
        parsed = (await client.get_token_accounts_by_owner_json_parsed(owner, mint)).value
        assert parsed[0].account.data.parsed["info"]["tokenAmount"]["amount"] == "1500000"
        accounts = (await client.get_multiple_accounts([owner, Keypair().pubkey()])).value
        assert [account is None for account in accounts] == [False, True]
        assert (await client.get_minimum_balance_for_rent_exemption(165)).value == 2_039_280
        assert (await client.get_version()).value.solana_core
        assert (await client.get_genesis_hash()).value


def test_solana_py_reads_a_payment_of_the_server_and_sends_one(server: AgentPayServer) -> None:
    client = server.client()
    payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
    server.sandbox.fund(payer.account_id, 10)
    client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1.5")
    asyncio.run(use_solana_py(server.rpc_url, payee.chain_address, payee.usdc_token_account))


def test_kit_sends_and_confirms_over_its_websocket() -> None:
    modules = surfpool.installed("kit", *KIT)
    script = (Path(__file__).parent / "kit_client.mjs").read_text()
    recipient = str(Keypair().pubkey())
    with AgentPayServer(clock="system") as server:
        client = subprocess.run(
            ["node", "--input-type=module", "-e", script, server.rpc_url, USDC, recipient],
            cwd=modules.parent,
            check=False,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert client.returncode == 0, client.stderr[-2000:]
        told = json.loads(client.stdout)
        assert result(server, "getBalance", recipient)["value"] == 5_000_000
        assert told["genesis"] == result(server, "getGenesisHash")
    assert told["balance"] == "2000000000"
    assert (told["version"], told["kinds"]) == (0, ["transfer", "createIdempotent"])
    assert told["history"][0] == told["signature"]
    assert (told["decimals"], told["tokens"]) == (6, "0")
    assert told["simulated"] == {"InstructionError": [0, {"Custom": 1}]}
    assert told["refusal"]["isSolanaError"]
    assert "Custom program error: #1" in told["refusal"]["cause"]
    assert told["refusal"]["logs"] > 0


def test_a_server_works_on_an_embedded_chain_that_it_reaches_by_json_rpc() -> None:
    """As one on any cluster does; all of the behaviour suite runs so with `--chain embedded-rpc`."""
    with embedded_node.running(rpc_world.TREASURY_ADDRESS, rpc_world.MINT_AUTHORITY_ADDRESS) as node:
        with AgentPayServer(clock="system", rpc=validators.rpc_settings(node)) as server:
            client = server.client()
            payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
            server.sandbox.fund(payer.account_id, 10)
            sent = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=4)
            assert sent.status == "settled"
            assert client.accounts.balance(payee.account_id).balance_usdc == 4
            with pytest.raises(ValueError, match="cluster"):
                _ = server.rpc_url
        held = node.call("getTokenAccountBalance", payee.usdc_token_account)["value"]
        assert held["amount"] == "4000000"
        (status,) = node.call("getSignatureStatuses", [sent.tx_signature])["value"]
        assert (status["err"], status["confirmationStatus"]) == (None, "finalized")


# --- Sending -----------------------------------------------------------------------------------------------


def given_usdc(server: AgentPayServer, owner: Pubkey, amount_micro: int) -> str:
    """Give test USDC to an address that no server knows, and return its token account."""
    token_account = server.sandbox.create_token_account(owner=str(owner)).usdc_token_account
    money.mint(server, token_account, amount_micro)
    return token_account


def test_money_from_outside_is_a_deposit(server: AgentPayServer) -> None:
    """A stranger's transaction, sent over JSON-RPC, is in the history of the account that it pays."""
    client = server.client()
    account = client.accounts.create(name="Bot")
    payer = payer_with(server)
    source = given_usdc(server, payer.pubkey(), 3_000_000)

    def paying(amount_micro: int) -> str:
        pay = transfer_checked(
            TransferCheckedParams(
                program_id=TOKEN_PROGRAM_ID,
                source=Pubkey.from_string(source),
                dest=Pubkey.from_string(account.usdc_token_account),
                owner=payer.pubkey(),
                mint=Pubkey.from_string(USDC),
                amount=amount_micro,
                decimals=6,
            )
        )
        message = Message.new_with_blockhash([pay], payer.pubkey(), blockhash_of(server))
        return text_of(VersionedTransaction(message, [payer]))

    signature = result(server, "sendTransaction", paying(2_000_000), BASE64)
    server.sandbox.clock.advance(1)
    (entry,) = client.accounts.transactions(account.account_id)
    assert (entry.type, entry.amount_usdc, entry.tx_signature) == ("deposit", 2, signature)
    error = refused(server, "sendTransaction", paying(2_000_000), BASE64)
    assert error["data"]["err"] == {"InstructionError": [0, {"Custom": 1}]}


def base58(data: bytes) -> str:
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, digits = int.from_bytes(data), ""
    while number:
        number, digit = divmod(number, 58)
        digits = alphabet[digit] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits


def test_preflight_returns_the_error_and_sends_nothing(server: AgentPayServer) -> None:
    payer = payer_with(server)
    landed = giving(server, payer)
    result(server, "sendTransaction", text_of(landed), BASE64)
    old = giving(server, payer, blockhash=blockhash_of(server))
    made_up = giving(server, payer, blockhash=Hash.hash(b"made up"))
    poor = giving(server, payer, lamports=2 * SOL)
    unpaid = giving(server, Keypair())
    bad = VersionedTransaction.populate(landed.message, [Signature.default()])
    for transaction, code, error in (
        (landed, -32002, "AlreadyProcessed"),
        (made_up, -32002, "BlockhashNotFound"),
        (poor, -32002, {"InstructionError": [0, {"Custom": 1}]}),
        (unpaid, -32002, "AccountNotFound"),
        (bad, -32003, None),
    ):
        found = refused(server, "sendTransaction", text_of(transaction), BASE64)
        assert found["code"] == code
        assert found.get("data", {}).get("err") == error
    blockhash = str(old.message.recent_blockhash)
    assert result(server, "isBlockhashValid", blockhash)["value"] is True
    server.sandbox.clock.advance(0.4 * 151)
    assert result(server, "isBlockhashValid", blockhash)["value"] is False
    found = refused(server, "sendTransaction", text_of(old), BASE64)
    assert found["message"] == "Transaction simulation failed: Blockhash not found"
    assert len(result(server, "getSignaturesForAddress", str(payer.pubkey()))) == 2


def test_without_preflight_the_signature_is_always_returned(server: AgentPayServer) -> None:
    payer, skipping = payer_with(server), {**BASE64, "skipPreflight": True}
    poor, good = giving(server, payer, lamports=2 * SOL), giving(server, payer)
    bad = VersionedTransaction.populate(good.message, [Signature.default()])
    made_up = giving(server, payer, blockhash=Hash.hash(b"made up"))
    for transaction in (poor, bad, made_up):
        assert result(server, "sendTransaction", text_of(transaction), skipping) == str(
            transaction.signatures[0]
        )
    statuses = result(
        server, "getSignatureStatuses", [str(each.signatures[0]) for each in (poor, bad, made_up)]
    )
    assert [status and status["err"] for status in statuses["value"]] == [
        {"InstructionError": [0, {"Custom": 1}]},
        None,
        None,
    ]
    # Bad signatures do not keep the message that they were put on from landing.
    assert result(server, "sendTransaction", text_of(good), BASE64) == str(good.signatures[0])


def test_a_simulation_needs_neither_signature_nor_blockhash(server: AgentPayServer) -> None:
    payer, to = payer_with(server), Keypair().pubkey()
    signed = giving(server, payer, to=to, blockhash=Hash.default())
    unsigned = VersionedTransaction.populate(signed.message, [Signature.default()])
    options = {
        **BASE64,
        "replaceRecentBlockhash": True,
        "innerInstructions": True,
        "accounts": {"encoding": "base64", "addresses": [str(to)]},
    }
    found = result(server, "simulateTransaction", text_of(unsigned), options)["value"]
    assert (found["err"], found["accounts"][0]["lamports"]) == (None, 5_000_000)
    assert found["replacementBlockhash"]["blockhash"] == str(blockhash_of(server))
    assert found["innerInstructions"] == []
    assert found["unitsConsumed"] > 0
    verifying = {**BASE64, "sigVerify": True}
    assert refused(server, "simulateTransaction", text_of(unsigned), verifying)["code"] == -32003
    assert refused(server, "simulateTransaction", text_of(signed), {**options, **verifying})["code"] == -32602
    expired = result(server, "simulateTransaction", text_of(signed), verifying)["value"]
    assert (expired["err"], expired["logs"]) == ("BlockhashNotFound", [])
    assert result(server, "getBalance", str(to))["value"] == 0


# --- Looking back ------------------------------------------------------------------------------------------


def test_a_transaction_has_all_balances_before_and_after(server: AgentPayServer) -> None:
    client = server.client()
    payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
    server.sandbox.fund(payer.account_id, 10)
    sent = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1.5")
    found = result(server, "getTransaction", sent.tx_signature, {"encoding": "jsonParsed"})
    assert "version" not in found
    (paid, told) = found["transaction"]["message"]["instructions"]
    assert paid["parsed"]["info"]["tokenAmount"]["uiAmountString"] == "1.5"
    assert told["parsed"] == sent.transfer_id
    meta = found["meta"]
    assert (meta["err"], meta["status"], meta["fee"]) == (None, {"Ok": None}, 10_000)
    assert sum(meta["preBalances"]) - sum(meta["postBalances"]) == 10_000

    def held(balances: list[dict[str, Any]]) -> dict[str, str]:
        return {each["owner"]: each["uiTokenAmount"]["amount"] for each in balances}

    assert held(meta["preTokenBalances"]) == {payer.chain_address: "10000000", payee.chain_address: "0"}
    assert held(meta["postTokenBalances"]) == {
        payer.chain_address: "8500000",
        payee.chain_address: "1500000",
    }
    as_bytes = result(server, "getTransaction", sent.tx_signature, "base64")["transaction"]
    assert str(VersionedTransaction.from_bytes(base64.b64decode(as_bytes[0])).signatures[0]) == (
        sent.tx_signature
    )


def test_a_transaction_version_that_the_caller_does_not_support_is_refused(server: AgentPayServer) -> None:
    payer = payer_with(server)
    give = transfer(
        TransferParams(from_pubkey=payer.pubkey(), to_pubkey=Keypair().pubkey(), lamports=5_000_000)
    )
    message = MessageV0.try_compile(payer.pubkey(), [give], [], blockhash_of(server))
    transaction = VersionedTransaction(message, [payer])
    signature = result(server, "sendTransaction", text_of(transaction), BASE64)
    error = refused(server, "getTransaction", signature)
    assert (error["code"], '"maxSupportedTransactionVersion": 0' in error["message"]) == (-32015, True)
    assert result(server, "getTransaction", signature, {"maxSupportedTransactionVersion": 0})["version"] == 0


def test_the_history_of_an_address_is_paged_both_ways(server: AgentPayServer) -> None:
    payer = payer_with(server)
    for number in range(5):
        result(server, "sendTransaction", text_of(giving(server, payer, text=f"number {number}")), BASE64)
    lines = result(server, "getSignaturesForAddress", str(payer.pubkey()))
    assert [line["memo"] for line in lines] == [
        *(f"[8] number {number}" for number in (4, 3, 2, 1, 0)),
        "[9] airdrop 1",
    ]
    names = [line["signature"] for line in lines]

    def page(**options: Any) -> list[str]:
        return [
            line["signature"]
            for line in result(server, "getSignaturesForAddress", str(payer.pubkey()), options)
        ]

    assert page(limit=2) == names[:2]
    assert page(before=names[1], limit=2) == names[2:4]
    assert page(until=names[2]) == names[:2]
    assert page(before=names[0], until=names[3]) == names[1:3]
    assert page(before=str(Signature.default())) == []
    assert refused(server, "getSignaturesForAddress", str(payer.pubkey()), {"limit": 1001})["code"] == -32602


# --- Bytes by hand -----------------------------------------------------------------------------------------


def test_browser_pages_of_other_origins_are_refused(server: AgentPayServer) -> None:
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getHealth"}).encode()
    for kind in (None, "text/plain", "application/x-www-form-urlencoded"):
        headers = {} if kind is None else {"Content-Type": kind}
        assert httpx.post(server.rpc_url, content=call, headers=headers).status_code == 415
    leave = httpx.options(server.rpc_url, headers={"Origin": "https://evil.example"})
    assert leave.status_code == 405
    assert "access-control-allow-origin" not in leave.headers
    assert httpx.get(server.rpc_url).status_code == 405
    assert httpx.get(server.rpc_url.removesuffix("/ext/v1/sandbox/rpc") + "/v1/accounts").status_code == 404

    async def open_from(origin: str) -> None:
        url = server.rpc_url.replace("http", "ws", 1)
        async with websockets.connect(url, origin=websockets.Origin(origin)) as connection:
            await connection.send(call.decode())
            assert "ok" in str(await connection.recv())

    asyncio.run(open_from("http://localhost:3000"))
    with pytest.raises(websockets.InvalidStatus):
        asyncio.run(open_from("https://evil.example"))


# --- WebSocket ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def talking(server: AgentPayServer) -> AsyncIterator[tuple[Any, Any]]:
    """Yield a connection to the chain, and what calls a method over it."""
    async with websockets.connect(server.rpc_url.replace("http", "ws", 1)) as connection:

        async def call(method: str, *params: Any) -> Any:
            content = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            await connection.send(json.dumps(content))
            return json.loads(await connection.recv())

        yield connection, call


def test_solana_py_gets_notifications_of_a_signature_and_of_slots(server: AgentPayServer) -> None:
    payer = payer_with(server)
    transaction = giving(server, payer)
    url = server.rpc_url.replace("http", "ws", 1)

    async def listen() -> None:
        async with SolanaWsClient(url) as connection:
            for is_landed in (False, True):
                asked = await connection.signature_subscribe(signature=transaction.signatures[0])
                if not is_landed:
                    await asyncio.to_thread(result, server, "sendTransaction", text_of(transaction), BASE64)
                told: Any = await connection.recv()
                assert told.subscription == asked.subscription_id
                assert told.result.value.err is None
            asked = await connection.slot_subscribe()
            await asyncio.to_thread(server.sandbox.clock.advance, 4)
            told = await connection.recv()
            assert told.result.slot - told.result.parent == 10
            await connection.unsubscribe(asked)

    asyncio.run(asyncio.wait_for(listen(), 120))


def test_blocks_hold_their_transactions_and_follow_one_another(server: AgentPayServer) -> None:
    payer = payer_with(server)
    first = giving(server, payer)
    result(server, "sendTransaction", text_of(first), BASE64)
    slot = result(server, "getSlot")
    server.sandbox.clock.advance(4)
    second = giving(server, payer)
    result(server, "sendTransaction", text_of(second), BASE64)
    newest = result(server, "getSlot")
    assert newest == slot + 10
    assert result(server, "getBlocksWithLimit", slot, 100) == list(range(slot, newest + 1))

    block = result(server, "getBlock", newest, {"maxSupportedTransactionVersion": 0})
    (only,) = block["transactions"]
    assert only["transaction"]["signatures"] == [str(second.signatures[0])]
    assert (only["meta"]["err"], block["parentSlot"], block["rewards"]) == (None, newest - 1, [])
    assert block["blockhash"] == str(second.message.recent_blockhash)
    parent = result(server, "getBlock", newest - 1, {"maxSupportedTransactionVersion": 0, "rewards": False})
    assert (parent["blockhash"], parent["transactions"]) == (block["previousBlockhash"], [])
    assert "rewards" not in parent
    signatures = result(server, "getBlock", newest, {"transactionDetails": "signatures"})["signatures"]
    assert signatures == [str(second.signatures[0])]
    assert refused(server, "getBlock", newest + 1)["code"] == -32004


def test_a_subscription_to_an_account_is_notified(server: AgentPayServer) -> None:
    payer = payer_with(server)
    outside, recipient = Keypair(), Keypair().pubkey()
    transaction = giving(server, payer, to=recipient, text="hello")

    async def listen() -> None:
        async with talking(server) as (connection, call):
            wanted = (await call("accountSubscribe", str(recipient), BASE64))["result"]
            await call("accountSubscribe", str(outside.pubkey()))
            await asyncio.to_thread(result, server, "sendTransaction", text_of(transaction), BASE64)
            told = json.loads(await connection.recv())["params"]
            assert told["subscription"] == wanted
            assert told["result"]["value"]["lamports"] == 5 * 10**6
            assert (await call("accountUnsubscribe", wanted))["result"] is True

    asyncio.run(asyncio.wait_for(listen(), 120))


@pytest.mark.parametrize("options", [{}, {"encoding": "base58"}], ids=["default", "base58"])
def test_a_subscription_whose_encoding_cannot_show_an_account_does_not_stop_the_chain(
    server: AgentPayServer, options: dict[str, str]
) -> None:
    client = server.client()
    payer, payee = (client.accounts.create(name=name) for name in "ab")
    server.sandbox.fund(payer.account_id, "2")

    async def listen() -> None:
        async with talking(server) as (connection, call):
            # 165 bytes, and these encodings show 128.
            assert "result" in await call("accountSubscribe", payee.usdc_token_account, options)
            paid = await asyncio.to_thread(
                client.transfers.create, from_=payer.account_id, to=payee.account_id, amount=1
            )
            assert paid.status == "settled"
            shown = json.loads(await connection.recv())["params"]["result"]["value"]
            # As Solana's node says it.
            assert shown["data"] == "error: data too large for bs58 encoding"
            assert shown["space"] == 165

    asyncio.run(asyncio.wait_for(listen(), 120))
    assert client.accounts.balance(payee.account_id).balance_usdc == 1


def test_a_subscription_ends_once_and_unknown_ones_are_refused(server: AgentPayServer) -> None:
    async def talk() -> None:
        async with talking(server) as (connection, call):
            number = (await call("signatureSubscribe", str(Signature.default())))["result"]
            assert (await call("signatureUnsubscribe", number))["result"] is True
            assert (await call("signatureUnsubscribe", number))["error"]["code"] == -32602
            assert (await call("slotUnsubscribe", 99))["error"]["code"] == -32602
            assert (await call("signatureSubscribe", "x"))["error"]["code"] == -32602
            assert (await call("getHealth"))["result"] == "ok"
            await connection.send("x" * 70_000)
            with pytest.raises(websockets.ConnectionClosed):
                await connection.recv()

    asyncio.run(asyncio.wait_for(talk(), 120))


# --- Where it is served ------------------------------------------------------------------------------------


def test_serve_prints_the_addresses_of_chain_and_facilitator_and_serves_them_too() -> None:
    with processing("serve", "--port", "0", "--chain-rpc") as process:
        told = next_json(process)
        assert told["rpc_url"] == f"{told['base_url']}/ext/v1/sandbox/rpc"
        assert told["facilitator_url"] == f"{told['base_url']}/ext/v1/sandbox/x402"
        assert httpx.get(f"{told['facilitator_url']}/supported").status_code == 200
        call = {"jsonrpc": "2.0", "id": 1, "method": "getEpochInfo"}
        assert httpx.post(told["rpc_url"], json=call).json()["result"]["blockHeight"] >= 0
        answer = httpx.get(
            f"{told['base_url']}/v1/accounts", headers={"Authorization": f"Bearer {told['operator_key']}"}
        )
        assert answer.status_code == 200


def test_a_restart_of_a_served_chain_remembers_what_has_landed(tmp_path: Path) -> None:
    with AgentPayServer(clock=START, data_dir=tmp_path) as server:
        payer = payer_with(server)
        transaction, unsent = giving(server, payer), giving(server, payer)
        result(server, "sendTransaction", text_of(transaction), BASE64)
        failing = giving(server, payer, lamports=10 * SOL)
        result(server, "sendTransaction", text_of(failing), {**BASE64, "skipPreflight": True})
        shown, shown_failing = (
            result(server, "getTransaction", str(each.signatures[0]), SHOWN)
            for each in (transaction, failing)
        )
        assert shown_failing["meta"]["err"] is not None
        height, count = result(server, "getBlockHeight"), result(server, "getEpochInfo")["transactionCount"]
    with AgentPayServer(clock=START, data_dir=tmp_path) as server:
        assert result(server, "getBlockHeight") > height
        assert result(server, "getBalance", str(payer.pubkey()))["value"] == SOL - 5_010_000
        error = refused(server, "sendTransaction", text_of(transaction), BASE64)
        assert error["data"]["err"] == "AlreadyProcessed"
        result(server, "sendTransaction", text_of(unsent), BASE64)
        # The history of the first run is there, with all that the node reported then.
        assert len(result(server, "getSignaturesForAddress", str(payer.pubkey()))) == 4
        assert result(server, "getTransaction", str(transaction.signatures[0]), SHOWN) == shown
        assert result(server, "getTransaction", str(failing.signatures[0]), SHOWN) == shown_failing
        block = result(server, "getBlock", shown["slot"], {**SHOWN, "rewards": False})
        assert str(transaction.signatures[0]) in str(block["transactions"])
        assert result(server, "getEpochInfo")["transactionCount"] == count + 1
