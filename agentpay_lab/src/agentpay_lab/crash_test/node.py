"""The chain of a crash test: an embedded chain on a port, used as a cluster. It outlives every server."""

import asyncio
import contextlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import uvicorn
from attrs import Factory, evolve, field, frozen
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelError, Discriminator, OnchainTerms, Voucher
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.instructions import (
    MEMO_PROGRAM,
    associated_token_address,
    create_associated_token_account_idempotent,
    memo,
    mint_to_checked,
    movements,
    transfer_lamports,
)
from agentpay_server.chain.protocol import SignatureStatus
from agentpay_server.platform.clock import SystemClock
from agentpay_server.plugins.node.app import PATH, ChainRpc, Mounted
from agentpay_server.plugins.node.methods import Node
from agentpay_server.testkit.embedded.owner_thread import OwnerThread
from agentpay_server.testkit.embedded.port import bound_socket, url_of

_BODY_SECONDS: Final = 10.0
_WALLET_LAMPORTS: Final = 1_000_000_000


class FastClock(SystemClock):
    """Runs at `speed` seconds per real second, to shorten expiries."""

    def __init__(self, speed: int) -> None:
        self._speed = speed
        self._start_us = super().now_us()

    def now_us(self) -> int:
        return self._start_us + (super().now_us() - self._start_us) * self._speed


@frozen(kw_only=True)
class LandedPayment:
    """A transaction in a block; `taken_micro` is what it took from each token account, in micro-USDC."""

    signature: str
    memos: tuple[str, ...]
    taken_micro: Mapping[str, int]

    @property
    def amount_micro(self) -> int:
        return sum(self.taken_micro.values())


@frozen(kw_only=True)
class LandedChannel:
    """A payment channel that was opened; amounts in micro-USDC.

    Attributes:
        payer: address of the owner who paid the deposit.
        recipients: addresses of the payee and of everyone who has a share.
        settled_micro: cumulative amount of the highest voucher that was settled: what the payer has paid.
    """

    payer: str
    recipients: frozenset[str]
    deposit_micro: int
    settled_micro: int = 0


def _by_memo(landed: "LandedPayments") -> dict[str, list[LandedPayment]]:
    found: defaultdict[str, list[LandedPayment]] = defaultdict(list)
    for payment in landed.payments:
        for text in dict.fromkeys(payment.memos):
            found[text].append(payment)
    return dict(found)


@frozen
class LandedPayments:
    """The payments that landed, oldest first.

    A purchase is identified by its memo, or, through a channel, by its own recipient.
    """

    payments: Sequence[LandedPayment]
    channels: Sequence[LandedChannel] = ()
    _by_memo: dict[str, list[LandedPayment]] = field(
        init=False, repr=False, eq=False, default=Factory(_by_memo, takes_self=True)
    )

    def of(self, purchase: str) -> Sequence[LandedPayment]:
        return self._by_memo.get(purchase, ())

    def times(self, purchase: str) -> int:
        return len(self.of(purchase))

    def micro(self, purchase: str) -> int:
        return sum(payment.amount_micro for payment in self.of(purchase))

    def channels_to(self, recipient: str) -> Sequence[LandedChannel]:
        """Return the channels from which a recipient is paid."""
        return [channel for channel in self.channels if recipient in channel.recipients]


class ChainNode:
    """A running chain with its RPC node; `environment` has the keys that a server on it needs."""

    def __init__(self, *, speed: int) -> None:
        self.clock: FastClock = FastClock(speed)
        self._treasury, self._mint_authority = Keypair(), Keypair()
        self._numbers = itertools.count(1)
        self._payments: list[LandedPayment] = []
        self._channels: dict[str, LandedChannel] = {}
        self._landed = LandedPayments(())
        self._socket = bound_socket("127.0.0.1", 0)
        self._owner = OwnerThread("crash-test-chain")
        self._owner.call(self._start())
        self.url: str = url_of(self._socket) + PATH
        self.environment: dict[str, str] = {
            "AGENTPAY_SERVER_FEE_PAYER_KEY": json.dumps(list(bytes(self._treasury))),
            "AGENTPAY_SERVER_MINT_AUTHORITY_KEY": json.dumps(list(bytes(self._mint_authority))),
        }

    def landed(self) -> LandedPayments:
        """Return what has landed so far."""
        return self._landed

    @property
    def usdc_mint(self) -> str:
        return self._chain.usdc_mint

    def wallet(self, amount_micro: int) -> Keypair:
        """Return the key of a new wallet with SOL for fees and an amount of USDC."""
        keypair = Keypair()
        self._owner.call(self._fund_wallet(keypair.pubkey(), amount_micro))
        return keypair

    def token_account(self, owner: str) -> str:
        """Return the USDC token account of a wallet."""
        return str(associated_token_address(owner, self._chain.usdc_mint))

    async def _fund_wallet(self, owner: Pubkey, amount_micro: int) -> None:
        treasury, mint = self._treasury.pubkey(), Pubkey.from_string(self._chain.usdc_mint)
        account = Pubkey.from_string(associated_token_address(str(owner), str(mint)))
        steps = [
            transfer_lamports(treasury, owner, _WALLET_LAMPORTS),
            create_associated_token_account_idempotent(payer=treasury, owner=owner, mint=mint),
            mint_to_checked(
                mint=mint,
                destination=account,
                mint_authority=self._mint_authority.pubkey(),
                amount_micro=amount_micro,
            ),
        ]
        blockhash = Hash.from_string((await self._chain.latest_blockhash()).value)
        message = Message.new_with_blockhash(steps, treasury, blockhash)
        await self._chain.send(bytes(VersionedTransaction(message, [self._treasury, self._mint_authority])))

    def close(self) -> None:
        self._owner.stop(self._stop)

    async def _start(self) -> None:
        self._chain = EmbeddedChain(
            treasury=str(self._treasury.pubkey()),
            mint_authority=str(self._mint_authority.pubkey()),
            now_us=self.clock.now_us,
        )
        await self._chain.restore()
        self._chain.observe(self._note)
        app = Mounted(ChainRpc(Node(self._chain, self._airdrop), body_timeout_seconds=_BODY_SECONDS))
        config = uvicorn.Config(
            app, ws="websockets-sansio", lifespan="off", log_config=None, access_log=False, workers=1
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:  # noqa: ASYNC110 - uvicorn tells it no other way
            await asyncio.sleep(0.001)

    async def _stop(self) -> None:
        self._server.should_exit = True
        await self._serving
        self._chain.release()

    async def _airdrop(self, address: str, lamports: int) -> str:
        blockhash = Hash.from_string((await self._chain.latest_blockhash()).value)
        steps = [
            transfer_lamports(self._treasury.pubkey(), Pubkey.from_string(address), lamports),
            memo(f"airdrop {next(self._numbers)}"),
        ]
        message = Message.new_with_blockhash(steps, self._treasury.pubkey(), blockhash)
        transaction = VersionedTransaction(message, [self._treasury])
        await self._chain.send(bytes(transaction))
        return str(transaction.signatures[0])

    def _note(self, transaction: VersionedTransaction, status: SignatureStatus) -> None:
        if status.failure is not None:
            return
        keys = transaction.message.account_keys
        memos = tuple(
            bytes(step.data).decode("utf-8", "replace")
            for step in transaction.message.instructions
            if keys[step.program_id_index] == MEMO_PROGRAM
        )
        taken_micro: Counter[str] = Counter()
        for moved in movements(transaction):
            if moved.source is not None:
                taken_micro[moved.source] += moved.amount_micro
        signature = str(transaction.signatures[0])
        payment = LandedPayment(signature=signature, memos=memos, taken_micro=taken_micro)
        self._payments.append(payment)
        for step in channel_steps(transaction):
            self._note_channel(step)
        # One assignment: other threads read it.
        self._landed = LandedPayments(tuple(self._payments), tuple(self._channels.values()))

    def _note_channel(self, step: OnchainTerms | Voucher) -> None:
        if isinstance(step, OnchainTerms):
            owners = {step.payee, *(share.recipient for share in step.shares)}
            self._channels[str(step.address)] = LandedChannel(
                payer=str(step.payer),
                recipients=frozenset(map(str, owners)),
                deposit_micro=step.deposit_micro,
            )
        elif channel := self._channels.get(str(step.channel)):
            self._channels[str(step.channel)] = evolve(channel, settled_micro=step.cumulative_micro)


def channel_steps(transaction: VersionedTransaction) -> Iterator[OnchainTerms | Voucher]:
    """Yield the channels that a transaction opens, and the vouchers that it settles, if it succeeds.

    The program accepts a voucher only if it is above the settled one, and verified by the instruction before.
    """
    keys, steps = transaction.message.account_keys, transaction.message.instructions
    for number, step in enumerate(steps):
        if keys[step.program_id_index] != codecs.PROGRAM:
            continue
        data = bytes(step.data)
        if data[0] == Discriminator.OPEN:
            with contextlib.suppress(ChannelError):
                yield codecs.read_opening([keys[index] for index in step.accounts], data)
        elif data[0] == Discriminator.SETTLE or data[:2] == bytes((Discriminator.SETTLE_AND_SEAL, 1)):
            yield Voucher.of(bytes(steps[number - 1].data)[-codecs.VOUCHER_BYTES :])
