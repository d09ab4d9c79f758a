"""A tour of agentpay: create an account on a Solana VM, fund it, limit it, pay, and be refused.

    python examples/quickstart.py

It needs no other software and no network, and leaves nothing behind.
"""

import asyncio

from agentpay import AsyncAgentPay, PolicyViolationError
from agentpay_server import AgentPayServer


def main() -> None:
    # A payment service in this process, with its own chain, database and clock.
    with AgentPayServer() as server:
        client = server.client()

        print("Create two accounts on chain")
        bot = client.accounts.create(name="Research bot", metadata={"team": "search"})
        shop = client.accounts.create(name="Data shop")
        print(f"  {bot.handle}  {bot.account_id}  USDC at {bot.usdc_token_account}")
        print(f"  {shop.handle}     {shop.account_id}  USDC at {shop.usdc_token_account}")

        print("Fund one with test USDC, and limit its spending")
        server.sandbox.fund(bot.account_id, "100")
        policy = client.policies.update(bot.account_id, max_single_transfer="25", max_daily_spend="40")
        print(f"  at most {policy.max_single_transfer} a transfer, {policy.max_daily_spend} a day")

        print("Pay the other account, as an agent would, with a key for one account")
        agent = server.agent_client(bot.account_id)
        paid = agent.transfers.create(
            from_=bot.account_id,
            to=shop.account_id,
            amount="12.50",
            memo="dataset 7",
            idempotency_key="order-7",
        )
        print(f"  {paid.transfer_id} {paid.status}: {paid.amount_usdc} USDC in {paid.tx_signature}")

        print("Retry: the same idempotency key never pays twice")
        again = agent.transfers.create(
            from_=bot.account_id,
            to=shop.account_id,
            amount="12.50",
            memo="dataset 7",
            idempotency_key="order-7",
        )
        print(f"  same transfer: {again == paid}")

        print("Pay a token account outside this service")
        outside = server.sandbox.create_token_account()
        sent = agent.transfers.create(from_=bot.account_id, to=outside.usdc_token_account, amount="20")
        print(f"  {sent.transfer_id} {sent.status}: {sent.amount_usdc} USDC to {sent.to}")

        print("Request too much: the policy rejects it, and nothing reaches the chain")
        for amount in ("30", "10"):
            try:
                agent.transfers.create(from_=bot.account_id, to=shop.account_id, amount=amount)
            except PolicyViolationError as refusal:
                print(f"  {amount}: {refusal.message}")

        print("Advance the clock by a day: the daily limit allows more")
        server.sandbox.clock.advance(hours=24)
        later = agent.transfers.create(from_=bot.account_id, to=shop.account_id, amount="10")
        print(f"  {later.transfer_id} {later.status}")

        asyncio.run(read_history(server.async_client(), bot.account_id))


async def read_history(client: AsyncAgentPay, account_id: str) -> None:
    print("Read the history, with the async client")
    async for entry in client.accounts.transactions(account_id):
        reason = f"  ({entry.rejection_reason})" if entry.rejection_reason else ""
        print(f"  {entry.direction:3} {entry.amount_usdc:>10} {entry.type}{reason}")
    balance = await client.accounts.balance(account_id)
    print(f"  balance on chain: {balance.balance_usdc} USDC")


if __name__ == "__main__":
    main()
