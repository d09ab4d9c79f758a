// @ts-check

import { post } from "./api.js";
import { points, pointRow, savePoint } from "./bench.js";
import { accounts, act, change, filters, get, instant, list, me, named, one, party } from "./page.js";
import { $, badge, big, button, code, count, facts, field, fields, h, json, link, meter, moment, quiet, said, usdc, words } from "./ui.js";

/** The status of what an event is about, by its type; the server writes it into the page. */
const STATUS = JSON.parse(document.documentElement.dataset.events ?? "{}");

export const EVENTS = Object.keys(STATUS);
export const REGISTER = 'client.webhooks.create(url="https://…", events=["transfer.settled"])';

const MOST_EVENTS = 1000;
const MOMENT = { type: "datetime-local" }, TIMES = { since: ["After", MOMENT], until: ["Up to", MOMENT] };

function folded(events) {
	const rows = new Map();
	for (const { id: eventId, type, created_at: at, data } of events) {
		const id = data.transfer_id ?? data.session_id ?? eventId, status = STATUS[type] ?? type;
		const row = rows.get(id) ?? { id, at, status, events: [] };
		row.data = { ...data, ...row.data };
		row.events.unshift({ id: eventId, type, at, data });
		// Two events may have one time: the end counts.
		if (["settled", "rejected"].includes(status)) row.status = status;
		rows.set(id, row);
	}
	return [...rows.values()];
}

export function timeline({ asked }) {
	const { id = "", status } = asked, withPoints = me.is_test_money && !Object.values(asked).some(Boolean);
	// Rows that are being read do not move: new ones wait.
	let rows = [], shown = [], draw, end = "";
	const wanted = (events) => folded(events).filter((row) => (!status || row.status === status) && JSON.stringify(row).includes(id));
	const arrange = (isHeld) => {
		const current = new Map(rows.map((row) => [row.id, row]));
		shown = isHeld ? shown.map((row) => current.get(row.id) ?? (row.at <= end && row)).filter(Boolean) : rows;
		for (const row of shown) current.delete(row.id);
		fresh.hidden = !current.size;
		fresh.textContent = `${current.size}${current.size === rows.length ? " or more" : ""} new`;
		draw(shown);
	};
	const events = list({
		path: "/console/events", query: { status: "" }, row: timelineRow, fold: timelineFold,
		none: ["Nothing yet. On a test chain, try:", "agentpay-server trigger transfer.settled"],
		isEnough: (events) => (!status && !id) || wanted(events).length > 24 || events.length >= MOST_EVENTS,
		present: async (events, drawRows, more) => {
			[rows, draw] = [wanted(events), drawRows];
			if (rows.some(({ data }) => data.transfer_id && !data.to?.startsWith("acct_"))) {
				const { data } = await get("/payments?limit=100"), sellers = new Map(data.map((it) => [it.transfer_id, it.origin]));
				for (const row of rows) row.seller = sellers.get(row.id);
			}
			// A row that is missing was undone by a rewind, unless it is older than what was read.
			end = more ? rows.at(-1)?.at ?? "" : "";
			if (withPoints) rows = [...rows, ...await points(end)].sort((a, b) => b.at.localeCompare(a.at));
			arrange(shown.length > 0 && (element.contains(document.activeElement) || Boolean($("details[open]", element))));
		},
	});
	const [element] = events, fresh = button("", () => {
		arrange(false);
		$("summary", element)?.focus();
	}, { hidden: true, class: "fresh" });
	return [
		filters({
			id: ["Search", { type: "search", placeholder: "Identifier, address, amount" }],
			account_id: ["Account", { options: accounts() }],
			type: ["Event", { options: EVENTS }],
			status: ["Status", { options: [...new Set(Object.values(STATUS))].map((status) => [status, words(status)]) }],
			...TIMES,
		}),
		h("div.actions", withPoints && savePoint(), fresh), ...events,
	];
}

function timelineRow({ point, data, seller, ...row }) {
	if (point) return pointRow(point);
	const payee = seller ? [said(seller), quiet(" · 402")] : data.to && named(data.to);
	const amount = data.settled_usdc ?? data.amount_usdc ?? data.cap_usdc ?? data.balance_usdc;
	return [
		moment(row.at), badge(row.status), [named(data.account_id), payee && [quiet(" → "), payee], data.session_id && quiet(" · session")],
		count(row.events.length, "event"), h("strong", amount && usdc(amount)),
	];
}

function timelineFold({ id, data, events }) {
	const page = data.transfer_id ? "transfers" : data.session_id && "sessions";
	return [
		h("p", code(id), " ", page && link(`#/${page}/${id}`, "Open")),
		events.map((event) => [h("p", moment(event.at), " ", h("strong", event.type), " ", code(event.id)), json(event.data)]),
	];
}

export const sessions = ({ id }) => (id ? one(`/sessions/${id}`, session) : list({
	path: "/sessions", as: "ul.cards",
	none: ["No sessions. An agent opens one with a cap:", 'client.sessions.open(account_id=…, to=…, cap_usdc="3")'],
	row: (it) => h("li.card", charged(it), h("p.quiet", moment(it.opened_at), " · ", link(`#/sessions/${it.session_id}`, code(it.session_id)))),
}));

function charged({ running_total_usdc: total, cap_usdc: cap, status, ...it }) {
	const end = { settled: `${usdc(it.settled_usdc)} paid, ${usdc(it.returned_usdc)} returned`, failed: "Never funded" };
	return [
		h("div.head", h("span.grow", party(it.account_id), quiet(" → "), party(it.to)), badge(status)),
		big(total, ` of ${usdc(cap)} USDC`), meter(`${usdc(total)} of ${usdc(cap)} USDC charged`, cap, { spent: total }),
		h("p", end[status] ?? "In escrow until it closes", it.closing_reason && h("span.warn", ` · ${words(it.closing_reason)}`)),
	];
}

const session = (it) => h("div.page",
	h("div.card", charged(it), it.status === "open" && h("div.actions",
		change("Close", `${usdc(it.running_total_usdc)} USDC go to the payee; the rest returns.`,
			() => post(`/sessions/${it.session_id}/close`)))),
	h("div.card",
		facts({ opened: moment(it.opened_at), settled: moment(it.settled_at) }),
		fields(it, "session_id category escrow_token_account tx_signature settlement_tx_signature"),
		link(`#/timeline?id=${it.session_id}`, "Its events")));

export function deliveries({ asked: { webhook_id } }) {
	const webhooks = get("/console/webhooks?limit=100").then(({ data }) => data.map((it) => [it.webhook_id, it.url]));
	const choice = () => [
		h("p", webhook_id ? "To this webhook." : "To every webhook."),
		field("Created after", "since", { ...MOMENT, required: true }),
	];
	const replayAll = async ({ since }) => {
		const { replayed, has_more } = await post("/console/deliveries/replay", { since: instant(since), webhook_id });
		return `${replayed} replayed.${has_more ? " There are more." : ""}`;
	};
	return [
		filters({
			id: ["Event or transfer", { type: "search" }],
			webhook_id: ["Webhook", { options: webhooks }],
			status: ["Status", { options: ["pending", "retrying", "delivered", "undelivered"] }],
			...TIMES,
		}),
		h("div.actions", change("Replay undelivered", choice, replayAll, { look: "" })),
		...list({
			path: "/console/deliveries",
			none: ["No deliveries. Register a webhook:", REGISTER],
			present: async (items, draw) => {
				const urls = new Map(await webhooks);
				draw(items.map((it) => ({ ...it, url: urls.get(it.webhook_id) })));
			},
			row: (it) => {
				const last = it.attempts.at(-1);
				return [
					last ? moment(last.at) : quiet("not yet"), badge(it.status), [it.event_type, quiet(" → "), it.url ? said(it.url) : code(it.webhook_id)],
					count(it.attempts.length, "attempt"), h("strong", last && answer(last)),
				];
			},
			fold: (it) => [
				h("p.head", h("span.grow", code(it.delivery_id)), button("Replay", () => act(
					() => post(`/console/events/${it.event_id}/replay`, { webhook_id: it.webhook_id }), "Replayed as a new delivery."))),
				h("ol", it.attempts.map(attempt)),
				it.next_attempt_at && h("p", "Next attempt ", moment(it.next_attempt_at)),
			],
		}),
	];
}

const answer = (attempt) => attempt.status_code ?? "no response";

const attempt = (it) => h("li", moment(it.at), " ", h("strong", answer(it)), quiet(` ${it.duration_ms} ms`),
	it.error && h("p", said(it.error)), it.response_excerpt && h("pre", it.response_excerpt));
