// @ts-check
// The pages about money that is there and money that waits: overview, an account, approvals.

import { ApiError, call, send } from "./api.js";
import { feed, learn, me, meetAll, nameOf, now, party, summary } from "./data.js";
import { ask, badge, big, button, code, empty, facts, field, fromMicro, h, json, link, meter, micro, moment, percent, quiet, said, show, span, tell, usdc, words } from "./ui.js";

// --- Overview

const SOL = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });

export function overview(view) {
  const tiles = h("ul.tiles");
  view.root.append(tiles, h("h2", "Accounts"));
  const count = async () => {
    const told = await summary(view.signal);
    show(tiles, [["Waiting for approval", told.pending_approvals, "#/approvals", "warn"], ["Undelivered", told.undelivered_deliveries, "#/deliveries?status=undelivered", "bad"], ["Open sessions", told.open_sessions, "#/sessions", ""], ["Treasury, SOL", told.treasury_lamports === null ? "–" : SOL.format(told.treasury_lamports / 1e9), "#/overview", ""]],
      ([label]) => label, ([label, count, href, look]) => h("li", h(count && look ? `a.tile.${look}` : "a.tile", { href }, h("strong", String(count)), h("span", label))));
  };
  feed(view, {
    path: "/console/accounts", query: { limit: 24 }, keyOf: (it) => it.account_id, list: h("ul.cards"),
    before: (items) => { meetAll(items); return count(); },
    none: empty("There are no accounts yet. Create one:", 'client.accounts.create(name="Research bot")'),
    row: (it) => h("li.card", { "data-row": true }, h("div.head", party(it.account_id), it.status === "active" ? null : badge(it.status)), big(it.balance_usdc), budget(it)),
  });
}

/** What is spent, reserved and left of the daily limit. */
function budget(it) {
  if (it.signing_stopped_at) return h("p.problem", "Signing is stopped: a transaction landed after it was believed expired. Compare its history with the chain.");
  const limit = it.policy.max_daily_spend;
  if (limit === null) return h("p.quiet", it.spent_usdc ? `${usdc(it.spent_usdc)} spent in 24 h, no daily limit` : "No daily limit");
  const spent = micro(it.spent_usdc);
  const reserved = micro(it.reserved_usdc), held = reserved < spent ? reserved : spent, text = `${usdc(it.remaining_usdc)} left of ${usdc(limit)} a day`;
  return [meter(`${text}: ${usdc(fromMicro(spent - held))} spent, ${usdc(fromMicro(held))} reserved`, ["spent", percent(spent - held, micro(limit))], ["reserved", percent(held, micro(limit))]),
    h("p", text, it.next_release_at && quiet(` · +${usdc(it.next_release_usdc)} at `, moment(it.next_release_at)))];
}

// --- An account

export function account(view) {
  const about = h("div"), path = `/v1/accounts/${view.id}`;
  view.root.append(about, h("h2", "History"));
  feed(view, {
    path: `${path}/transactions`, keyOf: (it) => it.transaction_id,
    none: empty("Nothing has happened yet. Let the agent pay:", 'client.transfers.create(from_=…, to=…, amount="1")'),
    before: async (items) => {
      const it = await view.get(`/console/accounts/${view.id}`), { policy } = it;
      await learn(view, [...items.map((entry) => entry.counterparty), ...(policy.allowed_counterparties ?? [])]);
      const any = quiet("any"), list = (values, as) => (values === null ? any : values.length ? values.flatMap((value, i) => [i ? ", " : "", as(value)]) : "none");
      const limit = (value) => (value === null ? any.cloneNode(true) : `${usdc(value)} USDC`);
      show(about, [it], () => "", () => h("div", h("div.card.hero", h("div.head", h("h2", said(it.name)), badge(it.status), h("span.grow"),
        button(policy.paused ? "Resume…" : "Pause…", () => setPaused(view, path, it), { look: policy.paused ? "" : "danger" })), big(it.balance_usdc), budget(it)),
      h("div.card", h("h2", "Policy"), facts(["Largest transfer", limit(policy.max_single_transfer)], ["Daily limit", limit(policy.max_daily_spend)], ["Needs approval from", limit(policy.escalation_threshold)],
        ["May pay", list(policy.allowed_counterparties, party)], ["Categories", list(policy.categories, said)], ["Needs a memo", policy.require_memo ? "yes" : "no"]), h("details", h("summary", "All fields"), json(it)))));
    },
    row: (it) => h("li.row", { "data-row": true }, moment(it.created_at), badge(it.status, it.type),
      h("span.grow", it.direction === "in" ? "from " : "to ", party(it.counterparty), it.memo && quiet(" · ", said(it.memo)), it.rejection_reason && quiet(" · ", words(it.rejection_reason))),
      h("span.sum", it.status === "settled" ? (it.direction === "in" ? "+" : "−") : "", usdc(it.amount_usdc)),
      it.transfer_id && it.direction === "out" ? link(`#/transfers/${it.transfer_id}`, "Open") : it.session_id ? link(`#/sessions/${it.session_id}`, "Open") : h("span")),
  });
}

/** Pause or resume: with every field of the policy, under its version, so that no other change is undone. */
async function setPaused(view, path, it) {
  const paused = !it.policy.paused, action = paused ? "Pause" : "Resume";
  const sure = await ask({ title: `${action} ${it.name}?`, action, look: paused ? "danger" : "primary" }, h("p", paused ? "All its transfers are blocked from the next request on." : "It may spend again under its policy."));
  if (sure) await view.act(async () => {
    for (let attempt = 1; ; attempt += 1) {
      const response = await send("GET", `${path}/policy`), { account_id, updated_at, ...policy } = await response.json();
      try {
        return await call("PUT", `${path}/policy`, { body: { ...policy, paused }, headers: { "If-Match": response.headers.get("ETag") ?? "" } });
      } catch (error) {
        if (error.status !== 412 || attempt === 3) throw error;
      }
    }
  }, `${action}d.`);
}

// --- Approvals

export function approvals(view) {
  const payers = new Map();
  feed(view, {
    path: "/console/approvals", keyOf: (it) => it.transfer_id, list: h("ul.cards.wide"),
    none: empty("No transfer waits for approval. A policy asks for one from an amount on:", "client.policies.update(account_id, escalation_threshold=20)"),
    before: async (items) => {
      await learn(view, items.flatMap((it) => [it.from, it.to]));
      await Promise.all([...new Set(items.map((it) => it.from))].slice(0, 20).map(async (id) => payers.set(id, await view.get(`/console/accounts/${id}`))));
      for (const it of items) Object.assign(it, { left: left(payers.get(it.from), it.amount_usdc), age: span(now() - Date.parse(it.created_at)), ends: span(Date.parse(it.expires_at) - now()) });
    },
    row: (it) => h("li.card.approval", { "data-row": true, tabindex: -1 },
      h("div", big(it.amount_usdc), h("p", party(it.from), quiet(" pays "), party(it.to)), it.memo ? h("p.memo", said(it.memo)) : h("p.quiet", "No memo")),
      facts(["Category", it.category ? said(it.category) : quiet("none")], ["Waiting", it.age], ["Expires in", it.ends], ["Afterwards", remains(it.left)], ["Transfer", link(`#/transfers/${it.transfer_id}`, code(it.transfer_id))]),
      h("div.actions", button("Reject…", () => reject(view, it), { "data-hot": "r" }), button("Approve…", () => approve(view, it), { "data-hot": "a", look: "primary" }))),
  });
}

/** What remains of the balance and of the daily limit once a transfer is paid. */
function left(payer, amount) {
  const less = (of) => of && fromMicro(micro(of) - micro(amount));
  return payer && { balance: less(payer.balance_usdc), budget: less(payer.remaining_usdc), limit: payer.policy.max_daily_spend };
}

const remains = (it) => it && h(`${it.balance.startsWith("-") || it.budget?.startsWith("-") ? "span.bad" : "span"}`, `${usdc(it.balance)} balance`, it.budget && `, ${usdc(it.budget)} of ${usdc(it.limit)} a day`);

async function approve(view, it) {
  const amount = `${usdc(it.amount_usdc)} USDC`;
  const sure = await ask({ title: `Pay ${amount}?`, action: `Pay ${amount}`, typed: me.is_test_money ? "" : usdc(it.amount_usdc) },
    facts(["From", said(nameOf(it.from))], ["To", said(nameOf(it.to)), h("code.all", it.to)], ["Memo", it.memo ? said(it.memo) : "none"], ["Afterwards", remains(it.left)]));
  if (sure) await decide(view, it, "approve", `${amount} paid to ${nameOf(it.to)}.`);
}

async function reject(view, it) {
  const told = await ask({ title: `Reject ${usdc(it.amount_usdc)} USDC?`, action: "Reject", look: "danger", takesText: true }, field("Reason, for the agent (optional)", h("input", { name: "reason", maxlength: 200 })));
  if (told) await decide(view, it, "reject", `Rejected: ${usdc(it.amount_usdc)} USDC stay with ${nameOf(it.from)}.`, { body: told.reason.trim() ? { reason: told.reason.trim() } : {} });
}

/** Send a decision. If somebody else was faster, say what became of the transfer. */
const decide = (view, it, what, done, options = {}) => view.act(async () => {
  try {
    await call("POST", `/console/approvals/${it.transfer_id}/${what}`, options);
    tell(done);
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "not_pending") throw error;
    const became = await call("GET", `/v1/transfers/${it.transfer_id}`);
    tell(`Somebody else was faster: this transfer is ${words(became.status)}. ${became.message ?? ""}`, "warn");
  }
});
