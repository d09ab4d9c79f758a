"""A node in memory: it responds like a real one, until a test replaces a response."""

import base64
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from chain_world import SEED
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import state
from solders.transaction import VersionedTransaction

from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.clusters import Cluster
from agentpay_server.chain.custody import Custody, spending_key
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_MINTS
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.plugins.cluster.chain import RpcChain
from agentpay_server.plugins.cluster.settings import RpcSettings

GENESIS_HASH = str(Keypair.from_seed(b"genesis hash of a test cluster..").pubkey())
BLOCKHASH = str(Keypair.from_seed(b"a blockhash of a test cluster...").pubkey())
USDC = USDC_MINTS["mainnet-beta"]
CUSTODY = Custody(SEED)
OWNER = CUSTODY.address(spending_key(1))
TOKEN_ACCOUNT = instructions.associated_token_address(OWNER, USDC)
SENDER = instructions.associated_token_address(CUSTODY.address(spending_key(2)), USDC)

SIGNED: SignedTransaction = transactions.transfer(
    CUSTODY,
    Blockhash(value=BLOCKHASH, last_valid_block_height=900),
    usdc_mint=USDC,
    account_index=1,
    source=TOKEN_ACCOUNT,
    recipient=SENDER,
    amount_micro=5,
    memo="txn_1",
)
SHORTFALL: dict[str, Any] = {"InstructionError": [0, {"Custom": 1}]}

Reply = Callable[..., Any]


class FakeNode:
    """Replaces `RpcClient`; `answers` has the response of each method for its parameters."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.before_each: Callable[[str], Awaitable[None]] | None = None
        self.slot = 1_000
        self.height = 800
        self.statuses: dict[str, Any] = {}
        self.answers: dict[str, Reply] = {
            "getGenesisHash": lambda: GENESIS_HASH,
            "getVersion": lambda: {"solana-core": "2.3.0", "feature-set": 1},
            "getEpochInfo": lambda options: {"absoluteSlot": self.slot, "blockHeight": self.height},
            "getFirstAvailableBlock": lambda: 300,
            "getBlock": lambda slot, options: {"blockHeight": slot - 200},
            "getLatestBlockhash": lambda options: self._at(
                {"blockhash": BLOCKHASH, "lastValidBlockHeight": self.height + 150}
            ),
            "getSignatureStatuses": lambda signatures, options: self._at(
                [self.statuses.get(signature) for signature in signatures]
            ),
            "sendTransaction": lambda raw, options: str(
                VersionedTransaction.from_bytes(base64.b64decode(raw)).signatures[0]
            ),
            "simulateTransaction": lambda raw, options: self._at({"err": None, "unitsConsumed": 1_373}),
            "getMultipleAccounts": lambda addresses, options: self._at(
                [
                    account_json(token_account(7)) if address == TOKEN_ACCOUNT else None
                    for address in addresses
                ]
            ),
            "getMinimumBalanceForRentExemption": lambda size: 890_880 + size,
            "getTransaction": self._transaction,
            "getSignaturesForAddress": lambda address, options: [
                {
                    "signature": SIGNED.signature,
                    "slot": self.slot,
                    "err": None,
                    "confirmationStatus": "finalized",
                }
            ],
        }

    async def call(self, method: str, *params: object) -> object:
        self.calls[method] += 1
        if self.before_each is not None:
            await self.before_each(method)
        return self.answers[method](*params)

    async def close(self) -> None:
        pass

    def lands(self, error: Any = None, commitment: str | None = None) -> None:
        """Let `SIGNED` have landed, or failed with `error`, with the commitment that makes that final."""
        if commitment is None:
            commitment = "confirmed" if error is None else "finalized"
        self.statuses[SIGNED.signature] = {"confirmationStatus": commitment, "err": error, "slot": self.slot}

    def _transaction(self, signature: str, options: dict[str, Any]) -> Any:
        if options["encoding"] == "jsonParsed":
            return deposit_json(signature)
        status = self.statuses.get(signature)
        return None if status is None else signed_json(SIGNED.raw, status["slot"], status["err"])

    def _at(self, value: Any) -> dict[str, Any]:
        return {"context": {"slot": self.slot}, "value": value}


def rpc_chain(node: FakeNode, *, name: str | None = None, **settings: Any) -> RpcChain:
    cluster = Cluster(genesis_hash=GENESIS_HASH, name=name, usdc_mint=USDC)
    chosen = RpcSettings(url="http://node.example:8899", **{"status_interval_seconds": 0, **settings})
    # A private one stands for an emulator here.
    return RpcChain(node, chosen, cluster, is_surfpool=name is None)  # type: ignore[arg-type]


def token_account(amount_micro: int, *, mint: str = USDC) -> Account:
    held = state.TokenAccount(
        Pubkey.from_string(mint),
        Pubkey.from_string(OWNER),
        amount_micro,
        None,
        state.TokenAccountState.Initialized,
        None,
        0,
        None,
    )
    return Account(2_039_280, bytes(held), TOKEN_PROGRAM)


def account_json(account: Account) -> dict[str, Any]:
    data = base64.b64encode(account.data).decode()
    return {"data": [data, "base64"], "owner": str(account.owner), "lamports": account.lamports}


def balance_json(index: int, amount: int, *, mint: str = USDC, decimals: int = 6) -> dict[str, Any]:
    amounts = {"amount": str(amount), "decimals": decimals}
    return {"accountIndex": index, "mint": mint, "uiTokenAmount": amounts}


def signed_json(raw: bytes, slot: int, error: Any = None) -> dict[str, Any]:
    """Return a transaction in base64, as it landed in a slot; failed if `error` is given."""
    logs = [] if error is None else ["Error: insufficient funds"]
    return {
        "slot": slot,
        "transaction": [base64.b64encode(raw).decode(), "base64"],
        "version": "legacy",
        "meta": {"err": error, "logMessages": logs},
    }


def deposit_json(signature: str) -> dict[str, Any]:
    """Return a payment of 5 from `SENDER` to `TOKEN_ACCOUNT`, in `jsonParsed`."""
    message = {"accountKeys": [{"pubkey": key} for key in (OWNER, TOKEN_ACCOUNT, SENDER)]}
    meta = {
        "err": None,
        "preTokenBalances": [balance_json(1, 2), balance_json(2, 9)],
        "postTokenBalances": [balance_json(1, 7), balance_json(2, 4)],
    }
    return {"transaction": {"signatures": [signature], "message": message}, "meta": meta}
