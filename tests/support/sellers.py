"""A seller behind HTTP 402: it asks in any protocol, and broadcasts its payments."""

import base64
import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Self

from outsiders import Wallet, landed
from solders.message import to_bytes_versioned
from solders.transaction import VersionedTransaction

from agentpay_server import AgentPayServer
from agentpay_server.chain.custody import Signer
from agentpay_server.chain.embedded.blocks import message_hash_of
from agentpay_server.chain.protocol import Chain, SignatureStatus
from agentpay_server.paywall import Protocol

if TYPE_CHECKING:
    from solders.keypair import Keypair

DEVNET = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
ORIGIN = "https://api.example.com"
EXACT = (Protocol.MPP, Protocol.X402_V2, Protocol.X402_V1)
"""The protocols that ask for an exact price."""

LANDED = SignatureStatus(is_final=True)
"""What a seller sees of a payment that settled."""

PROTOCOLS = ("x402_v2", "x402_v1", "mpp")

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Seller:
    """Sells, and says what it has been paid by the chain.

    Args:
        chain: the chain that executes.
        signer: whose treasury gives it SOL.
        run: runs its coroutines where the chain lives.
        number: tells one seller from another.
    """

    def __init__(self, chain: Chain, signer: Signer, run: Run, number: int = 1) -> None:
        self.chain = chain
        self._run = run
        self.wallet = Wallet(chain, signer, number)
        self.split = Wallet(chain, signer, number + 50)
        # Pays the fees, from SOL that a wallet comes with.
        self._payer = Wallet(chain, signer, number + 100)
        self.facilitator: Keypair = self._payer._keypair
        self._asked = 0
        self._held_before: dict[str, int] = {}

    @classmethod
    def at(cls, server: AgentPayServer) -> Self:
        """Return a seller on the chain of a server in this process."""
        running = server._running
        return cls(running.server.chain, running.server.context.signer, running._owner.call)

    def open(self) -> Self:
        """Come to token accounts, and to SOL for fees."""
        self._run(self._open())
        return self

    async def _open(self) -> None:
        wallets = (self.wallet, self.split, self._payer)
        for signature in [await wallet.open(0) for wallet in wallets]:
            while not await self._is_final(signature):
                await self.chain.wait_for_notice(signature, 0.05)
        # Another test may have paid it on this chain.
        self._held_before = {
            address: await self._balance(address)
            for address in (self.wallet.token_account, self.split.token_account)
        }

    # --- Asking

    def ask(
        self,
        protocol: str = "x402_v2",
        amount: int = 1_000,
        *,
        is_sponsored: bool = True,
        split: int = 0,
        **more: Any,
    ) -> dict[str, Any]:
        """Return `headers` and `body` of a 402, as `POST /ext/v1/payments` takes them.

        Args:
            protocol: of the challenge.
            amount: micro-USDC.
            is_sponsored: whether the seller pays the fee.
            split: micro-USDC of it that go to another payee; only for MPP.
            more: what the offer has besides, or instead.
        """
        self._asked += 1
        fee_payer = str(self.facilitator.pubkey())
        if protocol == "mpp":
            details: dict[str, Any] = {"network": "localnet", "decimals": 6}
            details |= {"feePayer": True, "feePayerKey": fee_payer} if is_sponsored else {}
            if split:
                details["splits"] = [{"recipient": self.split.address, "amount": str(split)}]
            request = {
                "amount": str(amount),
                "currency": self.chain.usdc_mint,
                "recipient": self.wallet.address,
                "methodDetails": details,
                **{name: value for name, value in more.items() if name != "category"},
            }
            opaque = {"opaque": _url64({"category": more["category"]})} if "category" in more else {}
            header = mpp(request, id=f"challenge-{self._asked}", **opaque)
            return {"headers": [["www-authenticate", header]]}
        extra = {"feePayer": fee_payer} if is_sponsored else {}
        offer: dict[str, Any] = {
            "scheme": "exact",
            "network": DEVNET if protocol == "x402_v2" else "solana-devnet",
            "asset": self.chain.usdc_mint,
            "amount" if protocol == "x402_v2" else "maxAmountRequired": str(amount),
            "payTo": self.wallet.address,
            "maxTimeoutSeconds": 60,
            "extra": extra,
            **more,
        }
        if protocol == "x402_v1":
            offer["resource"] = f"{ORIGIN}/forecast?asked={self._asked}"
            return {"headers": [], "body": json.dumps({"x402Version": 1, "accepts": [offer]})}
        resource = {"url": f"{ORIGIN}/forecast?asked={self._asked}"}
        challenge = {"x402Version": 2, "resource": resource, "accepts": [offer]}
        return {"headers": [["PAYMENT-REQUIRED", base64.b64encode(json.dumps(challenge).encode()).decode()]]}

    # --- Being paid

    @staticmethod
    def transaction_in(header: dict[str, str]) -> bytes:
        """Return the transaction that a header presents."""
        value = header["value"]
        if header["name"] == "Authorization":
            text = value.removeprefix("Payment ")
            content = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        else:
            content = json.loads(base64.b64decode(value))
        return base64.b64decode(content["payload"]["transaction"])

    def cosigned(self, header: dict[str, str]) -> bytes:
        """Return the transaction of a header, signed by its fee payer."""
        transaction = VersionedTransaction.from_bytes(self.transaction_in(header))
        message, signatures = transaction.message, list(transaction.signatures)
        if message.account_keys[0] == self.facilitator.pubkey():
            signatures[0] = self.facilitator.sign_message(to_bytes_versioned(message))
        return bytes(VersionedTransaction.populate(message, signatures))

    def settle(self, header: dict[str, str]) -> SignatureStatus | None:
        """Broadcast the payment of a header and return its status; on a cluster, the irreversible one."""
        raw = self.cosigned(header)
        signature = str(VersionedTransaction.from_bytes(raw).signatures[0])

        async def settled() -> SignatureStatus | None:
            await self.chain.send(raw)
            if self.chain.landing_seconds:
                await landed(self.chain, signature)
            return await self.chain.signature_status(signature)

        status: SignatureStatus | None = self._run(settled())
        return status

    @property
    def received(self) -> int:
        """Micro-USDC that the chain says it has been paid since it opened."""
        return self._received(self.wallet.token_account)

    @property
    def received_by_others(self) -> int:
        """Micro-USDC that the chain says its splits have brought since."""
        return self._received(self.split.token_account)

    def _received(self, token_account: str) -> int:
        held: int = self._run(self._balance(token_account))
        return held - self._held_before.get(token_account, 0)

    async def _is_final(self, signature: str) -> bool:
        status = await self.chain.signature_status(signature)
        return status is not None and status.is_final

    async def _balance(self, token_account: str) -> int:
        (found,) = await self.chain.token_accounts([token_account])
        return 0 if found is None else int(found.amount_micro)


def mpp(request: dict[str, Any], **parameters: str) -> str:
    """Return a challenge of MPP."""
    told = {
        "id": "1",
        "realm": "api.example.com",
        "method": "solana",
        "intent": "charge",
        "request": _url64(request),
        **parameters,
    }
    return "Payment " + ", ".join(f'{name}="{value}"' for name, value in told.items())


def name_of(raw: bytes) -> str:
    """Return what names a transaction on chain."""
    return str(VersionedTransaction.from_bytes(raw).signatures[0])


def message_of(raw: bytes) -> str:
    """Return what names the message of a transaction."""
    return str(message_hash_of(VersionedTransaction.from_bytes(raw)))


def _url64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
