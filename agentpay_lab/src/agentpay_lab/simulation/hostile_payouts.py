"""Hostile sellers, and their versions of the transactions that settle channels and pay them out.

Each adds steps of its own, and may settle less than its highest voucher. What the program settles then, the
seller knows, and tells the cluster, which judges the books by it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from solders.hash import Hash
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_lab.simulation import forwarder
from agentpay_lab.simulation.cluster import USDC_MINT
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_server.chain import instructions
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import VOUCHER_BYTES, OnchainStatus, OnchainTerms, Voucher
from agentpay_server.chain.custody import MAX_TRANSACTION_BYTES
from agentpay_server.plugins.facilitator.settling import FeePayer, Rpc
from agentpay_server.plugins.paywall.channel_settling import TREASURY, ChannelChain
from agentpay_server.plugins.paywall.products import SellerKeys

if TYPE_CHECKING:
    from agentpay_lab.simulation.cluster import SimulatedCluster

_MAX_CREDIT_MICRO: Final = 5_000


class HostilePayouts(ChannelChain):
    """The chain of a seller that adds to its settlements; honest while no fault strikes.

    Attributes:
        held: by channel, the totals and signatures of all vouchers that it was given.
    """

    def __init__(
        self,
        rpc: Rpc,
        fee_payer: FeePayer,
        keys: SellerKeys,
        *,
        name: str,
        cluster: Callable[[], "SimulatedCluster"],
        faults: FaultInjector,
    ) -> None:
        super().__init__(rpc, fee_payer, keys)
        self.held: dict[str, dict[int, Signature]] = {}
        self._keys, self._name, self._cluster, self._faults = keys, name, cluster, faults
        self._sealed: dict[str, OnchainTerms] = {}

    async def settle(
        self, opening: OnchainTerms, voucher: Voucher | None, voucher_signature: Signature | None
    ) -> str:
        """Settle and pay out a channel, in a hostile way if a fault strikes."""
        address, verified = opening.address, None
        if voucher is not None and voucher_signature is not None:
            verified = codecs.verify_voucher(voucher, opening.signer, voucher_signature)
        steps = [] if verified is None else [verified]
        # Another voucher than the highest: that one is only verified.
        lower = self._lower(opening, voucher)
        if lower is not None and self._strikes("verifies more"):
            voucher, step = lower
            steps = [*steps, step]
        elif verified is not None and self._strikes("leaves voucher"):
            voucher = None
        seal = codecs.settle_and_seal(payee=opening.payee, channel=address, has_voucher=voucher is not None)
        pay = codecs.distribute_opened(opening, treasury=TREASURY)
        if voucher is not None and (strike := self._faults.strike("payout.flags otherwise", self._name)):
            flag = bytes((codecs.Discriminator.SETTLE_AND_SEAL, strike.randint(2, 255)))
            seal = Instruction(seal.program_id, flag, seal.accounts)
        if self._strikes("calls inside"):
            seal, pay = forwarder.forwarded(seal), forwarder.forwarded(pay)
        steps.append(seal)
        if self._strikes("pays out together"):
            self._sealed[str(address)] = opening
            return await self._sent(steps)
        more = [[each] for each in await self._others()]
        if strike := self._faults.strike("payout.adds credit", self._name):
            more.append([self._credit(opening.payer, strike.randint(1, _MAX_CREDIT_MICRO))])
        if self._strikes("closes account"):
            more.append(self._closes())
        steps.append(pay)
        for added in more:
            if self._fit([*steps, *added]):
                steps += added
        return await self._sent(steps)

    def _fit(self, steps: Sequence[Instruction]) -> bool:
        return len(bytes(super()._signed(steps, str(Hash.default())))) <= MAX_TRANSACTION_BYTES

    def _strikes(self, kind: str) -> bool:
        return self._faults.strike(f"payout.{kind}", self._name) is not None

    def _lower(self, opening: OnchainTerms, voucher: Voucher | None) -> tuple[Voucher, Instruction] | None:
        """Return a lower voucher than the highest, with the step that has it verified; None without one."""
        if voucher is None:
            return None
        total, signature = None, None
        if opening.signer == self._keys.authorizer.pubkey():
            total = voucher.cumulative_micro // 2
        else:
            held = self.held.get(str(opening.address), {})
            total = max((each for each in held if each < voucher.cumulative_micro), default=0)
            signature = held.get(total)
        if not total:
            return None
        expires_at = voucher.expires_at if signature is None else 0
        lower = Voucher(channel=opening.address, cumulative_micro=total, expires_at=expires_at)
        signature = signature or self._keys.authorizer.sign_message(lower.message())
        return lower, codecs.verify_voucher(lower, opening.signer, signature)

    async def _others(self) -> list[Instruction]:
        """Return the payouts of channels that were only sealed before, and still are."""
        steps: list[Instruction] = []
        for name, opening in list(self._sealed.items()):
            found = await self.channel(opening.address)
            if found is None or found.status is not OnchainStatus.SEALED:
                del self._sealed[name]
            else:
                steps.append(codecs.distribute_opened(opening, treasury=TREASURY))
        return steps

    def _credit(self, payer: Pubkey, amount_micro: int) -> Instruction:
        payee = self._keys.payee.pubkey()
        accounts = (
            Pubkey.from_string(instructions.associated_token_address(str(owner), USDC_MINT))
            for owner in (payee, payer)
        )
        source, destination = accounts
        return instructions.transfer_checked(
            source=source,
            destination=destination,
            owner=payee,
            mint=Pubkey.from_string(USDC_MINT),
            amount_micro=amount_micro,
        )

    def _closes(self) -> list[Instruction]:
        owner = self._keys.fee_payer.pubkey()
        account = instructions.associated_token_address(str(owner), USDC_MINT)
        return [
            instructions.close_account(account=Pubkey.from_string(account), destination=owner, owner=owner),
            instructions.create_associated_token_account_idempotent(
                payer=owner, owner=owner, mint=Pubkey.from_string(USDC_MINT)
            ),
        ]

    def _signed(self, steps: Sequence[Instruction], blockhash: str) -> VersionedTransaction:
        transaction = super()._signed(steps, blockhash)
        taken = [
            Voucher.of(bytes(before.data)[-VOUCHER_BYTES:])
            for before, step in pairwise(steps)
            if _takes_voucher(bytes(step.data))
        ]
        settles = {str(voucher.channel): voucher.cumulative_micro for voucher in taken}
        self._cluster().promise(str(transaction.signatures[0]), settles)
        return transaction


def _takes_voucher(data: bytes) -> bool:
    return data[:1] == bytes((codecs.Discriminator.SETTLE_AND_SEAL,)) and data[1:] != b"\0"
