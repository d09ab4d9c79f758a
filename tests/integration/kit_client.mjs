import {
  address, airdropFactory, appendTransactionMessageInstructions,
  createSolanaRpc, createSolanaRpcSubscriptions, createTransactionMessage, generateKeyPairSigner,
  getBase64EncodedWireTransaction, getSignatureFromTransaction, isSolanaError, lamports, pipe,
  sendAndConfirmTransactionFactory, setTransactionMessageFeePayerSigner,
  setTransactionMessageLifetimeUsingBlockhash, signTransactionMessageWithSigners,
} from '@solana/kit';
import { getTransferSolInstruction } from '@solana-program/system';
import {
  fetchMint, fetchToken, findAssociatedTokenPda, getCreateAssociatedTokenIdempotentInstruction,
  getTransferCheckedInstruction, TOKEN_PROGRAM_ADDRESS,
} from '@solana-program/token';

// What a user of @solana/kit does with a chain, over HTTP and WebSocket; prints what it saw as one line of JSON.
const [url, mint, recipient] = process.argv.slice(1);
const rpc = createSolanaRpc(url);
const rpcSubscriptions = createSolanaRpcSubscriptions(url.replace('http', 'ws'));
const payer = await generateKeyPairSigner();
const told = {};

const airdrop = airdropFactory({ rpc, rpcSubscriptions });
await airdrop({ commitment: 'confirmed', recipientAddress: payer.address, lamports: lamports(2_000_000_000n) });
told.balance = String((await rpc.getBalance(payer.address).send()).value);

const sendAndConfirm = sendAndConfirmTransactionFactory({ rpc, rpcSubscriptions });
async function signed(version, instructions) {
  const { value: blockhash } = await rpc.getLatestBlockhash().send();
  const message = pipe(
    createTransactionMessage({ version }),
    m => setTransactionMessageFeePayerSigner(payer, m),
    m => setTransactionMessageLifetimeUsingBlockhash(blockhash, m),
    m => appendTransactionMessageInstructions(instructions, m),
  );
  return await signTransactionMessageWithSigners(message);
}

const [source] = await findAssociatedTokenPda({ owner: payer.address, mint: address(mint), tokenProgram: TOKEN_PROGRAM_ADDRESS });
const transaction = await signed(0, [
  getTransferSolInstruction({ source: payer, destination: address(recipient), amount: lamports(5_000_000n) }),
  getCreateAssociatedTokenIdempotentInstruction({ payer, ata: source, owner: payer.address, mint: address(mint) }),
]);
await sendAndConfirm(transaction, { commitment: 'finalized' });
told.signature = getSignatureFromTransaction(transaction);
const found = await rpc.getTransaction(told.signature, { maxSupportedTransactionVersion: 0, encoding: 'jsonParsed' }).send();
told.kinds = found.transaction.message.instructions.map(step => step.parsed.type);
told.version = found.version;
told.history = (await rpc.getSignaturesForAddress(payer.address).send()).map(line => line.signature);
told.decimals = (await fetchMint(rpc, address(mint))).data.decimals;
told.tokens = String((await fetchToken(rpc, source)).data.amount);

// A transfer of what it does not have, refused by the program.
const short = await signed('legacy', [
  getTransferCheckedInstruction({ source, mint: address(mint), destination: source, authority: payer, amount: 5n, decimals: 6 }),
]);
try {
  await rpc.sendTransaction(getBase64EncodedWireTransaction(short), { encoding: 'base64' }).send();
} catch (error) {
  told.refusal = { isSolanaError: isSolanaError(error), message: error.message, cause: error.cause?.message ?? null, logs: error.context?.logs?.length ?? 0 };
}
told.simulated = (await rpc.simulateTransaction(getBase64EncodedWireTransaction(short), { encoding: 'base64' }).send()).value.err;
told.genesis = await rpc.getGenesisHash().send();
console.log(JSON.stringify(told, (key, value) => (typeof value === 'bigint' ? Number(value) : value)));
process.exit(0);
