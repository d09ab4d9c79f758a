// Buys with npm @x402/fetch and its spend controls: `node x402_fetch.mjs PLAN.json`.
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { createKeyPairSignerFromBytes } from "@solana/kit";
import { ExactSvmScheme } from "@x402/svm/exact/client";
import { wrapFetchWithPaymentFromConfig } from "@x402/fetch";

const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
const signer = await createKeyPairSignerFromBytes(new Uint8Array(plan.secret));
const pay = wrapFetchWithPaymentFromConfig(fetch, {
  schemes: [{ network: plan.network, client: new ExactSvmScheme(signer, { rpcUrl: plan.rpc_url }) }],
  spendControls: {
    allowedAssets: [{ network: plan.network, asset: plan.mint, maxAmountPerPayment: plan.price_micro }],
  },
});

const done = existsSync(plan.done) ? readFileSync(plan.done, "utf8").split("\n") : [];
const note = (text) => appendFileSync(plan.done, `${text}\n`);
for (const [name, path] of plan.purchases) {
  if (done.includes(`${name} served`) || done.includes(`${name} unserved`)) continue;
  let served = false;
  for (let tries = done.filter((line) => line === `${name} asked`).length; tries < plan.tries && !served; tries++) {
    note(`${name} asked`);
    try {
      served = (await pay(plan.shop + path, { signal: AbortSignal.timeout(70_000) })).status === 200;
    } catch (error) {
      console.error(name, String(error).slice(0, 300));
    }
  }
  note(`${name} ${served ? "served" : "unserved"}`);
}
