"""A seller of sessions over HTTP 402: it opens channels, keeps the highest voucher, and settles it."""

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from sellers import DEVNET, Run, Seller, mpp
from sellers import ORIGIN as ORIGIN
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_lab.simulation import forwarder
from agentpay_server import AgentPayServer
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import TREASURIES, ChannelAccount, OnchainTerms, Share, Voucher
from agentpay_server.chain.custody import Signer
from agentpay_server.chain.protocol import Chain, SignatureStatus
from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.tables import AccountRecord, PinRecord
from agentpay_server.engine.authorization import Authorizer
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.pay402.store import PINS
from agentpay_server.plugins.paywall.channel_settling import ChannelChain

GRACE_SECONDS = 900


class SessionSeller(Seller):
    """Sells one resource by session."""

    def __init__(self, chain: Chain, signer: Signer, run: Run, number: int = 7) -> None:
        super().__init__(chain, signer, run, number)
        self.payee: Keypair = self.wallet._keypair
        self.opening: OnchainTerms | None = None
        self.cumulative = 0
        self.signature: Signature | None = None

    # --- Asking

    def ask_session(self, amount: int = 1_000, **more: Any) -> dict[str, Any]:
        """Return `headers` of a 402 whose offer is a session: `shares`, further or other `methodDetails`."""
        blockhash = self._run(self.chain.latest_blockhash()).value
        slot = self._run(self.chain.blockhash_slot(blockhash))
        return self.offer_session(blockhash, slot, amount, **more)

    def offer_session(
        self,
        blockhash: str,
        slot: int,
        amount: int = 1_000,
        *,
        shares: list[tuple[str, int]] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Return the same, for a blockhash and its slot."""
        self._asked += 1
        details: dict[str, Any] = {
            "network": "localnet",
            "decimals": 6,
            "channelProgram": str(codecs.PROGRAM),
            "recentBlockhash": blockhash,
            "recentSlot": str(slot),
            "feePayer": True,
            "feePayerKey": str(self.facilitator.pubkey()),
            "gracePeriodSeconds": GRACE_SECONDS,
        }
        if shares:
            details["distributionSplits"] = [{"recipient": to, "shareBps": bps} for to, bps in shares]
        top = {name: more.pop(name) for name in ("recipient", "currency", "minimumDeposit") if name in more}
        details |= more
        request = {
            "amount": str(amount),
            "currency": self.chain.usdc_mint,
            "recipient": self.wallet.address,
            "methodDetails": {name: value for name, value in details.items() if value is not None},
            **top,
        }
        return {
            "headers": [["www-authenticate", mpp(request, id=f"session-{self._asked}", intent="session")]]
        }

    # --- Being paid

    @staticmethod
    def payload_in(header: dict[str, str]) -> dict[str, Any]:
        """Return the payload that a header presents."""
        text = header["value"].removeprefix("Payment ")
        content = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return dict(content["payload"])

    def accept_opening(self, header: dict[str, str]) -> SignatureStatus | None:
        """Sign and broadcast an opening, as a seller does that trusts its payer."""
        payload = self.payload_in(header)
        assert payload["action"] == "open"
        self.opening = opening_in(payload)
        return self.settle(header)

    def take_voucher(self, header: dict[str, str], action: str = "voucher") -> int:
        """Check a voucher and keep it; return its amount."""
        payload = self.payload_in(header)
        assert payload["action"] == action
        assert self.opening is not None
        signed, voucher = payload["voucher"], payload["voucher"]["voucher"]
        assert payload["channelId"] == voucher["channelId"] == str(self.opening.address)
        assert signed["signer"] == str(self.opening.signer)
        signature = Signature.from_string(signed["signature"])
        cumulative = int(voucher["cumulativeAmount"])
        checked = Voucher(channel=self.opening.address, cumulative_micro=cumulative)
        assert checked.is_signed_by(self.opening.signer, signature)
        if cumulative > self.cumulative:
            self.cumulative, self.signature = cumulative, signature
        return cumulative

    def close(self) -> SignatureStatus | None:
        """Settle the highest voucher, seal the channel, and pay it out, in one transaction."""
        return self.send(*self.closing())

    def closing(self) -> list[Instruction]:
        """Return the instructions of `close`."""
        assert self.opening is not None
        voucher = None
        if self.signature is not None:
            voucher = Voucher(channel=self.opening.address, cumulative_micro=self.cumulative)
        return codecs.close_instructions(
            self.opening, treasury=TREASURIES["devnet"], voucher=voucher, signature=self.signature
        )

    def settle_voucher(self) -> SignatureStatus | None:
        """Record the highest voucher on chain, without ending the channel."""
        return self.send(*self.settling())

    def settling(self) -> tuple[Instruction, ...]:
        """Return the instructions of `settle_voucher`."""
        assert self.opening is not None
        return self._verified(), codecs.settle(self.opening.address)

    def settle_and_seal(self) -> SignatureStatus | None:
        """Settle the highest voucher and seal the channel, and do not pay it out."""
        assert self.opening is not None
        return self.send(
            self._verified(),
            codecs.settle_and_seal(payee=self.opening.payee, channel=self.opening.address, has_voucher=True),
        )

    def _verified(self) -> Instruction:
        assert self.opening is not None
        assert self.signature is not None
        voucher = Voucher(channel=self.opening.address, cumulative_micro=self.cumulative)
        return codecs.verify_voucher(voucher, self.opening.signer, self.signature)

    def send(self, *steps: Instruction) -> SignatureStatus | None:
        """Send a transaction that this seller signs and pays for."""
        keys = {key.pubkey(): key for key in (self.facilitator, self.payee)}

        async def sent() -> SignatureStatus | None:
            blockhash = await self.chain.latest_blockhash()
            message = MessageV0.try_compile(
                self.facilitator.pubkey(), list(steps), [], Hash.from_string(blockhash.value)
            )
            count = message.header.num_required_signatures
            signatures = [
                keys[address].sign_message(to_bytes_versioned(message))
                for address in message.account_keys[:count]
            ]
            transaction = VersionedTransaction.populate(message, signatures)
            await self.chain.send(bytes(transaction))
            return await self.chain.signature_status(str(signatures[0]))

        status: SignatureStatus | None = self._run(sent())
        return status

    @property
    def channel(self) -> ChannelAccount | None:
        """The channel as the chain shows it; None if it is gone."""
        assert self.opening is not None
        (found,) = self._run(self.chain.account_data([str(self.opening.address)]))
        return None if found is None or not found.data else codecs.read_channel(found.data)


class UptoSeller(SessionSeller):
    """Sells up to a maximum, and signs what it takes by a key of its own."""

    def __init__(self, chain: Chain, signer: Signer, run: Run, number: int = 8) -> None:
        super().__init__(chain, signer, run, number)
        # Only the payee settles; of this protocol it is the one that pays the fees.
        self.payee = self.facilitator
        self.authorizer = Keypair()

    def ask_upto(self, maximum: int = 50_000) -> list[list[str]]:
        """Return the headers of a 402 whose offer is a maximum."""
        entry = {
            "scheme": "upto",
            "network": DEVNET,
            "asset": self.chain.usdc_mint,
            "amount": str(maximum),
            "payTo": self.wallet.address,
            "maxTimeoutSeconds": 60,
            "extra": {
                "feePayer": str(self.facilitator.pubkey()),
                "receiverAuthorizer": str(self.authorizer.pubkey()),
                "withdrawDelay": GRACE_SECONDS,
            },
        }
        content = json.dumps({"x402Version": 2, "accepts": [entry]}).encode()
        return [["payment-required", base64.b64encode(content).decode()]]

    def open_channel(self, header: dict[str, str]) -> None:
        """Broadcast the opening that a header presents."""
        payload = json.loads(base64.b64decode(header["value"]))["payload"]
        raw = self.signed_opening(base64.b64decode(payload["openTransaction"]))
        assert self.opening is not None
        assert str(self.opening.address) == payload["channelId"]
        self._run(self.chain.send(raw))

    def signed_opening(self, raw: bytes) -> bytes:
        """Read an opening, and sign it as the one that pays its fee."""
        transaction = VersionedTransaction.from_bytes(raw)
        message, signatures = transaction.message, list(transaction.signatures)
        keys = message.account_keys
        (self.opening,) = (
            codecs.read_opening([keys[index] for index in step.accounts], bytes(step.data))
            for step in message.instructions
            if keys[step.program_id_index] == codecs.PROGRAM
        )
        signatures[0] = self.facilitator.sign_message(to_bytes_versioned(message))
        return bytes(VersionedTransaction.populate(message, signatures))

    def take(self, amount: int, key: Keypair | None = None) -> SignatureStatus | None:
        """Settle an amount and pay the channel out, by the voucher of a key."""
        return self.send(*self.taking(amount, key))

    def taking(self, amount: int, key: Keypair | None = None) -> tuple[Instruction, ...]:
        """Return the instructions of `take`."""
        assert self.opening is not None
        signer = key or self.authorizer
        voucher = Voucher(channel=self.opening.address, cumulative_micro=amount)
        return (
            codecs.verify_voucher(voucher, signer.pubkey(), signer.sign_message(voucher.message())),
            codecs.settle_and_seal(payee=self.opening.payee, channel=self.opening.address, has_voucher=True),
            codecs.distribute_opened(self.opening, treasury=TREASURIES["devnet"]),
        )

    def seal(self) -> SignatureStatus | None:
        """Seal the channel without a voucher, and do not pay it out."""
        assert self.opening is not None
        return self.send(
            codecs.settle_and_seal(payee=self.opening.payee, channel=self.opening.address, has_voucher=False)
        )


def refuse_sends(patch: pytest.MonkeyPatch) -> None:
    """Let no transaction reach the node of a paywall that sells by channel."""

    async def unavailable(*_: object) -> str:
        raise RpcError(-32000, "scripted: the node does not respond")

    patch.setattr(ChannelChain, "_send", unavailable)


def lose_replies(patch: pytest.MonkeyPatch) -> None:
    """Let transactions reach the node of a paywall that sells by channel, but not its replies the paywall."""
    send = ChannelChain._send

    async def sent(desk: ChannelChain, steps: Any) -> str:
        await send(desk, steps)
        raise RpcError(-32000, "scripted: the node does not respond")

    patch.setattr(ChannelChain, "_send", sent)


def let_call(server: AgentPayServer) -> None:
    """Let sellers call the program of channels by another one, on the chain of a server in this process."""
    running = server._running

    async def added() -> None:
        running.node.chain.query(forwarder.add_to)

    running._owner.call(added())


def opening_in(payload: dict[str, Any]) -> OnchainTerms:
    """Return the opening that a payload claims, which must be the one that its transaction asks for."""
    shares = tuple(
        Share(Pubkey.from_string(split["recipient"]), split["shareBps"])
        for split in payload.get("distributionSplits", [])
    )
    message = VersionedTransaction.from_bytes(base64.b64decode(payload["transaction"])).message
    (step,) = (
        each for each in message.instructions if message.account_keys[each.program_id_index] == codecs.PROGRAM
    )
    keys = [message.account_keys[index] for index in step.accounts]
    opening = codecs.read_opening(keys, bytes(step.data))
    assert opening.shares == shares
    claimed = {
        "channelId": str(opening.address),
        "payer": str(opening.payer),
        "payee": str(opening.payee),
        "mint": str(opening.mint),
        "authorizedSigner": str(opening.signer),
        "salt": str(opening.salt),
        "openSlot": str(opening.open_slot),
        "depositAmount": str(opening.deposit_micro),
        "gracePeriodSeconds": opening.grace_seconds,
    }
    assert {name: payload[name] for name in claimed} == claimed
    assert str(opening.rent_payer) == str(message.account_keys[0])
    return opening


def block_before_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block the seller of a voucher after its offer is selected, before it is decided."""
    reconcile = Authorizer.reconcile

    async def block(self: Authorizer, source: AccountRecord) -> None:
        await reconcile(self, source)
        fields = dict.fromkeys(("category", "recipients", "max_amount"))
        pin = PinRecord(operator_id=source.operator_id, origin=ORIGIN, blocked=True, updated_us=1, **fields)
        with suppress(ConstraintError):
            await self._context.database.run(lambda connection: PINS.insert(connection, pin))

    monkeypatch.setattr(Authorizer, "reconcile", block)
