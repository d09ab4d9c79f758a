"""Error responses: status, headers and body of a problem (interface E1, E4, E7, I10, R11, R18)."""

from agentpay.contract import codec, json_text
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import format_timestamp
from agentpay_server.errors import Problem

Headers = list[tuple[bytes, bytes]]


def unauthorized() -> Problem:
    """Return a 401, the same for a missing, malformed, unknown or revoked key (interface E7)."""
    # A new object each time: a shared one would collect the traceback of every raise, with the headers of the
    # refused request.
    return Problem(
        ErrorCode.UNAUTHORIZED,
        "No valid API key: send Authorization: Bearer followed by a key that is not revoked.",
    )


def rendered(problem: Problem, request_id: str) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of a problem."""
    headers: Headers = []
    if problem.code is ErrorCode.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if problem.retry_after_seconds is not None:
        headers.append((b"retry-after", str(problem.retry_after_seconds).encode("ascii")))
    if problem.decided_at is not None:
        headers.append((b"idempotency-replayed", format_timestamp(problem.decided_at).encode("ascii")))
    if problem.allow:
        headers.append((b"allow", ", ".join(problem.allow).encode("ascii")))
    body = json_text.print_json(codec.unstructure(problem.body(request_id)))
    return problem.http_status, headers, body
