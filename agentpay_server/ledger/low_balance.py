"""Detects low balances of accounts (interface EV4).

On a cluster, deposits are posted some time after they arrive, so the posted balance may look low by mistake.
Such a balance is checked when the books are next compared with the chain.
"""

from functools import partial

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord
from agentpay_server.ledger import accounts
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outbox import Outbox
from agentpay_server.ledger.outcome import Unit


def check(outbox: Outbox, unit: Unit, account: AccountRecord, amount_micro: int) -> None:
    """Check the balance that remains of an account, now that an amount has left it.

    A check that must read the chain runs after the commit.
    """
    connection, context, account_id = unit.connection, unit.context, account.account_id
    before_micro = account.balance + amount_micro + account.unjudged_spend
    if context.is_cluster and outbox.wants_drop(before_micro=before_micro, after_micro=account.balance):
        accounts.ACCOUNTS.changed(connection, account_id, add={"unjudged_spend": amount_micro})
        unit.after_commit.append(partial(judge, context, account_id))
        return
    outbox.add_drop_of_balance(before_micro=before_micro, after_micro=account.balance)
    if account.unjudged_spend:
        accounts.ACCOUNTS.changed(connection, account_id, unjudged_spend=0)


async def judge(context: Context, account_id: str) -> None:
    """Check a balance that looks low in the books, unless the chain holds more than is posted.

    If the chain does not respond, the next comparison of books and chain checks it.
    """
    account = await context.database.read(accounts.ACCOUNTS.existing, account_id)
    try:
        (held,) = await context.chain.token_accounts([account.usdc_token_account])
    except ChainUnreachableError:
        return
    await judge_by(context, account_id, 0 if held is None else held.amount_micro)


async def judge_by(context: Context, account_id: str, held_micro: int) -> None:
    """Check a balance, given the on-chain amount. If that is larger, the books are behind."""
    if await context.database.run(_judge, context, account_id, held_micro):
        context.wakeup.set()


def _judge(connection: Connection, context: Context, account_id: str, held_micro: int) -> bool:
    account = accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    if not account.unjudged_spend or held_micro > account.balance:
        return False
    outbox = Outbox(
        connection,
        context,
        operator_id=account.operator_id,
        account_id=account_id,
        now_us=context.clock.now_us(),
    )
    outbox.add_drop_of_balance(
        before_micro=account.balance + account.unjudged_spend, after_micro=account.balance
    )
    accounts.ACCOUNTS.changed(connection, account_id, unjudged_spend=0)
    outbox.write()
    return True
