// A payer of a crash test that uses the payment service, in TypeScript: npx tsx payer.ts
// (Node 22.18 and newer run it as it is.) The order's name is the payment's key, so that an order that is asked for
// again is not paid again.
import { createInterface } from "node:readline";

const { AGENTPAY_BASE_URL: base, AGENTPAY_API_KEY: key, AGENTPAY_ACCOUNT_ID: account } = process.env;

type Result = "served" | "refused" | "failed";

async function buy(order: string, url: string): Promise<Result> {
  const asked = await fetch(url, { redirect: "manual" });
  if (asked.status === 200) return "served";
  if (asked.status !== 402) return "failed";
  const body = {
    account_id: account, idempotency_key: order, origin: new URL(url).origin, url, method: "GET",
    headers: [...asked.headers], body: await asked.text(),
  };
  const paid = await fetch(`${base}/ext/v1/payments`, {
    method: "POST", body: JSON.stringify(body),
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
  });
  if ([402, 409, 422].includes(paid.status)) return "refused";
  if (paid.status !== 201) return "failed";
  const { header } = (await paid.json()) as { header: { name: string; value: string } };
  const served = await fetch(url, { headers: { [header.name]: header.value }, redirect: "manual" });
  return served.status === 200 ? "served" : "failed";
}

for await (const line of createInterface({ input: process.stdin })) {
  const { order, url } = JSON.parse(line) as { order: string; url: string };
  const result = await buy(order, url).catch((error): Result => (console.error(order, String(error)), "failed"));
  console.log(JSON.stringify({ order, result }));
}
