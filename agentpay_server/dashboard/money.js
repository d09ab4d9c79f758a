// @ts-check
// The pages about money that is there and money that waits: overview, an account, approvals.

import { ApiError, call, send } from "./api.js";
import { confirmed, feed, learn, learnAll, me, nameOf, party } from "./data.js";
import { ask, badge, big, button, clock, code, empty, facts, field, h, json, link, meter, minus, moment, quiet, said, show, span, tell, usdc, whole, words } from "./ui.js";

// --- Overview

const SOL = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });

export function overview(view) {
  const tiles = h("ul.tiles");
  view.root.append(tiles, h("h2", "Accounts"));
  feed(view, {
    path: "/console/accounts", query: { limit: 24 }, key: "account_id", list: h("ul.cards"),
    before: learnAll,
    beside: async () => {
      const it = await view.get("/console/summary"), treasury = it.treasury_lamports === null ? "–" : SOL.format(it.treasury_lamports / 1e9);
      show(tiles, [["approvals", it.pending_approvals, "Waiting for approval", "warn"], ["deliveries?status=undelivered", it.undelivered_deliveries, "Undelivered", "bad"], ["sessions", it.open_sessions, "Open sessions", "info"], ["overview", treasury, "Treasury, SOL", "quiet"]],
        0, ([page, count, label, look]) => h("li", link(`#/${page}`, h(count ? `strong.${look}` : "strong", count), label)));
    },
    none: empty("There are no accounts yet. Create one:", 'client.accounts.create(name="Research bot")'),
    row: (it) => h("li.card", h("p.head", party(it.account_id), it.status !== "active" && badge(it.status)), big(it.balance_usdc), budget(it)),
  });
}

/** What is spent, reserved and left of the daily limit. */
function budget({ spent_usdc: spent, reserved_usdc: reserved, remaining_usdc: left, policy: { max_daily_spend: limit }, ...it }) {
  if (it.signing_stopped_at) return h("p.problem", "Signing is stopped: a transaction landed after it was believed expired. Compare its history with the chain.");
  if (limit === null) return h("p.quiet", `${usdc(spent)} spent in 24 h, no daily limit`);
  // Transfers in flight for more than a day are reserved, but no longer count as spent.
  const held = minus(spent, reserved).startsWith("-") ? spent : reserved, settled = minus(spent, held), text = `${usdc(left)} left of ${usdc(limit)} a day`;
  return [meter(`${text}: ${usdc(settled)} spent, ${usdc(held)} reserved`, limit, ["spent", settled], ["reserved", held]),
    h("p", text, it.next_release_at && quiet(` · +${usdc(it.next_release_usdc)} at `, moment(it.next_release_at)))];
}

// --- An account

export function account(view) {
  const about = h("div"), path = `/v1/accounts/${view.id}`;
  view.root.append(about, h("h2", "History"));
  feed(view, {
    path: `${path}/transactions`, key: "transaction_id",
    none: empty("Nothing has happened yet. Let the agent pay:", 'client.transfers.create(from_=…, to=…, amount="1")'),
    before: async (items) => {
      const it = await view.get(`/console/accounts/${view.id}`), { policy } = it;
      await learn(view, [...items.map((entry) => entry.counterparty), ...(policy.allowed_counterparties ?? [])]);
      const list = (values, as) => (values === null ? quiet("any") : values.length ? values.flatMap((value, i) => [i ? ", " : "", as(value)]) : "none");
      const limit = (value) => (value === null ? quiet("any") : `${usdc(value)} USDC`);
      show(about, [it], 0, () => h("div.page",
        h("div.card", h("div.head", h("h2", said(it.name)), badge(it.status), h("span.grow"), button(policy.paused ? "Resume…" : "Pause…", () => setPaused(view, path, it), { look: policy.paused ? "" : "danger" })), big(it.balance_usdc), budget(it)),
        h("div.card", h("h2", "Policy"), facts(["Largest transfer", limit(policy.max_single_transfer)], ["Daily limit", limit(policy.max_daily_spend)], ["Needs approval from", limit(policy.escalation_threshold)],
          ["May pay", list(policy.allowed_counterparties, party)], ["Categories", list(policy.categories, said)], ["Needs a memo", policy.require_memo ? "yes" : "no"]), h("details", h("summary", "All fields"), json(it)))));
    },
    row: (it) => h("li.row", moment(it.created_at), badge(it.status, it.type),
      h("span.grow", it.direction === "in" ? "from " : "to ", party(it.counterparty), it.memo && quiet(" · ", said(it.memo)), it.rejection_reason && quiet(" · ", words(it.rejection_reason))),
      h("span.sum", it.status !== "settled" ? "" : it.direction === "in" ? "+" : "−", usdc(it.amount_usdc)),
      it.transfer_id && it.direction === "out" ? link(`#/transfers/${it.transfer_id}`, "Open") : it.session_id && link(`#/sessions/${it.session_id}`, "Open")),
  });
}

/** Pause or resume: with every field of the policy, under its version, so that no other change is undone. */
const setPaused = (view, path, it) => {
  const paused = !it.policy.paused, action = paused ? "Pause" : "Resume";
  return confirmed(view, { title: `${action} ${it.name}?`, action, look: paused ? "danger" : "primary" }, h("p", paused ? "All its transfers are blocked from the next request on." : "It may spend again under its policy."), async () => {
    for (let attempt = 1; ; attempt += 1) {
      const response = await send("GET", `${path}/policy`), { account_id, updated_at, ...policy } = await response.json();
      try {
        return await call("PUT", `${path}/policy`, { body: { ...policy, paused }, headers: { "If-Match": response.headers.get("ETag") ?? "" } });
      } catch (error) {
        if (error.status !== 412 || attempt === 3) throw error;
      }
    }
  }, `${action}d.`);
};

// --- Approvals

export function approvals(view) {
  feed(view, {
    path: "/console/approvals", key: "transfer_id", list: h("ul.cards.wide"),
    none: empty("No transfer waits for approval. A policy asks for one from an amount on:", "client.policies.update(account_id, escalation_threshold=20)"),
    before: async (items) => {
      await learn(view, items.flatMap((it) => [it.from, it.to]));
      const payers = await details(view, [...new Set(items.map((it) => it.from))]);
      for (const it of items) Object.assign(it, { left: left(payers.find((each) => each.account_id === it.from), it.amount_usdc), age: span(clock.now() - Date.parse(it.created_at)), ends: span(Date.parse(it.expires_at) - clock.now()) });
    },
    row: (it) => h("li.card.approval", { tabindex: -1 },
      h("div", big(it.amount_usdc), h("p", party(it.from), quiet(" pays "), party(it.to)), it.memo ? h("p.memo", said(it.memo)) : h("p.quiet", "No memo")),
      facts(["Category", it.category ? said(it.category) : quiet("none")], ["Waiting", it.age], ["Expires in", it.ends], ["Afterwards", remains(it.left)], ["Transfer", link(`#/transfers/${it.transfer_id}`, code(it.transfer_id))]),
      h("div.actions", button("Reject…", () => reject(view, it), { "data-hot": "r" }), button("Approve…", () => approve(view, it), { "data-hot": "a", look: "primary" }))),
  });
}

/** Return the payers in full: each alone if they are few, else from one page. */
const details = async (view, ids) => (ids.length > 3 ? (await view.get("/console/accounts?limit=100")).data : Promise.all(ids.map((id) => view.get(`/console/accounts/${id}`))));

/** What remains of the balance and of the daily limit once a transfer is paid. */
const left = (payer, amount) => payer && { balance: minus(payer.balance_usdc, amount), limit: payer.policy.max_daily_spend, budget: payer.remaining_usdc && minus(payer.remaining_usdc, amount) };

const remains = (it) => it && h(`${it.balance}${it.budget}`.includes("-") ? "span.bad" : "span", `${usdc(it.balance)} balance`, it.budget && `, ${usdc(it.budget)} of ${usdc(it.limit)} a day`);

async function approve(view, it) {
  const amount = `${usdc(it.amount_usdc)} USDC`;
  const sure = await ask({ title: `Pay ${amount}?`, action: `Pay ${amount}`, typed: me.is_test_money ? "" : usdc(it.amount_usdc) },
    facts(["From", said(nameOf(it.from))], ["To", said(nameOf(it.to)), " ", whole(it.to)], ["Memo", it.memo ? said(it.memo) : "none"], ["Afterwards", remains(it.left)]));
  if (sure) await decide(view, it, "approve", `${amount} paid to ${nameOf(it.to)}.`);
}

async function reject(view, it) {
  const given = await ask({ title: `Reject ${usdc(it.amount_usdc)} USDC?`, action: "Reject", look: "danger", takesText: true }, field("Reason, for the agent (optional)", "reason", { maxlength: 200 }));
  if (given) await decide(view, it, "reject", `Rejected: ${usdc(it.amount_usdc)} USDC stay with ${nameOf(it.from)}.`, { body: given.reason.trim() ? { reason: given.reason.trim() } : {} });
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
