"""A Python that has loaded all that a server needs, and forks one for every order; see `loaded_python.py`."""

import gc
import json
import os
import runpy
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # noqa: F401 - loaded for the children
import sqlalchemy.dialects.postgresql.asyncpg  # noqa: F401

from agentpay.cli import webhooks  # noqa: F401 - loaded for the children
from agentpay_server import AgentPayServer
from agentpay_server.cli import demo, process, serve  # noqa: F401
from agentpay_server.plugins.postgres import database as postgres  # noqa: F401
from agentpay_server.plugins.scenes import demo_world  # noqa: F401


def warm_up() -> None:
    """Serve once, so that the children find everything loaded and every statement compiled."""
    with tempfile.TemporaryDirectory() as directory, AgentPayServer(data_dir=Path(directory)) as server:
        server.listen()
        client = server.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        server.sandbox.fund(payer.account_id, "1")
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
        client.policies.update(payer.account_id, max_single_transfer=1)
        server.sandbox.clock.advance(0)
    # A fork takes no thread along, and what a thread holds is held for ever.
    assert threading.active_count() == 1


def fork_for_each_order(orders: socket.socket) -> None:
    """Fork for every order; it comes with the streams of the child, and a pipe for its pid and its status."""
    while True:
        line, given, *_ = socket.recv_fds(orders, 65536, 4)
        if not line:
            return
        while not line.endswith(b"\n"):
            line += orders.recv(65536)
        order = json.loads(line)
        for module in order["loads"]:
            import_module(module)
        if os.fork() == 0:
            orders.close()
            _run(order, *given)
            return
        for number in given:
            os.close(number)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _run(order: dict[str, Any], source: int, out: int, err: int, report: int) -> None:
    """Run what an order asks for in a child of this process, and report on it."""
    pid = os.fork()
    if pid:
        _tell(report, pid)
        _tell(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    for stream, number in enumerate((source, out, err)):
        os.dup2(number, stream)
    for number in (source, out, err, report):
        os.close(number)
    _be(order)


def _tell(report: int, number: int) -> None:
    os.write(report, f"{number}\n".encode())


def _be(order: dict[str, Any]) -> None:
    """Be the interpreter that an order asks for, up to its end."""
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, errors="backslashreplace", buffering=1)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    option, what, *arguments = order["arguments"]
    sys.argv = [what, *arguments]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})


if __name__ == "__main__":
    warm_up()
    gc.freeze()  # The children neither collect nor copy what they share.
    fork_for_each_order(socket.socket(fileno=int(sys.argv[1])))
