"""How a cluster is reached and what is asked of it: the settings of the RPC chain, with their defaults."""

from collections.abc import Callable
from enum import StrEnum
from urllib.parse import urlsplit

from attrs import Attribute, field, frozen, validators

from agentpay_server.chain.protocol import MOST_COMPUTE_UNITS


class Finality(StrEnum):
    """When a transaction counts as settled (interface T12)."""

    CONFIRMED = "confirmed"
    """Two thirds of the stake have voted for its block, which takes less than a second."""

    FINALIZED = "finalized"
    """Its block can no longer be undone, some 13 seconds later."""


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
    """An endpoint, and how it is used.

    Attributes:
        url: of the JSON-RPC endpoint; kept out of `repr`, because providers put their keys into it.
        websocket_url: of its websocket; None if there is none. It only saves waiting.
        finality: when a transaction counts as settled.
        allow_mainnet: whether real money is meant.
        usdc_mint: the mint to use on a cluster without Circle's USDC; None for the address it has on mainnet.
        timeout_seconds: how long any call may take, its wait for a connection included.
        max_connections: connections to the endpoint at most.
        blockhash_seconds: how long a blockhash is used for new transactions; None for the time of five
            blocks, at the pace that the cluster shows, and 5 s at most.
        landing_seconds: how long a transaction takes to be confirmed, about: after a send its status is asked
            for no earlier, unless the websocket says so. None for the time of a block, and 1 s at most.
        status_interval_seconds: pause between two questions about all waiting transactions together.
        compute_unit_limit: compute units that a transaction may use at most. The default is some three times
            what the largest of ours used; those that were simulated may use half as much again as that told.
        priority_fee_micro_lamports: offered for each of these units; at 0 nothing is said of either.
        priority_fee_cap_micro_lamports: with it the offer follows what others paid of late, from
            `priority_fee_micro_lamports` up to this; 0 for one that is always the same.
        deposit_interval_seconds: pause between two looks for money that came into the accounts.
        fee_payer_key: the 64 bytes of the key that pays fees and rents; None for one of the server's own,
            whose address the log names until it holds SOL.
        mint_authority_key: those of the key that mints on a cluster of our own; None for one of the server's.
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
