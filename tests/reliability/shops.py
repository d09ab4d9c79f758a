"""Sellers that outlive servers which are killed: their keys are known, and a test moves their clock."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from killing import Prepared

from agentpay_server.paywall import Paywall
from agentpay_server.platform.clock import SECOND_US, SystemClock
from agentpay_server.plugins.facilitator.settling import keypair_of
from agentpay_server.plugins.paywall.homes import NodeHome


def know_keys(patch: pytest.MonkeyPatch) -> None:
    """Let each seller have the same keys whenever it opens."""
    patch.setattr(NodeHome, "keypair", lambda _, name: keypair_of("kill tests", name))


def move(shop: Paywall, rpc_url: str) -> None:
    """Let a seller broadcast to another node from now on."""
    home: Any = shop._home
    home._url = rpc_url


def visited(it: Prepared, opened: Callable[..., AbstractContextManager[Paywall]], path: str) -> None:
    """Have a seller, opened next to a node of a place, come to what it needs to be paid."""
    with pytest.MonkeyPatch.context() as patch, it.served() as server:
        know_keys(patch)
        with opened(rpc_url=server.rpc_url) as shop:
            http = httpx.Client(transport=shop.transport(), base_url=shop.base_url)
            assert http.get(path).status_code == 402


class ShopClock(SystemClock):
    """The seller's time, which a test can advance."""

    def __init__(self) -> None:
        self._ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self._ahead_us

    def advance(self, seconds: float) -> None:
        self._ahead_us += int(seconds * SECOND_US)
