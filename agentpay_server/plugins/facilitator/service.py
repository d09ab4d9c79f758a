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

from attrs import evolve
from starlette.types import Receive, Scope, Send

from agentpay.contract import json_text
from agentpay.contract.endpoints import EXTENSIONS
from agentpay_server.feature import Header
from agentpay_server.http.requests import DisconnectedError, read_body, require_json
from agentpay_server.http.responses import respond
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log
from agentpay_server.plugins.facilitator.settling import (
    DUPLICATE,
    UNDECODABLE,
    CheckedPayment,
    FeePayer,
    InvalidPaymentError,
    Settling,
    check_payment,
    keypair_of,
    pending,
    rpc_of,
)
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.node.methods import Node
from agentpay_server.plugins.pay402.challenges import fields, x402
from agentpay_server.plugins.pay402.challenges.terms import Network, Protocol, UnreadableChallengeError
from agentpay_server.sandbox.faults import FacilitatorFault, RequestFaults

PATH: Final = EXTENSIONS + "/sandbox/x402"
"""The base path, to which sellers' packages append `/supported`, `/verify` and `/settle`."""

Json = dict[str, Any]

logger: logging.Logger = logging.getLogger(__name__)


class Facilitator:
    """The facilitator of a node's chain, as an ASGI application; without `faults` it behaves.

    Its key is derived from the chain, so that challenges issued before a restart remain valid.
    """

    def __init__(
        self, node: Node, *, body_timeout_seconds: float, faults: RequestFaults | None = None
    ) -> None:
        self._fee_payer = FeePayer(keypair_of("facilitator", node.chain.genesis_hash), rpc_of(node))
        self._faults = faults
        self._body_timeout_seconds = body_timeout_seconds
        self._takes_body: Mapping[str, Callable[[bytes], Awaitable[Json]]] = {
            "/verify": self.verify,
            "/settle": self.settle,
        }
        self._settling = Settling(self._fee_payer)

    def supported(self) -> Json:
        """Return which payments are accepted, and the fee payer that challenges must name."""
        extra = {"feePayer": self._fee_payer.address}
        return {
            "kinds": [
                {"x402Version": version, "scheme": x402.EXACT, "network": _network(protocol), "extra": extra}
                for version, protocol in x402.VERSIONS.items()
            ],
            "extensions": [x402.IDENTIFIER],
            "signers": {"solana:*": [self._fee_payer.address]},
        }

    async def verify(self, body: bytes) -> Json:
        try:
            checked = self._checked(*x402.read_request(body))
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
        protocol, requirements, claimed, transaction, payment_id = x402.read_request(body)
        try:
            checked = self._checked(protocol, requirements, claimed, transaction, payment_id)
            signature = await self._settled_or_not(checked)
        except InvalidPaymentError as refused:
            return {
                "success": False,
                "errorReason": refused.reason,
                "errorMessage": str(refused),
                "payer": refused.payer,
                "transaction": refused.transaction,
                "network": requirements["network"],
            }
        return x402.settled(payer=checked.payer, signature=signature, network=requirements["network"])

    def _checked(
        self,
        protocol: Protocol,
        requirements: Mapping[str, Any],
        claimed: Mapping[str, Any],
        transaction: str,
        payment_id: str | None,
    ) -> CheckedPayment:
        """Return a payment, completed with the seller's signature, if it is what the requirements say."""
        network = _network(protocol)
        if (requirements["scheme"], claimed["scheme"]) != (x402.EXACT, x402.EXACT):
            raise InvalidPaymentError("unsupported_scheme", "the scheme must be exact")
        if requirements["network"] != claimed["network"]:
            raise InvalidPaymentError("network_mismatch", "the payment is for another network")
        if claimed["network"] != network:
            raise InvalidPaymentError("invalid_network", f"the network must be {network}")
        try:
            terms = x402.terms_of(requirements, protocol, Network.DEVNET)
            fields.address(requirements, "asset")
        except UnreadableChallengeError as error:
            raise InvalidPaymentError("invalid_payment_requirements", str(error)) from None
        if terms.fee_payer is None:
            raise InvalidPaymentError(
                "invalid_exact_svm_payload_missing_fee_payer", "extra.feePayer is missing"
            )
        if terms.fee_payer != self._fee_payer.address:
            raise InvalidPaymentError(
                "fee_payer_not_managed_by_facilitator",
                f"extra.feePayer must be {self._fee_payer.address}, as GET /supported says",
            )
        try:
            raw = base64.b64decode(transaction, validate=True)
        except ValueError:
            raise InvalidPaymentError(UNDECODABLE, "the transaction is not base64") from None
        checked = check_payment(raw, terms, fee_payers=(self._fee_payer.address,))
        named = () if payment_id is None else ((checked.payer, terms.recipient, x402.IDENTIFIER, payment_id),)
        return evolve(checked, transaction=self._fee_payer.completed(checked.transaction), names=named)

    async def _simulate(self, checked: CheckedPayment) -> None:
        try:
            await self._fee_payer.ready()
            await self._fee_payer.simulate(checked.transaction)
        except RpcError as error:
            raise InvalidPaymentError("transaction_simulation_failed", str(error), checked.payer) from None

    async def _settled_or_not(self, checked: CheckedPayment) -> str:
        """Settle a payment, or do what one armed fault says; a fault counts the payments that it affects."""
        if self._takes(FacilitatorFault.FALSE_SUCCESS):
            return checked.signature
        if self._takes(FacilitatorFault.FORGETS):
            raise pending(checked)
        if self._takes(FacilitatorFault.PENDING):
            await self._settled(checked, waits=False)
            raise pending(checked)
        if self._takes(FacilitatorFault.FALSE_FAILURE):
            await self._settled(checked)
            raise InvalidPaymentError("transaction_failed", "the transaction failed on chain", checked.payer)
        if self._takes(FacilitatorFault.SETTLES_TWICE):
            try:
                return await self._settled(checked)
            except InvalidPaymentError as refused:
                if refused.reason != DUPLICATE:
                    raise
                return checked.signature
        slow = None if self._faults is None else self._faults.take(FacilitatorFault.SLOW)
        try:
            return await self._settled(checked)
        finally:
            await asyncio.sleep(0 if slow is None else (slow.delay_ms or 0) / 1000)

    def _takes(self, fault: FacilitatorFault) -> bool:
        return self._faults is not None and self._faults.take(fault) is not None

    async def _settled(self, checked: CheckedPayment, *, waits: bool = True) -> str:
        """Broadcast a payment that has not landed, and return its signature.

        Of two requests for one payment, one settles: the other is refused while it does, and later because
        the payment has landed.
        """
        try:
            async with self._settling.claimed(checked):
                if await self._fee_payer.has_landed(checked.transaction):
                    raise InvalidPaymentError(DUPLICATE, "this payment has settled", checked.payer)
                await self._simulate(checked)
                self._settling.sent(checked)
                return await self._fee_payer.settle(checked, waits=waits)
        except RpcError as error:
            raise InvalidPaymentError("transaction_failed", str(error), checked.payer) from None

    # --- HTTP

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"].removeprefix(PATH), scope["method"]
        if path == "/supported":
            if method == "GET":
                await _respond(send, 200, self.supported())
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
        except UnreadableChallengeError as error:
            await _respond(send, 400, {"error": f"Not an x402 request: {error}."})
        except Exception as error:  # noqa: BLE001 - a fault of the server, whatever it is
            log(logger, logging.ERROR, "facilitator.failed", exception=error)
            await _respond(send, 500, {"error": "The facilitator failed; the log of the server says why."})
        else:
            await _respond(send, 200, result)


def _network(protocol: Protocol) -> str:
    return x402.NETWORK_NAMES[protocol][Network.DEVNET]


async def _respond(send: Send, status: int, content: dict[str, Any], headers: Sequence[Header] = ()) -> None:
    await respond(send, status, json_text.print_json(content), headers)
