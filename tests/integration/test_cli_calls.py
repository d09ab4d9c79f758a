"""`agentpay`: the call that each command makes, and the JSON that it prints of the response.

The service responds with the examples of the documents. What it does is tested where it is decided.
"""

import json
import re
import shlex
from decimal import Decimal
from string import Template
from typing import Any

import httpx
import pytest
import respx
from calls import is_page, response_of
from click.testing import CliRunner
from command_line import NO_CONFIG
from server_world import UNKNOWN

from agentpay.cli import main
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

ACCESS = {"AGENTPAY_BASE_URL": "https://pay.example", "AGENTPAY_API_KEY": "ap_operator_x"}
A, T, S, E, W, K = (
    UNKNOWN[f"{kind}_id"] for kind in ("account", "transfer", "session", "event", "webhook", "key")
)
B = A[:-1] + "b"

CALLS = Template("""
accounts create Bot
    POST /v1/accounts {"name": "Bot"}
accounts fund $A 12.5
    POST /ext/v1/sandbox/accounts/$A/fund {"amount": "12.5"}
accounts get $A
    GET /ext/v1/console/accounts/$A
accounts list --status active
    GET /ext/v1/console/accounts?limit=100&status=active
accounts history $A
    GET /ext/v1/console/transactions?limit=100&account_id=$A
accounts policy $A
    GET /v1/accounts/$A/policy
accounts policy $A --max-single-transfer 2.5 --category data --allow $B --require-memo
    PUT /v1/accounts/$A/policy {"max_single_transfer": 2.5, "categories": ["data"],
    "allowed_counterparties": ["$B"], "require_memo": true, ${kept}, "paused": false}
accounts policy $A --max-single-transfer none --allow-any --pause
    PUT /v1/accounts/$A/policy {"max_single_transfer": null, "categories": ["inference", "data"],
    "allowed_counterparties": null, "require_memo": false, ${kept}, "paused": true}
accounts unblock $A
    POST /ext/v1/console/accounts/$A/allow-signing
accounts pause-all
    POST /ext/v1/console/accounts/pause
accounts resume-all
    POST /ext/v1/console/accounts/resume
budget $A
    GET /ext/v1/accounts/$A/budget
whoami
    GET /ext/v1/whoami
transfers create --from $A --to $B --amount 1.5 --memo rent --idempotency-key k
    POST /v1/transfers {"from": "$A", "to": "$B", "amount": "1.500000", "memo": "rent",
    "idempotency_key": "k"}
transfers list --account $A --status rejected --error policy_violation
    GET /ext/v1/transfers?limit=100&account_id=$A&status=rejected&error=policy_violation
transfers list --by $K --memo rent --min-amount 1 --max-amount 2.50 --sort amount
    GET /ext/v1/transfers?limit=100&key_id=$K&memo=rent&min_amount=1.000000&max_amount=2.500000&sort=-amount
transfers get $T
    GET /v1/transfers/$T
sessions open --from $A --to $B --cap 2 --idempotency-key k
    POST /ext/v1/sessions {"account_id": "$A", "to": "$B", "cap_usdc": "2.000000", "idempotency_key": "k"}
sessions charge $S 0.75 --idempotency-key k
    POST /ext/v1/sessions/$S/charges {"amount": "0.750000", "idempotency_key": "k"}
sessions get $S
    GET /ext/v1/sessions/$S
sessions list --account $A --status open
    GET /ext/v1/sessions?limit=100&account_id=$A&status=open
payments list --account $A --status settled --seller https://api.example
    GET /ext/v1/payments?limit=100&account_id=$A&status=settled&origin=https%3A%2F%2Fapi.example
payments get $T
    GET /ext/v1/payments/$T
webhooks create https://api.example/hooks --events transfer.settled --account $A --low-balance 2
    POST /v1/webhooks {"url": "https://api.example/hooks", "events": ["transfer.settled"],
    "account_ids": ["$A"], "low_balance_threshold_usdc": 2}
webhooks list
    GET /ext/v1/console/webhooks?limit=100
webhooks update $W --endpoint https://api.example/new --events 'session.s*' --all-accounts
    PATCH /ext/v1/console/webhooks/$W {"url": "https://api.example/new", "events": ["session.settled"],
    "account_ids": []}
webhooks rotate $W --overlap 0
    POST /ext/v1/console/webhooks/$W/rotate-secret {"overlap_seconds": 0}
webhooks delete $W
    DELETE /ext/v1/console/webhooks/$W {"webhook_id": "$W", "status": "deleted"}
events list --type transfer.settled --account $A
    GET /ext/v1/console/events?limit=100&type=transfer.settled&account_id=$A
events replay $E
    POST /ext/v1/console/events/$E/replay {}
deliveries replay $E --webhook $W
    POST /ext/v1/console/events/$E/replay {"webhook_id": "$W"}
approvals list --sort expires
    GET /ext/v1/console/approvals?limit=100&sort=expires
approvals approve $T
    POST /ext/v1/console/approvals/$T/approve
approvals reject $T --reason legal
    POST /ext/v1/console/approvals/$T/reject {"reason": "legal"}
keys create --account $A --name laptop
    POST /ext/v1/console/agent-keys {"account_id": "$A", "name": "laptop"}
keys list
    GET /ext/v1/console/agent-keys?limit=100
keys list --account $A --revoked
    GET /ext/v1/console/agent-keys?limit=100&account_id=$A&include_revoked=true
keys revoke $K
    DELETE /ext/v1/console/agent-keys/$K {"key_id": "$K", "status": "revoked"}
operator-keys create deploy
    POST /ext/v1/console/operator-keys {"name": "deploy"}
operator-keys list
    GET /ext/v1/console/operator-keys?limit=100
operator-keys revoke $K
    DELETE /ext/v1/console/operator-keys/$K {"key_id": "$K", "status": "revoked"}
sellers pin https://api.example --max-amount 0.05 --category data --blocked
    PUT /ext/v1/console/origins/https%3A%2F%2Fapi.example
    {"category": "data", "max_amount": "0.050000", "blocked": true}
sellers get https://api.example
    GET /ext/v1/console/origins/https%3A%2F%2Fapi.example
sellers list
    GET /ext/v1/console/origins?limit=100
sellers unpin https://api.example
    DELETE /ext/v1/console/origins/https%3A%2F%2Fapi.example
    {"origin": "https://api.example", "status": "unpinned"}
spend --account $A --by hour
    GET /ext/v1/console/spend?account_id=$A&by=hour
audit list
    GET /ext/v1/console/audit?limit=100
requests list --limit 5
    GET /ext/v1/console/requests?limit=5
""").substitute(A=A, B=B, T=T, S=S, E=E, W=W, K=K, kept='"max_daily_spend": 100, "escalation_threshold": 50')
"""Each command, and below it its last request with the body; of a DELETE, which has none, what is printed."""


@pytest.mark.parametrize(("command", "told"), re.findall(r"^(\S.*)\n((?: {4}.*\n)+)", CALLS, re.MULTILINE))
def test_a_command_makes_one_call_and_prints_its_response(command: str, told: str) -> None:
    call, body = re.fullmatch(r"(\S+ \S+) ?(.*)", " ".join(told.split())).groups()  # type: ignore[union-attr]
    given = json.loads(body, parse_float=Decimal) if body else None
    made: list[tuple[str, Any, list[Any]]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        path, query = request.url.raw_path.decode(), request.url.query.decode()
        (endpoint,) = (
            each
            for each in BOUND_ENDPOINTS
            if each.method == request.method
            and re.fullmatch(re.sub(r"{\w+}", "[^/]+", each.path), path.removesuffix(f"?{query}"))
        )
        sent = json.loads(request.content, parse_float=Decimal) if request.content else None
        if None in endpoint.responses.values():
            made.append((f"{request.method} {path}", sent, []))
            return httpx.Response(204)
        status, example = response_of(endpoint)
        if sent and "idempotency_key" in sent:
            example["idempotency_key"] = sent["idempotency_key"]
        made.append((f"{request.method} {path}", sent, [example]))
        page = {"data": [example], "cursor": "", "has_more": False}
        return httpx.Response(status, json=page if is_page(endpoint) else example)

    with respx.mock:
        respx.route().mock(side_effect=respond)
        runner = CliRunner(env={**ACCESS, "AGENTPAY_CONFIG": NO_CONFIG})
        result = runner.invoke(main, [*shlex.split(command), "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    # A change of a policy reads it first.
    assert len(made) == 1 + call.startswith("PUT /v1/accounts")
    asked, sent, expected = made[-1]
    assert asked == call
    assert sent == (None if call.startswith("DELETE") else given)
    printed = [json.loads(line, parse_float=Decimal) for line in result.stdout.splitlines()]
    if "/fund" in call:
        expected[0]["account_id"] = A
    if "/spend" in call:
        (expected,) = (each["data"] for each in expected)
    assert printed == json.loads(json.dumps(expected or [given]), parse_float=Decimal)
