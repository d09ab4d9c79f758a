// A buyer that uses @x402/fetch as its documentation says: it fetches URL_TO_BUY, and prints status and body.
import { createKeyPairSignerFromBytes } from "@solana/kit";
import { wrapFetchWithPayment, x402Client } from "@x402/fetch";
import { UptoSvmScheme } from "@x402/svm/upto/client";

const { KEYPAIR, RPC_URL, URL_TO_BUY } = process.env;
const signer = await createKeyPairSignerFromBytes(Uint8Array.from(JSON.parse(KEYPAIR)));
const client = new x402Client().register("solana:*", new UptoSvmScheme(signer, { rpcUrl: RPC_URL }));
// The test chain has USDC at its mainnet mint, which the package does not expect on devnet.
client.setSpendControls(false);
const response = await wrapFetchWithPayment(fetch, client)(URL_TO_BUY);
console.log(JSON.stringify({ status: response.status, body: await response.json() }));
