// @ts-check
// What passed between an agent, a shop and whoever settles, for a payment that answered HTTP 402.

import { span, usdc } from "./ui.js";

const PROTOCOLS = { mpp: "MPP", x402_v2: "x402, version 2", x402_v1: "x402, version 1" };
const UNKNOWN = "Not known here";

/**
 * The steps of a payment, each in the lane between two parties. What only the agent or the shop saw is said to be
 * unknown, unless the agent reported it: that is a claim, and shown as one.
 */
export function exchange(pay, verdict, approval, sent) {
  const settler = pay.fee_payer ? "Facilitator" : "Server", told = pay.outcome, isOver = ["rejected", "failed"].includes(pay.status);
  const isRefused = told && (told.status_code < 200 || told.status_code > 299);
  return [
    { name: "Request", lane: "Agent → Shop", look: "ok", text: pay.url ?? UNKNOWN, facts: [["Origin", pay.origin]] },
    { name: "402 Payment Required", lane: "Shop → Agent", look: "ok", text: `${usdc(pay.amount_usdc)} USDC, by ${PROTOCOLS[pay.protocol] ?? pay.protocol}`,
      facts: [["Recipient", pay.recipient], ["Fee payer", pay.fee_payer ?? "this server"], ["Category", pay.category]] },
    { ...verdict, lane: "Agent → Server" },
    approval && { ...approval, lane: "Operator → Server" },
    sent && { name: "Signed payment handed out", lane: "Server → Agent", look: "ok", at: sent.created_at, since: verdict.at,
      text: "The same key presents the same transaction again: it is not charged again.", facts: [["Can land until", isOver || pay.settled_at ? null : pay.expires_at]] },
    sent && { name: "Paid request and response", lane: "Agent → Shop → Agent", look: told ? (isRefused ? "bad" : "ok") : "none",
      text: told ? `Status ${told.status_code}${told.duration_ms === null ? "" : ` after ${span(told.duration_ms)}`}, as the agent reported it.` : `${UNKNOWN}: the agent has not reported it.`,
      json: told?.receipt ? decoded(told.receipt) : null },
    sent && { name: "Settlement", lane: `${settler} → Chain`, at: pay.settled_at, since: sent.created_at, look: pay.settled_at ? "ok" : isOver ? "bad" : "wait",
      text: pay.settled_at ? "Final on chain." : isOver ? pay.message : "Not on chain yet.", facts: [["Transaction", pay.tx_signature]] },
  ].filter(Boolean);
}

/** A receipt: JSON in base64, or the text that it is. */
function decoded(receipt) {
  try {
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(receipt.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0))));
  } catch {
    return receipt;
  }
}
