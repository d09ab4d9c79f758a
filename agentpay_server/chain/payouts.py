"""Payouts of transactions that close token accounts. Pure functions."""

from collections.abc import Mapping

from agentpay_server.chain.protocol import Payout


def payout_in(
    before: Mapping[str, int], after: Mapping[str, int], *, signature: str, closed: str, to: str
) -> Payout | None:
    """Return what a token account got in a transaction that closed another one; None if it did not.

    `before` and `after` are the balances of all USDC token accounts of the transaction.
    """
    gone = before.keys() - after.keys()
    if closed not in gone:
        return None
    gained_micro = after.get(to, 0) - before.get(to, 0)
    return Payout(signature=signature, gained_micro=gained_micro, is_shared=len(gone) > 1)
