"""The page of an operator's jobs: each of its commands does its job on a service where there is work."""

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import money
import pytest
from command_line import CommandLine

from agentpay_server import AgentPayServer

PAGE = (Path(__file__).parents[2] / "docs/how-to/operator-jobs.md").read_text("utf-8")
ROWS = [row.strip("|").split("|") for row in re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)]
JOBS = {row[0].strip(): re.findall(r"`(agentpay [^`]+)`", row[2]) for row in ROWS if "`agentpay" in row[2]}
MAY_FIND_NOTHING = ("agentpay accounts history --since",)
"""A month that is over: the world of the test is new."""


@pytest.fixture
def world() -> Iterator[tuple[CommandLine, dict[str, list[str]]]]:
    """A service with work for each job, and what the placeholders of a job's commands stand for, in order."""
    # "Yesterday" is by the clock of this machine.
    with AgentPayServer(clock=datetime.now(UTC)) as server:
        commands = CommandLine(server)
        client = commands.client
        server.scenario("undelivered_webhook")
        bot, shop, old = (commands.funded("100", name=name) for name in ("Research bot", "Shop", "Old bot"))
        agent = server.client(api_key=client.agent_keys.create(bot.account_id, name="laptop").key)
        client.operator_keys.create("deploy")
        client.webhooks.create("https://shop.example/hooks", events=["session.cap_reached"])
        inbox = server.webhook_inbox(events=["transfer.settled"])
        paid = agent.transfers.create(from_=bot.account_id, to=shop.account_id, amount=1, memo="October data")
        inbox.wait_for("transfer.settled")
        client.policies.update(bot.account_id, max_single_transfer=50, escalation_threshold=20)
        with pytest.raises(Exception, match="max_single_transfer"):
            agent.transfers.create(from_=bot.account_id, to=shop.account_id, amount=60)
        (refused,) = client.transfers.list(error="policy_violation", account_id=bot.account_id)
        pending = [
            agent.transfers.create(from_=bot.account_id, to=shop.account_id, amount=20).transfer_id
            for _ in range(2)
        ]
        session = client.sessions.open(account_id=bot.account_id, to=shop.account_id, cap_usdc=1)
        money.suspend(server, old, shop, 2_000_000)
        deposit = next(
            each for each in client.accounts.history(account_id=bot.account_id) if each.type == "deposit"
        )
        yield (
            commands,
            {
                "Approve or reject a transfer, with a reason": pending,
                "Find a payment by memo, amount, signature or idempotency key": [str(paid.tx_signature)],
                "Follow a transfer to its delivery": [paid.transfer_id] * 2,
                "See open sessions and their escrow, and close one": [session.session_id],
                "See where a deposit came from": [str(deposit.tx_signature)],
                "See why a transfer was refused": [refused.transfer_id],
            },
        )


def test_each_command_of_the_page_does_its_job(
    world: tuple[CommandLine, dict[str, list[str]]],
) -> None:
    commands, known = world
    assert len(JOBS) == 19, "the twentieth is about two people, and no command"
    for job, lines in JOBS.items():
        values = iter(known.get(job, ()))
        for line in lines:
            filled = re.sub(r"\b[A-Z_]{5,}\b", lambda _, values=values: next(values), line)  # type: ignore[misc]
            result = commands.run(*shlex.split(filled)[1:])
            # An account is suspended, and deliveries are undelivered.
            expected = 7 if line.endswith(" status") else 0
            assert result.exit_code == expected, (line, result.output)
            if not line.startswith(MAY_FIND_NOTHING):
                assert result.stdout.strip(), line
                assert not result.stdout.startswith("No "), (line, result.output)
        assert not list(values), job
    assert commands.client.console.summary().needs_attention == ()
