// @ts-check
// Overview, account and approvals.

import { call, post, read, send } from "./api.js";
import { accountOf, change, get, list, me, nameOf, one, party } from "./page.js";
import { badge, big, clock, code, facts, field, h, link, meter, minus, moment, quiet, said, span, usdc, whole, words } from "./ui.js";

const SOL = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });

const tile = (page, label, count, look = "") => h("li", link(`#/${page}`, h(`strong.${count && look}`, count), label));

export const overview = () => [
	one("/console/summary", (it) => h("ul.tiles",
		tile("approvals", "Waiting for approval", it.pending_approvals, "warn"),
		tile("deliveries?status=undelivered", "Undelivered", it.undelivered_deliveries, "bad"),
		tile("sessions", "Open sessions", it.open_sessions),
		tile("overview", "Treasury, SOL", it.treasury_lamports === null ? "–" : SOL.format(it.treasury_lamports / 1e9)))),
	h("h2", "Accounts"),
	list({
		path: "/console/accounts", query: { limit: 24 }, as: "ul.cards",
		none: ["No accounts yet. Create one:", 'client.accounts.create(name="Research bot")'],
		row: (it) => h("li.card", h("p.head", party(it.account_id), it.status !== "active" && badge(it.status)), budget(it)),
	}),
];

const budget = (it) => [big(it.balance_usdc), it.signing_stopped_at
	? h("p.problem", "Signing is stopped: a transaction landed late. Compare the history with the chain.")
	: it.remaining_usdc === null ? h("p.quiet", `${usdc(it.spent_usdc)} spent in 24 h, no daily limit`) : limited(it)];

function limited({ spent_usdc: spent, reserved_usdc: reserved, remaining_usdc: left, policy: { max_daily_spend: limit }, ...it }) {
	const text = `${usdc(left)} left of ${usdc(limit)} a day`;
	return [
		meter(`${text}: ${usdc(spent)} spent, ${usdc(reserved)} of it reserved`, limit, { spent: spent - reserved, reserved }),
		h("p", text, it.next_release_at && quiet(` · +${usdc(it.next_release_usdc)} at `, moment(it.next_release_at))),
	];
}

export const account = ({ id }) => [
	one(`/console/accounts/${id}`, (it) => h("div.page",
		h("div.card", h("div.head", h("h2.grow", said(it.name)), badge(it.status), pausing(it)), budget(it)),
		h("div.card", h("h2", "Policy"), facts(it.policy, rule)))),
	h("h2", "History"),
	list({
		path: `/v1/accounts/${id}/transactions`,
		none: ["Nothing yet. Let the agent pay:", 'client.transfers.create(from_=…, to=…, amount="1")'],
		row: ({ direction, memo, rejection_reason: reason, transfer_id, session_id, ...it }) => {
			const isIn = direction === "in";
			const subject = isIn || !transfer_id ? session_id && `sessions/${session_id}` : `transfers/${transfer_id}`;
			return [
				moment(it.created_at), badge(it.status, it.type),
				[isIn ? "from " : "to ", party(it.counterparty), memo && [quiet(" · "), said(memo)], reason && quiet(` · ${words(reason)}`)],
				h("strong", it.status === "settled" && (isIn ? "+" : "−"), usdc(it.amount_usdc)), subject && link(`#/${subject}`, "Open"),
			];
		},
	}),
];

const rule = (value) => (value === null ? quiet("any") : Array.isArray(value) ? value.map((each) => [party(each), " "]) : String(value));

/** Replaces the whole policy under its version, so that no other change is undone. */
function pausing({ account_id: id, policy: { paused } }) {
	const effect = paused ? "It may spend again under its policy." : "Its transfers are refused from the next request on.";
	return change(paused ? "Resume" : "Pause", effect, async () => {
		const path = `/v1/accounts/${id}/policy`, response = await send("GET", path), { account_id, updated_at, ...policy } = await response.json();
		await call("PUT", path, { body: { ...policy, paused: !paused }, headers: { "If-Match": response.headers.get("ETag") ?? "" } });
	}, { look: paused ? "" : "danger" });
}

export const approvals = () => list({
	path: "/console/approvals", as: "ul.cards.wide",
	none: ["No transfer waits. A policy asks for approval from an amount on:", "client.policies.update(account_id, escalation_threshold=20)"],
	present: async (items, draw) => {
		const payers = new Set(items.map((it) => it.from)), now = clock.now();
		await Promise.all([...payers].map((id) => get(`/console/accounts/${id}`)));
		draw(items.map((it) => ({
			...it, left: remains(it), age: span(now - Date.parse(it.created_at)), ends: span(Date.parse(it.expires_at) - now),
		})));
	},
	row: (it) => h("li.card.approval", { tabindex: -1 },
		h("div.about", big(it.amount_usdc), h("p", party(it.from), quiet(" pays "), party(it.to)), memoOf(it)),
		facts({
			Splits: splitsOf(it), Category: it.category ? said(it.category) : quiet("none"), Waiting: it.age, "Expires in": it.ends, Afterwards: afterwards(it),
			Transfer: link(`#/transfers/${it.transfer_id}`, code(it.transfer_id)),
		}),
		h("div.actions", reject(it), approve(it))),
});

export const splitsOf = ({ splits }) => splits?.map((part) => h("div", `${usdc(part.amount_usdc)} of it to `, whole(part.recipient)));

export const memoOf = ({ memo }) => h("p", memo ? h("q", said(memo)) : quiet("No memo"));

function remains({ from, amount_usdc: amount }) {
	const { balance_usdc: balance, remaining_usdc: left, policy } = accountOf(from);
	return balance && `${minus(balance, amount)} balance${left ? `, ${minus(left, amount)} of ${usdc(policy.max_daily_spend)} a day` : ""}`;
}

const afterwards = ({ left }) => left && h(left.includes("-") ? "span.bad" : "span", left);

function approve(it) {
	const sum = usdc(it.amount_usdc), pay = `Pay ${sum} USDC`;
	const details = () => facts({
		From: said(nameOf(it.from)), To: [said(nameOf(it.to)), " ", whole(it.to)], Splits: splitsOf(it), Memo: memoOf(it), Afterwards: afterwards(it),
	});
	return change("Approve", details, () => decide(it, "approve", `${sum} USDC paid to ${nameOf(it.to)}.`),
		{ action: pay, typed: me.is_test_money ? "" : sum, look: "primary", "data-hot": "a" });
}

function reject(it) {
	const done = `Rejected: ${usdc(it.amount_usdc)} USDC stay with ${nameOf(it.from)}.`;
	return change("Reject", () => field("Reason, for the agent (optional)", "reason", { maxlength: 200 }),
		({ reason }) => decide(it, "reject", done, { reason: reason.trim() || undefined }), { "data-hot": "r" });
}

/** Send a decision; return what became of the transfer. */
async function decide(it, what, done, body = undefined) {
	try {
		await post(`/console/approvals/${it.transfer_id}/${what}`, body);
		return done;
	} catch (error) {
		if (error.code !== "not_pending") throw error;
		const { status, message } = await read(`/v1/transfers/${it.transfer_id}`);
		return `Somebody else was faster: this transfer is ${words(status)}. ${message ?? ""}`;
	}
}
