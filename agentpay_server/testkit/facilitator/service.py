"""The local facilitator: verifies and settles x402 payments on a test chain, for sellers that run offline.

It has the interface of public facilitators, in versions 2 and 1 of x402, so that sellers' packages use it
unchanged. Its own key pays fees and nothing else. The sandbox's faults `facilitator:…` make it misbehave.

It needs no key, and is served only for test chains and on loopback. Web pages cannot use it: a request with a
body must declare JSON.
"""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen
from starlette.types import Receive, Scope, Send

from agentpay.contract import json_text
from agentpay.contract.endpoints import EXTENSIONS
from agentpay_server.feature import Header
from agentpay_server.http.requests import DisconnectedError, read_body, require_json
from agentpay_server.http.responses import respond
from agentpay_server.payments.challenges import fields, x402
from agentpay_server.payments.challenges.terms import (
    ChallengeTerms,
    Leg,
    Network,
    Protocol,
    UnreadableChallengeError,
)
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log
from agentpay_server.sandbox.faults import FacilitatorFault, RequestFaults
from agentpay_server.testkit.facilitator.checking import (
    DUPLICATE,
    PENDING,
    UNDECODABLE,
    CheckedPayment,
    InvalidPaymentError,
    check_payment,
)
from agentpay_server.testkit.facilitator.fee_payer import (
    FailedOnChainError,
    FeePayer,
    NotConfirmedError,
    SimulationFailedError,
    keypair_of,
    rpc_of,
)
from agentpay_server.testkit.node.jsonrpc import RpcError
from agentpay_server.testkit.node.methods import Node

PATH: Final = EXTENSIONS + "/sandbox/x402"
"""The base path, to which sellers' packages append `/supported`, `/verify` and `/settle`."""

NETWORKS: Final = {2: "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1", 1: "solana-devnet"}
"""The embedded chain's name in each version of x402, whose packages know no private chains."""

_SCHEME: Final = "exact"
_PROTOCOLS: Final = {2: Protocol.X402_V2, 1: Protocol.X402_V1}
_AMOUNT_KEYS: Final = {2: "amount", 1: "maxAmountRequired"}

Json = dict[str, Any]

logger: logging.Logger = logging.getLogger(__name__)


class MalformedRequestError(ValueError):
    """The message names the field."""


@frozen
class _Request:
    version: int
    scheme: str
    network: str
    payload_scheme: str
    payload_network: str
    transaction: str
    requirements: Mapping[str, Any]


class Facilitator:
    """Without `faults` it behaves."""

    def __init__(self, fee_payer: FeePayer, faults: RequestFaults | None = None) -> None:
        self._fee_payer = fee_payer
        self._faults = faults
        self._settling: set[str] = set()

    def supported(self) -> Json:
        """Return which payments are accepted, and the fee payer that challenges must name."""
        extra = {"feePayer": self._fee_payer.address}
        return {
            "kinds": [
                {"x402Version": version, "scheme": _SCHEME, "network": network, "extra": extra}
                for version, network in NETWORKS.items()
            ],
            "extensions": [],
            "signers": {"solana:*": [self._fee_payer.address]},
        }

    async def verify(self, body: bytes) -> Json:
        try:
            checked = self._checked(_read(body))
            await self._simulate(checked)
        except InvalidPaymentError as refused:
            return {
                "isValid": False,
                "invalidReason": refused.reason,
                "invalidMessage": str(refused),
                "payer": refused.payer,
            }
        return {"isValid": True, "payer": checked.payer}

    async def settle(self, body: bytes) -> Json:
        request = _read(body)
        try:
            checked = self._checked(request)
            signature = await self._settled_or_not(checked)
        except InvalidPaymentError as refused:
            return {
                "success": False,
                "errorReason": refused.reason,
                "errorMessage": str(refused),
                "payer": refused.payer,
                "transaction": refused.transaction,
                "network": request.network,
            }
        return {
            "success": True,
            "payer": checked.payer,
            "transaction": signature,
            "network": request.network,
        }

    def _checked(self, request: _Request) -> CheckedPayment:
        if (request.scheme, request.payload_scheme) != (_SCHEME, _SCHEME):
            raise InvalidPaymentError("unsupported_scheme", "the scheme must be exact")
        if request.network != request.payload_network:
            raise InvalidPaymentError("network_mismatch", "the payment is for another network")
        if request.network != NETWORKS[request.version]:
            raise InvalidPaymentError("invalid_network", f"the network must be {NETWORKS[request.version]}")
        terms = _terms(request)
        if terms.fee_payer is None:
            raise InvalidPaymentError(
                "invalid_exact_svm_payload_missing_fee_payer", "extra.feePayer is missing"
            )
        if terms.fee_payer != self._fee_payer.address:
            raise InvalidPaymentError(
                "fee_payer_not_managed_by_facilitator",
                f"extra.feePayer must be {self._fee_payer.address}, as GET /supported says",
            )
        return check_payment(_decoded(request.transaction), terms, fee_payers=(self._fee_payer.address,))

    async def _simulate(self, checked: CheckedPayment) -> None:
        try:
            await self._fee_payer.ready()
            await self._fee_payer.simulate(self._fee_payer.completed(checked.transaction))
        except (SimulationFailedError, NotConfirmedError, FailedOnChainError, RpcError) as error:
            raise InvalidPaymentError("transaction_simulation_failed", str(error), checked.payer) from None

    async def _settled_or_not(self, checked: CheckedPayment) -> str:
        """Settle a payment, or do what one armed fault says; a fault counts the payments that it affects."""
        signature = str(self._fee_payer.completed(checked.transaction).signatures[0])
        if self._takes(FacilitatorFault.FALSE_SUCCESS):
            return signature
        if self._takes(FacilitatorFault.FORGETS):
            raise _pending(checked, signature)
        if self._takes(FacilitatorFault.PENDING):
            await self._settled(checked, waits=False)
            raise _pending(checked, signature)
        if self._takes(FacilitatorFault.FALSE_FAILURE):
            await self._settled(checked)
            raise InvalidPaymentError("transaction_failed", "the transaction failed on chain", checked.payer)
        if self._takes(FacilitatorFault.SETTLES_TWICE):
            try:
                return await self._settled(checked)
            except InvalidPaymentError as refused:
                if refused.reason != DUPLICATE:
                    raise
                return signature
        delay_ms = self._takes_delay()
        try:
            return await self._settled(checked)
        finally:
            await asyncio.sleep(delay_ms / 1000)

    def _takes(self, fault: FacilitatorFault) -> bool:
        return self._faults is not None and self._faults.take(fault) is not None

    def _takes_delay(self) -> int:
        fault = None if self._faults is None else self._faults.take(FacilitatorFault.SLOW)
        return 0 if fault is None else fault.delay_ms or 0

    async def _settled(self, checked: CheckedPayment, *, waits: bool = True) -> str:
        """Broadcast a payment that has not landed, and return its signature.

        Of two requests for one payment, one settles: the other is refused while it does, and later because
        the payment has landed.
        """
        if checked.message_hash in self._settling:
            raise InvalidPaymentError(DUPLICATE, "this payment is being settled", checked.payer)
        self._settling.add(checked.message_hash)
        completed = self._fee_payer.completed(checked.transaction)
        signature, is_sent = str(completed.signatures[0]), False
        try:
            if await self._fee_payer.has_landed(completed):
                raise InvalidPaymentError(DUPLICATE, "this payment has settled", checked.payer)
            await self._simulate(checked)
            is_sent = True
            await self._fee_payer.broadcast(completed)
            if waits:
                await self._fee_payer.confirmed(signature)
        except (RpcError, FailedOnChainError, NotConfirmedError) as error:
            # A node that does not respond may have the transaction all the same.
            if is_sent and not isinstance(error, FailedOnChainError):
                raise _pending(checked, signature) from None
            raise InvalidPaymentError("transaction_failed", str(error), checked.payer) from None
        finally:
            self._settling.discard(checked.message_hash)
        return signature


def _pending(checked: CheckedPayment, signature: str) -> InvalidPaymentError:
    return InvalidPaymentError(
        PENDING,
        f"{signature} has not landed yet: look it up before you ask for another payment",
        checked.payer,
        transaction=signature,
    )


def _read(body: bytes) -> _Request:
    try:
        # The extensions are those of the payment, which is a member of the body.
        request, _ = x402.parsed(body, "the body", depth=2)
        payload = fields.member(request, "paymentPayload", dict)
        requirements = fields.member(request, "paymentRequirements", dict)
        version = fields.member(payload, "x402Version", int)
        if version not in NETWORKS:
            raise MalformedRequestError("x402Version must be 2 or 1")
        named = fields.member(payload, "accepted", dict) if version == 2 else payload
        encoded = fields.member(fields.member(payload, "payload", dict), "transaction", str)
        return _Request(
            version=version,
            scheme=fields.member(requirements, "scheme", str),
            network=fields.member(requirements, "network", str),
            payload_scheme=fields.member(named, "scheme", str),
            payload_network=fields.member(named, "network", str),
            transaction=encoded,
            requirements=requirements,
        )
    except UnreadableChallengeError as error:
        raise MalformedRequestError(str(error)) from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidPaymentError(UNDECODABLE, "the transaction is not base64") from None


def _terms(request: _Request) -> ChallengeTerms:
    requirements = request.requirements
    try:
        extra = fields.optional(requirements, "extra", dict) or {}
        return ChallengeTerms(
            protocol=_PROTOCOLS[request.version],
            network=Network.DEVNET,
            mint=fields.address(requirements, "asset"),
            legs=(
                Leg(
                    recipient=fields.address(requirements, "payTo"),
                    amount_micro=fields.amount(requirements, _AMOUNT_KEYS[request.version]),
                    memo=fields.memo(extra, "memo"),
                ),
            ),
            fee_payer=None if extra.get("feePayer") is None else fields.address(extra, "feePayer"),
        )
    except UnreadableChallengeError as error:
        raise InvalidPaymentError("invalid_payment_requirements", str(error)) from None


class FacilitatorHttp:
    """The facilitator over HTTP."""

    def __init__(self, facilitator: Facilitator, *, body_timeout_seconds: float) -> None:
        self._facilitator = facilitator
        self._body_timeout_seconds = body_timeout_seconds
        self._takes_body: Mapping[str, Callable[[bytes], Awaitable[dict[str, Any]]]] = {
            "/verify": facilitator.verify,
            "/settle": facilitator.settle,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"].removeprefix(PATH), scope["method"]
        if path == "/supported":
            if method == "GET":
                await _respond(send, 200, self._facilitator.supported())
            else:
                await _respond(send, 405, {"error": "This path takes GET."}, [(b"allow", b"GET")])
        elif path in self._takes_body:
            if method == "POST":
                await self._post(path, scope, receive, send)
            else:
                await _respond(send, 405, {"error": "This path takes POST."}, [(b"allow", b"POST")])
        else:
            await _respond(send, 404, {"error": f"The facilitator is at {PATH}/supported, /verify, /settle."})

    async def _post(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = await read_body(headers, receive, timeout_seconds=self._body_timeout_seconds)
            # A web page can send a request without a Content-Type without a CORS preflight.
            require_json({**headers, "content-type": headers.get("content-type", "")})
            result = await self._takes_body[path](body)
        except DisconnectedError:
            return
        except Problem as problem:
            await _respond(send, problem.http_status, {"error": problem.message})
        except MalformedRequestError as error:
            await _respond(send, 400, {"error": f"Not an x402 request: {error}."})
        except Exception as error:  # noqa: BLE001 - a fault of the server, whatever it is
            log(logger, logging.ERROR, "facilitator.failed", exception=error)
            await _respond(send, 500, {"error": "The facilitator failed; the log of the server says why."})
        else:
            await _respond(send, 200, result)


def facilitator_of(
    node: Node, *, body_timeout_seconds: float, faults: RequestFaults | None = None
) -> FacilitatorHttp:
    """Its key is derived from the chain, so that challenges issued before a restart remain valid."""
    fee_payer = FeePayer(keypair_of("facilitator", node.chain.genesis_hash), rpc_of(node))
    return FacilitatorHttp(Facilitator(fee_payer, faults), body_timeout_seconds=body_timeout_seconds)


async def _respond(send: Send, status: int, content: dict[str, Any], headers: Sequence[Header] = ()) -> None:
    await respond(send, status, json_text.print_json(content), headers)
