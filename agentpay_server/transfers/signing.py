"""Signs the transaction of a transfer. It must be stored before it is sent."""

from agentpay_server.chain import transactions
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.database.tables import AccountRecord
from agentpay_server.ledger.context import Context


def signed_transfer(
    context: Context,
    source: AccountRecord,
    blockhash: Blockhash,
    *,
    transfer_id: str,
    recipient: str,
    amount_micro: int,
    memo: str | None,
) -> SignedTransaction:
    """Return the transaction that moves a transfer's amount to `recipient`, a token account."""
    return transactions.transfer(
        context.signer,
        blockhash,
        usdc_mint=context.chain.usdc_mint,
        account_index=source.key_index,
        source=source.usdc_token_account,
        recipient=recipient,
        amount_micro=amount_micro,
        memo=transactions.memo_text(transfer_id, memo, context.settings.onchain_memo.value),
    )
