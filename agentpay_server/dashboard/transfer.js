// @ts-check
// A transfer from request to delivery, and the exchange of a payment behind HTTP 402.

import { memoOf, splitsOf } from "./money.js";
import { get, one, party } from "./page.js";
import { badge, big, copies, facts, fields, h, json, link, moment, quiet, said, span, usdc, whole } from "./ui.js";

const LANES = ["Shop", "Agent", "Server", "Facilitator", "Chain"];
const PROTOCOLS = { mpp: "MPP", x402_v2: "x402, version 2", x402_v1: "x402, version 1" };
const UNKNOWN = "Not known here";

export const transfer = ({ id }) => one(`/v1/transfers/${id}`, (it) => h("div.page",
	h("div.card", h("div.head", big(it.amount_usdc), badge(it.status)),
		h("p", party(it.from), quiet(" pays "), it.pay ? said(it.pay.origin) : party(it.to)), memoOf(it),
		it.pay && h("div.actions", copies("Copy as curl", `curl -i ${quoted(it.pay.url ?? it.pay.origin)}`))),
	it.pay && h("p.lanes", { "aria-hidden": "true" }, LANES.map((name) => h("span", name))),
	h("ol.steps", story(it))),
async ([it], draw) => {
	// Most transfers are no payment: the list is empty where `GET /payments/…` would be an error.
	const paths = ["/console/events", "/console/deliveries", "/payments"].map((path) => `${path}?limit=100&transfer_id=${id}`);
	const [events, deliveries, payments] = await Promise.all(paths.map(get));
	draw([{ ...it, events: events.data.reverse(), deliveries: deliveries.data.reverse(), pay: payments.data[0] }]);
});

/** A step: how it went, from whom to whom, when, and the moment before it; its content, of which text was written by others. */
function step(name, { look = "ok", lane, at, since } = /** @type {any} */ ({}), ...content) {
	const passed = Date.parse(at) - Date.parse(since);
	return h(`li.${look}`, lane && arrow(lane),
		h("div.about",
			h("p.head", h("strong.grow", name, look === "bad" && h("span.bad", " failed here")),
				Number.isFinite(passed) && quiet(`+${span(passed)}`), at && moment(at)),
			content.flat().map((part) => (typeof part === "string" ? h("p", said(part)) : part))));
}

function arrow(lane) {
	const [start, end] = lane.split(" → ").map((name) => LANES.indexOf(name) + 1), isBack = start > end;
	const style = { gridColumn: isBack ? `${end} / ${start + 1}` : `${start} / ${end + 1}` };
	return h("div.lanes", h(isBack ? "span.arrow.back" : "span.arrow", { role: "img", "aria-label": lane, style }));
}

function story({ events, deliveries, pay, status, message, ...it }) {
	const find = (type) => events.find((event) => event.type === type);
	const asked = find("escalation.required"), sent = find("transfer.initiated"), refused = find("transfer.rejected");
	const begun = it.created_at ?? events[0]?.created_at, isSettled = status === "settled", waits = status === "pending_approval";
	const failed = ["rejected", "failed"].includes(status) && (sent ? "settlement" : asked ? "approval" : "policy");
	const look = (name, isOpen = false) => (failed === name ? "bad" : isOpen ? "info" : "ok");
	const allowed = asked
		? `Allowed, with approval: it reaches ${usdc(asked.data.escalation_threshold)} USDC.`
		: "Allowed: within every rule then in force.";
	return [
		pay ? challenge(pay) : step("Request", { at: begun }, fields(it, "transfer_id idempotency_key from to category")),
		step("Policy", { look: look("policy"), lane: "Agent → Server", at: begun }, failed === "policy" ? [message, fields(it, "error")] : allowed),
		asked && step("Approval", { look: look("approval", waits), at: (sent ?? refused)?.created_at, since: begun },
			waits ? ["Waiting for an operator.", h("p", link("#/approvals", "Decide"))] : failed === "approval" ? message : "Approved."),
		sent && step(pay ? "Signed payment handed out" : "Signature", { lane: "Server → Agent", at: sent.created_at, since: begun },
			pay ? "Presented again: not charged again." : "Signed, stored, then sent."),
		sent && pay && presented(pay.outcome),
		sent && step("Settlement",
			{
			look: look("settlement", !isSettled), lane: pay?.fee_payer ? "Facilitator → Chain" : "Server → Chain",
			at: it.settled_at, since: sent.created_at,
		},
			isSettled ? "Final on chain." : failed ? message : "Waiting for finality.",
			facts({ Transaction: it.tx_signature ?? pay?.tx_signature, "Can land until": isSettled || failed ? null : pay?.expires_at }, whole),
			it.chain_explorer_url && h("p", h("a", { href: it.chain_explorer_url, target: "_blank", rel: "noopener noreferrer" }, "Explorer"))),
		step("Events", { look: events.length ? "ok" : "info" }, events.length ? events.map(eventOf) : "None yet."),
		deliveries.length
			? step("Deliveries", { look: deliveries.some((each) => each.status === "undelivered") ? "bad" : "ok" }, deliveries.map(deliveryOf))
			: step("Deliveries", { look: "" }, "No webhook asks for these events.", h("p", link("#/access/webhooks", "Register one"))),
	];
}

const eventOf = (event) => h("details", h("summary", moment(event.created_at), " ", event.type), json(event));
const deliveryOf = (it) => h("p.head", badge(it.status), h("span.grow", it.event_type), link(`#/deliveries?id=${it.event_id}`, "Attempts"));

const challenge = (pay) => [
	step("Request", { lane: "Agent → Shop" }, pay.url ?? UNKNOWN, fields(pay, "transfer_id")),
	step("402 Payment Required", { lane: "Shop → Agent" }, `${usdc(pay.amount_usdc)} USDC, by ${PROTOCOLS[pay.protocol] ?? pay.protocol}`,
		fields({ ...pay, fee_payer: pay.fee_payer ?? "this server" }, "origin recipient fee_payer category"), splitsOf(pay)),
];

function presented(outcome) {
	const name = "Paid request and response", lane = "Agent → Shop";
	if (!outcome) return step(name, { lane, look: "" }, `${UNKNOWN}: the agent has not reported it.`);
	const { status_code: status, duration_ms: ms, receipt } = outcome, after = ms === null ? "" : ` after ${span(ms)}`;
	return step(name, { lane, look: status >= 200 && status <= 299 ? "ok" : "bad" },
		`Status ${status}${after}, as the agent reported it.`, receipt && json(decoded(receipt)));
}

/** A receipt: JSON in base64, or any text. */
function decoded(receipt) {
	try {
		const bytes = atob(receipt.replaceAll("-", "+").replaceAll("_", "/"));
		return JSON.parse(new TextDecoder().decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0))));
	} catch {
		return receipt;
	}
}

/** One argument of a shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
