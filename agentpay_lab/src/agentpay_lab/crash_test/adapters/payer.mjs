// @ts-check
// A payer of a crash test that uses the payment service: node payer.mjs
// TypeScript checks it, and because its types are in comments, every Node since 18 runs it as it is. The order's name
// is the payment's key, so that an order that is asked for again is not paid again.
import { createInterface } from "node:readline";

const { AGENTPAY_BASE_URL: base, AGENTPAY_API_KEY: key, AGENTPAY_ACCOUNT_ID: account } = process.env;

/** @typedef {"served" | "refused" | "failed"} Result */
/** @typedef {{ header: { name: string, value: string }, step?: string, charge_id?: string }} Payment */

/** @param {string} path @param {object} body */
function service(path, body) {
  return fetch(`${base}/ext/v1/payments${path}`, {
    method: "POST", body: JSON.stringify(body),
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
  });
}

/** @param {string} order @param {string} url @returns {Promise<Result>} */
async function buy(order, url) {
  // By session, an attempt may open the channel, and the next one pays.
  for (let attempt = 0; attempt < 3; attempt++) {
    const asked = await fetch(url, { redirect: "manual" });
    if (asked.status === 200) return "served";
    if (asked.status !== 402) return "failed";
    const paid = await service("", {
      account_id: account, idempotency_key: order, session_cap: "0.1", origin: new URL(url).origin, url,
      method: "GET", headers: [...asked.headers], body: await asked.text(),
    });
    if ([402, 409, 422].includes(paid.status)) return "refused";
    if (paid.status !== 201) return "failed";
    const { header, step, charge_id: charge } = /** @type {Payment} */ (await paid.json());
    const served = await fetch(url, { headers: { [header.name]: header.value }, redirect: "manual" }).catch(() => null);
    if (step === "open") continue;
    // The next voucher waits for this report; 504 is no response.
    if (charge) await service(`/${charge}/outcome`, { status_code: served?.status ?? 504 });
    return served?.status === 200 ? "served" : "failed";
  }
  return "failed";
}

for await (const line of createInterface({ input: process.stdin })) {
  const { order, url } = JSON.parse(line);
  const result = await buy(order, url).catch((error) => (console.error(order, String(error)), "failed"));
  console.log(JSON.stringify({ order, result }));
}
