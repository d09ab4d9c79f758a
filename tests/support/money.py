"""Reads tables and the chain directly, for tests about money."""

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import books
import httpx
import outsiders
import validators
from solders.account import Account as ChainAccount
from solders.instruction import AccountMeta, Instruction
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.chain import transactions
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, sign_transaction
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_PROGRAM
from agentpay_server.chain.protocol import TokenAccount
from agentpay_server.engine import unknown_debits
from agentpay_server.ledger.context import Context
from agentpay_server.sandbox.faults import FaultyChain

T = TypeVar("T")

TEN_FIELDS = {
    "transfer_id",
    "status",
    "from",
    "to",
    "amount_usdc",
    "memo",
    "idempotency_key",
    "tx_signature",
    "chain_explorer_url",
    "settled_at",
}
"""The fields of a Transfer, as the contract lists them."""


def on_owner(server: AgentPayServer, work: Callable[[Context], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on the thread that owns the server, and return its result."""
    world = server._running
    return world._owner.call(work(world.server.context))


def rows(server: AgentPayServer, table: str, **where: object) -> list[dict[str, Any]]:
    """Return the rows of a table, oldest first."""
    return on_owner(server, lambda context: books.rows(context.database, table, **where))


def change(server: AgentPayServer, table: str, changed: dict[str, Any], **where: object) -> None:
    """Change rows of a table, as another program could."""
    on_owner(server, lambda context: books.change(context.database, table, changed, **where))


def events(server: AgentPayServer) -> list[dict[str, Any]]:
    """Return all events, oldest first, as receivers are to see them."""
    return [json.loads(row["body"]) for row in rows(server, "events")]


def entries(server: AgentPayServer, account_id: str) -> list[dict[str, Any]]:
    """Return the history of an account, newest first, as HTTP shows it."""
    page = server.client().accounts.transactions(account_id, limit=100)
    return [
        {name: getattr(entry, name) for name in entry.__slots__ if not name.startswith("_")} for entry in page
    ]


def looked(server: AgentPayServer) -> None:
    """Run due work, and scan for deposits where the chain does not report them."""
    if not validators.is_embedded():
        world = server._running
        world._owner.call(world.server.services.built["accounts"].deposits.poll_everywhere())
    server.sandbox.clock.advance(0)


def token_account(server: AgentPayServer, address: str) -> TokenAccount:
    """Return a token account as the chain shows it."""

    async def look(context: Context) -> TokenAccount | None:
        (found,) = await context.chain.token_accounts([address])
        return found

    found = on_owner(server, look)
    assert found is not None
    return found


def held(server: AgentPayServer, address: str) -> int:
    """Return the micro-USDC that a token account holds on chain."""
    return token_account(server, address).amount_micro


def with_svm(server: AgentPayServer, look: Callable[[LiteSVM], T]) -> T:
    """Return what `look` finds in the virtual machine under the chain."""
    return with_chain(server, lambda chain: look(chain._svm))


def with_chain(server: AgentPayServer, look: Callable[[EmbeddedChain], T]) -> T:
    """Return what `look` finds in the embedded chain."""
    validators.embedded_only("it looks into the embedded chain")

    async def work(context: Context) -> T:
        assert isinstance(context.chain, FaultyChain)
        assert isinstance(context.chain.inner, EmbeddedChain)
        return look(context.chain.inner)

    return on_owner(server, work)


def freeze(server: AgentPayServer, address: str) -> None:
    """Freeze a token account, as the issuer of USDC can."""
    _freeze_or_thaw(server, address, b"\x0a")
    assert token_account(server, address).is_frozen


def thaw(server: AgentPayServer, address: str) -> None:
    """Thaw a token account that is frozen."""
    _freeze_or_thaw(server, address, b"\x0b")
    assert not token_account(server, address).is_frozen


def _freeze_or_thaw(server: AgentPayServer, address: str, instruction: bytes) -> None:
    async def work(context: Context) -> None:
        authority = Pubkey.from_string(context.signer.address(TEST_MINT_AUTHORITY))
        accounts = [
            AccountMeta(Pubkey.from_string(address), is_signer=False, is_writable=True),
            AccountMeta(Pubkey.from_string(context.chain.usdc_mint), is_signer=False, is_writable=False),
            AccountMeta(authority, is_signer=True, is_writable=False),
        ]
        signed = sign_transaction(
            context.signer,
            await context.chain.latest_blockhash(),
            [Instruction(TOKEN_PROGRAM, instruction, accounts)],
            TEST_MINT_AUTHORITY,
        )
        await context.chain.send(signed.raw)
        assert await outsiders.landed(context.chain, signed.signature)

    on_owner(server, work)


def order(source: Account, to: str, amount: str = "25.00", key: str = "key-1", **more: Any) -> dict[str, Any]:
    """Return the body of a transfer."""
    return {"from": source.account_id, "to": to, "amount": amount, "idempotency_key": key, **more}


def post(http: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    """Ask for a transfer."""
    return http.post("/v1/transfers", json=body)


def put_policy(http: httpx.Client, account: Account, **fields: Any) -> dict[str, Any]:
    """Change a policy and return it."""
    response = http.put(f"/v1/accounts/{account.account_id}/policy", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


# --- The treasury


def treasury(server: AgentPayServer) -> str:
    """Return the address that pays the fees."""

    async def look(context: Context) -> str:
        return context.signer.address(TREASURY)

    return on_owner(server, look)


def lamports(server: AgentPayServer, address: str) -> int:
    """Return what an address holds in lamports, 0 if it is not on chain."""

    async def look(context: Context) -> int:
        found = await context.chain.account_size(address)
        return 0 if found is None else found[0]

    return on_owner(server, look)


def give_treasury(server: AgentPayServer, amount: int) -> None:
    """Let the treasury hold just so many lamports."""
    address = Pubkey.from_string(treasury(server))
    with_svm(server, lambda svm: svm.set_account(address, ChainAccount(amount, b"", SYSTEM_PROGRAM)))


# --- What happens on chain without the service


def mint(server: AgentPayServer, token_account: str, amount_micro: int) -> None:
    """Let USDC come into a token account from outside."""

    async def work(context: Context) -> None:
        signed = transactions.mint(
            context.signer,
            await context.chain.latest_blockhash(),
            usdc_mint=context.chain.usdc_mint,
            token_account=token_account,
            amount_micro=amount_micro,
            memo="from outside",
        )
        await context.chain.send(signed.raw)

    on_owner(server, work)


def signed_elsewhere(
    server: AgentPayServer, source: Account, recipient: str, amount_micro: int, memo: str = "elsewhere"
) -> bytes:
    """Return a transfer that another service with the same keys has signed, and not sent."""
    (row,) = rows(server, "accounts", account_id=source.account_id)

    async def work(context: Context) -> bytes:
        return transactions.transfer(
            context.signer,
            await context.chain.latest_blockhash(),
            usdc_mint=context.chain.usdc_mint,
            account_index=row["key_index"],
            source=source.usdc_token_account,
            recipient=recipient,
            amount_micro=amount_micro,
            memo=memo,
        ).raw

    return on_owner(server, work)


def drain(server: AgentPayServer, source: Account, recipient: str, amount_micro: int) -> None:
    """Move money with the spending key itself, behind the back of the service."""
    raw = signed_elsewhere(server, source, recipient, amount_micro)

    async def work(context: Context) -> None:
        await context.chain.send(raw)
        signature = str(VersionedTransaction.from_bytes(raw).signatures[0])
        assert await outsiders.landed(context.chain, signature)

    on_owner(server, work)


def suspend(server: AgentPayServer, source: Account, recipient: Account, amount_micro: int) -> str:
    """Drain money from an account, and let the service find that. Returns the signature."""
    raw = signed_elsewhere(server, source, recipient.usdc_token_account, amount_micro)
    signature = str(VersionedTransaction.from_bytes(raw).signatures[0])

    async def work(context: Context) -> None:
        await context.chain.send(raw)
        assert await outsiders.landed(context.chain, signature)
        post = partial(
            unknown_debits.post,
            amount_micro=amount_micro,
            tx_signature=signature,
            recipient=recipient.usdc_token_account,
        )
        await context.database.run(post, context, source.account_id)

    on_owner(server, work)
    return signature
