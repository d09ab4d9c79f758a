"""An async agent that pays several providers concurrently, within a daily limit.

    python examples/async_agent.py

The service enforces the limit exactly, no matter how many payments race.
"""

import asyncio
from collections import Counter
from decimal import Decimal

from agentpay import AsyncAgentPay, PolicyViolationError
from agentpay_server import AgentPayServer

QUESTIONS = 12
AT_ONCE = 4
PRICE_USDC = Decimal("1.50")
DAILY_LIMIT_USDC = Decimal(10)


async def main() -> None:
    async with AgentPayServer() as server:
        operator = server.async_client()
        bot = await operator.accounts.create(name="Research bot")
        providers = [await operator.accounts.create(name=f"Provider {number}") for number in (1, 2, 3)]
        await server.async_sandbox.fund(bot.account_id, "100")
        await operator.policies.update(bot.account_id, max_daily_spend=DAILY_LIMIT_USDC)
        key = (await server.async_client().agent_keys.create(bot.account_id)).key

        # From here on as in production: a URL, and a key that can pay only from one account.
        async with AsyncAgentPay(base_url=server.listen(), api_key=key) as client:
            outcomes = await ask_all(client, bot.account_id, [each.account_id for each in providers])
            print(f"{outcomes['answered']} answered, {outcomes['over the limit']} over the limit")
            async for entry in client.accounts.transactions(bot.account_id, status="settled"):
                if entry.direction == "out":
                    print(f"  {entry.memo}: {entry.amount_usdc} USDC in {entry.tx_signature}")

        detail = await server.async_client().console.details(bot.account_id)
        print(f"spent {detail.spent_usdc} of {DAILY_LIMIT_USDC} USDC")
        assert detail.spent_usdc == PRICE_USDC * outcomes["answered"] <= DAILY_LIMIT_USDC


async def ask_all(client: AsyncAgentPay, bot: str, providers: list[str]) -> Counter[str]:
    """Ask all questions, several at a time, and count the outcomes."""
    free = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(ask(client, free, bot, providers[number % len(providers)], number))
            for number in range(QUESTIONS)
        ]
    return Counter(task.result() for task in asked)


async def ask(client: AsyncAgentPay, free: asyncio.Semaphore, bot: str, provider: str, number: int) -> str:
    """Pay a provider for one answer."""
    async with free:
        try:
            await client.transfers.create(
                from_=bot,
                to=provider,
                amount=PRICE_USDC,
                memo=f"question {number}",
                idempotency_key=f"question-{number}",
            )
        except PolicyViolationError:
            return "over the limit"
        return "answered"


if __name__ == "__main__":
    asyncio.run(main())
