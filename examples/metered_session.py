"""An agent pays for inference per call: a cap in escrow, a charge for each call, one settlement.

    python examples/metered_session.py

The operator receives signed webhooks about the session, as from a remote service.
"""

from decimal import Decimal

from agentpay import SessionCapExceededError
from agentpay.webhooks import SessionCapWarning, SessionOpened, SessionSettled
from agentpay_server import AgentPayServer

PRICE_USDC = Decimal("0.35")


def main() -> None:
    with AgentPayServer() as server:
        client = server.client()
        bot = client.accounts.create(name="Research bot")
        provider = client.accounts.create(name="Inference provider")
        server.sandbox.fund(bot.account_id, "20")
        client.policies.update(bot.account_id, max_single_transfer="1", categories=["inference"])
        # Not `session.cap_reached`: it fires only if the charges add up to the cap exactly.
        inbox = server.webhook_inbox(events=["session.opened", "session.cap_warning", "session.settled"])

        print("The agent, with a key for its own account, puts 2 USDC into escrow for the provider")
        agent = server.agent_client(bot.account_id).sessions
        session = agent.open(
            account_id=bot.account_id,
            to=provider.account_id,
            cap_usdc="2",
            category="inference",
            idempotency_key="research-7",
        )
        print(f"  {session.session_id} {session.status}, escrow {session.escrow_token_account}")

        print("Each call is charged off chain, under its own idempotency key")
        calls = 0
        try:
            while True:
                session = agent.charge(
                    session.session_id, amount=PRICE_USDC, idempotency_key=f"call-{calls + 1}"
                )
                calls += 1
                print(f"  call {calls}: {session.running_total_usdc} of {session.cap_usdc} USDC")
        except SessionCapExceededError as refusal:
            print(f"  refused: {refusal.message}")

        print("One transaction pays the provider and returns the rest")
        settled = agent.close(session.session_id)
        print(f"  {settled.status}: {settled.settled_usdc} paid, {settled.returned_usdc} returned")
        assert settled.settled_usdc == PRICE_USDC * calls

        print("The operator's webhook received")
        inbox.wait_for("session.settled")
        for event in inbox.events:
            match event:
                case SessionOpened():
                    print(f"  {event.type}: cap {event.data.cap_usdc}")
                case SessionCapWarning():
                    print(f"  {event.type}: {event.data.running_total_usdc} of {event.data.cap_usdc}")
                case SessionSettled():
                    print(f"  {event.type}: {event.data.settled_usdc} in {event.data.tx_signature}")
        for account in (bot, provider):
            balance = client.accounts.balance(account.account_id).balance_usdc
            print(f"  {account.name} holds {balance} USDC")


if __name__ == "__main__":
    main()
