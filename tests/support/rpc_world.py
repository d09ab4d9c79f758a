"""A small world on a real validator: what tests of the RPC chain say in one line each."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.state import Mint
from surfpool import Surfpool

from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.custody import (
    TEST_MINT_AUTHORITY,
    TREASURY,
    Custody,
    KeyPath,
    sign_transaction,
    spending_key,
)
from agentpay_server.chain.protocol import ChainUnreachableError, SignatureStatus, SignedTransaction
from agentpay_server.plugins.cluster.chain import RpcChain, connect
from agentpay_server.plugins.cluster.settings import RpcSettings

USDC = instructions.USDC_MINTS["mainnet-beta"]
USDC_OF_DEVNET = instructions.USDC_MINTS["devnet"]
PATIENCE_SECONDS = 120.0

# One fee payer and one mint for all tests on a validator; the accounts are each test's own.
GIVEN = {
    TREASURY: bytes(Keypair.from_seed(b"fee payer of the rpc tests......")),
    TEST_MINT_AUTHORITY: bytes(Keypair.from_seed(b"mint authority of the rpc tests.")),
}


TREASURY_ADDRESS, MINT_AUTHORITY_ADDRESS = (str(Keypair.from_bytes(key).pubkey()) for key in GIVEN.values())


def put_mint(
    surfpool: Surfpool, authority: str, *, address: str = USDC, decimals: int = instructions.USDC_DECIMALS
) -> None:
    key = Pubkey.from_string(authority)
    data = bytes(Mint(key, 0, decimals, is_initialized=True, freeze_authority=key))
    owner = str(instructions.TOKEN_PROGRAM)
    surfpool.call("surfnet_setAccount", address, {"lamports": 10**9, "data": data.hex(), "owner": owner})


def put_lamports(surfpool: Surfpool, address: str, lamports: int) -> None:
    surfpool.call("surfnet_setAccount", address, {"lamports": lamports})


def prepare(surfpool: Surfpool) -> None:
    """Give a validator the test mint, and SOL to the fee payer."""
    custody = new_custody()
    put_mint(surfpool, custody.address(TEST_MINT_AUTHORITY))
    put_lamports(surfpool, custody.address(TREASURY), 10**15)


class RpcWorld:
    def __init__(self, surfpool: Surfpool, custody: Custody, chain: RpcChain) -> None:
        self.surfpool = surfpool
        self.custody = custody
        self.chain = chain
        self.minted = 0

    async def end(self, signed: SignedTransaction) -> SignatureStatus:
        """Wait until a transaction that was sent is final."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                # On a busy machine, a response can come after the timeout that a test gave the chain.
                with suppress(ChainUnreachableError):
                    status = await self.chain.signature_status(signed.signature)
                    if status is not None and status.is_final:
                        return status
                await self.chain.wait_for_notice(signed.signature, 0.02)

    async def irreversible(self, signed: SignedTransaction) -> None:
        """Wait until a transaction that was sent can no longer vanish."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await self.end(signed)).is_irreversible:
                await self.chain.wait_for_notice(signed.signature, 0.1)

    async def expired(self, signed: SignedTransaction) -> None:
        """Wait until a transaction can no longer land."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.chain.block_height() <= signed.last_valid_block_height:
                await self.chain.wait_for_notice(signed.signature, 0.1)

    async def send(self, signed: SignedTransaction) -> SignatureStatus:
        await self.chain.send(signed.raw)
        return await self.end(signed)

    async def land(self, signed: SignedTransaction) -> None:
        status = await self.send(signed)
        assert status.failure is None, status

    async def land_instruction(self, instruction: Instruction, *cosigners: KeyPath) -> None:
        blockhash = await self.chain.latest_blockhash()
        await self.land(sign_transaction(self.custody, blockhash, [instruction], *cosigners))

    def owner(self, index: int) -> str:
        return self.custody.address(spending_key(index))

    def token_address(self, index: int) -> str:
        return instructions.associated_token_address(self.owner(index), USDC)

    async def balance(self, address: str) -> int:
        (account,) = await self.chain.token_accounts([address])
        assert account is not None
        return account.amount_micro

    async def provision(self, index: int) -> SignedTransaction:
        present = await self.chain.account_size(self.owner(index))
        return transactions.provision_accounts(
            self.custody,
            await self.chain.latest_blockhash(),
            usdc_mint=USDC,
            present_lamports={index: 0 if present is None else present[0]},
            rent_exempt_lamports=await self.chain.rent_exemption(0),
        )

    async def account(self, index: int, amount_micro: int = 0) -> str:
        """Put account `index` on chain with `amount_micro`; return its token account."""
        await self.land(await self.provision(index))
        address = self.token_address(index)
        if amount_micro:
            await self.mint(address, amount_micro)
        return address

    async def mint(self, address: str, amount_micro: int) -> SignedTransaction:
        self.minted += 1
        signed = transactions.mint(
            self.custody,
            await self.chain.latest_blockhash(),
            usdc_mint=USDC,
            token_account=address,
            amount_micro=amount_micro,
            memo=f"mint {self.minted}",
        )
        await self.land(signed)
        return signed

    async def transfer(
        self, source: int, recipient: str, amount_micro: int, memo: str = "txn_1"
    ) -> SignedTransaction:
        return transactions.transfer(
            self.custody,
            await self.chain.latest_blockhash(),
            usdc_mint=USDC,
            account_index=source,
            source=self.token_address(source),
            recipient=recipient,
            amount_micro=amount_micro,
            memo=memo,
        )

    async def freeze(self, address: str) -> None:
        accounts = [
            AccountMeta(Pubkey.from_string(address), is_signer=False, is_writable=True),
            AccountMeta(Pubkey.from_string(USDC), is_signer=False, is_writable=False),
            AccountMeta(self.pubkey(TEST_MINT_AUTHORITY), is_signer=True, is_writable=False),
        ]
        step = Instruction(instructions.TOKEN_PROGRAM, b"\x0a", accounts)
        await self.land_instruction(step, TEST_MINT_AUTHORITY)

    async def close_account(self, index: int) -> None:
        accounts = [
            AccountMeta(Pubkey.from_string(self.token_address(index)), is_signer=False, is_writable=True),
            AccountMeta(self.pubkey(TREASURY), is_signer=False, is_writable=True),
            AccountMeta(self.pubkey(spending_key(index)), is_signer=True, is_writable=False),
        ]
        step = Instruction(instructions.TOKEN_PROGRAM, b"\x09", accounts)
        await self.land_instruction(step, spending_key(index))

    def pubkey(self, key: KeyPath) -> Pubkey:
        return Pubkey.from_string(self.custody.address(key))


def new_custody() -> Custody:
    return Custody(os.urandom(64), given=GIVEN)


@asynccontextmanager
async def world(surfpool: Surfpool, *, url: str | None = None, **settings: Any) -> AsyncIterator[RpcWorld]:
    """Seed a validator with the test mint and SOL, connect to it (by way of `url`), and let go in the end."""
    custody = new_custody()
    prepare(surfpool)
    chain = await connect(
        RpcSettings(url=url or surfpool.url, **{"status_interval_seconds": 0.01, **settings}),
        stored_genesis_hash=None,
        treasury=custody.address(TREASURY),
        mint_authority=custody.address(TEST_MINT_AUTHORITY),
    )
    try:
        yield RpcWorld(surfpool, custody, chain)
    finally:
        await chain.close()
