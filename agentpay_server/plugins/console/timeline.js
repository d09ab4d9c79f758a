// @ts-check

import { pointRow, points, savePoint } from "./bench.js";
import { exporter, filters, inTime, list, named, payeesOf } from "./page.js";
import { badge, code, count, h, isUndelivered, json, link, moment, money, quiet, said } from "./ui.js";

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

export function timeline({ app, asked }) {
	const withPoints = app.me.is_test_money && app.state.summary.keeps_snapshots && !Object.values(asked).some(Boolean);
	return [
		h("div.actions.corner", withPoints && savePoint()),
		filters({
			q: ["Find", { type: "search", placeholder: "Id, signature, key, amount, payee, error, start of a memo" }],
			account_id: ["Account", { picks: true }],
			type: ["Event", { options: EVENTS }],
			...TIMES,
		}),
		list({
			path: "/console/events", row: timelineRow, fold: timelineFold, exports: "events", holds: true, keyOf: (row) => row.id,
			heads: ["When", "Status", "From → to", "Events", ["USDC", "number"]], cols: "9.5rem 9.5rem minmax(0, 1fr) 5.5rem 8rem",
			none: ["Nothing yet. On a test chain, try:", "agentpay-server trigger transfer.settled"],
			present: async (events, isMore) => {
				const rows = folded(events);
				await name(app, rows);
				if (!withPoints) return rows;
				return [...rows, ...await points(app, isMore ? rows.at(-1)?.at ?? "" : "")].sort((a, b) => b.at.localeCompare(a.at));
			},
		}),
		// Deposits have no event, and rejections no balance: what accounts hold is explained by their history.
		!asked.q && !asked.type && exporter("/console/transactions", inTime(asked), "history", "Export history"),
	];
}

/** Most events of a session name neither account nor payee, and those of a payment no seller. */
async function name(app, rows) {
	const payees = await payeesOf(app, rows.filter(({ data }) => data.session_id || (data.transfer_id && !data.to?.startsWith("acct_"))).map((row) => row.id));
	for (const row of rows) {
		const paid = payees.get(row.id);
		row.seller = paid?.origin;
		row.isUndelivered = row.status === "settled" && isUndelivered(paid);
		if (row.data.session_id) row.data = { account_id: paid?.account_id, to: paid?.to, ...row.data };
	}
}

function timelineRow(/** @type {any} */ { point, data, seller, ...row }) {
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
