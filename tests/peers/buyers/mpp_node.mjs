// A buyer that uses @solana/mpp as its documentation says: it fetches URL, and prints status and body.
import { createKeyPairSignerFromBytes } from "@solana/kit";
import { Mppx, solana } from "@solana/mpp/client";

const { KEYPAIR, RPC_URL, URL_TO_BUY, BROADCAST } = process.env;
const signer = await createKeyPairSignerFromBytes(Uint8Array.from(JSON.parse(KEYPAIR)));
const method = solana.charge({ signer, rpcUrl: RPC_URL, broadcast: BROADCAST === "1" });
const mppx = Mppx.create({ methods: [method] });
const response = await mppx.fetch(URL_TO_BUY);
console.log(JSON.stringify({ status: response.status, body: await response.json() }));
