"""A program that pays, forks, and pays on in every process at the same time; it prints what went wrong.

forking.py sync|asyncio BASE_URL CHILDREN CALLS
"""

import asyncio
import json
import os
import sys
import time
import traceback

from agentpay import AgentPay, AsyncAgentPay

KEY = "ap_operator_forked"


def ask(client: AgentPay, name: str, calls: int) -> list[str]:
    """Pay, and read balances, repeatedly; return every response that belongs to another process."""
    wrong = []
    for number in range(calls):
        account = f"acct_{name}_{number}"
        balance = client.accounts.balance(account, max_retries=0)
        transfer = client.transfers.create(
            from_=account, to="acct_b", amount="1", idempotency_key=account, max_retries=0
        )
        wrong += [told for told in (balance.account_id, transfer.from_) if told != account]
    return wrong


async def ask_async(client: AsyncAgentPay, name: str, calls: int) -> list[str]:
    """Do the same."""
    wrong = []
    for number in range(calls):
        account = f"acct_{name}_{number}"
        balance = await client.accounts.balance(account, max_retries=0)
        transfer = await client.transfers.create(
            from_=account, to="acct_b", amount="1", idempotency_key=account, max_retries=0
        )
        wrong += [told for told in (balance.account_id, transfer.from_) if told != account]
    return wrong


def in_children(children: int, work) -> list[str]:
    """Run `work(number)` in as many forked processes, all at once; return what they report."""
    pipes = []
    for number in range(children):
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                told = work(number)
            except BaseException:  # noqa: BLE001 - whatever it is, the parent is told
                told = [traceback.format_exc()]
            os.write(writing, json.dumps(told).encode())
            # As a worker ends that was forked by a server: without finalizing what it has inherited.
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
    told = []
    for reading in pipes:
        with os.fdopen(reading, "rb") as pipe:
            told += json.loads(pipe.read())
        os.wait()
    return told


def sync(base_url: str, children: int, calls: int) -> list[str]:
    client = AgentPay(api_key=KEY, base_url=base_url)
    wrong = ask(client, "before", 1)

    def child(number: int) -> list[str]:
        told = ask(client, f"child{number}", calls)
        client.close()
        return told

    wrong += in_children(children, child)
    wrong += ask(client, "after", 2)
    client.close()
    return wrong


def asynchronous(base_url: str, children: int, calls: int) -> list[str]:
    client = AsyncAgentPay(api_key=KEY, base_url=base_url)

    async def child_main(number: int) -> list[str]:
        told = await ask_async(client, f"child{number}", calls)
        await client.close()
        return told

    async def main() -> list[str]:
        wrong = await ask_async(client, "before", 1)
        # The children inherit the parent's event loop, with its connections, and run a new one.
        wrong += in_children(children, lambda number: asyncio.run(child_main(number)))
        wrong += await ask_async(client, "after", 2)
        await client.close()
        return wrong

    return asyncio.run(main())


if __name__ == "__main__":
    kind, url, how_many, how_often = sys.argv[1:]
    run = sync if kind == "sync" else asynchronous
    started = time.monotonic()
    wrong = run(url, int(how_many), int(how_often))
    print(json.dumps({"wrong": wrong, "seconds": time.monotonic() - started}))  # noqa: T201 - what it is for
