"""The on-chain record of a policy: what it says, when it is there, and where to find it (interface PO12)."""

import hashlib
import json

import httpx
import money
import pytest
import rfc8785
import validators
from policy_on_chain import PolicyRecord, read_policy_record

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.ext.console import PolicyRecordView
from agentpay.contract.policies import POLICY_FIELDS
from agentpay_server import AgentPayServer

SOMEONE = "So11111111111111111111111111111111111111112"


@pytest.fixture
def account(client: AgentPay) -> Account:
    return client.accounts.create(name="Payer")


def view(server: AgentPayServer, account: Account) -> PolicyRecordView:
    """Return what the console shows, once what was due has run."""
    server.sandbox.clock.advance(0)
    found = server.console.details(account.account_id).policy_record
    assert found is not None
    return found


def on_chain(server: AgentPayServer, account: Account) -> PolicyRecord:
    """Return what the chain itself says."""
    address = money.Pubkey.from_string(view(server, account).address)
    found = money.with_svm(server, lambda svm: svm.get_account(address))
    assert found is not None
    return read_policy_record(found.data)


def canonical(http: httpx.Client, account: Account) -> bytes:
    """Return the policy in force as RFC 8785 JSON, by an independent library."""
    body = http.get(f"/v1/accounts/{account.account_id}/policy").json()
    return rfc8785.dumps({name: body[name] for name in POLICY_FIELDS})


def test_an_update_without_changes_writes_no_record(
    server: AgentPayServer, client: AgentPay, account: Account
) -> None:
    client.policies.resume(account.account_id)
    server.sandbox.clock.advance(0)
    detail = server.console.details(account.account_id)
    assert (detail.policy_version, detail.policy_record) == (1, None)


def test_the_record_holds_version_digest_and_policy(
    server: AgentPayServer, client: AgentPay, http: httpx.Client, account: Account
) -> None:
    client.policies.update(
        account.account_id,
        max_single_transfer="0.1",
        max_daily_spend=100,
        escalation_threshold="99.5",
        allowed_counterparties=[SOMEONE],
        categories=["data", "agent-reward", "Größe"],
    )
    record = on_chain(server, account)
    assert (record.account_id, record.policy_version) == (account.account_id, 2)
    assert record.policy == canonical(http, account).decode()
    assert record.policy_sha256 == hashlib.sha256(canonical(http, account)).hexdigest()
    shown = view(server, account)
    assert shown.version == 2
    status = money.on_owner(server, lambda context: context.chain.signature_status(shown.tx_signature or ""))
    assert status is not None
    assert status.failure is None


def test_the_record_follows_every_change_at_one_address(
    server: AgentPayServer, client: AgentPay, http: httpx.Client, account: Account
) -> None:
    client.policies.pause(account.account_id)
    first = view(server, account)
    for version, limit in enumerate(("1", "0.000001", "999999999.999999"), start=3):
        client.policies.update(account.account_id, max_single_transfer=limit)
        record = on_chain(server, account)
        assert record.policy_version == version
        assert record.policy_sha256 == hashlib.sha256(canonical(http, account)).hexdigest()
    last = view(server, account)
    assert (last.address, last.version) == (first.address, 5)
    assert last.tx_signature != first.tx_signature


def test_a_policy_too_long_for_the_chain_is_recorded_by_its_digest(
    server: AgentPayServer, client: AgentPay, http: httpx.Client, account: Account
) -> None:
    client.policies.update(account.account_id, categories=["short"])
    assert on_chain(server, account).policy is not None
    client.policies.update(account.account_id, categories=[f"category-{number}" * 4 for number in range(40)])
    record = on_chain(server, account)
    assert (record.policy_version, record.policy) == (3, None)
    assert record.policy_sha256 == hashlib.sha256(canonical(http, account)).hexdigest()
    client.policies.update(account.account_id, categories=None)
    assert json.loads(on_chain(server, account).policy or "")["categories"] is None


@pytest.mark.in_memory("elsewhere the write runs concurrently with the response")
def test_the_record_is_written_at_once_without_moving_the_clock(
    server: AgentPayServer, client: AgentPay, account: Account
) -> None:
    validators.embedded_only("a cluster takes a second and more until nothing can be undone")
    client.policies.pause(account.account_id)
    detail = server.console.details(account.account_id)
    assert detail.policy_record is not None
    assert detail.policy_record.version == 2
