"""Parses deposits and debits from the transactions that nodes return. Pure functions.

They are changes of the reported balance by a transaction, whatever instructions caused them.
"""

from typing import Any, Final

from agentpay_server.chain import base58
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.evidence import KEPT_ACCOUNTS, KEPT_BYTES, Call, Landed
from agentpay_server.chain.instructions import USDC_DECIMALS
from agentpay_server.chain.protocol import ChainUnreachableError, Debit, Deposit
from agentpay_server.chain.rpc.replies import (
    count,
    exactly,
    malformed,
    member,
    read_transaction,
    signature_text,
)

_MAX_U64_DIGITS: Final = 20
_MAX_DATA_CHARACTERS: Final = 13_985
"""The length in base58 of 10,240 bytes, the most that a program can pass to another."""

_PROGRAMS: Final = frozenset({str(codecs.PROGRAM), str(codecs.ED25519_PROGRAM)})


def read_movement(
    reply: object, *, signature: str, token_account: str, usdc_mint: str
) -> Deposit | Debit | None:
    """Return the change of a token account by a `getTransaction` result in the encoding `jsonParsed`.

    Raises:
        ChainUnreachableError: the result is about another transaction, or malformed.
    """
    found = _changes(reply, signature=signature, usdc_mint=usdc_mint)
    if found is None:
        return None
    transaction, before, after = found
    gained = after.get(token_account, 0) - before.get(token_account, 0)
    if gained < 0:
        recipients = [address for address, amount in after.items() if amount > before.get(address, 0)]
        return Debit(
            signature=signature,
            signatures=tuple(map(signature_text, member(transaction, "signatures", list))),
            token_account=token_account,
            amount_micro=-gained,
            recipient=recipients[0] if len(recipients) == 1 else None,
        )
    if gained == 0:
        return None
    senders = tuple(address for address, amount in before.items() if amount > after.get(address, 0))
    return Deposit(
        signature=signature,
        token_account=token_account,
        amount_micro=gained,
        senders=senders,
        others=tuple(each for each in before if each not in (token_account, *senders)),
    )


def read_landed(reply: object, *, signature: str, to: str, usdc_mint: str) -> Landed | None:
    """Return what a transaction did, and what a token account got in it; None if it failed.

    Raises:
        ChainUnreachableError: the result is about another transaction, or malformed.
    """
    found = _changes(reply, signature=signature, usdc_mint=usdc_mint)
    if found is None:
        return None
    transaction, before, after = found
    called = {
        count(line, "index"): [_call(step) for step in member(line, "instructions", list)]
        for line in member(member(reply, "meta", dict), "innerInstructions", list)
    }
    steps = member(member(transaction, "message", dict), "instructions", list)
    return Landed(
        signature=signature,
        gained_micro=after.get(to, 0) - before.get(to, 0),
        steps=[(_call(step), called.get(index, ())) for index, step in enumerate(steps)],
    )


def _call(step: object) -> Call:
    """Return an instruction; without content if it is unreadable, or of a program that proves nothing.

    Strangers write instructions, so none of them may make a history unreadable.
    """
    program = member(step, "programId", str)
    if program not in _PROGRAMS:
        return Call(program, (), b"")
    accounts: list[object] = member(step, "accounts", list)
    data = member(step, "data", str)
    try:
        content = base58.decode(data) if len(data) <= _MAX_DATA_CHARACTERS else b""
    except ValueError:
        content = b""
    addresses = [exactly(address, str, "account") for address in accounts[:KEPT_ACCOUNTS]]
    return Call(program, addresses, content[:KEPT_BYTES])


def _changes(
    reply: object, *, signature: str, usdc_mint: str
) -> tuple[dict[str, Any], dict[str, int], dict[str, int]] | None:
    """Return a transaction, and the balances before and after it; None if it failed."""
    if reply is None:
        raise ChainUnreachableError("the node lists a transaction that it does not have (yet)")
    transaction, meta = read_transaction(reply, signature), member(reply, "meta", dict)
    if "err" not in meta:
        raise malformed("no information on whether it failed")
    if meta["err"] is not None:
        return None
    keys = [
        member(key, "pubkey", str)
        for key in member(member(transaction, "message", dict), "accountKeys", list)
    ]
    before = _balances(meta, "preTokenBalances", keys, usdc_mint)
    after = _balances(meta, "postTokenBalances", keys, usdc_mint)
    return transaction, before, after


def _balances(meta: object, name: str, keys: list[str], usdc_mint: str) -> dict[str, int]:
    """Return the balances of USDC accounts, by address."""
    balances: dict[str, int] = {}
    for line in member(meta, name, list):
        index = count(line, "accountIndex")
        if index >= len(keys):
            raise malformed("a balance of an account that is not listed")
        if member(line, "mint", str) != usdc_mint:
            continue
        amount = member(line, "uiTokenAmount", dict)
        if count(amount, "decimals") != USDC_DECIMALS:
            raise malformed("USDC without its six decimals")
        if keys[index] in balances:
            raise malformed("two balances of one account")
        balances[keys[index]] = _amount(member(amount, "amount", str))
    return balances


def _amount(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_U64_DIGITS):
        raise malformed("an amount that is not a number")
    return int(text)
