"""A human in the loop: an agent asks for more than it may spend alone, and an operator decides in time.

    python examples/approval_flow.py

Three parties, as in production: a server on a port, an agent that holds a key of one account, and an operator
with a key of its own in another process. The operator's part is `decide`; run by hand it would be

    AGENTPAY_BASE_URL=… AGENTPAY_API_KEY=ap_operator_… python examples/approval_flow.py decide
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from agentpay import AgentPay, PolicyViolationError
from agentpay.contract.transfers import Transfer
from agentpay_server import AgentPayServer
from agentpay_server.clients import ServerClient

LARGEST_APPROVED = 40


def main() -> None:
    with AgentPayServer() as server:
        server.listen()
        client = server.client()
        bot, shop = client.accounts.create(name="Research bot"), client.accounts.create(name="Data shop")
        server.sandbox.fund(bot.account_id, "100")
        client.policies.update(bot.account_id, max_daily_spend="80", escalation_threshold="20")
        key = server.console.create_agent_key(bot.account_id).key

        with ThreadPoolExecutor() as agents:
            asked = [
                agents.submit(agent, server.base_url, key, bot.account_id, shop.account_id, amount)
                for amount in ("5", "30", "50")
            ]
            operator(server.base_url, server.operator_key)
            for future in asked:
                future.result()

        metrics = server.console.account(bot.account_id)
        print(f"spent {metrics.spent_usdc}, remaining {metrics.remaining_usdc} of 80 USDC")
        print(f"{metrics.next_release_usdc} USDC more at {metrics.next_release_at}")


def agent(base_url: str, key: str, bot: str, shop: str, amount: str) -> Transfer:
    """Pay, and wait for the operator where the policy says so."""
    with AgentPay(base_url=base_url, api_key=key) as client:
        transfer = client.transfers.create(
            from_=bot, to=shop, amount=amount, memo=f"dataset for {amount}", idempotency_key=f"order-{amount}"
        )
        print(f"agent: {amount} USDC: {transfer.status}")
        if transfer.is_final:
            return transfer
        transfer = client.transfers.wait(transfer.transfer_id)
        print(f"agent: {amount} USDC: {transfer.status} {transfer.message or transfer.tx_signature}")
        return transfer


def operator(base_url: str, key: str) -> None:
    """Let an operator decide, in a process that knows nothing but an address and a key."""
    environment = {**os.environ, "AGENTPAY_BASE_URL": base_url, "AGENTPAY_API_KEY": key}
    subprocess.run([sys.executable, __file__, "decide"], env=environment, check=True)  # noqa: S603 - itself


def decide() -> None:
    """Decide about two transfers, as they come in: what is small enough is approved."""
    decided: set[str] = set()
    with ServerClient() as client:
        while len(decided) < 2:
            for waiting in client.console.approvals():
                if waiting.transfer_id in decided:
                    continue
                print(f"operator: {waiting.amount_usdc} USDC to {waiting.to}, “{waiting.memo}”")
                if waiting.amount_usdc <= LARGEST_APPROVED:
                    try:
                        client.console.approve(waiting.transfer_id)
                    except PolicyViolationError as refusal:
                        print(f"operator: the policy has changed meanwhile: {refusal.message}")
                else:
                    client.console.reject(waiting.transfer_id, reason="Ask legal first")
                decided.add(waiting.transfer_id)


if __name__ == "__main__":
    decide() if sys.argv[1:] == ["decide"] else main()
