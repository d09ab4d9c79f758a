// @ts-check
// The pages about what happened: the timeline and sessions.

import { call } from "./api.js";
import { points, pointRow, savePoint } from "./bench.js";
import { accounts, any, confirmed, feed, filters, instants, learn, me, named, party, rowOf, TIMES } from "./data.js";
import { $, badge, big, button, code, count, empty, facts, h, json, link, meter, moment, plain, quiet, said, show, unfolding, usdc, whole, words } from "./ui.js";

const STATUS = {
  "transfer.initiated": "submitted", "transfer.settled": "settled", "transfer.rejected": "rejected", "escalation.required": "pending_approval", "session.opened": "open",
  "session.cap_warning": "open", "session.cap_reached": "open", "session.settled": "settled", "balance.low_threshold": "low",
};

export const EVENTS = Object.keys(STATUS);

/** Fold events, newest first, into what they are about: a transfer, a session, or a balance. */
function folded(events) {
  const rows = new Map();
  for (const event of events) {
    const { transfer_id, session_id, account_id, to, ...data } = event.data, id = transfer_id ?? session_id ?? event.id, status = STATUS[event.type] ?? event.type;
    const row = rows.get(id) ?? { id, page: transfer_id ? "transfers" : session_id ? "sessions" : "", at: event.created_at, status, events: [] };
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

export async function timeline(view) {
  const { id = "", status, account, ...asked } = view.asked, list = h("ul.rows.card"), isAll = !Object.values(view.asked).some(Boolean);
  filters(view, "timeline", {
    id: ["Search", { type: "search", placeholder: "Identifier, address, amount", "data-search": "" }],
    account: ["Account", { options: accounts(view).then((all) => [["", "All"], ...all]) }],
    type: ["Event", { options: [["", "All"], ...EVENTS.map((type) => [type, type])] }],
    status: ["Status", { options: any([...new Set(Object.values(STATUS))].join(" ")) }],
    ...TIMES,
  });
  const fresh = button("", () => { isHeld = false; draw(); $("summary", list)?.focus(); }, { hidden: true, look: "fresh" });
  // Rows that are being read must not move: new ones wait until they are asked for.
  let isHeld = false, rows = [], shown = [], sellers = new Map(), end = "";
  const none = empty("Nothing here. Payments, refusals and sessions appear as they happen. On a test chain, let one happen:", "agentpay-server trigger transfer.settled");
  const wanted = (events) => folded(events).filter((row) => (!status || row.status === status) && (!id || JSON.stringify(row).includes(id)));
  const draw = () => {
    const current = new Map(rows.map((row) => [row.id, row]));
    shown = isHeld ? shown.map((row) => current.get(row.id) ?? (row.at <= end && row)).filter(Boolean) : rows;
    for (const row of shown) current.delete(row.id);
    fresh.hidden = !current.size;
    fresh.textContent = `${current.size}${current.size === rows.length ? " or more" : ""} new`;
    show(list, shown, "id", (row) => (row.point ? pointRow(view, row.point) : rowOf(timelineRow(row))), none);
  };
  view.root.append(h("div.actions", me.is_test_money && isAll && savePoint(view), fresh));
  feed(view, {
    path: "/console/events", query: instants({ account_id: account, ...asked, ...await about(view, id) }), key: "id", list, draw,
    isEnough: (events) => (!status && !id) || wanted(events).length > 24,
    before: async (events, more) => {
      rows = wanted(events);
      await learn(view, rows.flatMap((row) => [row.account, row.to]));
      const outside = rows.filter((row) => row.page === "transfers" && row.to && !row.to.startsWith("acct_"));
      if (outside.some((row) => !sellers.has(row.id))) {
        sellers = new Map(outside.map((row) => [row.id, ""]));
        for (const it of (await view.get("/payments?limit=100")).data) sellers.set(it.transfer_id, it.origin);
      }
      for (const row of outside) row.seller = sellers.get(row.id);
      // What is older than the page that was read is still there; what is missing from it was undone.
      end = more ? rows.at(-1)?.at ?? "" : "";
      if (me.is_test_money && isAll) rows = [...rows, ...await points(view, end)].sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
      isHeld = shown.length > 0 && (list.contains(document.activeElement) || Boolean($("details[open]", list)));
    },
  });
}

/** What the server can look an identifier up by; the rest of the search is among the events that were read. */
async function about(view, id) {
  if (id.startsWith("txn_")) return { transfer_id: id };
  if (id.startsWith("acct_")) return { account_id: id };
  const session = id.startsWith("sess_") && await view.get(`/sessions/${encodeURIComponent(id)}`).catch(() => null);
  return session ? { account_id: session.account_id, since: later(session.opened_at, -60), until: later(session.settled_at, 60) } : {};
}

const later = (iso, seconds) => iso && new Date(Date.parse(iso) + seconds * 1000).toISOString();

const timelineRow = (row) => unfolding([moment(row.at), badge(row.status),
  h("span.grow", named(row.account), row.seller ? [quiet(" → "), said(row.seller), quiet(" · 402")] : row.to && [quiet(" → "), named(row.to)], row.page === "sessions" && quiet(" · session")),
  h("span.sum", usdc(row.amount)), count(row.events.length, "events")],
() => [h("p", code(row.id), " ", row.page && link(`#/${row.page}/${row.id}`, "Open")), row.events.map((event) => [h("p", moment(event.created_at), " ", h("strong", plain(event.type)), " ", code(event.id)), json(event.data)])]);

// --- Sessions

export function sessions(view) {
  filters(view, "sessions", { status: ["Status", { options: any("opening open closing settled failed") }] });
  feed(view, {
    path: "/sessions", query: view.asked, key: "session_id", list: h("ul.cards"), seconds: 3, before: (items) => learn(view, items.flatMap((it) => [it.account_id, it.to])),
    none: empty("No sessions. An agent opens one with a cap:", 'client.sessions.open(account_id=…, to=…, cap_usdc="3")'),
    row: (it) => h("li.card", charged(it), h("p.quiet", moment(it.opened_at), " · ", link(`#/sessions/${it.session_id}`, code(it.session_id)))),
  });
}

const charged = ({ running_total_usdc: total, cap_usdc: cap, ...it }) => [h("div.head", h("span.grow", party(it.account_id), quiet(" → "), party(it.to)), badge(it.status)),
  big(total, ` of ${usdc(cap)} USDC`), meter(`${usdc(total)} of ${usdc(cap)} USDC charged`, cap, ["spent", total]),
  h("p", it.status === "settled" ? `${usdc(it.settled_usdc)} paid, ${usdc(it.returned_usdc)} returned` : it.status === "failed" ? "Never funded" : "In escrow until it closes", it.closing_reason && h("span.warn", ` · ${words(it.closing_reason)}`))];

export function session(view) {
  const body = h("div"), path = `/sessions/${view.id}`;
  view.root.append(body);
  view.load(async () => {
    const it = await view.get(path);
    await learn(view, [it.account_id, it.to]);
    const close = () => confirmed(view, { title: "Close this session?", action: "Close" }, h("p", `${usdc(it.running_total_usdc)} USDC go to the payee; the rest of ${usdc(it.cap_usdc)} USDC returns.`), () => call("POST", `${path}/close`), "Closed.");
    show(body, [it], 0, () => h("div.page", h("div.card", charged(it), it.status === "open" && h("div.actions", button("Close…", close, { look: "danger" }))),
      h("div.card", facts(["Opened", moment(it.opened_at)], ["Settled", moment(it.settled_at)], ["Session", whole(it.session_id)], ["Category", it.category && said(it.category)], ["Escrow", whole(it.escrow_token_account)], ["Funding transaction", whole(it.tx_signature)], ["Settling transaction", whole(it.settlement_tx_signature)]),
        link(`#/timeline?id=${it.session_id}`, "Its events"))));
  }, 3);
}
