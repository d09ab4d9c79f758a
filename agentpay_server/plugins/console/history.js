// @ts-check

import { post, read } from "./api.js";
import { points, pointRow, savePoint } from "./bench.js";
import { able, accountOf, change, exporter, filters, get, inTime, instant, list, me, named, one, part, party, summary, titled } from "./page.js";
import {
	$, badge, big, button, code, count, facts, field, h, isUndelivered, json, link, meter, moment, money, plain, quiet, said, usdc, whole, words,
} from "./ui.js";

/** The status of what an event is about, by its type; the server writes it into the page. */
const STATUS = JSON.parse(document.documentElement.dataset.events ?? "{}");

export const EVENTS = Object.keys(STATUS);
export const REGISTER = 'client.webhooks.create(url="https://…", events=["transfer.settled"])';

const MOMENT = { type: "datetime-local" };
export const TIMES = { since: ["After", MOMENT], until: ["Up to", MOMENT] };

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
	const withPoints = me.is_test_money && able.points && !Object.values(asked).some(Boolean);
	// Rows that are being read do not move: new ones wait.
	let rows = [], shown = [], draw, end = "";
	const arrange = (isHeld) => {
		const current = new Map(rows.map((row) => [row.id, row]));
		shown = isHeld ? shown.map((row) => current.get(row.id) ?? (row.at <= end && row)).filter(Boolean) : rows;
		for (const row of shown) current.delete(row.id);
		fresh.hidden = !current.size;
		fresh.textContent = `${current.size}${current.size === rows.length ? " or more" : ""} new`;
		return draw(shown);
	};
	const events = list({
		path: "/console/events", row: timelineRow, fold: timelineFold, exports: "events",
		heads: ["When", "Status", "From → to", "Events", ["USDC", "number"]], cols: "9.5rem 9.5rem minmax(0, 1fr) 5.5rem 8rem",
		none: ["Nothing yet. On a test chain, try:", "agentpay-server trigger transfer.settled"],
		present: async (events, drawRows, more) => {
			[rows, draw] = [folded(events), drawRows];
			await Promise.all([nameSessions(rows), nameSellers(rows)]);
			// A row that is missing was undone by a rewind, unless it is older than what was read.
			end = more ? rows.at(-1)?.at ?? "" : "";
			if (withPoints) rows = [...rows, ...await points(end)].sort((a, b) => b.at.localeCompare(a.at));
			await arrange(shown.length > 0 && (element.contains(document.activeElement) || Boolean($("details[open]", element))));
		},
	});
	const [table] = events, element = table.lastElementChild, fresh = button("", () => {
		arrange(false);
		$("summary", element)?.focus();
	}, { hidden: true, class: "fresh" });
	return [
		h("div.actions.corner", withPoints && savePoint()),
		filters({
			q: ["Find", { type: "search", placeholder: "Id, signature, key, amount, payee, error, start of a memo" }],
			account_id: ["Account", { picks: true }],
			type: ["Event", { options: EVENTS }],
			...TIMES,
		}),
		fresh, ...events,
		// Deposits have no event, and rejections no balance: what accounts hold is explained by their history.
		!asked.q && !asked.type && exporter("/console/transactions", inTime(asked), "history", "Export history"),
	];
}

async function nameSellers(rows) {
	if (!rows.some(({ data }) => data.transfer_id && !data.to?.startsWith("acct_"))) return;
	const { data } = await read("/payments?limit=100"), payments = new Map(data.map((it) => [it.transfer_id, it]));
	for (const row of rows) {
		const pay = payments.get(row.id);
		row.seller = pay?.origin;
		row.isUndelivered = row.status === "settled" && isUndelivered(pay);
	}
}

const sessionParties = new Map();

/** Most events of a session name neither account nor payee. */
async function nameSessions(rows) {
	const unknown = rows.filter(({ data }) => data.session_id && !sessionParties.has(data.session_id));
	if (unknown.length) {
		for (const it of (await get("/sessions?limit=100")).data) sessionParties.set(it.session_id, it);
		const older = unknown.map(({ data }) => data.session_id).filter((id) => !sessionParties.has(id)).slice(0, 20);
		for (const it of await Promise.all(older.map((id) => get(`/sessions/${id}`)))) sessionParties.set(it.session_id, it);
	}
	for (const row of rows) {
		const session = sessionParties.get(row.data.session_id);
		if (session) row.data = { account_id: session.account_id, to: session.to, ...row.data };
		if (session?.origin) row.seller = session.origin;
	}
}

function timelineRow({ point, data, seller, ...row }) {
	if (point) return pointRow(point);
	const payee = seller ? [said(seller), !data.session_id && quiet(" · 402")] : data.to && named(data.to);
	const amount = data.settled_usdc ?? data.amount_usdc ?? data.cap_usdc ?? data.balance_usdc;
	return [
		moment(row.at), row.isUndelivered ? badge("failed", "settled, not delivered") : badge(row.status),
		[data.account_id ? named(data.account_id) : quiet(row.status === "webhook.test" ? "Test of a webhook" : "–"),
			payee && [quiet(" → "), payee], data.session_id && quiet(" · session")],
		count(row.events.length, "event"), h("strong.number", amount && money(amount)),
	];
}

function timelineFold({ id, data, events }) {
	const page = data.transfer_id ? "transfers" : data.session_id && "sessions";
	return [
		h("p", code(id), " ", page && link(`#/${page}/${id}`, "Open")),
		events.map((event) => [h("p", moment(event.at), " ", h("strong", event.type), " ", code(event.id)), json(event.data)]),
	];
}

export const sessions = ({ id }) => (id ? one(`/sessions/${id}`, session) : [
	filters({
		account_id: ["Account", { picks: true }],
		status: ["Status", { options: ["opening", "open", "closing", "settled", "failed"] }],
	}),
	...list({
		path: "/sessions", exports: "sessions",
		heads: ["Opened", "Status", "From → to", "Charged of cap", ["USDC", "number"], ["", "end"]],
		cols: "8.5rem 6.5rem minmax(0, 1fr) minmax(0, .5fr) 9rem 3.5rem",
		none: ["No sessions. An agent opens one with a cap:", 'client.sessions.open(account_id=…, to=…, cap_usdc="3")'],
		row: (it) => [
			moment(it.opened_at), badge(it.status), [party(it.account_id), quiet(" → "), payee(it)], chargedMeter(it),
			h("span.number", h("strong", usdc(it.running_total_usdc)), quiet(` of ${usdc(it.cap_usdc)}`)), link(`#/sessions/${it.session_id}`, "Open"),
		],
	}),
]);

/** Who is paid: over HTTP 402 the seller, whose address says nothing. */
const payee = (it) => (it.origin ? [said(it.origin), quiet(" · MPP")] : party(it.to));

const chargedMeter = ({ running_total_usdc: total, cap_usdc: cap }) => meter(`${usdc(total)} of ${usdc(cap)} USDC charged`, cap, { spent: total });

function charged({ running_total_usdc: total, cap_usdc: cap, status, ...it }) {
	const end = { settled: `${usdc(it.settled_usdc)} paid, ${usdc(it.returned_usdc)} returned`, failed: "Never funded" };
	return [
		h("div.head", h("span.grow", party(it.account_id), quiet(" → "), payee(it)), badge(status)),
		big(total, ` of ${usdc(cap)} USDC`), chargedMeter({ running_total_usdc: total, cap_usdc: cap }),
		h("p", end[status] ?? (it.protocol === "mpp" ? "Locked in its channel until the seller settles, or until it is closed by force" : "In escrow until it closes"), it.closing_reason && h("span.warn", ` · ${words(it.closing_reason)}`)),
	];
}

const session = (it) => (titled("Session of ", named(it.account_id)), h("div.page",
	h("div.card", charged(it), it.status === "open" && h("div.actions",
		change("Close", `${usdc(it.running_total_usdc)} USDC go to the payee; the rest returns.${it.protocol === "mpp" ? " If the seller does not settle, the channel is closed by force after its grace period." : ""}`,
			() => post(`/sessions/${it.session_id}/close`).then(() => "Closed."),
			{ title: `Close the session of ${plain(accountOf(it.account_id).name ?? it.account_id)}?`, action: "Close" }))),
	h("div.card",
		facts({
			Opened: moment(it.opened_at), Settled: it.settled_at && moment(it.settled_at), Kind: KINDS[it.protocol] ?? it.protocol, Category: it.category && said(it.category),
			URL: it.url && said(it.url), Session: whole(it.session_id), "Paid to": whole(it.to), [it.channel ? "Channel" : "Escrow"]: whole(it.channel ?? it.escrow_token_account),
			"Opening transaction": whole(it.tx_signature), "Settling transaction": whole(it.settlement_tx_signature),
		}),
		h("p", link(`#/timeline?q=${it.session_id}`, "All events")))));

const KINDS = { __proto__: null, mpp: "MPP session: the seller collects vouchers over HTTP 402", escrow: "Escrow: the payee's charges are posted by this server" };

export function deliveries({ asked: { id = "", webhook_id, needs_attention: isOpen, status } }) {
	const webhooks = get("/console/webhooks?limit=100").then(({ data }) => data);
	const choice = () => [
		h("p", webhook_id ? "To this webhook." : "To every webhook."),
		field("Created after", "since", { ...MOMENT, required: true }),
	];
	const replayAll = async ({ since }) => {
		const { replayed, earliest_at: earliest, has_more } = await post("/console/deliveries/replay", { since: instant(since), webhook_id });
		return `${replayed} replayed${earliest ? `, created from ${moment(earliest).textContent} on` : ""}.${has_more ? " There are more." : ""}`;
	};
	const replayOne = (it) => change("Replay", async () => [
		h("p", it.event_type, " ", code(it.event_id)),
		field("To", "to", { required: true, options: [[it.webhook_id, it.url ?? it.webhook_id], ["*", "Every webhook that subscribes to it"]] }),
	], async ({ to }) => {
		const { data } = await post(`/console/events/${it.event_id}/replay`, to === "*" ? {} : { webhook_id: to });
		return `Replayed as ${data.length === 1 ? "a new delivery" : `${data.length} new deliveries`}.`;
	}, { look: "", title: `Replay ${it.event_type}?`, action: "Replay" });
	const tab = (label, query, isOn) => h("a", { href: `#/deliveries${query}`, "aria-current": isOn && "true" }, label);
	return [
		h("div.actions.corner", change("Replay undelivered", choice, replayAll, { look: "", action: "Replay" })),
		h("p.tabs.wide", tab("Needs attention", "?needs_attention=true", isOpen), tab("Retrying", "?status=retrying", status === "retrying"),
			tab("All", "", !isOpen && status !== "retrying")),
		(isOpen || status === "undelivered") && part(async () => summary(), (it) => h("p", it.retrying_deliveries > 0 && link("#/deliveries?status=retrying", `${it.retrying_deliveries} more being retried`))),
		filters({
			id: ["Event or transfer", { type: "search" }],
			webhook_id: ["Webhook", { options: webhooks.then((data) => data.map((it) => [it.webhook_id, it.url])) }],
			status: ["Status", { options: ["pending", "retrying", "delivered", "undelivered"] }],
			...TIMES,
		}),
		...list({
			path: "/console/deliveries", exports: "deliveries", query: { id: "", [id.startsWith("txn_") ? "transfer_id" : "event_id"]: id },
			heads: ["Last attempt", "Status", "Event → endpoint", "Attempts", ["Response", "number"]],
			cols: "9.5rem 9.5rem minmax(0, 1fr) 6.5rem 7rem",
			none: isOpen ? ["Nothing needs attention.", ""] : ["No deliveries. Register a webhook:", REGISTER],
			present: async (items, draw) => {
				const urls = new Map((await webhooks).map((it) => [it.webhook_id, it.url]));
				await draw(items.map((it) => ({ ...it, url: urls.get(it.webhook_id) })));
			},
			row: (it) => {
				const last = it.attempts.at(-1);
				return [
					last ? moment(last.at) : quiet("not yet"),
					it.redelivered_at ? badge("redelivered", "replayed") : badge(it.status),
					h("span.grow.line", { title: it.url }, it.event_type, quiet(" → "), it.url ? said(it.url) : code(it.webhook_id)),
					count(it.attempts.length, "attempt"), h("strong.number", last && answer(last)),
				];
			},
			pick: {
				verb: "Replay", done: "replayed", what: "deliveries", look: "", effect: "Each is sent once more, to its webhook.",
				label: (it) => `${it.event_type} ${it.event_id} → ${it.url ?? it.webhook_id}`,
				each: (it) => post(`/console/events/${it.event_id}/replay`, { webhook_id: it.webhook_id }),
			},
			fold: (it) => [
				h("p.head", h("span.grow", code(it.delivery_id), it.url && [" ", said(it.url)]), replayOne(it)),
				it.redelivered_at && h("p", "Undelivered; a replay delivered it ", moment(it.redelivered_at), "."),
				h("ol", it.attempts.map(attempt)),
				it.next_attempt_at && h("p", "Next attempt ", moment(it.next_attempt_at)),
			],
		}),
	];
}

const answer = (attempt) => attempt.status_code ?? "no response";

const attempt = (it) => h("li", moment(it.at), " ", h("strong", answer(it)), quiet(` ${it.duration_ms} ms`),
	it.error && h("p", said(it.error)), it.response_excerpt && h("pre", it.response_excerpt));
