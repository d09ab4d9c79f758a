"""An independent witness: Solana's JavaScript libraries read a cluster."""

import asyncio
import json
import os
from typing import Any

import surfpool

_PACKAGES = ("@solana/web3.js@1.98.4", "@solana/spl-token@0.4.14")

_SCRIPT = """
const {Connection, PublicKey} = require('@solana/web3.js');
const token = require('@solana/spl-token');
const [url, asked] = [process.argv[1], JSON.parse(process.argv[2])];
const connection = new Connection(url, 'confirmed');
const readers = {
  async token_account(address) {
    const found = await token.getAccount(connection, new PublicKey(address), 'confirmed');
    return {mint: found.mint.toBase58(), owner: found.owner.toBase58(), amount: found.amount.toString()};
  },
  async is_there(address) {
    return (await connection.getAccountInfo(new PublicKey(address), 'confirmed')) !== null;
  },
  async transaction(signature) {
    const found = await connection.getParsedTransaction(signature, {maxSupportedTransactionVersion: 0});
    return {
      error: found.meta.err,
      instructions: found.transaction.message.instructions.map(
        (step) => ({program: step.program, parsed: step.parsed})),
    };
  },
  async metadata(mint) {
    const found = await token.getTokenMetadata(
      connection, new PublicKey(mint), 'confirmed', token.TOKEN_2022_PROGRAM_ID);
    return Object.fromEntries(found.additionalMetadata);
  },
};
(async () => {
  const told = [];
  for (const [kind, name] of asked) told.push(await readers[kind](name));
  console.log(JSON.stringify(told));
})();
"""


async def testify(url: str, *asked: tuple[str, str]) -> list[Any]:
    """Return what the cluster at `url` shows of each `(kind, name)`: one of the readers."""
    modules = await asyncio.to_thread(surfpool.installed, "witness", *_PACKAGES)
    process = await asyncio.create_subprocess_exec(
        *("node", "-e", _SCRIPT, url, json.dumps(asked)),
        env={**os.environ, "NODE_PATH": str(modules)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    told: list[Any] = json.loads(out)
    return told
