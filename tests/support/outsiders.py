"""A third party's wallet on the embedded chain: it pays its own fees and signs for itself."""

import struct

from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from agentpay_server.chain import instructions
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, Signer, sign_transaction
from agentpay_server.chain.instructions import TOKEN_PROGRAM, associated_token_address
from agentpay_server.chain.protocol import Chain, SignatureStatus

_LAMPORTS = 10**9


class Wallet:
    """A wallet with USDC in its associated token account.

    Args:
        chain: where it is.
        signer: whose treasury and mint authority give it what it starts with.
        number: tells one wallet from another.
    """

    def __init__(self, chain: Chain, signer: Signer, number: int = 1) -> None:
        self._chain = chain
        self._signer = signer
        self._keypair = Keypair.from_seed(bytes([200, number]) * 16)
        self._sent = 0
        self.address = str(self._keypair.pubkey())
        self.token_account = associated_token_address(self.address, chain.usdc_mint)

    async def open(self, micro: int) -> str:
        """Come to SOL for fees and to so many micro-USDC; return the signature."""
        mint = Pubkey.from_string(self._chain.usdc_mint)
        treasury = Pubkey.from_string(self._signer.address(TREASURY))
        owner = self._keypair.pubkey()
        signed = sign_transaction(
            self._signer,
            await self._chain.latest_blockhash(),
            [
                instructions.transfer_lamports(treasury, owner, _LAMPORTS),
                instructions.create_associated_token_account_idempotent(
                    payer=treasury, owner=owner, mint=mint
                ),
                *([self._mint_to(self.token_account, micro)] if micro else []),
            ],
            *([TEST_MINT_AUTHORITY] if micro else []),
        )
        await self._chain.send(signed.raw)
        return signed.signature

    async def pay(self, *payments: tuple[str, int], also_from: "Wallet | None" = None) -> str:
        """Pay micro-USDC into token accounts, all in one transaction, and return its signature.

        Args:
            payments: to which token accounts, and how much.
            also_from: another wallet that pays the same once more, in the same transaction.
        """
        payers = [self] if also_from is None else [self, also_from]
        steps = [payer._payment(to, micro) for payer in payers for to, micro in payments]
        return await self.send(*steps, cosigner=also_from)

    async def close(self, token_account: str | None = None) -> str:
        """Close a token account, which must be empty, the associated one if None; return the signature."""
        account, owner = Pubkey.from_string(token_account or self.token_account), self._keypair.pubkey()
        return await self.send(instructions.close_account(account=account, destination=owner, owner=owner))

    async def open_another(self, seed: str) -> tuple[str, str]:
        """Create an empty second token account besides the associated one; return address and signature."""
        owner, mint = self._keypair.pubkey(), Pubkey.from_string(self._chain.usdc_mint)
        account = instructions.address_with_seed(owner, seed, TOKEN_PROGRAM)
        size = instructions.TOKEN_ACCOUNT_BYTES
        signature = await self.send(
            instructions.transfer_lamports(owner, account, await self._chain.rent_exemption(size)),
            instructions.allocate_with_seed(base=owner, seed=seed, size=size, program=TOKEN_PROGRAM),
            instructions.initialize_token_account(account=account, mint=mint, owner=owner),
        )
        return str(account), signature

    async def hand_over(self, owner: str, token_account: str | None = None) -> str:
        """Transfer a token account, the associated one if None, to another owner; return the signature.

        This wallet may still close another one than the associated one.
        """
        account = Pubkey.from_string(token_account or self.token_account)
        accounts = [_account(account, changes=True), _account(self._keypair.pubkey(), signs=True)]
        set_closer = b"\x06\x03\x01" + bytes(self._keypair.pubkey())
        set_owner = b"\x06\x02\x01" + bytes(Pubkey.from_string(owner))
        authorities = (set_owner,) if token_account is None else (set_closer, set_owner)
        return await self.send(*(Instruction(TOKEN_PROGRAM, each, accounts) for each in authorities))

    async def give_up(self) -> str:
        """Give the wallet's own account to a program, so that it pays no more fees; return the signature."""
        return await self.send(instructions.assign(self._keypair.pubkey(), TOKEN_PROGRAM))

    async def send(self, *steps: Instruction, cosigner: "Wallet | None" = None) -> str:
        """Send instructions that the wallet signs, and return the signature, whatever becomes of it."""
        self._sent += 1
        steps = (*steps, instructions.memo(f"{self.address} {self._sent}"))
        keypairs = [self._keypair] if cosigner is None else [self._keypair, cosigner._keypair]
        blockhash = Hash.from_string((await self._chain.latest_blockhash()).value)
        message = Message.new_with_blockhash(steps, self._keypair.pubkey(), blockhash)
        transaction = Transaction(keypairs, message, blockhash)
        await self._chain.send(bytes(transaction))
        return str(transaction.signatures[0])

    async def new_token(self, owner: str) -> tuple[str, list[Instruction]]:
        """Make another token than USDC, of the same kind; return what gives 5 of it to `owner`, and where."""
        mint = Keypair.from_seed(bytes([201]) * 32)
        authority = self._keypair.pubkey()
        rent = await self._chain.rent_exemption(82)
        # Owned by the wallet, at an address derived from it: no other key has to sign.
        address = Pubkey.create_with_seed(authority, str(mint.pubkey())[:32], TOKEN_PROGRAM)
        seed = str(mint.pubkey())[:32].encode()
        create = struct.pack("<I", 3) + bytes(authority) + struct.pack("<Q", len(seed)) + seed
        create += struct.pack("<QQ", rent, 82) + bytes(TOKEN_PROGRAM)
        held_at = associated_token_address(owner, str(address))
        return held_at, [
            Instruction(
                instructions.SYSTEM_PROGRAM,
                create,
                [_account(authority, signs=True, changes=True), _account(address, changes=True)],
            ),
            Instruction(
                TOKEN_PROGRAM, b"\x14\x06" + bytes(authority) + b"\x00", [_account(address, changes=True)]
            ),
            instructions.create_associated_token_account_idempotent(
                payer=authority, owner=Pubkey.from_string(owner), mint=address
            ),
            instructions.mint_to_checked(
                mint=address,
                destination=Pubkey.from_string(held_at),
                mint_authority=authority,
                amount_micro=5,
            ),
        ]

    def _payment(self, to: str, micro: int) -> Instruction:
        # By hand: a stranger may also pay nothing, which the service's own instructions refuse.
        return Instruction(
            TOKEN_PROGRAM,
            struct.pack("<BQB", 12, micro, 6),
            [
                AccountMeta(Pubkey.from_string(self.token_account), is_signer=False, is_writable=True),
                AccountMeta(Pubkey.from_string(self._chain.usdc_mint), is_signer=False, is_writable=False),
                AccountMeta(Pubkey.from_string(to), is_signer=False, is_writable=True),
                AccountMeta(self._keypair.pubkey(), is_signer=True, is_writable=False),
            ],
        )

    def _mint_to(self, token_account: str, micro: int) -> Instruction:
        return instructions.mint_to_checked(
            mint=Pubkey.from_string(self._chain.usdc_mint),
            destination=Pubkey.from_string(token_account),
            mint_authority=Pubkey.from_string(self._signer.address(TEST_MINT_AUTHORITY)),
            amount_micro=micro,
        )


async def landed(chain: Chain, signature: str) -> bool:
    """Whether a transaction did what it says, and can no longer vanish, once that is known."""
    status = await chain.signature_status(signature)
    # Where a send does not execute at once, and what has landed can be undone for a while.
    while chain.landing_seconds and (status is None or not status.is_irreversible):
        await chain.wait_for_notice(signature, 0.1)
        status = await chain.signature_status(signature)
    return status == SignatureStatus(is_final=True)


def _account(address: Pubkey, *, signs: bool = False, changes: bool = False) -> AccountMeta:
    return AccountMeta(address, is_signer=signs, is_writable=changes)
