"""Shared by tests against a running server: the clock's time, and plain HTTP in addition to the SDK."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import httpx

from agentpay.contract.accounts import Account
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import ErrorCode
from agentpay_server import AgentPayServer
from agentpay_server.chain.custody import TREASURY
from agentpay_server.platform.principals import KeyKind, new_code, new_key
from agentpay_server.testkit.embedded.transports import EmbeddedTransport

START = datetime(2026, 1, 1, tzinfo=UTC)

Funded = Callable[..., Account]
"""Makes an account that holds an amount of USDC: `funded("100")`, `funded("2.5", name="Payer")`."""

_ULID = "01kdvdna0049bdrk9b68rp8kma"
UNKNOWN = {
    "account_id": f"acct_{_ULID}",
    "transfer_id": f"txn_{_ULID}",
    "session_id": f"sess_{_ULID}",
    "event_id": f"evt_{_ULID}",
    "webhook_id": f"wh_{_ULID}",
    "key_id": f"key_{_ULID}",
    "snapshot_id": f"snap_{_ULID}",
    "name": "unknown",
    "origin": "https://unknown.example",
}
"""Identifiers of the right form that nothing has, by the name that they have in paths."""

UNKNOWN_ACCOUNT = UNKNOWN["account_id"]
UNKNOWN_TRANSFER = UNKNOWN["transfer_id"]
UNKNOWN_KEY_ID = UNKNOWN["key_id"]


def made_key(
    kind: Literal["operator", "agent", "console"] = "operator", seed: bytes = bytes(range(32))
) -> str:
    """Return a well-formed key that no server has made (interface K6)."""
    return new_key(KeyKind(kind), seed)


def made_code() -> str:
    """Return a well-formed code of a sign-in link that no server has made."""
    return new_code(bytes(32))


def raw_client(server: AgentPayServer, api_key: str | None = None) -> httpx.Client:
    """Return a plain HTTP client of the server, in process.

    Args:
        server: the server.
        api_key: the key that it sends; the operator's if None, no header at all if empty.
    """
    world = server._running
    key = server.operator_key if api_key is None else api_key
    return httpx.Client(
        transport=EmbeddedTransport(world._app, world._owner),
        base_url="http://agentpay.invalid",
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=120,  # For a busy machine: httpx has 5 seconds.
    )


def path_of(endpoint: Endpoint[Any], **identifiers: str) -> str:
    """Return the path of an endpoint, with unknown identifiers where none are given."""
    return endpoint.path.format(**{**UNKNOWN, **identifiers})


def refused(response: httpx.Response, code: str) -> dict[str, Any]:
    """Assert that an answer is the error `code`, with its status and body as interface E1 says; return the
    body."""
    body = response.json()
    assert body["error"] == code, body
    assert response.status_code == ErrorCode(code).status
    assert_error_shape(response)
    return dict(body)


def assert_error_shape(response: httpx.Response) -> None:
    """Assert what every error answer has (interface E1, E7, R11, R18)."""
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    assert isinstance(body["error"], str)
    assert body["message"].endswith(".")
    if response.status_code == 402:
        subject = "session_id" if "session_id" in body else "transfer_id"
        assert set(body) - {"refusal"} == {"error", "message", subject, "status"}
        return
    assert body["request_id"] == response.headers["x-request-id"]
    extra = set(body) - {"error", "message", "request_id"}
    if response.status_code == 400:
        assert extra == {"details"}
        assert body["details"]
        for fault in body["details"]:
            assert set(fault) == {"field", "message"}
    elif response.status_code == 503:
        assert extra in (set(), {"transfer_id", "status"}, {"session_id", "status"})
        assert response.headers["retry-after"].isdecimal()
    elif response.status_code == 409:
        assert extra in (set(), {"transfer_id"}, {"session_id"}, {"charge_id"}, {"details"})
    elif body["error"] == "nothing_payable":
        assert extra in (set(), {"details"}, {"details", "price_usdc", "max_amount_usdc"})
    else:
        assert extra == set()
    assert (response.status_code == 401) == ("www-authenticate" in response.headers)
    assert (response.status_code == 405) == ("allow" in response.headers)
    if response.status_code == 429:
        assert int(response.headers["retry-after"]) >= 1


def faults(response: httpx.Response) -> dict[str, str]:
    """Assert that an answer is 400 `invalid_request`, and return its faults by field."""
    return {fault["field"]: fault["message"] for fault in refused(response, "invalid_request")["details"]}


def state_of(server: AgentPayServer) -> tuple[bytes, int]:
    """Return all that a request could change: the database, and what the treasury has left.

    Work of earlier requests finishes first, in particular the on-chain records of policies.
    """
    import stores  # noqa: PLC0415 - it needs plug-ins
    import validators  # noqa: PLC0415 - as above

    context: Any = server._running.server.context
    # On a cluster these advance with its blocks.
    going_on = ("chain_transactions", "accounts.deposit_cursor", "policy_records")
    watched = () if validators.is_embedded() else going_on

    async def read() -> tuple[bytes, int]:
        if validators.is_embedded():
            assert await context.tasks.drain(within_seconds=120)
        # Every transaction of the service costs its treasury a fee.
        treasury = await context.chain.inner.account_size(context.signer.address(TREASURY))
        return await stores.contents(context.database, left_out=watched), treasury[0]

    return server._running._owner.call(read())


def server_threads() -> list[threading.Thread]:
    """Return the threads of the embedded servers that run."""
    return [thread for thread in threading.enumerate() if thread.name == "agentpay-server"]
