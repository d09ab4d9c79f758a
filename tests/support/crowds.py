"""Thousands of accounts, written into the books as copies of one: real ones take half a minute."""

import books
import money
from solders.pubkey import Pubkey

from agentpay_server import AgentPayServer
from agentpay_server.platform.clock import manual_clock
from agentpay_server.platform.randomness import Identifiers, randomness


def crowd(server: AgentPayServer, size: int = 5_000) -> None:
    """Give the server that many accounts without money, `Bot 00001` and so on."""
    sample = server.client().accounts.create(name="Bot 00000")
    (row,) = money.rows(server, "accounts", account_id=sample.account_id)
    del row["seq"], row["cap_holds"]
    identifiers = Identifiers(manual_clock(server.sandbox.clock.now()), randomness(11))
    copies = [
        row
        | {
            "account_id": identifiers.new("acct_"),
            "name": f"Bot {number:05}",
            "handle": f"@bot-{number:05}",
            "key_index": 1_000_000 + number,
            "chain_address": str(Pubkey.new_unique()),
            "usdc_token_account": str(Pubkey.new_unique()),
        }
        for number in range(1, size)
    ]
    money.on_owner(server, lambda context: books.add(context.database, "accounts", copies))
