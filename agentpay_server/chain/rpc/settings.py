"""The settings of the RPC chain: how to reach a cluster, and how to use it, with defaults."""

from collections.abc import Callable
from enum import StrEnum
from urllib.parse import urlsplit

from attrs import Attribute, field, frozen, validators

from agentpay_server.chain.protocol import MOST_COMPUTE_UNITS


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
            unless the websocket notifies. None for the time of a block, and at most 1 s.
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

    url: str = field(repr=False, validator=_url("http", "https"))
    websocket_url: str | None = field(
        default=None, repr=False, validator=validators.optional(_url("ws", "wss"))
    )
    finality: Finality = field(default=Finality.CONFIRMED, converter=Finality)
    allow_mainnet: bool = False
    usdc_mint: str | None = None
    timeout_seconds: float = field(default=10.0, validator=validators.gt(0))
    max_connections: int = field(default=32, validator=validators.ge(1))
    blockhash_seconds: float | None = field(
        default=None, validator=validators.optional(validators.and_(validators.ge(0), validators.le(20)))
    )
    landing_seconds: float | None = field(default=None, validator=validators.optional(validators.ge(0)))
    status_interval_seconds: float = field(default=0.05, validator=validators.ge(0))
    compute_unit_limit: int = field(
        default=60_000, validator=validators.and_(validators.ge(1), validators.le(MOST_COMPUTE_UNITS))
    )
    priority_fee_micro_lamports: int = field(
        default=0, validator=validators.and_(validators.ge(0), validators.lt(2**64))
    )
    priority_fee_cap_micro_lamports: int = field(
        default=0, validator=validators.and_(validators.ge(0), validators.lt(2**64))
    )
    deposit_interval_seconds: float = field(default=10.0, validator=validators.gt(0))
    fee_payer_key: bytes | None = field(default=None, repr=False)
    mint_authority_key: bytes | None = field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        if 0 < self.priority_fee_cap_micro_lamports < self.priority_fee_micro_lamports:
            raise ValueError("the cap of the priority fee must not be below the priority fee")
