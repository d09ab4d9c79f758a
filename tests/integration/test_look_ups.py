"""Look-ups of webhook names: on separate threads, with a limit for each operator.

A name server that does not respond is a resolver that blocks until the test releases it.
"""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from receivers import Receiver

from agentpay_server import AgentPayServer
from agentpay_server.webhooks.http import LOOK_UPS_OF_ONE_OPERATOR, LookUps

SLOW = ".slow.test"


class Resolver:
    """Responds at once, except to names below `slow.test`, for which it blocks until released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._changed = threading.Condition()
        self._is_released = False

    def __call__(self, host: str, _port: int) -> list[str]:
        with self._changed:
            self.asked.append(host)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_released or not host.endswith(SLOW))
        return ["127.0.0.1"]

    def release(self) -> None:
        with self._changed:
            self._is_released = True
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, 120)


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.release()


async def look_up(look_ups: LookUps, host: str, operator_id: str) -> list[str]:
    return await look_ups.addresses(host, 443, operator_id=operator_id)


# --- A few at a time --------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_slow_lookups_of_one_operator_do_not_delay_others(resolver: Resolver) -> None:
    look_ups = LookUps(resolver)
    slow = [asyncio.create_task(look_up(look_ups, f"n{n}{SLOW}", "op_a")) for n in range(40)]
    await asyncio.to_thread(resolver.wait_for, LOOK_UPS_OF_ONE_OPERATOR)

    assert await look_up(look_ups, "quick.test", "op_b") == ["127.0.0.1"]

    assert Counter(host.endswith(SLOW) for host in resolver.asked) == {
        True: LOOK_UPS_OF_ONE_OPERATOR,
        False: 1,
    }
    resolver.release()
    assert await asyncio.gather(*slow) == [["127.0.0.1"]] * 40


@pytest.mark.anyio
async def test_an_abandoned_look_up_keeps_its_slot_until_it_ends(
    resolver: Resolver,
) -> None:
    look_ups = LookUps(resolver)
    given_up = [
        asyncio.create_task(look_up(look_ups, f"n{n}{SLOW}", "op_a")) for n in range(LOOK_UPS_OF_ONE_OPERATOR)
    ]
    await asyncio.to_thread(resolver.wait_for, LOOK_UPS_OF_ONE_OPERATOR)
    for task in given_up:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    waiting = asyncio.create_task(look_up(look_ups, "quick.test", "op_a"))
    assert await look_up(look_ups, "other.test", "op_b") == ["127.0.0.1"]
    assert "quick.test" not in resolver.asked, "its operator's threads are all still blocked"

    resolver.release()
    assert await waiting == ["127.0.0.1"]


@pytest.mark.anyio
async def test_a_resolver_s_exception_reaches_the_caller_and_frees_the_slot() -> None:
    def fail(host: str, _port: int) -> list[str]:
        raise {"gone": socket.gaierror(-2, "x"), "odd": ZeroDivisionError()}[host]

    look_ups = LookUps(fail)
    for _ in range(2 * LOOK_UPS_OF_ONE_OPERATOR):
        with pytest.raises(socket.gaierror):
            await look_up(look_ups, "gone", "op_a")
        with pytest.raises(ZeroDivisionError):
            await look_up(look_ups, "odd", "op_a")


# --- A whole server ---------------------------------------------------------------------------------------


def test_a_slow_name_server_does_not_starve_other_operators(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither other operators' deliveries, nor the event loop's threads, which the chain's client uses."""
    really = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not (isinstance(name, str) and name.endswith(".test")):
            return really(host, port, *args, **options)
        return really(resolver(name, 0)[0], port, *args, **options)

    with AgentPayServer(clock="system") as server, Receiver() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        slow, other = server.client(), server.client(api_key=server.sandbox.create_operator("b").key)
        for number in range(40):
            slow.webhooks.create(url=f"http://n{number}{SLOW}/", events=["transfer.rejected"])
        other.webhooks.create(url=f"http://quick.test:{receiver.port}/hooks", events=["transfer.rejected"])
        for client in (slow, other):
            payer, payee = (client.accounts.create(name=name).account_id for name in "ab")
            with pytest.raises(Exception, match="insufficient_balance"):
                client.transfers.create(from_=payer, to=payee, amount=1)

        assert len(receiver.wait_for(1, timeout=30)) == 1

        async def chain() -> Any:
            return await asyncio.get_running_loop().getaddrinfo("chain.test", 443)

        assert server._running.call(chain(), timeout=30)
        assert httpx.get(f"{server.listen()}/readyz", timeout=30).status_code == 200
        assert sum(host.endswith(SLOW) for host in resolver.asked) == LOOK_UPS_OF_ONE_OPERATOR
        # Before the server closes, so that nothing is left that would be waited for.
        resolver.release()
