"""Reads a USDC token account from what a chain holds at an address, with every check that money needs."""

from solders.token import state

from agentpay_server.chain.instructions import TOKEN_PROGRAM
from agentpay_server.chain.protocol import TokenAccount


def read_token_account(address: str, *, program: str, data: bytes, usdc_mint: str) -> TokenAccount | None:
    """Return the USDC token account, or None when the account is anything else.

    Args:
        address: where it is.
        program: the program that owns the account, in base58.
        data: the account's data.
        usdc_mint: the only mint that counts.
    """
    if program != str(TOKEN_PROGRAM):
        return None
    try:
        account = state.TokenAccount.from_bytes(data)
    except ValueError:  # A mint, a multisig, or not initialised.
        return None
    if str(account.mint) != usdc_mint:
        return None
    return TokenAccount(
        address=address,
        owner=str(account.owner),
        amount_micro=account.amount,
        is_frozen=account.state == state.TokenAccountState.Frozen,
    )
