"""Products of a seller, and their terms."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeVar

from attrs import field, frozen

from agentpay.contract import json_text
from agentpay.contract.identifiers import is_public_key
from agentpay.contract.usdc import to_micro
from agentpay_server.payments.challenges.fields import is_unicode
from agentpay_server.payments.challenges.terms import EXACT, MAX_LEGS, ChallengeTerms, Leg, Network, Protocol
from agentpay_server.testkit.paywall.modes import Mode

E = TypeVar("E", bound=StrEnum)

X402: Final = (Protocol.X402_V2, Protocol.X402_V1)


@frozen(kw_only=True)
class Product:
    """A priced route.

    Attributes:
        amount_micro: price in micro-USDC.
        is_sponsored: the seller pays the fee; None for the protocol's default: x402 yes, MPP no.
        splits: micro-USDC of the price for further recipients, by address; MPP only.
        external_id: memo that the payment must carry on chain.
        category: MPP only.
        content: the JSON that is sold.
        mode: None for the seller's mode.
    """

    path: str
    amount_micro: int
    protocols: tuple[Protocol, ...]
    is_sponsored: bool | None = None
    splits: Mapping[str, int] = field(factory=dict)
    external_id: str | None = None
    category: str | None = None
    description: str = ""
    content: Any = None
    mode: Mode | None = None

    def terms(self, protocol: Protocol, *, mint: str, recipient: str, fee_payer: str) -> ChallengeTerms:
        rest_micro = self.amount_micro - sum(self.splits.values())
        legs = [Leg(recipient=recipient, amount_micro=rest_micro, memo=self.external_id)]
        legs += [Leg(recipient=address, amount_micro=part) for address, part in self.splits.items()]
        is_sponsored = protocol in X402 if self.is_sponsored is None else self.is_sponsored
        return ChallengeTerms(
            protocol=protocol,
            network=Network.LOCALNET if protocol is Protocol.MPP else Network.DEVNET,
            mint=mint,
            legs=tuple(legs),
            fee_payer=fee_payer if is_sponsored else None,
        )


def product(
    path: str,
    price: Decimal | int | str,
    *,
    protocols: Iterable[Protocol | str],
    sponsored: bool | None = None,
    splits: Mapping[str, Decimal | int | str] | None = None,
    external_id: str | None = None,
    category: str | None = None,
    description: str = "",
    content: Any = None,  # noqa: ANN401 - any JSON
    mode: Mode | str | None = None,
) -> Product:
    """Raises TypeError for a float or a `content` without JSON form, else ValueError."""
    if not path.startswith("/"):
        raise ValueError(f"path must begin with a slash: {path!r}")
    offered = tuple(_exact(name) for name in protocols)
    if not offered:
        raise ValueError("protocols must name at least one protocol")
    amount_micro = to_micro(price)
    parts = {owner_address(address, "splits"): to_micro(part) for address, part in (splits or {}).items()}
    if parts and set(offered) & set(X402):
        raise ValueError("x402 has no splits: pass protocols=['mpp']")
    if len(parts) >= MAX_LEGS:
        raise ValueError(f"a challenge has at most {MAX_LEGS - 1} splits")
    if not all(parts.values()) or amount_micro - sum(parts.values()) < 1:
        raise ValueError("price and splits must be positive, and leave something for the recipient")
    texts = {"external_id": external_id, "category": category, "description": description}
    for name, text in texts.items():
        if text is not None and not is_unicode(text):
            raise ValueError(f"{name} contains a lone surrogate")
    json_text.print_json(content)
    return Product(
        path=path,
        amount_micro=amount_micro,
        protocols=offered,
        is_sponsored=sponsored,
        splits=parts,
        external_id=external_id or None,
        category=category,
        description=description,
        content=content,
        mode=None if mode is None else mode_of(mode),
    )


def owner_address(text: str, name: str) -> str:
    """ValueError, naming `name`, if it is no Solana address."""
    if not is_public_key(text):
        raise ValueError(f"{name}: {text!r} is not a Solana address; pass one, such as a chain_address")
    return text


def mode_of(name: Mode | str) -> Mode:
    return _member(Mode, name, "mode")


def _member(kind: type[E], name: str, word: str) -> E:
    try:
        return kind(name)
    except ValueError:
        raise ValueError(f"unknown {word} {name!r}; available: {', '.join(kind)}") from None


def _exact(name: str) -> Protocol:
    protocol = _member(Protocol, name, "protocol")
    if protocol not in EXACT:
        raise ValueError(f"{protocol.value} has no price: sell_upto sells by it")
    return protocol
