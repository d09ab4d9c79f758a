"""Schemathesis against a real port: every operation of both documents responds as documented (P14).

No undocumented status, no body or header that its schema does not allow, no fault of the server, no key that
is not asked for, nothing accepted that the schema refuses; by examples, edges, random requests and sequences.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from server_world import START

from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).parents[2]

# Few variables, because each request looks through all of them for proxies. What Hypothesis computes
# about Unicode in seconds is kept where other tests find it too.
ENVIRONMENT = {
    **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
    "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),
}

# What a schema cannot say is refused with a 400 all the same: a cursor of another list, a seventh decimal,
# another operator's identifier. So a request that matches its schema may still be refused.
CONFIGURATION = """
base-url = {base_url}
seed = 1
color = false
continue-on-failure = true
warnings = false

[auth.openapi.bearer]
bearer = {key}

[checks.positive_data_acceptance]
enabled = false

[generation]
database = "none"
max-examples = {examples}

[phases.coverage]
enabled = {edges}

[phases.stateful]
max-steps = 8
generation = {{ max-examples = {scenarios} }}

# It has no end; test_streams.py reads it.
[[operations]]
include-path = "/ext/v1/console/stream"
enabled = false

[dictionaries.accounts]
values = {accounts}

[dictionaries.recipients]
values = {recipients}

[dictionaries.amounts]
values = ["0.000001", "1", "2.5", "7", "999999999.999999"]

[parameters]
"path.account_id" = {{ dictionary = "accounts", probability = 0.5 }}
"body.account_id" = {{ dictionary = "accounts", probability = 0.8 }}
"body.from" = {{ dictionary = "accounts", probability = 0.9 }}
"body.to" = {{ dictionary = "recipients", probability = 0.8 }}
"body.amount" = {{ dictionary = "amounts", probability = 0.6 }}
"""
DOCUMENTS = ["openapi.json", "openapi-extensions.json"]


def accounts_of(server: AgentPayServer) -> list[str]:
    """Accounts between which every outcome of a transfer is at hand: settled, pending, refused."""
    client = server.client()
    made = [client.accounts.create(name=name).account_id for name in ("Free", "Careful", "Paused", "Poor")]
    for account_id in made[:3]:
        server.sandbox.fund(account_id, 1000)
    client.policies.update(made[1], escalation_threshold=2, max_single_transfer=5)
    client.policies.pause(made[2])
    client.webhooks.create(url="http://127.0.0.1:9/", events=["transfer.settled"])
    client.transfers.create(from_=made[0], to=made[1], amount=1, idempotency_key="first")
    return made


def judged(
    document: str, tmp_path: Path, *, examples: int, timeout_seconds: int | None, as_agent: bool = False
) -> str:
    """Run Schemathesis against a separate server, with an operator's key or an agent's; return its output."""
    with AgentPayServer(clock=START, seed=1) as server:
        base_url = server.listen()
        accounts = accounts_of(server)
        outside = server.sandbox.create_token_account().usdc_token_account
        key = server.agent_keys.create(accounts[0]).key if as_agent else server.operator_key
        configuration = tmp_path / "schemathesis.toml"
        configuration.write_text(
            CONFIGURATION.format(
                base_url=json.dumps(base_url),
                key=json.dumps(key),
                examples=examples,
                # Edges of bodies are judged after the key: an agent's add nothing to an operator's.
                edges=json.dumps(not as_agent),
                scenarios=examples * 8,
                accounts=json.dumps(accounts),
                recipients=json.dumps([*accounts, outside]),
            )
        )
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run"]
        run = subprocess.run(
            [*command, str(ROOT / "docs" / document)],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
        return run.stdout


@pytest.mark.parametrize("document", [DOCUMENTS[0], pytest.param(DOCUMENTS[1], marks=pytest.mark.whole)])
def test_every_operation_conforms_to_its_document(document: str, tmp_path: Path) -> None:
    said = judged(document, tmp_path, examples=4, timeout_seconds=500)

    operations = json.loads((ROOT / "docs" / document).read_text())["paths"].values()
    count = sum(len(methods) for methods in operations) - (document == DOCUMENTS[1])
    assert f"Tested: {count}" in said
    assert "Stateful" in said


def test_responses_to_an_agent_key_conform_to_the_document(tmp_path: Path) -> None:
    judged(DOCUMENTS[0], tmp_path, examples=1, timeout_seconds=500, as_agent=True)


@pytest.mark.deep
@pytest.mark.parametrize("as_agent", [False, True])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_thousands_of_requests_conform_to_the_document(document: str, as_agent: bool, tmp_path: Path) -> None:
    judged(document, tmp_path, examples=500, timeout_seconds=None, as_agent=as_agent)
