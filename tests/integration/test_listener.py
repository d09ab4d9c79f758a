"""A port responds at once, also on a kept-alive connection."""

import asyncio
import socket

import httpx
from peers import GET_HEALTH, Peer

from agentpay import AgentPay, AsyncAgentPay
from agentpay_server import AgentPayServer


def test_accepted_connections_disable_nagle(server: AgentPayServer) -> None:
    # With Nagle's algorithm on, an answer of two writes waits for the caller's delayed acknowledgement.
    with Peer(server.listen()) as peer:
        assert peer.send(GET_HEALTH).answer().status == 200
        assert server._running is not None
        (listener,) = server._running._listeners
        (connection,) = listener.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_clients_with_given_transports_reuse_one_connection(server: AgentPayServer) -> None:
    url = server.listen()
    pool = httpx.HTTPTransport(limits=httpx.Limits(max_connections=1))
    with AgentPay(api_key=server.operator_key, base_url=url, transport=pool) as client:
        accounts = [client.accounts.create(name=f"n{number}") for number in range(3)]
        # A connection that an answer was not read from to its end would not serve the next request.
        assert [client.accounts.get(each.account_id) for each in accounts] == accounts

    async def read() -> list[object]:
        pool = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
        async with AsyncAgentPay(api_key=server.operator_key, base_url=url, transport=pool) as client:
            return list(await asyncio.gather(*(client.accounts.get(each.account_id) for each in accounts)))

    assert asyncio.run(read()) == accounts
