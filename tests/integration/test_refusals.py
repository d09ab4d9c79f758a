"""A server keeps nothing of refused requests, however many there are."""

import gc
import traceback
from collections.abc import Callable

import httpx
import pytest

from agentpay_server import AgentPayServer

REFUSALS = {
    401: lambda http: http.get("/v1/accounts", headers={"Authorization": "Bearer planted"}),
    404: lambda http: http.get("/v1/planted"),
    413: lambda http: http.post("/v1/accounts", content=b" " * 70_000),
}


def is_error_of_ours(kind: type) -> bool:
    return issubclass(kind, BaseException) and kind.__module__.startswith("agentpay_server.")


@pytest.mark.parametrize("status", REFUSALS)
def test_refusals_do_not_keep_requests_in_memory(
    server: AgentPayServer, http: httpx.Client, status: int
) -> None:
    refused: Callable[[httpx.Client], httpx.Response] = REFUSALS[status]

    def longest_after(count: int) -> int:
        for _ in range(count):
            assert refused(http).status_code == status
        # A refusal that is raised again and again collects the frames of each time, with all they hold.
        # Ask the type, not the object: a lazy object of another library would start to load.
        problems = [each for each in gc.get_objects() if is_error_of_ours(type(each))]
        return max((sum(1 for _ in traceback.walk_tb(each.__traceback__)) for each in problems), default=0)

    assert longest_after(50) < 50
