"""A port answers at once, also on a connection that is kept."""

import asyncio
import socket

import httpx

from agentpay import AgentPay, AsyncAgentPay
from agentpay_server import AgentPayServer
from agentpay_server.embedded.listener import bound_socket


def test_a_connection_never_holds_an_answer_back_for_an_acknowledgement() -> None:
    # With Nagle's algorithm on, an answer of two writes waits for the caller's delayed acknowledgement.
    async def accepted_option() -> int:
        options: asyncio.Queue[int] = asyncio.Queue()

        async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            options.put_nowait(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        sock = bound_socket("127.0.0.1", 0)
        async with await asyncio.start_server(connected, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            option = await options.get()
            writer.close()
            await writer.wait_closed()
            return option

    assert asyncio.run(accepted_option())


def test_clients_with_transports_of_their_own_keep_one_connection(server: AgentPayServer) -> None:
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
