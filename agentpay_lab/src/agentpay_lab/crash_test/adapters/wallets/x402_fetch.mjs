// A payer of a crash test with a wallet of its own: npm @x402/fetch, with its spend controls.
// npm install @x402/fetch@2.27.0 @x402/core@2.27.0 @x402/svm@2.27.0 @solana/kit@5.5.1, then: node x402_fetch.mjs
// The package has no key for a purchase: an order that is asked for again is a new call.
import { createInterface } from "node:readline";
import { createKeyPairSignerFromBytes } from "@solana/kit";
import { ExactSvmScheme } from "@x402/svm/exact/client";
import { UptoSvmScheme } from "@x402/svm/upto/client";
import { wrapFetchWithPaymentFromConfig } from "@x402/fetch";

const { TRIAL_NETWORK: network, TRIAL_RPC_URL: rpcUrl, TRIAL_USDC_MINT: asset, TRIAL_WALLET_SECRET } = process.env;
const signer = await createKeyPairSignerFromBytes(new Uint8Array(JSON.parse(TRIAL_WALLET_SECRET)));

async function buy(url, priceUsdc) {
  const maxAmountPerPayment = String(Math.round(Number(priceUsdc) * 1e6));
  const pay = wrapFetchWithPaymentFromConfig(fetch, {
    schemes: [ExactSvmScheme, UptoSvmScheme].map((Scheme) => ({ network, client: new Scheme(signer, { rpcUrl }) })),
    spendControls: { allowedAssets: [{ network, asset, maxAmountPerPayment }] },
  });
  const response = await pay(url, { signal: AbortSignal.timeout(25_000) });
  return response.status === 200 ? "served" : "failed";
}

for await (const line of createInterface({ input: process.stdin })) {
  const { order, url, price_usdc: price } = JSON.parse(line);
  const result = await buy(url, price).catch((error) => (console.error(order, String(error).slice(0, 300)), "failed"));
  console.log(JSON.stringify({ order, result }));
}
