"""From `AgentPayServer()` to the first response, chain included, warm: bound in milliseconds, not in a ratio.

The floor is creating LiteSVM's virtual machine, which is most of a first start. Compared over a port, as they
are used, with the servers that other test suites start, if these are installed: they must take longer.
"""

import importlib.util
import logging

import httpx
from harness import Result, compare
from solders.litesvm import LiteSVM

from agentpay_server import AgentPayServer

BOUND_MS = 15.0
# Made once: what a client takes to start is no part of it.
HTTP = httpx.Client()
logging.getLogger("werkzeug").setLevel(logging.ERROR)


def run() -> list[Result]:
    """Return how long a start takes, as a multiple of a virtual machine's, and of others' starts."""

    def start() -> None:
        with AgentPayServer() as server:
            server.client().accounts.list()

    result = compare(
        "AgentPayServer() to first answer, and close", subject=start, floor=LiteSVM, bound=None, calls=5
    )
    verdict = "ok" if result.subject_us <= BOUND_MS * 1000 else "MISSED"
    name = f"{result.name} (at most {BOUND_MS:.0f} ms: {verdict})"
    peers = {"moto": ("moto's server", _moto), "pytest_httpserver": ("pytest-httpserver", _httpserver)}
    return [
        Result(name, result.subject_us, result.floor_us, result.ratio, None),
        *(
            compare(f"start over a port vs {name}", subject=_over_a_port, floor=peer, bound=1.0, calls=3)
            for module, (name, peer) in peers.items()
            if importlib.util.find_spec(module) is not None
        ),
    ]


def _over_a_port() -> None:
    with AgentPayServer() as server:
        assert HTTP.get(f"{server.listen()}/healthz").status_code == 200


def _moto() -> None:
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - where it is installed

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        assert HTTP.get(f"http://{host}:{port}/moto-api/data.json").status_code == 200
    finally:
        server.stop()


def _httpserver() -> None:
    from pytest_httpserver import HTTPServer  # noqa: PLC0415 - where it is installed

    server: HTTPServer
    with HTTPServer(host="127.0.0.1", port=0) as server:
        server.expect_request("/healthz").respond_with_json({})
        assert HTTP.get(server.url_for("/healthz")).status_code == 200


if __name__ == "__main__":
    from harness import print_table

    print_table(run())
