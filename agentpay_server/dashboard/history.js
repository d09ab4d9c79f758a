// @ts-check
// The pages about what happened: the timeline, a transfer from request to delivery, sessions.

import { call } from "./api.js";
import { exchange } from "./payment.js";
import { feed, filters, instants, learn, moments, nameOf, party } from "./data.js";
import { $, ask, badge, big, button, code, copies, empty, facts, field, h, json, link, meter, micro, moment, percent, plain, quiet, said, select, show, span, unfolding, usdc, words } from "./ui.js";

const STATUS = {
  "transfer.initiated": "submitted", "transfer.settled": "settled", "transfer.rejected": "rejected", "escalation.required": "pending_approval", "session.opened": "open",
  "session.cap_warning": "open", "session.cap_reached": "open", "session.settled": "settled", "balance.low_threshold": "low",
};

/** Fold events, newest first, into what they are about: a transfer, a session, or a balance. */
function folded(events) {
  const rows = new Map();
  for (const event of events) {
    const { transfer_id, session_id, account_id, to, ...data } = event.data, id = transfer_id ?? session_id ?? event.id, status = STATUS[event.type] ?? event.type;
    const row = rows.get(id) ?? { id, kind: transfer_id ? "transfers" : session_id ? "sessions" : "", at: event.created_at, status, events: [] };
    row.events.unshift(event);
    row.account ??= account_id;
    row.to ??= to;
    row.amount ??= data.settled_usdc ?? data.amount_usdc ?? data.cap_usdc ?? data.balance_usdc;
    // Two events of one commit have one time: the end counts.
    if (["settled", "rejected"].includes(status)) row.status = status;
    rows.set(id, row);
  }
  return [...rows.values()];
}

export function timeline(view) {
  const asked = Object.fromEntries(view.query), list = h("ul.rows.card"), choices = h("div");
  const fresh = button("", () => { isHeld = false; draw(); $("summary", list)?.focus(); }, { hidden: true, look: "fresh" });
  let isHeld = false, rows = [], known = new Set();
  const none = empty("Nothing here. Payments, refusals and sessions appear as they happen. On a test chain, let one happen:", "agentpay-server trigger transfer.settled");
  const draw = () => {
    const wanted = rows.filter((row) => (!asked.status || row.status === asked.status) && (!asked.id || JSON.stringify(row).includes(asked.id)));
    const late = isHeld ? wanted.filter((row) => !known.has(row.id)) : [];
    fresh.hidden = !late.length;
    fresh.textContent = `${late.length} new`;
    if (!isHeld) known = new Set(rows.map((row) => row.id));
    show(list, isHeld ? wanted.filter((row) => known.has(row.id)) : wanted, (row) => row.id, timelineRow, none);
  };
  view.root.append(choices, fresh);
  feed(view, {
    path: "/console/events", query: instants({ type: asked.type, account_id: asked.account, since: asked.since, until: asked.until }), keyOf: (event) => event.id, list,
    before: async (items) => {
      rows = folded(items);
      await learn(view, rows.flatMap((row) => [row.account, row.to]));
      if (!choices.firstChild) choices.append(filters("timeline",
        field("Search", h("input", { name: "id", type: "search", value: asked.id ?? "", placeholder: "Identifier, address, amount", "data-search": true })),
        field("Account", select("account", [["", "All"], ...[...new Set([asked.account, ...rows.map((row) => row.account)])].filter(Boolean).map((id) => [id, nameOf(id)])], asked.account)),
        field("Event", select("type", [["", "All"], ...Object.keys(STATUS).map((type) => [type, type])], asked.type)),
        field("Status", select("status", ["", ...new Set(Object.values(STATUS))].map((status) => [status]), asked.status)),
        moments(asked)));
      // Rows that are being read must not move: new ones wait until they are asked for.
      isHeld = known.size > 0 && (list.contains(document.activeElement) || Boolean($("details[open]", list)));
    },
    draw,
  });
}

const timelineRow = (row) => h("li", { "data-row": true }, unfolding(h("summary.row", moment(row.at), badge(row.status),
  h("span.grow", said(row.account ? nameOf(row.account) : row.kind), row.to && [quiet(" → "), said(nameOf(row.to))], row.kind === "sessions" && quiet(" · session")),
  h("span.sum", usdc(row.amount)), h("span.quiet.n", String(row.events.length), h("span.sr", " events"))),
() => h("div.fold", h("p", code(row.id), " ", row.kind && link(`#/${row.kind}/${row.id}`, "Open")),
  row.events.map((event) => [h("p", moment(event.created_at), " ", h("strong", plain(event.type)), " ", code(event.id)), json(event.data)]))));

// --- A transfer, whole

export function transfer(view) {
  const top = h("div"), steps = h("ol.steps");
  view.root.append(top, steps);
  view.load(async () => {
    const [it, events, deliveries] = await Promise.all([view.get(`/v1/transfers/${view.id}`), ...["events", "deliveries"].map(async (list) => (await view.get(`/console/${list}?limit=100&transfer_id=${view.id}`)).data.reverse())]);
    await learn(view, [it.from, it.to]);
    // Most transfers are no payment: the list is empty where `GET /payments/…` would be an error.
    const [pay] = (await view.get(`/payments?transfer_id=${view.id}`)).data;
    show(top, [it], () => "", () => h("div.card.hero", h("div.head", big(it.amount_usdc), badge(it.status)), h("p", party(it.from), quiet(" pays "), party(it.to)), it.memo && h("p.memo", said(it.memo)),
      h("div.actions", copies("Copy as curl", pay ? `curl -i ${quoted(pay.url ?? pay.origin)}` : curl(it)), copies("Copy identifier", it.transfer_id))));
    show(steps, story(it, events, deliveries, pay), (step) => step.name, stepItem);
  });
}

/** The steps of a transfer, in order; what did not come about is left out, and what failed is marked. */
function story(it, events, deliveries, pay) {
  const [asked, sent, refused] = ["escalation.required", "transfer.initiated", "transfer.rejected"].map((type) => events.find((event) => event.type === type));
  const begun = it.created_at ?? (asked ?? sent ?? refused)?.created_at, isWaiting = it.status === "pending_approval", isRefused = it.status === "rejected" && !it.tx_signature, isFailed = it.status === "failed";
  const verdict = isRefused && !asked ? { name: "Policy", at: refused?.created_at, look: "bad", text: it.message, facts: [["Error", it.error]] }
    : { name: "Policy", at: begun, look: "ok", text: asked ? `Allowed, with approval: it reaches ${usdc(asked.data.escalation_threshold)} USDC.` : "Allowed: within every rule then in force." };
  const approval = asked && { name: "Approval", at: isWaiting ? null : (sent ?? refused)?.created_at, look: isWaiting ? "wait" : isRefused ? "bad" : "ok", text: isWaiting ? "Waiting for an operator." : isRefused ? it.message : "Approved.", link: isWaiting && ["#/approvals", "Decide"] };
  return [
    ...(pay ? exchange(pay, verdict, approval, sent) : [
    { name: "Request", at: begun, look: "ok", facts: [["Identifier", it.transfer_id], ["Idempotency key", it.idempotency_key], ["From", it.from], ["To", it.to], ["Category", it.category]] },
    verdict,
    approval,
    it.tx_signature && { name: "Signature", at: sent?.created_at, since: begun, look: "ok", text: "Signed, stored, then sent.", facts: [["Transaction", it.tx_signature]], link: it.chain_explorer_url && [it.chain_explorer_url, "Explorer"] },
    it.tx_signature && { name: "Settlement", at: it.settled_at, since: begun, look: it.status === "settled" ? "ok" : isFailed ? "bad" : "wait", text: it.status === "settled" ? "Final on chain." : isFailed ? it.message : "Waiting for finality." },
    ]),
    { name: "Events", look: events.length ? "ok" : "wait", text: events.length ? "" : "None yet.", events },
    { name: "Deliveries", look: deliveries.some((each) => each.status === "undelivered") ? "bad" : deliveries.length ? "ok" : "none", text: deliveries.length ? "" : "No webhook asks for these events.", deliveries },
  ].filter(Boolean);
}

function stepItem(step) {
  const passed = step.at && step.since && Date.parse(step.at) - Date.parse(step.since);
  return h(`li.${step.look}`, h("span.sign", { "aria-hidden": "true" }, { ok: "✓", bad: "✕", wait: "…", none: "–" }[step.look]),
    h("div", h("p.head", h("strong", step.name), step.lane && h("span.badge.info", step.lane), step.look === "bad" && h("span.bad", "failed here"), h("span.grow"), typeof passed === "number" && quiet(`+${span(passed)}`), step.at && moment(step.at)), step.text && h("p", said(step.text)),
      step.facts && facts(...step.facts.map(([label, value]) => [label, value && h("code.all", plain(value))])),
      step.json && json(step.json), step.events?.map((event) => h("details", h("summary", moment(event.created_at), " ", plain(event.type)), json(event))),
      step.deliveries?.map((it) => h("p.head", badge(it.status), h("span.grow", plain(it.event_type)), link(`#/deliveries?event_id=${it.event_id}`, "Attempts"))), step.link && h("p", link(...step.link))));
}

/** The request as a command. Nothing that was received can end a quoted argument. */
function curl({ from, to, amount_usdc: amount, idempotency_key, memo, category }) {
  const body = JSON.stringify({ from, to, amount, idempotency_key, ...(memo && { memo }), ...(category && { category }) });
  return `curl ${location.origin}/v1/transfers -H "Authorization: Bearer $AGENTPAY_API_KEY" -H 'Content-Type: application/json' -d ${quoted(body)}`;
}

/** An argument of a shell that nothing within can end. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// --- Sessions

export function sessions(view) {
  const status = view.query.get("status") ?? "", choice = select("status", ["", "opening", "open", "closing", "settled", "failed"].map((it) => [it]), status);
  view.root.append(filters("sessions", field("Status", choice)));
  feed(view, {
    path: "/sessions", query: { status }, keyOf: (it) => it.session_id, list: h("ul.cards"), seconds: 3, before: (items) => learn(view, items.flatMap((it) => [it.account_id, it.to])),
    none: empty("No sessions. An agent opens one with a cap:", 'client.sessions.open(account_id=…, to=…, cap_usdc="3")'),
    row: (it) => h("li.card", { "data-row": true }, sessionBody(it), h("p.quiet", moment(it.opened_at), " · ", link(`#/sessions/${it.session_id}`, code(it.session_id)))),
  });
}

const sessionBody = (it) => [h("div.head", h("span", party(it.account_id), quiet(" → "), party(it.to)), h("span.grow"), badge(it.status)),
  big(it.running_total_usdc, ` of ${usdc(it.cap_usdc)} USDC`), meter(`${usdc(it.running_total_usdc)} of ${usdc(it.cap_usdc)} USDC charged`, ["spent", percent(micro(it.running_total_usdc), micro(it.cap_usdc))]),
  h("p", it.status === "settled" ? `${usdc(it.settled_usdc)} paid, ${usdc(it.returned_usdc)} returned` : it.status === "failed" ? "Never funded" : "In escrow until it closes", it.closing_reason && h("span.warn", ` · ${words(it.closing_reason)}`))];

export function session(view) {
  const body = h("div"), path = `/sessions/${view.id}`;
  view.root.append(body);
  view.load(async () => {
    const it = await view.get(path), all = (value) => value && h("code.all", plain(value));
    await learn(view, [it.account_id, it.to]);
    const close = async () => {
      const sure = await ask({ title: "Close this session?", action: "Close", look: "danger" }, h("p", `${usdc(it.running_total_usdc)} USDC go to the payee; the rest of ${usdc(it.cap_usdc)} USDC returns.`));
      if (sure) await view.act(() => call("POST", `${path}/close`), "Closed.");
    };
    show(body, [it], () => "", () => h("div", h("div.card.hero", sessionBody(it), it.status === "open" && h("div.actions", button("Close…", close, { look: "danger" }))),
      h("div.card", facts(["Opened", moment(it.opened_at)], ["Settled", moment(it.settled_at)], ["Session", all(it.session_id)], ["Category", it.category && said(it.category)], ["Escrow", all(it.escrow_token_account)], ["Funding transaction", all(it.tx_signature)], ["Settling transaction", all(it.settlement_tx_signature)]),
        link(`#/timeline?id=${it.session_id}`, "Its events"))));
  }, 3);
}
