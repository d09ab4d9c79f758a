"""A payer of channels without a service: signs openings with an account's key, and vouchers with its own.

For tests of sellers.
"""

import base64
import itertools
import json
import re
from typing import Any

import httpx
from attrs import evolve
from payer import account_key
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.chain import instructions
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelAccount, OnchainTerms, Share, Voucher
from agentpay_server.chain.custody import TREASURY
from agentpay_server.ledger.context import Context

MEMO_PROGRAM = instructions.MEMO_PROGRAM

_salts = itertools.count(1)
_PARAMETER = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def challenge_in(response: httpx.Response) -> dict[str, str]:
    """Return the parameters of a session's challenge, verbatim."""
    for value in response.headers.get_list("www-authenticate"):
        parameters = dict(_PARAMETER.findall(value))
        if parameters.get("intent") == "session":
            return parameters
    raise AssertionError("the response offers no session")


def entry_in(response: httpx.Response) -> dict[str, Any]:
    """Return the offer of x402 `upto`, verbatim."""
    content = json.loads(base64.b64decode(response.headers["payment-required"]))
    return dict(next(entry for entry in content["accepts"] if entry["scheme"] == "upto"))


def decoded(text: str) -> dict[str, Any]:
    return dict(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))


def receipt_of(response: httpx.Response) -> dict[str, Any]:
    if "payment-receipt" in response.headers:
        return decoded(response.headers["payment-receipt"])
    return dict(json.loads(base64.b64decode(response.headers["payment-response"])))


class ChannelPayer:
    """Opens channels for an account, and signs vouchers."""

    def __init__(self, server: AgentPayServer, account: Account) -> None:
        self._server = server
        self._account = account
        self.voucher_key = Keypair()

    # --- Sessions

    def opening(self, challenge: dict[str, str], deposit_micro: int = 10_000, **terms: Any) -> OnchainTerms:
        request = decoded(challenge["request"])
        details = request["methodDetails"]
        opening = OnchainTerms(
            payer=self.address,
            rent_payer=Pubkey.from_string(details["feePayerKey"]),
            payee=Pubkey.from_string(request["recipient"]),
            mint=Pubkey.from_string(request["currency"]),
            signer=self.voucher_key.pubkey(),
            salt=next(_salts),
            open_slot=int(details["recentSlot"]),
            deposit_micro=deposit_micro,
            grace_seconds=details["gracePeriodSeconds"],
            shares=tuple(
                Share(Pubkey.from_string(split["recipient"]), split["shareBps"])
                for split in details.get("distributionSplits", [])
            ),
        )
        return evolve(opening, **terms)

    def open_header(
        self, challenge: dict[str, str], opening: OnchainTerms, *extra: Instruction, **payload: Any
    ) -> dict[str, str]:
        details = decoded(challenge["request"])["methodDetails"]
        transaction = self.transaction(opening, details["recentBlockhash"], *extra)
        content = {
            "action": "open",
            "channelId": str(opening.address),
            "payer": str(opening.payer),
            "payee": str(opening.payee),
            "mint": str(opening.mint),
            "authorizedSigner": str(opening.signer),
            "salt": str(opening.salt),
            "openSlot": str(opening.open_slot),
            "depositAmount": str(opening.deposit_micro),
            "gracePeriodSeconds": opening.grace_seconds,
            "transaction": base64.b64encode(transaction).decode(),
        }
        if opening.shares:
            content["distributionSplits"] = [
                {"recipient": str(share.recipient), "shareBps": share.bps} for share in opening.shares
            ]
        return self.header(challenge, {**content, **payload})

    def voucher_header(
        self,
        challenge: dict[str, str],
        opening: OnchainTerms,
        cumulative_micro: int,
        *,
        action: str = "voucher",
        expires_at: int = 0,
        key: Keypair | None = None,
    ) -> dict[str, str]:
        voucher = Voucher(channel=opening.address, cumulative_micro=cumulative_micro, expires_at=expires_at)
        signature = (key or self.voucher_key).sign_message(voucher.message())
        content = {"channelId": str(opening.address), "cumulativeAmount": str(cumulative_micro)}
        if expires_at:
            content["expiresAt"] = str(expires_at)
        signed = {
            "voucher": content,
            "signer": str(opening.signer),
            "signature": str(signature),
            "signatureType": "ed25519",
        }
        payload = {"action": action, "channelId": str(opening.address), "voucher": signed}
        return self.header(challenge, payload)

    @staticmethod
    def header(challenge: dict[str, str], payload: dict[str, Any]) -> dict[str, str]:
        content = json.dumps({"challenge": challenge, "payload": payload}).encode()
        return {"Authorization": f"Payment {base64.urlsafe_b64encode(content).rstrip(b'=').decode()}"}

    # --- Up to a maximum

    def upto_header(self, entry: dict[str, Any], **changes: Any) -> dict[str, str]:
        extra = entry["extra"]
        now = self.now
        opening = OnchainTerms(
            payer=self.address,
            rent_payer=Pubkey.from_string(extra["feePayer"]),
            payee=Pubkey.from_string(extra["feePayer"]),
            mint=Pubkey.from_string(entry["asset"]),
            signer=Pubkey.from_string(extra["receiverAuthorizer"]),
            salt=next(_salts),
            open_slot=int(extra["recentSlot"]),
            deposit_micro=int(entry["amount"]),
            grace_seconds=extra["withdrawDelay"],
            shares=(Share(Pubkey.from_string(entry["payTo"]), codecs.WHOLE_BPS),),
        )
        memo = instructions.memo(f"nonce {opening.salt}")
        transaction = self.transaction(opening, extra["recentBlockhash"], memo)
        payload = {
            "from": str(opening.payer),
            "maxAmount": entry["amount"],
            "deposit": entry["amount"],
            "expiresAt": now + 60,
            "validAfter": now - 5,
            "nonce": str(opening.salt),
            "openSlot": str(opening.open_slot),
            "channelId": str(opening.address),
            "authorizedSigner": str(opening.signer),
            "openTransaction": base64.b64encode(transaction).decode(),
            **changes,
        }
        content = {"x402Version": 2, "accepted": entry, "payload": payload}
        return {"PAYMENT-SIGNATURE": base64.b64encode(json.dumps(content).encode()).decode()}

    # --- The chain

    @property
    def address(self) -> Pubkey:
        return Pubkey.from_string(self._call(self._address))

    @property
    def now(self) -> int:
        return self._server._running.server.context.clock.now_us() // 1_000_000

    def transaction(self, opening: OnchainTerms, blockhash: str, *extra: Instruction) -> bytes:
        """Return an opening that only the account has signed."""
        budget = [instructions.set_compute_unit_limit(90_000), instructions.set_compute_unit_price(1)]
        steps = [*budget, codecs.open_channel(opening), *extra]
        message = MessageV0.try_compile(opening.rent_payer, steps, [], Hash.from_string(blockhash))

        async def signed(context: Context) -> bytes:
            key = await account_key(context, self._account.account_id)
            signature = Signature.from_bytes(context.signer.sign(key, to_bytes_versioned(message)))
            count = message.header.num_required_signatures
            signatures = [
                signature if address == opening.payer else Signature.default()
                for address in message.account_keys[:count]
            ]
            return bytes(VersionedTransaction.populate(message, signatures))

        return bytes(self._call(signed))

    def force_close(self, opening: OnchainTerms) -> None:
        """Request the close on chain, which the treasury of the server pays."""

        async def sent(context: Context) -> None:
            key = await account_key(context, self._account.account_id)
            treasury = Pubkey.from_string(context.signer.address(TREASURY))
            step = codecs.request_close(payer=opening.payer, channel=opening.address)
            latest = await context.chain.latest_blockhash()
            message = Message.new_with_blockhash([step], treasury, Hash.from_string(latest.value))
            keys = {str(treasury): TREASURY, str(opening.payer): key}
            signatures = [
                Signature.from_bytes(context.signer.sign(keys[str(address)], bytes(message)))
                for address in message.account_keys[: message.header.num_required_signatures]
            ]
            await context.chain.send(bytes(VersionedTransaction.populate(message, signatures)))

        self._call(sent)

    def channel(self, opening: OnchainTerms) -> ChannelAccount | None:
        """Return the channel as the chain shows it; None if it is gone."""
        account = self.on_chain(opening.address)
        return None if account is None or not account.lamports else codecs.read_channel(account.data)

    def on_chain(self, address: Pubkey) -> Any:
        """Return an account; None if it is missing."""

        async def read(_: Context) -> Any:
            return self._server._running.node.chain.query(lambda svm: svm.get_account(address))

        return self._call(read)

    async def _address(self, context: Context) -> str:
        return context.signer.address(await account_key(context, self._account.account_id))

    def _call(self, work: Any) -> Any:
        world = self._server._running
        return world._owner.call(work(world.server.context))
