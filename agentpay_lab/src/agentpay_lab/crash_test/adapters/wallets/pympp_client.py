"""A payer of a crash test with a wallet of its own: the package pympp.

pip install "pympp==0.16.0" "solders==0.29.0", then `python pympp_client.py`. pympp has no method for Solana.
The one below does the least that sellers accept: it signs what the challenge asks for, up to the price.
"""

import asyncio
import base64
import json
import os
import sys
from decimal import Decimal

import httpx
from mpp import Credential
from mpp.client import Mpp
from mpp.errors import PaymentOutcomeUnknownError
from mpp.methods import Method
from mpp.runtime import ClientMethod, CredentialParams
from pydantic import BaseModel
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

TOKEN = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_ACCOUNTS = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
MINT = os.environ["TRIAL_USDC_MINT"]
SECONDS = 25
TRANSFER_CHECKED = 12
DECIMALS = 6


class Anything(BaseModel, extra="allow"):
    """Without checks: the seller checks the values."""


def token_account(owner: Pubkey, mint: Pubkey) -> Pubkey:
    return Pubkey.find_program_address([bytes(owner), bytes(TOKEN), bytes(mint)], TOKEN_ACCOUNTS)[0]


class Solana:
    def __init__(self, price_usdc: str) -> None:
        self._most = int(Decimal(price_usdc) * 10**6)
        self._keypair = Keypair.from_bytes(bytes(json.loads(os.environ["TRIAL_WALLET_SECRET"])))

    async def credential(self, params: CredentialParams) -> str:
        request, mint = params.challenge.request, Pubkey.from_string(MINT)
        amount = int(request["amount"])
        if amount > self._most or request["currency"] != MINT:
            raise ValueError("the price is above the limit, or in another token")
        if request["methodDetails"]["network"] not in ("devnet", "localnet"):
            raise ValueError("another network")
        owner = self._keypair.pubkey()
        steps = [
            Instruction(
                TOKEN,
                bytes([TRANSFER_CHECKED]) + amount.to_bytes(8, "little") + bytes([DECIMALS]),
                [
                    AccountMeta(token_account(owner, mint), is_signer=False, is_writable=True),
                    AccountMeta(mint, is_signer=False, is_writable=False),
                    AccountMeta(
                        token_account(Pubkey.from_string(request["recipient"]), mint),
                        is_signer=False,
                        is_writable=True,
                    ),
                    AccountMeta(owner, is_signer=True, is_writable=False),
                ],
            )
        ]
        if request.get("externalId"):
            steps.append(Instruction(MEMO, request["externalId"].encode(), []))
        message = MessageV0.try_compile(owner, steps, [], Hash.from_string(await self._blockhash()))
        raw = bytes(VersionedTransaction(message, [self._keypair]))
        payload = {"type": "transaction", "transaction": base64.b64encode(raw).decode()}
        return Credential(challenge=params.challenge.to_echo(), payload=payload).to_authorization()

    async def _blockhash(self) -> str:
        call = {"jsonrpc": "2.0", "id": 1, "method": "getLatestBlockhash", "params": []}
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(os.environ["TRIAL_RPC_URL"], json=call)
        blockhash: str = answer.json()["result"]["value"]["blockhash"]
        return blockhash


async def buy(url: str, price_usdc: str) -> str:
    """Return `served` if the resource was obtained, `refused` if pympp says not to retry, else `failed`."""
    charge = Method(name="solana", intent="charge", request_model=Anything, payload_model=Anything)
    method = ClientMethod(method=charge, create_credential=Solana(price_usdc).credential)
    async with Mpp(methods=[method]) as mpp:
        try:
            response = await mpp.fetch(url, timeout=SECONDS)
        except PaymentOutcomeUnknownError:
            # pympp documents for this error: "Do not blindly retry."
            return "refused"
    return "served" if response.status_code == 200 else "failed"


for line in sys.stdin:
    asked = json.loads(line)
    try:
        result = asyncio.run(buy(asked["url"], asked["price_usdc"]))
    except Exception as error:  # noqa: BLE001 - whatever it raises, the payer has no resource
        print(f"{asked['order']}: {error!r}", file=sys.stderr)
        result = "failed"
    print(json.dumps({"order": asked["order"], "result": result}), flush=True)
