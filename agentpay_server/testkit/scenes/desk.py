"""Builds scenes on a running server, for its callers: rehearsed in memory, then with the caller's key."""

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract.errors import HTTP_STATUS, ErrorCode, FieldError
from agentpay.contract.requests import UNSET
from agentpay.contract.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay_server.assembly.server import Server
from agentpay_server.contract.sandbox import BundledScene, CreatedScene, CreateScene
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem, invalid
from agentpay_server.sandbox.service import Disconnected
from agentpay_server.testkit.embedded.owner_thread import LoopOwner, NotBegunError
from agentpay_server.testkit.embedded.transports import EmbeddedTransport

if TYPE_CHECKING:
    from agentpay_server.testkit.scenes.building import BuiltScene, GoOn
    from agentpay_server.testkit.scenes.document import Scene, SceneError

_RETRIED: Final = (429, 503)
_CANCELLED: Final = "the server stops, or restored another state"


class SceneDesk:
    """Builds one scene at a time; other callers wait for their turn.

    `owner` runs `application` on the server's event loop. What only a build needs is imported then, because
    most servers build no scene.
    """

    def __init__(self, application: ASGIApp, server: Server, owner: LoopOwner) -> None:
        self._application = application
        self._server = server
        self._owner = owner
        self._turn = asyncio.Lock()

    def bundled(self) -> Sequence[BundledScene]:
        """Return the scenes that can be built here, by name."""
        from agentpay_server.testkit.situations.bundled import bundled_scenes  # noqa: PLC0415 - see the class

        return bundled_scenes()

    async def build(self, request: CreateScene, *, key: str, disconnected: Disconnected) -> CreatedScene:
        """Build a scene by requests with the caller's key.

        When the caller has disconnected, the build ends at its next step, as if that had failed.

        Raises:
            Problem: `invalid_request`: it cannot be built, and nothing is stored; `scene_incomplete`: the
                server failed in between, and `details` lists what remains; or, if nothing remains, the
                server's own reason.
        """
        from agentpay_server.testkit.scenes.document import SceneError  # noqa: PLC0415 - see the class

        cancelled, left = threading.Event(), threading.Event()
        leaving = asyncio.ensure_future(disconnected())
        leaving.add_done_callback(lambda _: left.set())

        def go_on() -> None:
            if cancelled.is_set():
                raise NotBegunError(_CANCELLED)
            if left.is_set():
                raise SceneError("the caller has disconnected")

        try:
            async with self._turn:
                try:
                    scene = await asyncio.to_thread(self._rehearsed, request, go_on)
                except SceneError as error:
                    raise invalid(*(_placed(request, fault) for fault in error.faults)) from None
                try:
                    built = await asyncio.to_thread(self._built, scene, key, cancelled, go_on)
                except SceneError as error:
                    raise _incomplete(request, error) from None
        finally:
            # Threads cannot be cancelled, so this one ends at its next step.
            cancelled.set()
            leaving.cancel()
        return _created(built)

    def _rehearsed(self, request: CreateScene, go_on: "GoOn") -> "Scene":
        from agentpay_server.testkit.scenes.document import parse_scene  # noqa: PLC0415 - see the class
        from agentpay_server.testkit.scenes.rehearsal import rehearse  # noqa: PLC0415 - see the class

        go_on()
        context = self._server.context
        scene = parse_scene(self._document(request), name="the document")
        _require_known_payees(scene)
        rehearse(
            scene,
            settings=context.settings,
            has_manual_clock=context.clock.is_manual,
            has_inboxes=False,
            has_sellers=False,
            go_on=go_on,
        )
        return scene

    def _document(self, request: CreateScene) -> str:
        if request.document is not UNSET:
            return request.document
        known = {scene.name: scene.document for scene in self.bundled()}
        if request.name is UNSET or request.name not in known:
            message = f"must be one of {', '.join(known)}"
            raise invalid(FieldError(field="name", message=message))
        return known[request.name]

    def _built(self, scene: "Scene", key: str, cancelled: threading.Event, go_on: "GoOn") -> "BuiltScene":
        from agentpay._sync.client import AgentPay  # noqa: PLC0415 - see the class
        from agentpay_server.testkit.embedded.world import IN_PROCESS_URL  # noqa: PLC0415 - see the class
        from agentpay_server.testkit.scenes.building import build  # noqa: PLC0415 - see the class

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            # On the event loop, so that nothing is stored in a state that was restored meanwhile.
            if cancelled.is_set():
                raise NotBegunError(_CANCELLED)
            await self._application(scope, receive, send)

        transport = EmbeddedTransport(guarded, self._owner)
        with AgentPay(api_key=key, base_url=IN_PROCESS_URL, transport=transport) as client:
            return build(client, scene, go_on=go_on)


def _require_known_payees(scene: "Scene") -> None:
    """Raise `SceneError` for a payee that only this server may know, and the rehearsal does not."""
    from agentpay_server.testkit.scenes.document import MAX_FAULTS, OUTSIDE, SceneError  # noqa: PLC0415 - see the class

    faults = [
        FieldError(
            field=f"history[{place}].to",
            message=f"must name an account of the scene, or begin with {OUTSIDE}, not {step.to!r}",
        )
        for place, step in enumerate(scene.history)
        if step.to is not None and step.to not in scene.accounts and not step.to.startswith(OUTSIDE)
    ]
    if faults:
        raise SceneError.at(*faults[:MAX_FAULTS])


def _placed(request: CreateScene, fault: FieldError) -> FieldError:
    """Return a fault of the scene as one of the request."""
    if request.document is UNSET:
        return FieldError(field="name", message=f"{fault.field} {fault.message}".strip())
    return FieldError(field=f"document.{fault.field}".rstrip("."), message=fault.message)


def _incomplete(request: CreateScene, error: "SceneError") -> Problem:
    from agentpay.errors import APIError  # noqa: PLC0415 - see the class

    cause = error.__cause__
    if not error.built and isinstance(cause, APIError) and cause.outcome == "not_done" and cause.code:
        code = ErrorCode(cause.code)
        retry_after = RETRY_AFTER_SECONDS if HTTP_STATUS[code] in _RETRIED else None
        return Problem(code, f"{error}. Nothing was created.", retry_after_seconds=retry_after)
    return Problem(
        ErrorCode.SCENE_INCOMPLETE,
        f"The server failed while it built the scene: {error}. Its keys and webhooks were removed, except "
        "those in details.",
        details=tuple(_placed(request, each) for each in error.built) or None,
    )


def _created(built: "BuiltScene") -> CreatedScene:
    return CreatedScene(
        accounts=dict(built.accounts),
        agent_keys=dict(built.agent_keys),
        webhook_ids=built.webhook_ids,
        webhook_secrets=built.webhook_secrets,
        history=tuple(map(_identifier, built.steps)),
    )


def _identifier(step: Transfer | Session | None) -> str | None:
    return step.session_id if isinstance(step, Session) else None if step is None else step.transfer_id
