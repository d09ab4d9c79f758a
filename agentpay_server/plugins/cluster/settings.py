"""The settings of the RPC chain: how to reach a cluster, and how to use it, with defaults."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from attrs import Attribute, field, frozen, validators

from agentpay_server.chain.protocol import MOST_COMPUTE_UNITS
from agentpay_server.platform.settings import Bounds, option

FEE_PAYER_VARIABLE: Final = "AGENTPAY_SERVER_FEE_PAYER_KEY"
MINT_AUTHORITY_VARIABLE: Final = "AGENTPAY_SERVER_MINT_AUTHORITY_KEY"

_MOST_MICRO_LAMPORTS: Final = 2**64 - 1


class Finality(StrEnum):
    """The commitment at which a transaction counts as settled (interface T12)."""

    CONFIRMED = "confirmed"
    """Two thirds of the stake have voted for its block, which takes less than a second."""

    FINALIZED = "finalized"
    """Its block is irreversible, about 13 seconds later."""


def _url(*schemes: str) -> Callable[[object, "Attribute[str]", str], None]:
    def check(_: object, attribute: "Attribute[str]", value: str) -> None:
        try:
            url = urlsplit(value)
            # Reading the port checks it.
            if value.isprintable() and url.scheme in schemes and url.hostname and url.port != 0:
                return
        except ValueError:
            pass
        # Without the URL: it may hold a key.
        raise ValueError(f"{attribute.name} must be a URL with {' or '.join(schemes)} and a host")

    return check


@frozen(kw_only=True)
class RpcSettings:
    """An endpoint, and how to use it.

    Attributes:
        url: the JSON-RPC endpoint; not in `repr`, because providers put their keys into it.
        websocket_url: the endpoint's websocket; None for none. It only shortens waiting.
        finality: when a transaction counts as settled.
        allow_mainnet: whether real money is allowed.
        usdc_mint: the mint to use on a cluster without Circle's USDC; None for the same address as on
            mainnet.
        timeout_seconds: timeout of any call, including the wait for a connection.
        max_connections: maximum connections to the endpoint.
        blockhash_seconds: how long a blockhash is used for new transactions; None for the time of five
            blocks, at the observed pace of the cluster, and at most 5 s.
        landing_seconds: typical time until a transaction is confirmed: its status is requested no earlier,
            unless the websocket notifies. None for the time by which three quarters of the last transactions
            were, from 0.05 to 2 s; at first, for the time of a block.
        status_interval_seconds: pause between two requests for the statuses of all waiting transactions.
        compute_unit_limit: maximum compute units of a transaction. The default is about three times the need
            of the largest transaction; simulated ones get one and a half times what the simulation used.
        priority_fee_micro_lamports: offered for each compute unit; if this and the cap are 0, transactions
            have no compute budget.
        priority_fee_cap_micro_lamports: if set, the offer follows recent market prices, from
            `priority_fee_micro_lamports` up to this; 0 for a fixed offer.
        deposit_interval_seconds: pause between two scans for deposits.
        fee_payer_key: the 64 bytes of the key that pays fees and rents; None for a key of the server, whose
            address is logged until it holds SOL.
        mint_authority_key: the 64 bytes of the key that mints on a private cluster; None for a key of the
            server.
    """

    url: str = field(
        repr=False,
        validator=_url("http", "https"),
        metadata=option(
            "--rpc-url",
            "JSON-RPC endpoint of a Solana cluster to use instead of the embedded chain. Providers put a key "
            "into it.",
            variable="AGENTPAY_SERVER_RPC_URL",
            metavar="URL",
            is_secret=True,
        ),
    )
    websocket_url: str | None = field(
        default=None,
        repr=False,
        validator=validators.optional(_url("ws", "wss")),
        metadata=option(
            "--rpc-websocket-url",
            "WebSocket endpoint of the same node; reduces latency. Providers put a key into it.",
            variable="AGENTPAY_SERVER_RPC_WEBSOCKET_URL",
            metavar="URL",
            is_secret=True,
        ),
    )
    timeout_seconds: float = field(
        default=10.0,
        validator=Bounds(above=0),
        metadata=option("--rpc-timeout", "Longest duration of one call to the endpoint."),
    )
    finality: Finality = field(
        default=Finality.CONFIRMED,
        converter=Finality,
        metadata=option("--finality", "When a transfer counts as settled on a cluster."),
    )
    allow_mainnet: bool = field(
        default=False, metadata=option("--allow-mainnet", "Allow mainnet, where money is real.")
    )
    usdc_mint: str | None = field(
        default=None,
        metadata=option(
            "--usdc-mint",
            "Mint to use on a cluster without Circle's USDC.",
            metavar="ADDRESS",
            default="the address of mainnet's USDC",
        ),
    )
    max_connections: int = field(default=128, validator=Bounds(at_least=1))
    blockhash_seconds: float | None = field(
        default=None, validator=Bounds(at_least=0, at_most=20, or_none=True)
    )
    landing_seconds: float | None = field(default=None, validator=Bounds(at_least=0, or_none=True))
    status_interval_seconds: float = field(default=0.05, validator=Bounds(at_least=0))
    deposit_interval_seconds: float = field(default=10.0, validator=Bounds(above=0))
    fee_payer_key: bytes | None = field(
        default=None,
        repr=False,
        metadata=option(
            "--fee-payer-key-file",
            f"solana-keygen file of the key that pays fees and rent; or put its content into "
            f"{FEE_PAYER_VARIABLE}.",
            variable=FEE_PAYER_VARIABLE,
            default="a key that the server creates",
        ),
    )
    mint_authority_key: bytes | None = field(
        default=None,
        repr=False,
        metadata=option(
            "--mint-authority-key-file",
            "solana-keygen file of the key that mints for the sandbox, on your own cluster; or put its "
            f"content into {MINT_AUTHORITY_VARIABLE}.",
            variable=MINT_AUTHORITY_VARIABLE,
            default="a key that the server creates",
        ),
    )
    priority_fee_micro_lamports: int = field(
        default=0,
        validator=Bounds(at_least=0, at_most=_MOST_MICRO_LAMPORTS),
        metadata=option("--priority-fee", "Priority fee per compute unit.", metavar="MICRO_LAMPORTS"),
    )
    priority_fee_cap_micro_lamports: int = field(
        default=0,
        validator=Bounds(at_least=0, at_most=_MOST_MICRO_LAMPORTS),
        metadata=option(
            "--priority-fee-cap",
            "Raise the priority fee to what other transactions recently paid, from --priority-fee up to "
            "this.",
            metavar="MICRO_LAMPORTS",
            default="off",
        ),
    )
    compute_unit_limit: int = field(
        default=60_000,
        validator=Bounds(at_least=1, at_most=MOST_COMPUTE_UNITS),
        metadata=option(
            "--compute-unit-limit",
            "Largest number of compute units of a transaction. Applies with a priority fee; a simulation "
            "may lower it.",
            metavar="UNITS",
        ),
    )

    def __attrs_post_init__(self) -> None:
        if 0 < self.priority_fee_cap_micro_lamports < self.priority_fee_micro_lamports:
            raise ValueError("the cap of the priority fee must not be below the priority fee")
