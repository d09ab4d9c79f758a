// @ts-check
// A transfer, from request to delivery. For a payment behind HTTP 402 also what passed between the agent, the shop
// and the facilitator.

import { party } from "./data.js";
import { badge, big, copies, facts, h, json, link, moment, plain, quiet, said, show, span, usdc, whole } from "./ui.js";

const LANES = ["Shop", "Agent", "Server", "Facilitator", "Chain"], [SHOP, AGENT, SERVER, FACILITATOR, CHAIN] = LANES;
const SIGNS = { ok: "✓", bad: "✕", wait: "…", none: "–" };
const PROTOCOLS = { mpp: "MPP", x402_v2: "x402, version 2", x402_v1: "x402, version 1" };
const UNKNOWN = "Not known here";

export function transfer(view) {
  const top = h("div"), lanes = h("p.lanes", { "aria-hidden": "true" }), steps = h("ol.steps");
  view.root.append(top, lanes, steps);
  view.load(async () => {
    // Most transfers are no payment: the list is empty where `GET /payments/…` would be an error.
    const paths = ["/console/events", "/console/deliveries", "/payments"].map((path) => `${path}?limit=100&transfer_id=${view.id}`);
    const [it, events, deliveries, { data: [pay] }] = await Promise.all([`/v1/transfers/${view.id}`, ...paths].map(view.get));
    show(top, [it], 0, () => h("div.card", h("div.head", big(it.amount_usdc), badge(it.status)), h("p", party(it.from), quiet(" pays "), pay ? said(pay.origin) : party(it.to)), it.memo && h("p", h("q", said(it.memo))),
      h("div.actions", copies("Copy as curl", pay ? `curl -i ${quoted(pay.url ?? pay.origin)}` : curl(it)))));
    lanes.replaceChildren(...(pay ? LANES.map((name) => h("span", name)) : []));
    show(steps, story(it, events.data.reverse(), deliveries.data.reverse(), pay), "name", stepItem);
  });
}

/** The steps of a transfer, in order, as far as it came. */
function story(it, events, deliveries, pay) {
  const [asked, sent, refused] = ["escalation.required", "transfer.initiated", "transfer.rejected"].map((type) => events.find((event) => event.type === type));
  const begun = it.created_at ?? events[0]?.created_at, isSettled = it.status === "settled", isOver = ["rejected", "failed"].includes(it.status);
  const failure = { look: "bad", text: it.message };
  return [
    ...(pay ? challenge(pay) : [{ name: "Request", at: begun, facts: [["Identifier", it.transfer_id], ["Idempotency key", it.idempotency_key], ["From", it.from], ["To", it.to], ["Category", it.category]] }]),
    { name: "Policy", from: AGENT, to: SERVER, at: begun,
      ...(it.status === "rejected" && !asked && !sent ? { ...failure, facts: [["Error", it.error]] } : { text: asked ? `Allowed, with approval: it reaches ${usdc(asked.data.escalation_threshold)} USDC.` : "Allowed: within every rule then in force." }) },
    asked && { name: "Approval", at: (sent ?? refused)?.created_at, since: begun,
      ...(it.status === "pending_approval" ? { look: "wait", text: "Waiting for an operator.", link: ["#/approvals", "Decide"] } : isOver && !sent ? failure : { text: "Approved." }) },
    sent && { name: pay ? "Signed payment handed out" : "Signature", from: SERVER, to: AGENT, at: sent.created_at, since: begun, text: pay ? "Presented again: not charged again." : "Signed, stored, then sent." },
    sent && pay && presented(pay.outcome),
    sent && { name: "Settlement", from: pay?.fee_payer ? FACILITATOR : SERVER, to: CHAIN, at: it.settled_at, since: sent.created_at,
      ...(isSettled ? { text: "Final on chain." } : isOver ? failure : { look: "wait", text: "Waiting for finality." }),
      facts: [["Transaction", it.tx_signature ?? pay?.tx_signature], ["Can land until", isSettled || isOver ? null : pay?.expires_at]], link: it.chain_explorer_url && [it.chain_explorer_url, "Explorer"] },
    { name: "Events", ...(!events.length && { look: "wait", text: "None yet." }), events },
    { name: "Deliveries", deliveries, ...(!deliveries.length ? { look: "none", text: "No webhook asks for these events.", link: ["#/access/webhooks", "Register one"] } : deliveries.some((each) => each.status === "undelivered") && { look: "bad" }) },
  ].filter(Boolean);
}

// --- A payment behind HTTP 402

const challenge = (pay) => [
  { name: "Request", from: AGENT, to: SHOP, text: pay.url ?? UNKNOWN, facts: [["Identifier", pay.transfer_id]] },
  { name: "402 Payment Required", from: SHOP, to: AGENT, text: `${usdc(pay.amount_usdc)} USDC, by ${PROTOCOLS[pay.protocol] ?? pay.protocol}`,
    facts: [["Seller", pay.origin], ["Recipient", pay.recipient], ["Fee payer", pay.fee_payer ?? "this server"], ["Category", pay.category]] },
];

/** What only the agent and the shop saw, as the agent reported it. */
function presented(outcome) {
  const step = { name: "Paid request and response", from: AGENT, to: SHOP };
  if (!outcome) return { ...step, look: "none", text: `${UNKNOWN}: the agent has not reported it.` };
  const { status_code: status, duration_ms: ms, receipt } = outcome;
  return { ...step, look: status >= 200 && status <= 299 ? "ok" : "bad", text: `Status ${status}${ms === null ? "" : ` after ${span(ms)}`}, as the agent reported it.`, json: receipt && decoded(receipt) };
}

/** A receipt: JSON in base64, or the text that it is. */
function decoded(receipt) {
  try {
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(receipt.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0))));
  } catch {
    return receipt;
  }
}

// --- A step

function arrow(from, to) {
  const [start, end] = [from, to].map((name) => LANES.indexOf(name) + 1), isBack = start > end;
  const style = { gridColumn: isBack ? `${end} / ${start + 1}` : `${start} / ${end + 1}` };
  return h("div.lanes", h(isBack ? "span.arrow.back" : "span.arrow", { role: "img", "aria-label": `${from} → ${to}`, style }));
}

function stepItem({ look = "ok", ...step }) {
  const passed = Date.parse(step.at) - Date.parse(step.since);
  return h(`li.${look}`, h("span.sign", { "aria-hidden": "true" }, SIGNS[look]), step.to && arrow(step.from, step.to),
    h("div.about", h("p.head", h("strong", step.name), look === "bad" && h("span.bad", "failed here"), h("span.grow"), Number.isFinite(passed) && quiet(`+${span(passed)}`), step.at && moment(step.at)), step.text && h("p", said(step.text)),
      step.facts && facts(...step.facts.map(([label, value]) => [label, whole(value)])), step.json && json(step.json),
      step.events?.map((event) => h("details", h("summary", moment(event.created_at), " ", plain(event.type)), json(event))),
      step.deliveries?.map((it) => h("p.head", badge(it.status), h("span.grow", plain(it.event_type)), link(`#/deliveries?id=${it.event_id}`, "Attempts"))), step.link && h("p", link(...step.link))));
}

// --- Commands

function curl({ from, to, amount_usdc: amount, idempotency_key, memo, category }) {
  const body = JSON.stringify({ from, to, amount, idempotency_key, memo: memo ?? undefined, category: category ?? undefined });
  return `curl ${location.origin}/v1/transfers -H "Authorization: Bearer $AGENTPAY_API_KEY" -H 'Content-Type: application/json' -d ${quoted(body)}`;
}

/** An argument of a shell that nothing within can end. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
