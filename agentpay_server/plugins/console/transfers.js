// @ts-check

import { approve, judged, memoOf, reject, splitsOf, stakes } from "./approvals.js";
import { filters, list, part, party, titled } from "./page.js";
import { TIMES } from "./timeline.js";
import { badge, big, code, copies, createdAt, facts, fields, h, isUndelivered, json, link, moment, money, quiet, said, span, SUM, usdc, whole, words } from "./ui.js";

const STATUSES = ["pending_approval", "approved", "submitted", "settled", "rejected", "failed"];
const ERRORS = ["policy_violation", "account_paused", "insufficient_balance", "escalation_rejected", "escalation_expired", "session_cap_exceeded", "fee_budget_exceeded", "payment_expired", "transfer_failed"];

export const transfers = (page) => (page.id ? transfer(page) : [
	filters({
		account_id: ["Account", { picks: true }], status: ["Status", { options: STATUSES.map((each) => [each, words(each)]) }],
		error: ["Reason", { options: ERRORS.map((each) => [each, words(each)]) }],
		memo: ["Memo begins with", { type: "search", maxlength: 200 }], min_amount: ["At least, USDC", SUM], max_amount: ["At most, USDC", SUM],
		idempotency_key: ["Idempotency key", { type: "search" }], key_id: ["Key", { type: "search", placeholder: "key_…" }], ...TIMES,
	}),
	list({
		path: "/transfers", exports: "transfers", query: { sort: ["amount", "-amount"].includes(page.asked.sort) ? page.asked.sort : undefined },
		heads: ["When", "Status", "From → to", "Memo", "Reason", ["USDC", "number", "amount"], ["", "end"]],
		cols: "8.5rem 9.5rem minmax(0, 1.3fr) minmax(0, 1fr) minmax(0, .8fr) 8.5rem 3.5rem",
		none: ["No transfers yet. Let an agent pay:", 'client.transfers.create(from_=…, to=…, amount="1")'],
		row: (it) => [
			moment(createdAt(it.transfer_id)), badge(it.status), [party(it.from), quiet(" → "), party(it.to)],
			h("span.line", { title: it.memo }, it.memo && said(it.memo)), it.error ? link(`#/transfers?error=${it.error}`, words(it.error)) : "",
			h("strong.number", money(it.amount_usdc)), link(`#/transfers/${it.transfer_id}`, "Open"),
		],
	}),
]);

const LANES = ["Shop", "Agent", "Server", "Facilitator", "Chain"], UNKNOWN = "Not known here";

const transfer = ({ id: transfer_id }) => part(async ({ app, get }) => {
	const query = { limit: 100, transfer_id };
	const it = await get("/v1/transfers/{transfer_id}", { transfer_id });
	// Most transfers are no payment, so `GET /payments/…` would be an error.
	const [events, deliveries, payments] = await Promise.all([get("/console/events", { query }), get("/console/deliveries", { query }), get("/payments", { query })]);
	let pending = null;
	if (it.status === "pending_approval") {
		await app.details([it.from]);
		const asked = events.data.find((event) => event.type === "escalation.required");
		pending = judged({ ...it, created_at: asked?.created_at ?? it.created_at }, app);
	}
	return { ...it, pending, events: events.data.reverse(), deliveries: deliveries.data.reverse(), pay: payments.data[0] };
}, (it, app) => h("div.page", titled(`${usdc(it.amount_usdc)} USDC from ${app.nameOf(it.from)}`),
	h("div.card", h("div.head", big(it.amount_usdc), badge(it.status), isUndelivered(it.pay) && badge("failed", "not delivered"), h("span.grow"), code(it.transfer_id), copies("Copy id", it.transfer_id, "tiny")),
		h("p", party(it.from), quiet(" pays "), it.pay ? said(it.pay.origin) : party(it.to)), h("p", memoOf(it)), outcome(it),
		it.pending && h("div.decision", stakes(it.pending), h("div.actions", reject(it.pending, app), approve(it.pending, app))),
		it.pay && h("div.actions", copies("Copy as curl", `curl -gi --url ${quoted(it.pay.url ?? it.pay.origin)}`),
			link(`#/access/sellers?origin=${encodeURIComponent(it.pay.origin)}`, "Pin this seller"))),
	it.pay && h("p.lanes", { "aria-hidden": "true" }, LANES.map((name) => h("span", name))),
	h("ol.steps", story(it))));

const OUTCOMES = {
	settled: () => "Paid. It is final on chain.", submitted: () => "Approved and sent. It is not final yet.",
	approved: () => "Approved. The agent has not asked for the paid content again yet.",
	pending_approval: () => "Waiting for your decision.", rejected: (it) => it.message, failed: (it) => it.message,
};

/** What happened, in one sentence. */
const outcome = (it) => h(`p.outcome.${{ rejected: "bad", failed: "bad", pending_approval: "warn" }[it.status] ?? "quiet"}`,
	said(OUTCOMES[it.status]?.(it) ?? words(it.status)));

/** A step: how it went, who sent it to whom, when, and since when; text in its content may be of others. */
function step(name, { look = "ok", lane, at, since } = /** @type {any} */ ({}), ...content) {
	return h(`li.${look}`, lane && arrow(lane),
		h("div.about",
			h("p.head", h("strong.grow", name, look === "bad" && h("span.bad", " failed here")),
				at && [since && quiet(`+${span(Date.parse(at) - Date.parse(since))} `), moment(at)]),
			content.flat().map((part) => (typeof part === "string" ? h("p", said(part)) : part))));
}

function arrow(lane) {
	const [start, end] = lane.split(" → ").map((name) => LANES.indexOf(name) + 1), isBack = start > end;
	const style = { gridColumn: isBack ? `${end} / ${start + 1}` : `${start} / ${end + 1}` };
	return h("div.lanes", h(isBack ? "span.arrow.back" : "span.arrow", { role: "img", "aria-label": lane, style }));
}

const RULE = "rule limit_usdc spent_usdc remaining_usdc requested_usdc available_at";

function story({ events, deliveries, pay, status, message, ...it }) {
	const find = (type) => events.find((event) => event.type === type);
	const asked = find("escalation.required"), sent = find("transfer.initiated"), refused = find("transfer.rejected");
	const begun = it.created_at ?? events[0]?.created_at, isSettled = status === "settled", waits = status === "pending_approval";
	const failed = ["rejected", "failed"].includes(status) && (sent ? "settlement" : asked ? "approval" : "policy");
	const look = (name, isOpen = false) => (failed === name ? "bad" : isOpen ? "info" : "ok");
	const allowed = asked
		? `Allowed with approval, from ${usdc(asked.data.escalation_threshold)} USDC on.` : "Allowed by every rule then in force.";
	return [
		pay ? challenge(pay) : step("Request", { at: begun }, fields(it, "transfer_id idempotency_key from to category")),
		step("Policy", { look: look("policy"), lane: "Agent → Server", at: begun },
			failed === "policy" ? [message, it.refusal && fields(it.refusal, RULE), it.error && h("p", link(`#/transfers?error=${it.error}`, `All with ${words(it.error)}`))] : allowed),
		asked && step("Approval", { look: look("approval", waits), at: (sent ?? refused)?.created_at, since: begun },
			waits ? ["Waiting for an operator.", h("p", link("#/approvals", "All that wait"))] : failed === "approval" ? message : "Approved."),
		sent && step(pay ? "Signed payment handed out" : "Signature", { lane: "Server → Agent", at: sent.created_at, since: begun },
			pay ? "If it is presented again, it is not charged again." : "Signed, stored, then sent."),
		sent && pay && presented(pay.outcome),
		sent && step("Settlement", {
			look: look("settlement", !isSettled), lane: pay?.fee_payer ? "Facilitator → Chain" : "Server → Chain",
			at: it.settled_at, since: sent.created_at,
		},
			isSettled ? "Final on chain." : failed ? message : "Waiting for finality.",
			facts({ Transaction: it.tx_signature ?? pay?.tx_signature, "Can land until": isSettled || failed ? null : pay?.expires_at }, whole),
			it.chain_explorer_url && h("p", h("a", { href: it.chain_explorer_url, target: "_blank", rel: "noreferrer" }, "Explorer"))),
		step("Events", { look: events.length ? "ok" : "info" }, events.length ? events.map(eventOf) : "None yet."),
		deliveries.length
			? step("Deliveries", { look: deliveryLook(deliveries) }, deliveries.map(deliveryOf))
			: step("Deliveries", { look: "" }, "No webhook asks for these events.", h("p", link("#/access/webhooks", "Register one"))),
	];
}

const deliveryLook = (deliveries) => (deliveries.some((each) => each.status === "undelivered" && !each.redelivered_at) ? "bad"
	: deliveries.some((each) => ["pending", "retrying"].includes(each.status)) ? "info" : "ok");

const eventOf = (event) => h("details", h("summary", moment(event.created_at), " ", event.type), json(event));
const deliveryOf = (it) => h("p.head", badge(it.status), h("span.grow", it.event_type), link(`#/deliveries?id=${it.event_id}`, "Attempts"));

const challenge = (pay) => [
	step("Request", { lane: "Agent → Shop" }, pay.url ?? UNKNOWN, fields(pay, "transfer_id")),
	step("402 Payment Required", { lane: "Shop → Agent" }, priceOf(pay),
		fields({ ...pay, fee_payer: pay.fee_payer ?? "this server" }, "origin recipient fee_payer category"), splitsOf(pay)),
];

const PROTOCOLS = { __proto__: null, mpp: "MPP", x402_v1: "x402 v1", x402_v2: "x402 v2", x402_upto: "x402 upto" };

/** What the seller asked for. By `upto` it asks for a maximum, of which only what it took is known afterwards. */
function priceOf({ amount_usdc, protocol, status }) {
	const by = `by ${PROTOCOLS[protocol] ?? protocol}`, sum = `${usdc(amount_usdc)} USDC`;
	if (protocol !== "x402_upto") return `${sum}, ${by}`;
	return status === "settled" ? `A maximum, ${by}. The seller took ${sum} of it.` : `At most ${sum}, ${by}`;
}

function presented(outcome) {
	const name = "Paid request and response", lane = "Agent → Shop";
	if (!outcome) return step(name, { lane, look: "" }, `${UNKNOWN}: the agent has not reported it.`);
	const { status_code: status, duration_ms: ms, receipt } = outcome, after = ms === null ? "" : ` after ${span(ms)}`;
	return step(name, { lane, look: status >= 200 && status <= 299 ? "ok" : "bad" },
		`Status ${status}${after}, as the agent reported it.`, receipt && json(decoded(receipt)));
}

function decoded(receipt) {
	try {
		const bytes = atob(receipt.replaceAll("-", "+").replaceAll("_", "/"));
		return JSON.parse(new TextDecoder().decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0))));
	} catch {
		return receipt;
	}
}

// What a seller or an agent wrote: no control characters, which terminals obey within quotes, and no quotes.
const quoted = (url) => `'${url.replace(/[^!-~]+/g, encodeURIComponent).replaceAll("'", "%27")}'`;
