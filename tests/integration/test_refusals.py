"""What a server keeps of a request that it has refused: nothing, however often it is made."""

import gc
from collections.abc import Callable
from types import TracebackType

import httpx
import pytest

from agentpay_server import AgentPayServer

REFUSALS = {
    401: lambda http: http.get("/v1/accounts", headers={"Authorization": "Bearer planted"}),
    404: lambda http: http.get("/v1/planted"),
    413: lambda http: http.post("/v1/accounts", content=b" " * 70_000),
}


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_keeps_nothing_of_the_requests_that_it_refused(
    server: AgentPayServer, http: httpx.Client, status: int
) -> None:
    refused: Callable[[httpx.Client], httpx.Response] = REFUSALS[status]

    def kept_after(count: int) -> int:
        for _ in range(count):
            assert refused(http).status_code == status
        gc.collect()
        # An exception that is raised again and again collects the frames of each time, with all they hold.
        return sum(isinstance(each, TracebackType) for each in gc.get_objects())

    before = kept_after(1)
    assert kept_after(50) < before + 50
