"""The pins of sellers as a resource of the console, an extension."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Unpack

from agentpay._arguments import usdc
from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import payments
from agentpay.contract.payments import PinnedOrigin, PinOrigin


class AsyncOrigins(AsyncResource):
    """What is known of sellers behind HTTP 402: it wins over what they claim. Needs an operator key."""

    async def put(
        self,
        origin: str,
        *,
        category: str | None = None,
        recipients: Iterable[str] | None = None,
        max_amount: Decimal | int | str | None = None,
        blocked: bool = False,
        **options: Unpack[CallOptions],
    ) -> PinnedOrigin:
        """Pin what is known of a seller, in the place of what was.

        Args:
            origin: the seller: scheme, host and port, such as `https://api.example.com`.
            category: spend category of whatever it sells; None leaves it to its challenges.
            recipients: on-chain addresses of owners that may be paid there; None allows all.
            max_amount: the highest price in USDC, with at most 6 decimals; None is no limit. Floats are
                refused.
            blocked: whether nothing is paid there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        body = PinOrigin(
            category=category,
            recipients=None if recipients is None else tuple(recipients),
            max_amount=None if max_amount is None else usdc("max_amount", max_amount),
            blocked=blocked,
        )
        request = prepare(payments.PUT_ORIGIN, path={"origin": origin}, body=body)
        pinned: PinnedOrigin = await self._call(request, options)
        return pinned

    async def get(self, origin: str, **options: Unpack[CallOptions]) -> PinnedOrigin:
        """Read the pin of a seller.

        Args:
            origin: the seller.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            NotFoundError: nothing is pinned.
        """
        pinned: PinnedOrigin = await self._call(
            prepare(payments.GET_ORIGIN, path={"origin": origin}), options
        )
        return pinned

    async def delete(self, origin: str, **options: Unpack[CallOptions]) -> None:
        """Delete the pin of a seller.

        Args:
            origin: the seller.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            NotFoundError: nothing is pinned.
        """
        await self._call(prepare(payments.DELETE_ORIGIN, path={"origin": origin}), options)

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[PinnedOrigin]:
        """List the sellers that are pinned, the one that was pinned last first.

        Args:
            limit: pins per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        return self._pages(payments.LIST_ORIGINS, options, query={"limit": limit, "cursor": cursor})
