"""Faults between the service and a node, the calls they can affect, and a service to test them on."""

from typing import Any

import pytest
import rpc_proxy
from rpc_proxy import Act, RpcProxy

TIMEOUT_SECONDS = 0.6

FAULTS: dict[str, Act] = {
    "request lost": rpc_proxy.request_lost,
    "reply lost": rpc_proxy.reply_lost,
    "delivered twice": rpc_proxy.delivered_twice,
    "silent": rpc_proxy.silent,
    "delayed": rpc_proxy.delayed(0.2),
    "delayed beyond the bound": rpc_proxy.delayed(TIMEOUT_SECONDS * 1.5),
    "rate limited": rpc_proxy.rate_limited,
    "overloaded": rpc_proxy.overloaded,
    "crashed": rpc_proxy.crashed,
    "garbled": rpc_proxy.garbled,
    "unhealthy": rpc_proxy.unhealthy,
}
TRANSFER_CALLS = (
    "getMultipleAccounts",
    "getLatestBlockhash",
    "sendTransaction",
    "getSignatureStatuses",
    "getEpochInfo",
)
ACCOUNT_CALLS = (*TRANSFER_CALLS, "getMinimumBalanceForRentExemption")
IN_EVERY_RUN = {("sendTransaction", "reply lost"), ("getSignatureStatuses", "rate limited")}


def combinations(calls: tuple[str, ...]) -> list[Any]:
    """Return every fault at every call; but for a few, they are for `nox -s validator`."""
    return [
        pytest.param(call, fault, marks=[] if (call, fault) in IN_EVERY_RUN else pytest.mark.validator)
        for call in calls
        for fault in FAULTS
    ]


def arm(proxy: RpcProxy, call: str, *acts: Act) -> None:
    """Let acts stand in for the next requests of a call, and see to it that the call is made."""
    proxy.next(call, *acts)
    if call == "getEpochInfo":
        # The height matters, and is asked for, only where a transaction is not to be seen.
        proxy.next("sendTransaction", rpc_proxy.request_lost)
