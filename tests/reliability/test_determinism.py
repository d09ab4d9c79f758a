"""The same seed gives the same run: identifiers, keys, signatures and events (P15)."""

from datetime import UTC, datetime
from typing import Any

import books
import money
import pytest

from agentpay.errors import PolicyViolationError
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

START = datetime(2026, 1, 1, tzinfo=UTC)


def everything(server: AgentPayServer) -> dict[str, list[dict[str, Any]]]:
    found = {name: money.rows(server, name) for name in books.NAMES}
    # Sealed with a nonce that is never the same; what is derived from it shows everywhere else.
    found["server_state"] = [row for row in found["server_state"] if row["name"] != "custody_seed"]
    return found


def run(seed: int) -> tuple[object, ...]:
    """Return all that a run of a few operations leaves behind, and all that it showed."""
    with AgentPayServer(seed=seed, clock=START) as server:
        client = server.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        outside = server.sandbox.create_token_account()
        funding = server.sandbox.fund(payer.account_id, "100")
        agent_key = server.agent_keys.create(payer.account_id)
        client.policies.update(payer.account_id, max_single_transfer=10)
        server.sandbox.clock.advance(12.5)
        transfers = [
            client.transfers.create(from_=payer.account_id, to=to, amount=5, idempotency_key=f"key-{to}")
            for to in (payee.account_id, outside.usdc_token_account)
        ]
        try:
            client.transfers.create(
                from_=payer.account_id, to=payee.account_id, amount=11, idempotency_key="refused"
            )
        except PolicyViolationError as error:
            refusal = (error.transfer_id, error.request_id)
        rows = everything(server)
        return (server.operator_key, agent_key.key, payer, payee, outside, funding, transfers, refusal, rows)


@pytest.mark.parametrize("seed", range(10))
def test_two_runs_with_the_same_seed_are_byte_for_byte_equal(seed: int) -> None:
    first, second = run(seed), run(seed)
    assert first == second


def test_different_seeds_give_different_runs() -> None:
    first, second = run(7), run(8)
    assert first[0] != second[0]
    assert first[2] != second[2]


def test_without_a_seed_keys_and_ids_differ() -> None:
    with AgentPayServer(clock=START) as one, AgentPayServer(clock=START) as other:
        assert one.operator_key != other.operator_key
        accounts = [server.client().accounts.create(name="A") for server in (one, other)]
        assert accounts[0].chain_address != accounts[1].chain_address
        assert accounts[0].account_id != accounts[1].account_id
