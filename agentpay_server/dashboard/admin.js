// @ts-check

import { call, post, send } from "./api.js";
import { EVENTS, REGISTER } from "./history.js";
import { accountField, change, list, one, party } from "./page.js";
import { badge, big, code, facts, field, h, json, link, meter, moment, quiet, said, showSecret, usdc, words } from "./ui.js";

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
		path: "/console/accounts", as: "ul.cards",
		none: ["No accounts yet. Create one:", 'client.accounts.create(name="Research bot")'],
		row: (it) => h("li.card", h("p.head", party(it.account_id), it.status !== "active" && badge(it.status)), budget(it)),
	}),
];

const budget = (it) => [big(it.balance_usdc), it.signing_stopped_at
	? h("p.problem", "Signing is stopped: a transaction landed that the books did not expect. Compare the history with the chain.")
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
	const effect = paused ? "It may spend again under its policy." : "Its transfers are refused from now on.";
	return change(paused ? "Resume" : "Pause", effect, async () => {
		const path = `/v1/accounts/${id}/policy`, response = await send("GET", path);
		const { account_id, updated_at, ...policy } = await response.json();
		await call("PUT", path, { body: { ...policy, paused: !paused }, headers: { "If-Match": response.headers.get("ETag") ?? "" } });
	}, { look: paused ? "" : "danger" });
}

const nameField = (props) => field("Name", "name", { maxlength: 100, ...props });
const keyOf = ({ name, expires_in, max_total_usdc, ...given }) => ({
	...given, name: name || undefined, expires_in: expires_in ? Number(expires_in) : undefined,
	max_total_usdc: max_total_usdc || undefined,
});
const remove = (label, effect, path) => change(label, effect, () => call("DELETE", path));

const keyRow = (it, path) => [
	moment(it.created_at), code(it.key_id),
	[
		it.name ? said(it.name) : quiet("no name"), it.account_id && [quiet(" for "), party(it.account_id)],
		it.expires_at && quiet(` · ${it.kind ?? "agent"} key until `, moment(it.expires_at)),
		it.max_total_usdc && quiet(` · ${usdc(it.spent_total_usdc)} of ${usdc(it.max_total_usdc)} spent`),
	],
	remove("Revoke", "It is refused from now on.", `${path}/${it.key_id}`),
];

/** Lists, and what is created in them. @type {Record<string, any>} */
const TABS = {
	agents: {
		label: "Agent keys", path: "/console/agent-keys", create: "New agent key", row: keyRow,
		fields: () => [accountField(), nameField(),
			field("Expires after seconds", "expires_in", { inputmode: "numeric", pattern: "[0-9]+" }),
			field("Most it may spend, USDC", "max_total_usdc", { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?" })],
		none: ["No agent has a key. Create one:", "client.agent_keys.create(account_id)"],
	},
	operators: {
		label: "Operator keys", path: "/console/operator-keys", create: "New operator key", row: keyRow,
		fields: () => nameField({ required: true }),
	},
	webhooks: {
		label: "Webhooks", path: "/console/webhooks", create: "New webhook", createPath: "/v1/webhooks", row: webhookRow,
		fields: () => [field("URL", "url", { type: "url", required: true }), h("fieldset", h("legend", "Events"), EVENTS.map(checkbox))],
		bodyOf: ({ url, ...events }) => ({ url, events: Object.keys(events) }),
		none: ["No webhooks. Register one:", REGISTER],
	},
	audit: {
		label: "Audit", path: "/console/audit", identity: JSON.stringify, fold: json,
		none: ["No key has changed anything yet. Try:", "client.policies.pause(account_id)"],
		row: (it) => [moment(it.created_at), [it.action], code(it.subject), it.key_id ? code(it.key_id) : quiet("server")],
	},
};

const checkbox = (type) => h("label", h("input", { type: "checkbox", name: type, checked: true }), type);

function webhookRow({ webhook_id: id, url, events, warning }, all) {
	const path = `${all}/${id}`, rotate = async () => showSecret("New secret", await post(`${path}/rotate-secret`));
	return [
		[said(url), h("br"), quiet(events.length === EVENTS.length ? "every event" : events.join(", ")),
			warning && h("p.warn", warning)],
		link(`#/deliveries?webhook_id=${id}`, "Deliveries"),
		change("Rotate", "Both secrets sign for 24 hours; then only the new one.", rotate, { look: "" }),
		remove("Delete", "Nothing more is sent to it.", path),
	];
}

export function access({ id }) {
	const chosen = Object.hasOwn(TABS, id) ? id : "agents";
	const { path, createPath = path, create, fields, row, bodyOf = keyOf, ...others } = TABS[chosen];
	const work = async (given) => showSecret(create, await post(createPath, bodyOf(given)));
	return [
		h("p.tabs", Object.entries(TABS).map(([id, { label }]) =>
			h("a", { href: `#/access/${id}`, "aria-current": id === chosen && "true" }, label))),
		h("div.actions", create && change(create, fields, work, { title: create, action: "Create", look: "primary" })),
		...list({ ...others, path, row: (it) => row(it, path) }),
	];
}
