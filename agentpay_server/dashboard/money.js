// @ts-check
// Money that is there, and money that waits: overview, an account, approvals.

import { call, send } from "./api.js";
import { changes, feed, me, nameOf, party } from "./data.js";
import { badge, big, clock, code, empty, facts, field, h, json, link, meter, minus, moment, plain, quiet, said, show, span, tell, usdc, whole, words } from "./ui.js";

// --- Overview

const SOL = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });

export function overview(view) {
  const tiles = h("ul.tiles");
  view.root.append(tiles, h("h2", "Accounts"));
  feed(view, {
    path: "/console/accounts", query: { limit: 24 }, key: "account_id", list: h("ul.cards"),
    none: empty("No accounts yet. Create one:", 'client.accounts.create(name="Research bot")'),
    before: async () => {
      const it = await view.get("/console/summary"), treasury = it.treasury_lamports === null ? "–" : SOL.format(it.treasury_lamports / 1e9);
      show(tiles, [["approvals", it.pending_approvals, "Waiting for approval", "warn"], ["deliveries?status=undelivered", it.undelivered_deliveries, "Undelivered", "bad"], ["sessions", it.open_sessions, "Open sessions"], ["overview", treasury, "Treasury, SOL"]],
        0, ([page, count, label, look]) => h("li", link(`#/${page}`, h(`strong.${count && look}`, count), label)));
    },
    row: (it) => h("li.card", h("p.head", party(it.account_id), it.status !== "active" && badge(it.status)), big(it.balance_usdc), budget(it)),
  });
}

/** What is spent, reserved and left of the daily limit. */
function budget({ spent_usdc: spent, reserved_usdc: reserved, remaining_usdc: left, policy: { max_daily_spend: limit }, ...it }) {
  if (it.signing_stopped_at) return h("p.problem", "Signing is stopped: a transaction landed late. Compare the history with the chain.");
  if (limit === null) return h("p.quiet", `${usdc(spent)} spent in 24 h, no daily limit`);
  const text = `${usdc(left)} left of ${usdc(limit)} a day`;
  return [meter(`${text}: ${usdc(spent)} spent, ${usdc(reserved)} of it reserved`, limit, ["spent", spent - reserved], ["reserved", reserved]),
    h("p", text, it.next_release_at && quiet(` · +${usdc(it.next_release_usdc)} at `, moment(it.next_release_at)))];
}

// --- An account

export function account(view) {
  const about = h("div"), path = `/v1/accounts/${view.id}`;
  view.root.append(about, h("h2", "History"));
  feed(view, {
    path: `${path}/transactions`, key: "transaction_id",
    none: empty("Nothing yet. Let the agent pay:", 'client.transfers.create(from_=…, to=…, amount="1")'),
    before: async () => show(about, [await view.get(`/console/accounts/${view.id}`)], 0, (it) => h("div.page",
      h("div.card", h("div.head", h("h2", said(it.name)), badge(it.status), h("span.grow"), pausing(view, path, it)), big(it.balance_usdc), budget(it)),
      h("div.card", h("h2", "Policy"), facts(...Object.entries(it.policy).map(([name, value]) => [words(name), rule(value)])), h("details", h("summary", "All fields"), json(it))))),
    row: (it) => h("li.row", moment(it.created_at), badge(it.status, it.type),
      h("span.grow", it.direction === "in" ? "from " : "to ", party(it.counterparty), quiet(it.memo && " · ", it.memo && said(it.memo), it.rejection_reason && ` · ${words(it.rejection_reason)}`)),
      h("span.sum", it.status !== "settled" ? "" : it.direction === "in" ? "+" : "−", usdc(it.amount_usdc)),
      it.transfer_id && it.direction === "out" ? link(`#/transfers/${it.transfer_id}`, "Open") : it.session_id && link(`#/sessions/${it.session_id}`, "Open")),
  });
}

const rule = (value) => (value === null ? quiet("any") : Array.isArray(value) ? value.map((each) => [party(each), " "]) : plain(value));

/** Pause or resume: with every field of the policy, under its version, so that no other change is undone. */
const pausing = (view, path, { policy: { paused } }) => changes(view, paused ? "Resume" : "Pause", async () => {
  const response = await send("GET", `${path}/policy`), { account_id, updated_at, ...policy } = await response.json();
  await call("PUT", `${path}/policy`, { body: { ...policy, paused: !paused }, headers: { "If-Match": response.headers.get("ETag") ?? "" } });
}, { look: paused ? "" : "danger", body: () => h("p", paused ? "It may spend again under its policy." : "All its transfers are blocked from the next request on.") });

// --- Approvals

export function approvals(view) {
  feed(view, {
    path: "/console/approvals", key: "transfer_id", list: h("ul.cards.wide"),
    none: empty("No transfer waits. A policy asks for approval from an amount on:", "client.policies.update(account_id, escalation_threshold=20)"),
    before: async (items) => {
      const payers = new Map((await details(view, [...new Set(items.map((it) => it.from))])).map((it) => [it.account_id, it]));
      for (const it of items) Object.assign(it, { left: remains(payers.get(it.from), it.amount_usdc), age: span(clock.now() - Date.parse(it.created_at)), ends: span(Date.parse(it.expires_at) - clock.now()) });
    },
    row: (it) => h("li.card.approval", { tabindex: -1 },
      h("div", big(it.amount_usdc), h("p", party(it.from), quiet(" pays "), party(it.to)), h("p", it.memo ? h("q", said(it.memo)) : quiet("No memo"))),
      facts(["Category", it.category ? said(it.category) : quiet("none")], ["Waiting", it.age], ["Expires in", it.ends], afterwards(it), ["Transfer", link(`#/transfers/${it.transfer_id}`, code(it.transfer_id))]),
      h("div.actions", reject(view, it), approve(view, it))),
  });
}

/** The payers: each alone if they are few, else from one page. */
const details = async (view, ids) => (ids.length > 3 ? (await view.get("/console/accounts?limit=100")).data : Promise.all(ids.map((id) => view.get(`/console/accounts/${id}`))));

/** What remains of the balance and of the daily limit once a transfer is paid. */
const remains = (payer, amount) => payer && `${usdc(minus(payer.balance_usdc, amount))} balance${payer.remaining_usdc ? `, ${usdc(minus(payer.remaining_usdc, amount))} of ${usdc(payer.policy.max_daily_spend)} a day` : ""}`;

const afterwards = ({ left }) => ["Afterwards", left && h(left.includes("-") ? "span.bad" : "span", left)];

function approve(view, it) {
  const sum = usdc(it.amount_usdc), pay = `Pay ${sum} USDC`;
  return changes(view, "Approve", () => decide(it, "approve", `${sum} USDC paid to ${nameOf(it.to)}.`), { title: `${pay}?`, action: pay, typed: me.is_test_money ? "" : sum, done: "", look: "primary", "data-hot": "a",
    body: () => facts(["From", said(nameOf(it.from))], ["To", said(nameOf(it.to)), " ", whole(it.to)], ["Memo", it.memo ? said(it.memo) : "none"], afterwards(it)) });
}

const reject = (view, it) => changes(view, "Reject", ({ reason }) => decide(it, "reject", `Rejected: ${usdc(it.amount_usdc)} USDC stay with ${nameOf(it.from)}.`, reason.trim() ? { reason: reason.trim() } : {}),
  { done: "", "data-hot": "r", body: () => field("Reason, for the agent (optional)", "reason", { maxlength: 200 }) });

/** Send a decision. If somebody else was faster, say what became of the transfer. */
async function decide(it, what, done, body = undefined) {
  try {
    await call("POST", `/console/approvals/${it.transfer_id}/${what}`, { body });
    tell(done);
  } catch (error) {
    if (error.code !== "not_pending") throw error;
    const { status, message } = await call("GET", `/v1/transfers/${it.transfer_id}`);
    tell(`Somebody else was faster: this transfer is ${words(status)}. ${message ?? ""}`);
  }
}
