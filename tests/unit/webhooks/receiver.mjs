// A receiver as a customer would write it in Node, with nothing but its `crypto`. Reads one delivery per line,
// as JSON with the body in base64, and prints what it would answer.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createInterface } from "node:readline";

function receive({ headers, body, secret }) {
  const raw = Buffer.from(body, "base64");
  const given = Buffer.from(headers["x-service-signature"] ?? "", "hex");
  const wanted = createHmac("sha256", secret).update(raw).digest();
  if (given.length !== wanted.length || !timingSafeEqual(given, wanted)) return { status: 401 };
  return { status: 200, type: JSON.parse(raw.toString("utf8")).type };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(receive(JSON.parse(line))));
}
