"""A payer without a service: signs what a 402 asks for with the key of an account, journals nothing.

For tests of sellers. What the service signs, and what it refuses to, is tested elsewhere.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from attrs import frozen

from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.chain.custody import KeyPath, spending_key
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.context import Context
from agentpay_server.plugins.pay402.building import build_payment
from agentpay_server.plugins.pay402.challenges import offers as rules
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Offer, UnreadableChallengeError

_nonces = itertools.count()


@frozen
class Payment:
    """A signed payment, and the header that presents it."""

    offer: Offer
    raw: bytes
    header: tuple[str, str]


class Payer:
    """Pays challenges from an account of a server."""

    def __init__(self, server: AgentPayServer, account: Account) -> None:
        self._server = server
        self._account = account

    def offers(self, response: httpx.Response) -> list[Offer]:
        found = rules.read_challenge(response.headers.multi_items(), response.content)
        return [offer for offer in found if isinstance(offer, Offer)]

    def can_read(self, response: httpx.Response) -> bool:
        """Whether a service can read a 402 at all."""
        try:
            self.offers(response)
        except UnreadableChallengeError:
            return False
        return True

    def payment(
        self,
        response: httpx.Response,
        *,
        change: Callable[[ChallengeTerms], ChallengeTerms] = lambda terms: terms,
        pick: Callable[[Sequence[Offer]], Offer] | None = None,
        payment_id: str | None = None,
    ) -> Payment:
        """Sign a payment of a 402; `change` alters what is signed, not what is claimed."""
        name = payment_id or f"payment_{next(_nonces):08}"

        async def signed(context: Context) -> Payment:
            offers = self.offers(response)
            if pick is not None:
                offer: Offer | None = pick(offers)
            else:
                sifted = rules.sift(
                    offers,
                    cluster=None,
                    usdc_mint=context.chain.usdc_mint,
                    now_us=context.clock.now_us(),
                )
                offer = next(iter(sifted.payable.values()), None)
            assert offer is not None, "nothing payable"
            prepared = build_payment(
                context.signer,
                await context.chain.latest_blockhash(),
                change(offer.terms),
                payer_key=await account_key(context, self._account.account_id),
                usdc_mint=context.chain.usdc_mint,
                own_addresses=(),
                nonce=next(_nonces),
                nonce_memo=f"nonce {next(_nonces)}",
            )
            return Payment(offer, prepared.raw, rules.wrap(offer, prepared.raw, payment_id=name))

        world = self._server._running
        return world._owner.call(signed(world.server.context))

    def header(self, response: httpx.Response, **options: Any) -> dict[str, str]:
        """Return the header that pays a 402."""
        name, value = self.payment(response, **options).header
        return {name: value}


async def account_key(context: Context, account_id: str) -> KeyPath:
    account = await context.database.read(lambda connection: ACCOUNTS.existing(connection, account_id))
    return spending_key(account.key_index)
