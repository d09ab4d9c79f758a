"""The compute budget of transactions: limits from simulations, and a fixed or market price.

A transaction of a new shape is simulated before it is first sent. Later ones of that shape get a limit of its
measured use with a margin. So a limit costs one call per shape, and signed bytes never change. Without a
measurement, the limit is that of the settings.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from types import MappingProxyType
from typing import Final

from agentpay_server.chain.protocol import ChainUnreachableError, ComputeBudget
from agentpay_server.plugins.cluster.settings import RpcSettings

_PRICE_SECONDS: Final = 10.0
_LEARNED_SECONDS: Final = 3_600.0
"""How long a shape's measured use is valid, because programs are upgraded occasionally."""

_TRIED_SECONDS: Final = 60.0
"""Pause before simulating a shape again after a simulation without a result."""

_MARGIN: Final = 1.5
"""Margin, because transactions of one shape differ slightly in the length of their texts."""


class Budgets:
    """Measures what transactions need, and follows market prices.

    `recent_prices` returns recently paid prices, in micro-lamports per compute unit.
    """

    def __init__(
        self,
        settings: RpcSettings,
        simulate: Callable[[bytes], Awaitable[int | None]],
        recent_prices: Callable[[], Awaitable[Sequence[int]]],
    ) -> None:
        self._most_units = settings.compute_unit_limit
        self._least_price = settings.priority_fee_micro_lamports
        self._most_price = settings.priority_fee_cap_micro_lamports
        self._simulate = simulate
        self._recent_prices = recent_prices
        self._limits: dict[str, int] = {}
        self._again_at: dict[str, float] = {}
        self._price = self._least_price
        self._asked_at = -math.inf
        self._asking: asyncio.Task[None] | None = None

    @property
    def are_said(self) -> bool:
        """Whether transactions have a compute budget."""
        return bool(self._least_price or self._most_price)

    def current(self) -> ComputeBudget | None:
        """Return the compute budget of new transactions, or None. Never waits for a price."""
        if self._most_price:
            self._follow()
        if not self._price:
            return None
        return ComputeBudget(
            unit_limit=self._most_units,
            unit_price_micro_lamports=self._price,
            unit_limits=MappingProxyType(self._limits),
        )

    async def learn(self, shape: str | None, raw: bytes) -> None:
        """Measure the use of a signed transaction before it is sent, unless its shape is known or None."""
        now = asyncio.get_running_loop().time()
        if not self.are_said or shape is None or now < self._again_at.get(shape, -math.inf):
            return
        self._again_at[shape] = now + _TRIED_SECONDS
        try:
            units = await self._simulate(raw)
        except ChainUnreachableError:
            return
        if units:
            used = math.ceil(units * _MARGIN)
            self._limits[shape] = min(max(used, self._limits.get(shape, 0)), self._most_units)
            self._again_at[shape] = now + _LEARNED_SECONDS

    def forget(self, shape: str | None) -> None:
        """Discard the measured limit of a shape after a transaction needed more."""
        if shape is not None:
            self._limits.pop(shape, None)

    def close(self) -> None:
        """Stop asking for prices."""
        if self._asking is not None:
            self._asking.cancel()

    def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        if (self._asking is None or self._asking.done()) and loop.time() >= self._asked_at + _PRICE_SECONDS:
            self._asked_at = loop.time()
            self._asking = loop.create_task(self._ask())

    async def _ask(self) -> None:
        try:
            prices = sorted(await self._recent_prices())
        except ChainUnreachableError:
            return
        # The price that suffices in at least three of four slots.
        others = prices[len(prices) * 3 // 4] if prices else 0
        self._price = min(max(self._least_price, others), self._most_price)
