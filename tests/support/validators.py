"""On which chain the servers of a test run work: the one within them, or a real validator.

`pytest --chain surfpool` runs on one all tests that do not say themselves which chain: their servers work on
Surfpool, a new one for each module, since it slows down with its age. `pytest --chain embedded-rpc` does so
with an embedded chain outside the servers, which they reach by its JSON-RPC. What needs the chain within the
server says so with the marker `embedded_chain`, and why; or with `embedded_only`, from some point on.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import pytest
from attrs import evolve, field, mutable

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY

if TYPE_CHECKING:
    from agentpay_server.plugins.cluster.settings import RpcSettings


class Validator(Protocol):
    """A JSON-RPC endpoint.

    Attributes:
        url: of its endpoint.
        websocket_url: of its WebSocket.
    """

    url: str
    websocket_url: str


@mutable
class Run:
    """The options and resources of this test run.

    Attributes:
        kind: embedded, surfpool or embedded-rpc.
    """

    kind: str = "embedded"
    _running: Validator | None = None
    _opened: ExitStack = field(factory=ExitStack)

    def validator(self) -> Validator:
        """Return the validator of the module, started if none runs."""
        if self._running is None:
            self._running = self._opened.enter_context(
                _surfpool() if self.kind == "surfpool" else _embedded_node()
            )
        return self._running

    def stop(self) -> None:
        """End the validator, if one runs."""
        self._running = None
        self._opened.close()


run = Run()


@contextmanager
def _surfpool() -> Iterator[Validator]:
    import rpc_world  # noqa: PLC0415 - it needs the plug-in of clusters
    import surfpool  # noqa: PLC0415 - as above

    with surfpool.running() as node:
        rpc_world.prepare(node)
        yield node


@contextmanager
def _embedded_node() -> Iterator[Validator]:
    import embedded_node  # noqa: PLC0415 - it needs the plug-in of the node
    import rpc_world  # noqa: PLC0415 - as above

    custody = rpc_world.new_custody()
    with embedded_node.running(custody.address(TREASURY), custody.address(TEST_MINT_AUTHORITY)) as node:
        yield node


def rpc_settings(validator: Validator, **settings: Any) -> "RpcSettings":
    """Return how a server works on a validator that `rpc_world.prepare` has prepared."""
    import rpc_world  # noqa: PLC0415 - as above

    from agentpay_server.plugins.cluster.settings import RpcSettings  # noqa: PLC0415 - as above

    defaults = {
        "url": validator.url,
        "websocket_url": validator.websocket_url,
        "landing_seconds": 0.05,
        "status_interval_seconds": 0.01,
        "deposit_interval_seconds": 0.5,
        "fee_payer_key": rpc_world.GIVEN[TREASURY],
        "mint_authority_key": rpc_world.GIVEN[TEST_MINT_AUTHORITY],
    }
    return RpcSettings(**{**defaults, **settings})


def placed(config: ServerConfig) -> ServerConfig:
    """Return the arguments that make a server use the validator of this run instead of an embedded chain."""
    if config.rpc is None and run.kind != "embedded":
        return evolve(config, rpc=rpc_settings(run.validator()))
    return config


def embedded_only(reason: str) -> None:
    """Skip a test, or the rest of it, where there is no chain within the server.

    Args:
        reason: what it needs of that chain.
    """
    if run.kind != "embedded":
        pytest.skip(f"needs the embedded chain: {reason}")


def is_embedded() -> bool:
    """Whether the servers of this run have their chain within them."""
    return run.kind == "embedded"


def explorer_url(signature: str) -> str:
    """Return where the explorer shows a transaction of the chain that servers work on."""
    # A path is left out, since providers put their keys there.
    url = "http://localhost:8899" if is_embedded() else run.validator().url.partition("/ext/v1/sandbox/")[0]
    return f"https://explorer.solana.com/tx/{signature}?cluster=custom&customUrl={quote(url, safe='')}"
