"""Approval by a person: an agent requests more than it may spend without approval, and an operator decides.

    python examples/approval_flow.py

Three parties, as in production: a server on a port, an agent with a key for one account, and an operator with
an operator key in another process. `decide` is the operator's part. To run it by hand, until Ctrl-C:

    AGENTPAY_BASE_URL=… AGENTPAY_API_KEY=ap_operator_… python examples/approval_flow.py decide
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from agentpay import AgentPay, ConflictError, InvalidRecipientError, Transfer, TransferRejectedError
from agentpay_server import AgentPayServer

LARGEST_APPROVED = 40
LOOK_EVERY_SECONDS = 0.25
PATIENCE_SECONDS = 30


def main() -> None:
    with AgentPayServer() as server:
        server.listen()
        client = server.client()
        bot, shop = client.accounts.create(name="Research bot"), client.accounts.create(name="Data shop")
        server.sandbox.fund(bot.account_id, "100")
        client.policies.update(bot.account_id, max_daily_spend="80", escalation_threshold="20")
        key = server.agent_keys.create(bot.account_id).key

        with operator(server.base_url, server.operator_key), ThreadPoolExecutor() as agents:
            asked = [
                agents.submit(agent, server.base_url, key, bot.account_id, shop.account_id, amount)
                for amount in ("5", "30", "50")
            ]
            for future in asked:
                future.result()

        metrics = server.console.details(bot.account_id)
        print(f"spent {metrics.spent_usdc}, remaining {metrics.remaining_usdc} of 80 USDC")
        print(f"{metrics.next_release_usdc} USDC more at {metrics.next_release_at}")


def agent(base_url: str, key: str, bot: str, shop: str, amount: str) -> Transfer:
    """Pay, and if the payment needs approval, wait for the operator for up to 30 seconds."""
    with AgentPay(base_url=base_url, api_key=key) as client:
        transfer = client.transfers.create(
            from_=bot, to=shop, amount=amount, memo=f"dataset for {amount}", idempotency_key=f"order-{amount}"
        )
        print(f"agent: {amount} USDC: {transfer.status}")
        if transfer.is_final:
            return transfer
        transfer = client.transfers.wait(transfer.transfer_id, total_timeout=PATIENCE_SECONDS)
        print(f"agent: {amount} USDC: {transfer.status} {transfer.message or transfer.tx_signature}")
        return transfer


@contextmanager
def operator(base_url: str, key: str) -> Iterator[None]:
    """Run the operator in another process, which receives only a URL and a key."""
    environment = {**os.environ, "AGENTPAY_BASE_URL": base_url, "AGENTPAY_API_KEY": key}
    command = [sys.executable, "-u", __file__, "decide"]
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603 - this file
        try:
            yield
        finally:
            process.terminate()


def decide() -> None:
    """Decide transfers as they arrive, until terminated: approve the small ones, reject the others."""
    with AgentPay() as client:
        while True:
            for waiting in client.approvals.list():
                print(f"operator: {waiting.amount_usdc} USDC to {waiting.to}, “{waiting.memo}”")
                try:
                    if waiting.amount_usdc <= LARGEST_APPROVED:
                        client.approvals.approve(waiting.transfer_id)
                    else:
                        client.approvals.reject(waiting.transfer_id, reason="Ask legal first")
                except (TransferRejectedError, InvalidRecipientError, ConflictError) as refusal:
                    # Another decision came first; or money is missing, and the transfer is listed again.
                    print(f"operator: {refusal.message}")
            time.sleep(LOOK_EVERY_SECONDS)


if __name__ == "__main__":
    decide() if sys.argv[1:] == ["decide"] else main()
