"""A port answers at once, also on a connection that is kept."""

import asyncio
import socket

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
