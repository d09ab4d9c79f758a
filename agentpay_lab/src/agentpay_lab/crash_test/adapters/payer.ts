// A payer of a crash test that uses the payment service, in TypeScript: npx tsx payer.ts
// (Node 22.18 and newer run it as it is.) The order's name is the payment's key, so that an order that is asked for
// again is not paid again.
import { createInterface } from "node:readline";

const { AGENTPAY_BASE_URL: base, AGENTPAY_API_KEY: key, AGENTPAY_ACCOUNT_ID: account } = process.env;

type Result = "served" | "refused" | "failed";
type Payment = { header: { name: string; value: string }; step?: string; charge_id?: string };

function service(path: string, body: object): Promise<Response> {
  return fetch(`${base}/ext/v1/payments${path}`, {
    method: "POST", body: JSON.stringify(body),
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
  });
}

async function buy(order: string, url: string): Promise<Result> {
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
    const { header, step, charge_id: charge } = (await paid.json()) as Payment;
    const served = await fetch(url, { headers: { [header.name]: header.value }, redirect: "manual" }).catch(() => null);
    if (step === "open") continue;
    // The next voucher waits for this report; 504 is no response.
    if (charge) await service(`/${charge}/outcome`, { status_code: served?.status ?? 504 });
    return served?.status === 200 ? "served" : "failed";
  }
  return "failed";
}

for await (const line of createInterface({ input: process.stdin })) {
  const { order, url } = JSON.parse(line) as { order: string; url: string };
  const result = await buy(order, url).catch((error): Result => (console.error(order, String(error)), "failed"));
  console.log(JSON.stringify({ order, result }));
}
