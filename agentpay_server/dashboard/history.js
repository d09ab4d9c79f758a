// @ts-check
// What happened: the timeline and sessions.

import { call } from "./api.js";
import { points, pointRow, savePoint } from "./bench.js";
import { about, accounts, changes, feed, filters, instants, me, named, party, rowOf, TIMES } from "./data.js";
import { $, badge, big, button, code, count, empty, facts, h, json, link, meter, moment, plain, quiet, said, show, unfolding, usdc, whole, words } from "./ui.js";

const STATUS = {
  "transfer.initiated": "submitted", "transfer.settled": "settled", "transfer.rejected": "rejected", "escalation.required": "pending_approval", "session.opened": "open",
  "session.cap_warning": "open", "session.cap_reached": "open", "session.settled": "settled", "balance.low_threshold": "low",
};

export const EVENTS = Object.keys(STATUS);

/** Fold events, newest first, into rows: a transfer, a session or a balance each. */
function folded(events) {
  const rows = new Map();
  for (const event of events) {
    const { data } = event, id = data.transfer_id ?? data.session_id ?? event.id, status = STATUS[event.type] ?? event.type;
    const row = rows.get(id) ?? { id, page: data.transfer_id ? "transfers" : data.session_id && "sessions", at: event.created_at, status, events: [] };
    row.events.unshift(event);
    row.account ??= data.account_id;
    row.to ??= data.to;
    row.amount ??= data.settled_usdc ?? data.amount_usdc ?? data.cap_usdc ?? data.balance_usdc;
    // Two events of one commit have one time: the end counts.
    if (["settled", "rejected"].includes(status)) row.status = status;
    rows.set(id, row);
  }
  return [...rows.values()];
}

export function timeline(view) {
  const { id = "", status, ...asked } = view.asked, list = h("ul.rows.card"), withPoints = me.is_test_money && !Object.values(view.asked).some(Boolean);
  filters(view, {
    id: ["Search", { type: "search", placeholder: "Identifier, address, amount" }],
    account_id: ["Account", { options: accounts(view) }],
    type: ["Event", { options: EVENTS }],
    status: ["Status", { options: [...new Set(Object.values(STATUS))].map((status) => [status, words(status)]) }],
    ...TIMES,
  });
  const fresh = button("", () => {
    isHeld = false;
    draw();
    $("summary", list)?.focus();
  }, { hidden: true, look: "fresh" });
  // Rows that are being read must not move: new ones wait until they are asked for.
  let isHeld = false, rows = [], shown = [], end = "";
  const none = empty("Nothing here. On a test chain, let something happen:", "agentpay-server trigger transfer.settled");
  const wanted = (events) => folded(events).filter((row) => (!status || row.status === status) && JSON.stringify(row).includes(id));
  const draw = () => {
    const current = new Map(rows.map((row) => [row.id, row]));
    shown = isHeld ? shown.map((row) => current.get(row.id) ?? (row.at <= end && row)).filter(Boolean) : rows;
    for (const row of shown) current.delete(row.id);
    fresh.hidden = !current.size;
    fresh.textContent = `${current.size}${current.size === rows.length ? " or more" : ""} new`;
    show(list, shown, "id", (row) => (row.point ? pointRow(view, row.point) : rowOf(timelineRow(row))), none);
  };
  view.root.append(h("div.actions", withPoints && savePoint(view), fresh));
  feed(view, {
    path: "/console/events", query: { ...instants(asked), ...about(id, ["account_id", "session_id", "transfer_id"]) }, key: "id", list, draw,
    isEnough: (events) => (!status && !id) || wanted(events).length > 24,
    before: async (events, more) => {
      rows = wanted(events);
      const outside = rows.filter((row) => row.page === "transfers" && !row.to?.startsWith("acct_"));
      if (outside.length) {
        const payments = await view.get("/payments?limit=100");
        for (const row of outside) row.seller = payments.data.find((it) => it.transfer_id === row.id)?.origin;
      }
      // What is older than the page that was read is still there; what is missing from it was undone.
      end = more ? rows.at(-1)?.at ?? "" : "";
      if (withPoints) rows = [...rows, ...await points(view, end)].sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
      isHeld = shown.length > 0 && (list.contains(document.activeElement) || Boolean($("details[open]", list)));
    },
  });
}

const timelineRow = (row) => unfolding([moment(row.at), badge(row.status),
  h("span.grow", named(row.account), row.to && [quiet(" → "), row.seller ? [said(row.seller), quiet(" · 402")] : named(row.to)], row.page === "sessions" && quiet(" · session")),
  h("span.sum", row.amount && usdc(row.amount)), count(row.events.length, "events")],
() => [h("p", code(row.id), " ", row.page && link(`#/${row.page}/${row.id}`, "Open")), row.events.map((event) => [h("p", moment(event.created_at), " ", h("strong", plain(event.type)), " ", code(event.id)), json(event.data)])]);

// --- Sessions

export function sessions(view) {
  if (view.id) return session(view);
  filters(view, { status: ["Status", { options: ["opening", "open", "closing", "settled", "failed"] }] });
  feed(view, {
    path: "/sessions", key: "session_id", list: h("ul.cards"), seconds: 3,
    none: empty("No sessions. An agent opens one with a cap:", 'client.sessions.open(account_id=…, to=…, cap_usdc="3")'),
    row: (it) => h("li.card", charged(it), h("p.quiet", moment(it.opened_at), " · ", link(`#/sessions/${it.session_id}`, code(it.session_id)))),
  });
}

const charged = ({ running_total_usdc: total, cap_usdc: cap, ...it }) => [h("div.head", h("span.grow", party(it.account_id), quiet(" → "), party(it.to)), badge(it.status)),
  big(total, ` of ${usdc(cap)} USDC`), meter(`${usdc(total)} of ${usdc(cap)} USDC charged`, cap, ["spent", total]),
  h("p", it.status === "settled" ? `${usdc(it.settled_usdc)} paid, ${usdc(it.returned_usdc)} returned` : it.status === "failed" ? "Never funded" : "In escrow until it closes", it.closing_reason && h("span.warn", ` · ${words(it.closing_reason)}`))];

function session(view) {
  const body = h("div"), path = `/sessions/${view.id}`;
  view.root.append(body);
  view.load(async () => show(body, [await view.get(path)], 0, (it) => h("div.page",
    h("div.card", charged(it), it.status === "open" && h("div.actions", changes(view, "Close", () => call("POST", `${path}/close`), { body: () => h("p", `${usdc(it.running_total_usdc)} USDC go to the payee; the rest returns.`) }))),
    h("div.card", facts(["opened at", moment(it.opened_at)], ["settled at", moment(it.settled_at)], ...["session_id", "category", "escrow_token_account", "tx_signature", "settlement_tx_signature"].map((name) => [words(name), whole(it[name])])),
      link(`#/timeline?id=${it.session_id}`, "Its events")))), 3);
}
