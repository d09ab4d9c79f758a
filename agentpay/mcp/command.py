"""`agentpay-mcp`: serve the tools of one account over stdio, or over streamable HTTP with a bearer token.

Exit codes: 0: the host closed the connection; 1: the extra is not installed or the port is in use; 2: the
configuration is invalid, for example an operator key. One sentence on standard error says why.
"""

# The extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import argparse
import atexit
import gc
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import anyio

from agentpay._async.client import AsyncAgentPay
from agentpay._http.plaintext import is_exposed
from agentpay._installation import install_command
from agentpay._pay402.fetching import private_origin
from agentpay._version import __version__
from agentpay.errors import (
    AgentPayError,
    AuthenticationError,
    ConfigurationError,
    NotSupportedError,
    PermissionDeniedError,
)
from agentpay.tools import AsyncAgentTools
from agentpay.tools.reports import OPERATOR_KEY

ORIGINS_VARIABLE = "AGENTPAY_MCP_PRIVATE_ORIGINS"
TOKEN_VARIABLE = "AGENTPAY_MCP_TOKEN"  # noqa: S105 - the name of a variable
START_SECONDS = 10.0
"""Maximum wait for the service at the start, in seconds. After that, the first call retries."""


def run(argv: Sequence[str] | None = None) -> None:
    """Serve until the host closes the connection."""
    options = parser().parse_args(argv)
    # Collecting all that is loaded would only delay the end, by 0.3 s.
    atexit.register(gc.freeze)
    try:
        import mcp  # noqa: F401, PLC0415 - whether the extra is there
    except ModuleNotFoundError as error:
        _end(1, f"{error.name} is not installed: {install_command('mcp')}")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="agentpay-mcp: %(message)s")
    try:
        anyio.run(_serve, options)
    except ConfigurationError as error:
        _end(2, str(error))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parsing = argparse.ArgumentParser(
        prog="agentpay-mcp",
        description="Serve payment tools of one account to a model, over stdio. AGENTPAY_BASE_URL is the "
        "address of the service and AGENTPAY_API_KEY an agent-scoped key of the account.",
    )
    parsing.add_argument("--version", action="version", version=f"agentpay-mcp, version {__version__}")
    parsing.add_argument(
        "--allow-private-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="Origin that fetch_paid may fetch although its address is private or it uses http, such as "
        "http://127.0.0.1:8000, or http://127.0.0.1:* for every port. Repeatable; the variable "
        f"{ORIGINS_VARIABLE} holds further ones, separated by commas. By default only public addresses are "
        "fetched, over https.",
    )
    parsing.add_argument(
        "--http",
        action="store_true",
        help=f"Serve streamable HTTP at /mcp instead of stdio. Requests need the bearer token in "
        f"{TOKEN_VARIABLE}; without that variable, a new token is printed with the address.",
    )
    parsing.add_argument(
        "--host", type=_host, default="127.0.0.1", help="Address for --http (default: %(default)s)."
    )
    parsing.add_argument(
        "--port",
        type=_port,
        default=8403,
        help="Port for --http; 0 chooses a free one (default: %(default)s).",
    )
    parsing.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="HOST",
        help="Host header to accept with --http in addition to loopback names, such as tools.example.com. "
        "Repeatable.",
    )
    return parsing


def _host(text: str) -> str:
    if not text.strip():
        # It would be every address of the machine.
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return port


async def _serve(options: argparse.Namespace) -> None:
    async with AsyncAgentPay(app_info=f"agentpay-mcp/{__version__}") as client:
        # The client would send its key with a warning that no host shows.
        if is_exposed(client.base_url):
            raise ConfigurationError(
                f"AGENTPAY_BASE_URL is {client.base_url}, plain http to another machine, where others can "
                "read the API key: use an https address, with TLS in front of the server"
            )
        tools = AsyncAgentTools(client, private_origins=_private_origins(options))
        await _check_key(tools, client)
        if options.http:
            await _serve_http(tools, options)
        else:
            await _serve_stdio(tools)


def _private_origins(options: argparse.Namespace) -> list[str]:
    """Return the origins that the server's options and environment allow to be private.

    Raises:
        ConfigurationError: a value is not an origin.
    """
    listed = os.environ.get(ORIGINS_VARIABLE, "").split(",")
    try:
        return [
            private_origin(each.strip()) for each in (*options.allow_private_origin, *listed) if each.strip()
        ]
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


async def _check_key(tools: AsyncAgentTools, client: AsyncAgentPay) -> None:
    """Refuse a key that is not an agent key.

    Raises:
        ConfigurationError: it is an operator key, is invalid, or the service cannot identify it.
    """
    if os.environ.get("AGENTPAY_API_KEY", "").startswith(("ap_operator_", "ap_console_")):
        raise ConfigurationError(OPERATOR_KEY)  # even while the service does not respond
    try:
        identity = await client.whoami(total_timeout=START_SECONDS)
    except (AuthenticationError, PermissionDeniedError) as error:
        raise ConfigurationError(f"the service refuses AGENTPAY_API_KEY: {error}") from None
    except NotSupportedError:
        raise ConfigurationError(
            "the service at AGENTPAY_BASE_URL does not report the account of a key (GET /ext/v1/whoami)"
        ) from None
    except ConfigurationError:
        raise  # such as a proxy that cannot be used
    except AgentPayError as error:
        logging.getLogger("agentpay.mcp").warning("the service does not respond yet: %s", error)
        return
    tools.bind(identity)


async def _serve_stdio(tools: AsyncAgentTools) -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - of the extra

    from agentpay.mcp.serving import server  # noqa: PLC0415 - of the extra

    serving = server(tools)
    async with stdio_server() as (reading, writing):
        await serving.run(reading, writing, serving.create_initialization_options())


async def _serve_http(tools: AsyncAgentTools, options: argparse.Namespace) -> None:
    import uvicorn  # noqa: PLC0415 - of the extra

    from agentpay.mcp.serving import PATH, bearer_app, server  # noqa: PLC0415 - of the extra

    given = os.environ.get(TOKEN_VARIABLE)
    if given is not None and (len(given) < 16 or not given.isascii() or " " in given):
        raise ConfigurationError(f"{TOKEN_VARIABLE} must have at least 16 ASCII characters and no blanks")
    token = given or secrets.token_urlsafe(32)
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listening = socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        _end(1, f"cannot listen on {where} ({error.strerror}); pass another --host or --port")
    port = listening.getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    told = {"url": f"http://{host}:{port}{PATH}", "token": None if given else token}
    print(json.dumps(told), flush=True)  # noqa: T201 - what a program that starts it reads
    app = bearer_app(server(tools), token, host=options.host, allowed_hosts=tuple(options.allowed_host))
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # At Ctrl-C, without waiting: hosts keep streams open.
            self.force_exit = sig == signal.SIGINT
            super().handle_exit(sig, frame)

    await Server(config).serve(sockets=[listening])


def _end(code: int, sentence: str) -> NoReturn:
    print(f"agentpay-mcp: {sentence}", file=sys.stderr)  # noqa: T201 - standard error is its user interface
    sys.exit(code)
