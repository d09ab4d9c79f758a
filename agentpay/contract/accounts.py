"""Agent accounts: models and endpoints (interface A1 to A10)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from attrs import frozen

from agentpay.contract import choices
from agentpay.contract.fields import Form, JsonObject, text
from agentpay.contract.models import Model
from agentpay.contract.pages import PageQuery
from agentpay.contract.policies import Policy
from agentpay.contract.requests import Request
from agentpay.contract.usdc import UsdcString

METADATA_MAX_BYTES = 16 * 1024
"""The largest `metadata` object of an account, in bytes as sent."""


class AccountStatus(StrEnum):
    """Whether an account may send: `paused` exactly while its policy is paused."""

    ACTIVE = "active"
    PAUSED = "paused"


@frozen(kw_only=True)
class Account(Model):
    """An agent account that holds USDC on chain.

    A `status` that this version does not know stays a plain string.

    Attributes:
        account_id: identifier, `acct_…`.
        name: display label; not unique.
        handle: display handle derived from the name, `@…`; not unique.
        chain_address: on-chain authority address.
        usdc_token_account: on-chain USDC token account, where deposits go.
        balance_usdc: USDC held on chain, read live; `0.000000` at creation.
        custody_mode: `custodial`.
        status: `active` or `paused`.
        policy: the spending policy in force.
        created_at: when the account was provisioned, UTC.
    """

    account_id: str
    name: str
    handle: str
    chain_address: str
    usdc_token_account: str
    balance_usdc: UsdcString
    custody_mode: Annotated[str, Form({"enum": ["custodial"]})]
    status: choices.AccountStatus
    policy: Policy
    created_at: datetime


@frozen(kw_only=True)
class Balance(Model):
    """The live on-chain balance of an account.

    Attributes:
        account_id: identifier, `acct_…`.
        balance_usdc: USDC held by the account's token account.
        last_updated: when the balance was read, UTC.
    """

    account_id: str
    balance_usdc: UsdcString
    last_updated: datetime


@frozen(kw_only=True)
class CreateAccount(Request):
    """Body of `POST /v1/accounts`.

    Attributes:
        name: 1 to 100 characters after trimming, no control characters.
        metadata: arbitrary key-value pairs, at most 16 KiB as sent; stored, never interpreted.
    """

    name: Annotated[str, text(minimum=1, maximum=100, trim=True, control=False)]
    metadata: JsonObject | None = None


@frozen(kw_only=True)
class ListAccounts(PageQuery):
    """Query of `GET /v1/accounts`.

    Attributes:
        status: only accounts with this status.
    """

    status: AccountStatus | None = None
