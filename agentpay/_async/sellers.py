"""The sellers resource, an extension: what the operator allows each seller to be paid."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Unpack

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._calls.options import CallOptions
from agentpay.contract.ext import payments
from agentpay.contract.ext.payments import PinnedSeller


class AsyncSellers(AsyncResource):
    """Pins of sellers, which override their challenges. All need an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[PinnedSeller]:
        """List the pinned sellers, the last pinned first.

        Args:
            limit: sellers per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(payments.LIST_SELLERS, locals(), options)

    async def put(
        self,
        origin: str,
        *,
        category: str | None = None,
        recipients: Sequence[str] | None = None,
        max_amount: Decimal | int | str | None = None,
        blocked: bool = False,
        sponsor_fees: bool = False,
        **options: Unpack[CallOptions],
    ) -> PinnedSeller:
        """Pin a seller: the pin overrides what the seller's challenges claim.

        The whole pin is replaced, including omitted fields.

        Args:
            origin: the seller: scheme, host and port, such as `https://api.example.com`.
            category: spend category of all its products, 1 to 64 characters.
            recipients: on-chain addresses of owners that may be paid there; None allows all.
            max_amount: the highest price in USDC; None means no limit. Floats are refused.
            blocked: whether to block payments to it.
            sponsor_fees: whether the service pays the network fee if an x402 challenge names no fee payer.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            InvalidRequestError: the request is invalid; `details` lists every fault.
        """
        return await self._call(payments.PUT_SELLER, locals(), options)

    async def get(self, origin: str, **options: Unpack[CallOptions]) -> PinnedSeller:
        """Read the pin of a seller.

        Args:
            origin: the seller, such as `https://api.example.com`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: the seller is not pinned.
        """
        return await self._call(payments.GET_SELLER, locals(), options)

    async def delete(self, origin: str, **options: Unpack[CallOptions]) -> None:
        """Delete the pin of a seller.

        Args:
            origin: the seller, such as `https://api.example.com`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: the seller is not pinned.
        """
        await self._call(payments.DELETE_SELLER, locals(), options)
