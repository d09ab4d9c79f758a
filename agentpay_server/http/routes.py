"""The handler of each endpoint, by the endpoint's name, and the paths that requests match.

All servers of a process share the patterns; each has its own handlers.
"""

import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from functools import cache
from typing import Any, Final

from attrs import frozen
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract.endpoints import EXTENSIONS, Endpoint
from agentpay.contract.errors import ErrorCode
from agentpay.contract.payments import Payment, SessionStep
from agentpay.contract.transfers import Transfer
from agentpay_server.accounts.policies import VersionedPolicy
from agentpay_server.assembly.server import Services
from agentpay_server.contract.endpoints import BOUND_ENDPOINTS
from agentpay_server.http.requests import Call
from agentpay_server.http.responses import Reply
from agentpay_server.platform.errors import Problem


def no_such_path() -> Problem:
    return Problem(
        ErrorCode.NOT_FOUND,
        "Unknown path. GET /openapi.json and GET /openapi-extensions.json list all paths.",
        says_what_to_do=True,
    )


class Paths:
    def __init__(self, paths: Mapping[str, ASGIApp]) -> None:
        self._paths = paths
        # Most paths have no parameters, and need no matching.
        self._fixed = {path: found for path, found in paths.items() if "{" not in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = self._fixed.get(path)
        if found is None:
            for pattern, template in _patterns().get(_family(path), ()):
                if match := pattern.fullmatch(path):
                    scope["path_params"] = match.groupdict()
                    found = self._paths[template]
                    break
            else:
                raise no_such_path()
        await found(scope, receive, send)


def _methods_of(endpoints: Iterable[Endpoint]) -> Mapping[str, Mapping[str, Endpoint]]:
    by_path: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    for endpoint in endpoints:
        by_path[endpoint.path][endpoint.method] = endpoint
    return by_path


METHODS_OF: Final = _methods_of(BOUND_ENDPOINTS)


@cache
def _patterns() -> Mapping[str, tuple[tuple[re.Pattern[str], str], ...]]:
    """By path family, in the order of the tables: the first that matches applies."""
    families: dict[str, list[tuple[re.Pattern[str], str]]] = defaultdict(list)
    for path, methods in METHODS_OF.items():
        if "{" in path:
            families[_family(path)].append((_pattern(path, methods), path))
    return {family: tuple(patterns) for family, patterns in families.items()}


def _family(path: str) -> str:
    return path.removeprefix(EXTENSIONS)[1:].partition("/")[0]


def _pattern(path: str, methods: Mapping[str, Endpoint]) -> re.Pattern[str]:
    """A parameter matches one segment, but the last may match several."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
    if any(endpoint.takes_rest_of_path for endpoint in methods.values()):
        pattern = f"{pattern.removesuffix('[^/]+)')}.*)"
    return re.compile(pattern)


@frozen
class Route:
    """How to handle an endpoint.

    Attributes:
        reply: the status of a success, whose body is the handler's result; or a function from that result.
        is_owned: runs in a task of the server, and so completes even if the caller disconnects. False for
            operations that start such tasks themselves, and for those on snapshots, which wait for running
            operations or cancel them.
    """

    reply: int | Callable[[Any], Reply]
    handler: Callable[[Services, Call], Coroutine[Any, Any, Any]]
    is_owned: bool = False

    async def answer(self, services: Services, call: Call) -> Reply:
        work = self.handler(services, call)
        result = await (services.tasks.complete(work) if self.is_owned else work)
        return Reply(status=self.reply, model=result) if isinstance(self.reply, int) else self.reply(result)


def _transfer(transfer: Transfer) -> Reply:
    return Reply(status=200 if transfer.status == "settled" else 202, model=transfer)


def _payment(payment: Payment | SessionStep) -> Reply:
    return Reply(status=201 if payment.header is not None else 202, model=payment)


def _policy(versioned: VersionedPolicy) -> Reply:
    return Reply(status=200, model=versioned.policy, headers=((b"etag", versioned.etag.encode("ascii")),))


def _stream(stream: AsyncGenerator[bytes]) -> Reply:
    return Reply(status=200, stream=stream)


ROUTES: Final[Mapping[str, Route]] = {
    "accounts.create": Route(201, lambda s, c: s.accounts.create(c.principal, c.body), is_owned=True),
    "accounts.list": Route(200, lambda s, c: s.accounts.list(c.principal, c.query)),
    "accounts.get": Route(200, lambda s, c: s.accounts.get(c.principal, c.path["account_id"])),
    "accounts.balance": Route(200, lambda s, c: s.accounts.balance(c.principal, c.path["account_id"])),
    "accounts.transactions": Route(
        200, lambda s, c: s.history.list(c.principal, c.path["account_id"], c.query)
    ),
    "accounts.history": Route(200, lambda s, c: s.history.list_all(c.principal, c.query)),
    "policies.get": Route(_policy, lambda s, c: s.policies.get(c.principal, c.path["account_id"])),
    "policies.put": Route(
        _policy,
        lambda s, c: s.policies.put(
            c.principal, c.path["account_id"], c.body, if_match=c.headers.get("if-match")
        ),
        is_owned=True,
    ),
    "transfers.create": Route(_transfer, lambda s, c: s.transfers.create(c.principal, c.body)),
    "transfers.get": Route(200, lambda s, c: s.transfers.get(c.principal, c.path["transfer_id"])),
    "webhooks.create": Route(201, lambda s, c: s.webhooks.create(c.principal, c.body)),
    "whoami": Route(200, lambda s, c: s.keys.identify(c.principal)),
    "accounts.budget": Route(200, lambda s, c: s.accounts.budget(c.principal, c.path["account_id"])),
    "transfers.check": Route(200, lambda s, c: s.checks.check(c.principal, c.body)),
    "transfers.list": Route(200, lambda s, c: s.transfers.list(c.principal, c.query)),
    "sessions.open": Route(201, lambda s, c: s.sessions.open(c.principal, c.body)),
    "sessions.charge": Route(200, lambda s, c: s.sessions.charge(c.principal, c.path["session_id"], c.body)),
    "sessions.close": Route(200, lambda s, c: s.sessions.close(c.principal, c.path["session_id"])),
    "sessions.get": Route(200, lambda s, c: s.sessions.get(c.principal, c.path["session_id"])),
    "sessions.list": Route(200, lambda s, c: s.sessions.list(c.principal, c.query)),
    "payments.authorize": Route(
        _payment, lambda s, c: s.payments.authorize(c.principal, c.body), is_owned=True
    ),
    "payments.get": Route(200, lambda s, c: s.payments.get(c.principal, c.path["transfer_id"])),
    "payments.list": Route(200, lambda s, c: s.payments.list(c.principal, c.query)),
    "payments.report_outcome": Route(
        200, lambda s, c: s.payments.report_outcome(c.principal, c.path["transfer_id"], c.body), is_owned=True
    ),
    "accounts.list_details": Route(200, lambda s, c: s.accounts.list_details(c.principal, c.query)),
    "sellers.list": Route(200, lambda s, c: s.origins.list(c.principal, c.query)),
    "sellers.put": Route(200, lambda s, c: s.origins.put(c.principal, c.path["origin"], c.body)),
    "sellers.get": Route(200, lambda s, c: s.origins.get(c.principal, c.path["origin"])),
    "sellers.delete": Route(204, lambda s, c: s.origins.delete(c.principal, c.path["origin"])),
    "accounts.details": Route(200, lambda s, c: s.accounts.detail(c.principal, c.path["account_id"])),
    "accounts.unblock": Route(200, lambda s, c: s.accounts.allow_signing(c.principal, c.path["account_id"])),
    "agent_keys.create": Route(201, lambda s, c: s.keys.create_agent_key(c.principal, c.body)),
    "agent_keys.list": Route(200, lambda s, c: s.keys.list_agent_keys(c.principal, c.query)),
    "agent_keys.revoke": Route(204, lambda s, c: s.keys.revoke_agent_key(c.principal, c.path["key_id"])),
    "operator_keys.create": Route(201, lambda s, c: s.keys.create_operator_key(c.principal, c.body)),
    "operator_keys.list": Route(200, lambda s, c: s.keys.list_operator_keys(c.principal, c.query)),
    "operator_keys.revoke": Route(
        204, lambda s, c: s.keys.revoke_operator_key(c.principal, c.path["key_id"])
    ),
    "operator_keys.sign_in": Route(201, lambda s, c: s.sign_ins.sign_in(c.principal, c.body)),
    "operator_keys.create_sign_in_code": Route(201, lambda s, c: s.sign_ins.create_code(c.principal)),
    "approvals.list": Route(200, lambda s, c: s.approvals.list(c.principal, c.query)),
    "approvals.approve": Route(
        200, lambda s, c: s.approvals.approve(c.principal, c.path["transfer_id"]), is_owned=True
    ),
    "approvals.reject": Route(
        200, lambda s, c: s.approvals.reject(c.principal, c.path["transfer_id"], c.body), is_owned=True
    ),
    "summary": Route(200, lambda s, c: s.overview.summary(c.principal)),
    "request_logs.list": Route(200, lambda s, c: s.overview.requests(c.principal, c.query)),
    "search": Route(200, lambda s, c: s.search.search(c.principal, c.query)),
    "spend": Route(200, lambda s, c: s.search.spend(c.principal, c.query)),
    "audit_log.list": Route(200, lambda s, c: s.audit.list(c.principal, c.query)),
    "webhooks.list": Route(200, lambda s, c: s.webhooks.list(c.principal, c.query)),
    "webhooks.update": Route(200, lambda s, c: s.webhooks.update(c.principal, c.path["webhook_id"], c.body)),
    "webhooks.test": Route(202, lambda s, c: s.deliveries.test(c.principal, c.path["webhook_id"])),
    "webhooks.delete": Route(204, lambda s, c: s.webhooks.delete(c.principal, c.path["webhook_id"])),
    "webhooks.rotate_secret": Route(
        200, lambda s, c: s.webhooks.rotate_secret(c.principal, c.path["webhook_id"], c.body)
    ),
    "events.stream": Route(_stream, lambda s, c: s.tail.stream(c.principal, c.headers.get("last-event-id"))),
    "events.list": Route(200, lambda s, c: s.deliveries.list_events(c.principal, c.query)),
    "events.replay": Route(202, lambda s, c: s.deliveries.replay(c.principal, c.path["event_id"], c.body)),
    "deliveries.replay": Route(202, lambda s, c: s.deliveries.replay_since(c.principal, c.body)),
    "deliveries.list": Route(200, lambda s, c: s.deliveries.list_deliveries(c.principal, c.query)),
    "sandbox.accounts.fund": Route(
        200, lambda s, c: s.sandbox.fund(c.principal, c.path["account_id"], c.body), is_owned=True
    ),
    "sandbox.operators.create": Route(201, lambda s, c: s.sandbox.create_operator(c.principal, c.body)),
    "sandbox.token_accounts.create": Route(
        201, lambda s, c: s.sandbox.create_token_account(c.principal, c.body), is_owned=True
    ),
    "sandbox.clock.get": Route(200, lambda s, _: s.sandbox.clock()),
    "sandbox.clock.advance": Route(
        200, lambda s, c: s.sandbox.advance_clock(c.principal, c.body), is_owned=True
    ),
    "sandbox.faults.set": Route(
        200, lambda s, c: s.sandbox.set_fault(c.principal, c.path["name"], c.body), is_owned=True
    ),
    "sandbox.faults.delete": Route(
        204, lambda s, c: s.sandbox.delete_fault(c.principal, c.path["name"]), is_owned=True
    ),
    "sandbox.faults.list": Route(200, lambda s, c: s.sandbox.list_faults(c.principal, c.query)),
    "sandbox.faults.clear": Route(204, lambda s, c: s.sandbox.clear_faults(c.principal), is_owned=True),
    "sandbox.snapshots.create": Route(201, lambda s, c: s.sandbox.snapshot(c.principal)),
    "sandbox.snapshots.list": Route(200, lambda s, c: s.sandbox.list_snapshots(c.principal, c.query)),
    "sandbox.snapshots.restore": Route(
        200, lambda s, c: s.sandbox.restore(c.principal, c.path["snapshot_id"])
    ),
    "sandbox.reset": Route(204, lambda s, c: s.sandbox.reset(c.principal)),
}
