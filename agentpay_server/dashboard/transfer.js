// @ts-check
// The page of a transfer, whole: from request to delivery. For a payment behind HTTP 402 also what passed
// between the agent, the shop and the facilitator.

import { learn, party } from "./data.js";
import { badge, big, copies, facts, h, json, link, moment, plain, quiet, said, show, span, usdc, whole } from "./ui.js";

export function transfer(view) {
  const top = h("div"), lanes = h("p.lanes", { "aria-hidden": "true" }), steps = h("ol.steps");
  view.root.append(top, lanes, steps);
  view.load(async () => {
    const about = (list) => view.get(`/${list}transfer_id=${view.id}`);
    // Most transfers are no payment: the list is empty where `GET /payments/…` would be an error.
    const [it, events, deliveries, { data: [pay] }] = await Promise.all([view.get(`/v1/transfers/${view.id}`), about("console/events?limit=100&"), about("console/deliveries?limit=100&"), about("payments?")]);
    await learn(view, [it.from, it.to]);
    show(top, [it], 0, () => h("div.card", h("div.head", big(it.amount_usdc), badge(it.status)), h("p", party(it.from), quiet(" pays "), pay ? said(pay.origin) : party(it.to)), it.memo && h("p.memo", said(it.memo)),
      h("div.actions", copies("Copy as curl", pay ? `curl -i ${quoted(pay.url ?? pay.origin)}` : curl(it)), copies("Copy identifier", it.transfer_id))));
    if (pay && !lanes.firstChild) lanes.append(...LANES.map((name) => h("span", name)));
    show(steps, story(it, events.data.reverse(), deliveries.data.reverse(), pay), "name", stepItem);
  });
}

/** The steps of a transfer, in order. What did not come about is left out, and what failed is marked. */
function story(it, events, deliveries, pay) {
  const [asked, sent, refused] = ["escalation.required", "transfer.initiated", "transfer.rejected"].map((type) => events.find((event) => event.type === type));
  const begun = it.created_at ?? (asked ?? sent ?? refused)?.created_at, isWaiting = it.status === "pending_approval", isRefused = it.status === "rejected" && !sent;
  const isOver = isRefused || ["rejected", "failed"].includes(it.status), signature = it.tx_signature ?? pay?.tx_signature;
  const settlement = { name: "Settlement", from: pay?.fee_payer ? FACILITATOR : SERVER, to: CHAIN, at: it.settled_at, since: sent?.created_at, look: it.status === "settled" ? "ok" : isOver ? "bad" : "wait",
    text: it.status === "settled" ? "Final on chain." : isOver ? it.message : "Waiting for finality.", facts: [["Transaction", signature]], link: it.chain_explorer_url && [it.chain_explorer_url, "Explorer"] };
  return [
    ...(pay ? challenge(pay) : [{ name: "Request", at: begun, look: "ok", facts: [["Identifier", it.transfer_id], ["Idempotency key", it.idempotency_key], ["From", it.from], ["To", it.to], ["Category", it.category]] }]),
    { name: "Policy", from: AGENT, to: SERVER, at: isRefused ? refused?.created_at : begun, ...(isRefused && !asked ? { look: "bad", text: it.message, facts: [["Error", it.error]] }
      : { look: "ok", text: asked ? `Allowed, with approval: it reaches ${usdc(asked.data.escalation_threshold)} USDC.` : "Allowed: within every rule then in force." }) },
    asked && { name: "Approval", at: isWaiting ? null : (sent ?? refused)?.created_at, since: begun, ...(isWaiting ? { look: "wait", text: "Waiting for an operator.", link: ["#/approvals", "Decide"] } : isRefused ? { look: "bad", text: it.message } : { look: "ok", text: "Approved." }) },
    sent && { name: pay ? "Signed payment handed out" : "Signature", from: SERVER, to: AGENT, at: sent.created_at, since: begun, look: "ok", text: pay ? "Presented again: not charged again. The same key gives the same transaction." : "Signed, stored, then sent.",
      facts: [["Can land until", pay && !isOver && !pay.settled_at ? pay.expires_at : null]] },
    sent && pay && presented(pay.outcome),
    sent && settlement,
    { name: "Events", look: events.length ? "ok" : "wait", text: events.length ? "" : "None yet.", events },
    { name: "Deliveries", look: deliveries.some((each) => each.status === "undelivered") ? "bad" : deliveries.length ? "ok" : "none", text: deliveries.length ? "" : "No webhook asks for these events.", link: !deliveries.length && ["#/access/webhooks", "Register one"], deliveries },
  ].filter(Boolean);
}

// --- A payment behind HTTP 402

const LANES = ["Shop", "Agent", "Server", "Facilitator", "Chain"], [SHOP, AGENT, SERVER, FACILITATOR, CHAIN] = LANES;
const PROTOCOLS = { mpp: "MPP", x402_v2: "x402, version 2", x402_v1: "x402, version 1" };
const UNKNOWN = "Not known here";

const challenge = (pay) => [
  { name: "Request", from: AGENT, to: SHOP, look: "ok", text: pay.url ?? UNKNOWN, facts: [["Identifier", pay.transfer_id]] },
  { name: "402 Payment Required", from: SHOP, to: AGENT, look: "ok", text: `${usdc(pay.amount_usdc)} USDC, by ${PROTOCOLS[pay.protocol] ?? pay.protocol}`,
    facts: [["Seller", pay.origin], ["Recipient", pay.recipient], ["Fee payer", pay.fee_payer ?? "this server"], ["Category", pay.category]] },
];

/** What only the agent and the shop saw: known if the agent reported it, as its claim. */
function presented(outcome) {
  const step = { name: "Paid request and response", from: AGENT, to: SHOP, isBoth: true };
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

/** Who sent a step to whom: an arrow across the lanes. */
function arrow({ from, to, isBoth }) {
  const [start, end] = [from, to].map((name) => LANES.indexOf(name) + 1), node = h(`span.arrow.${isBoth ? "both" : start > end ? "back" : "on"}`, { role: "img", "aria-label": `${from} ${isBoth ? "↔" : "→"} ${to}` });
  node.style.gridColumn = `${Math.min(start, end)} / ${Math.max(start, end) + 1}`;
  return h("div.lanes", node);
}

function stepItem(step) {
  const passed = step.at && step.since && Date.parse(step.at) - Date.parse(step.since);
  return h(`li.${step.look}`, h("span.sign", { "aria-hidden": "true" }, { ok: "✓", bad: "✕", wait: "…", none: "–" }[step.look]), step.to && arrow(step),
    h("div.about", h("p.head", h("strong", step.name), step.look === "bad" && h("span.bad", "failed here"), h("span.grow"), Number.isFinite(passed) && quiet(`+${span(passed)}`), step.at && moment(step.at)), step.text && h("p", said(step.text)),
      step.facts && facts(...step.facts.map(([label, value]) => [label, whole(value)])), step.json && json(step.json),
      step.events?.map((event) => h("details", h("summary", moment(event.created_at), " ", plain(event.type)), json(event))),
      step.deliveries?.map((it) => h("p.head", badge(it.status), h("span.grow", plain(it.event_type)), link(`#/deliveries?about=${it.event_id}`, "Attempts"))), step.link && h("p", link(...step.link))));
}

// --- Commands

/** The request as a command. */
function curl({ from, to, amount_usdc: amount, idempotency_key, memo, category }) {
  const body = JSON.stringify({ from, to, amount, idempotency_key, ...(memo && { memo }), ...(category && { category }) });
  return `curl ${location.origin}/v1/transfers -H "Authorization: Bearer $AGENTPAY_API_KEY" -H 'Content-Type: application/json' -d ${quoted(body)}`;
}

/** An argument of a shell that nothing within can end. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
