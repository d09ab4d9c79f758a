"""The identity of a key: the extension `GET /ext/v1/whoami` (interface K10)."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from attrs import frozen

from agentpay.contract import choices
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Scope
from agentpay.contract.models import Model
from agentpay.contract.usdc import UsdcString


class KeyKind(StrEnum):
    """The kind of a key: what it is allowed to do."""

    OPERATOR = "operator"
    AGENT = "agent"


@frozen(kw_only=True)
class Identity(Model):
    """The key of a request, and whose money it moves.

    Attributes:
        key_id: identifier of the key, `key_…`.
        kind: `operator` or `agent`; a value that this version does not know stays a plain string.
        operator_id: the operator that the key belongs to, `op_…`.
        account_id: the account that an agent-scoped key is bound to; None for an operator key.
        cluster: the Solana cluster: `mainnet-beta`, `devnet`, `testnet`, `localnet` for any other, or
            `embedded` for a reference server's built-in chain.
        is_test_money: whether the USDC has no value; False only on `mainnet-beta`.
        expires_at: when the key expires, UTC; None if it does not.
        max_total_usdc: USDC that the key may spend in its lifetime; None means no limit.
        spent_total_usdc: USDC of it that are spent or reserved; None without that limit.
    """

    key_id: str
    kind: choices.KeyKind
    operator_id: str
    account_id: str | None
    cluster: str
    is_test_money: bool
    expires_at: datetime | None = None
    max_total_usdc: UsdcString | None = None
    spent_total_usdc: UsdcString | None = None


WHO_AM_I: Final = Endpoint(
    name="whoami",
    method="GET",
    path=EXTENSIONS + "/whoami",
    scope=Scope.ACCOUNT,
    responses={200: Identity},
    summary="Read the identity of the key, and whether its money is real.",
)
