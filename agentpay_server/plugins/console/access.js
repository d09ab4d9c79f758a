// @ts-check

import { call, post } from "./api.js";
import { accountField, change, does, filters, keyName, list, named, party, picker } from "./page.js";
import { EVENTS, REGISTER, TIMES } from "./timeline.js";
import { badge, changes, check, code, facts, field, h, json, lines, link, moment, quiet, said, singular, span, subject, SUM, usdc, words } from "./ui.js";

const AGENT_KEYS = "/console/agent-keys", OPERATOR_KEYS = "/console/operator-keys";
const revoke = (/** @type {typeof AGENT_KEYS | typeof OPERATOR_KEYS} */ path, { key_id }) => call("DELETE", `${path}/{key_id}`, { key_id });
const revoking = (path, it) => change("Revoke", "It is refused from now on.", () => revoke(path, it).then(() => "Done."), { title: `Revoke the key ${it.name ?? it.key_id}?`, action: "Revoke" });

const keyFacts = (it) => [
	it.name ? said(it.name) : quiet("no name"),
	it.expires_at && quiet(` · ${it.kind ?? "agent"} key until `, moment(it.expires_at)),
	it.max_total_usdc && quiet(` · ${usdc(it.spent_total_usdc)} of ${usdc(it.max_total_usdc)} spent`),
];
const keyRow = (it, app) => [
	keyFacts(it), it.account_id ? party(it.account_id) : quiet(it.kind ?? ""), code(it.key_id), moment(it.created_at),
	it.account_id ? revoking(AGENT_KEYS, it) : app.me.isConsole ? "" : revoking(OPERATOR_KEYS, it),
];
const KEYS = { row: keyRow, heads: ["Name", "For", "Key", "Created", ["", "end"]], cols: "minmax(0, 1.2fr) minmax(0, 1fr) 10rem 9.5rem 6.5rem" };

const newKey = (fields) => change("New agent key", () => [fields, field("Name", "name", { maxlength: 100 }),
	field("Expires after seconds", "expires_in", { inputmode: "numeric", pattern: "[0-9]+" }),
	field("Most it may spend, USDC", "max_total_usdc", SUM)],
async ({ account_id, name, expires_in, max_total_usdc }, app) => {
	const body = { account_id, name: name || undefined, expires_in: expires_in ? Number(expires_in) : undefined, max_total_usdc: max_total_usdc || undefined };
	const created = await post(AGENT_KEYS, { body });
	return () => app.showSecret("New agent key", created);
}, { title: "New agent key", action: "Create", look: "primary" });

/** The keys of one account, revoked ones too, each with what it did. */
export const keyList = (account_id) => [
	h("div.head", h("h2.grow", "Keys"), newKey([h("p", "Of the account ", named(account_id), "."), h("input", { type: "hidden", name: "account_id", defaultValue: account_id })])),
	list({
		path: AGENT_KEYS, asked: {}, query: { account_id, include_revoked: "true", limit: 100 }, none: ["No agent has a key of this account. Create one:", "client.agent_keys.create(account_id)"],
		heads: ["Name", "Key", "Created", "Status", "", ["", "end"]], cols: "minmax(0, 1.2fr) 10rem 9.5rem 12rem 10rem 6.5rem",
		row: (it) => [
			keyFacts(it), code(it.key_id), moment(it.created_at), it.revoked_at ? h("span", badge("failed", "revoked"), " ", moment(it.revoked_at)) : badge("active"),
			h("span", link(`#/transfers?key_id=${it.key_id}`, "Transfers"), " ", link(`#/access/audit?key_id=${it.key_id}`, "Audit")), it.revoked_at ? "" : revoking(AGENT_KEYS, it),
		],
	}),
];

const DEEDS = { __proto__: null, "policies.put": "Change policy", "sellers.put": "Pin seller", "sellers.delete": "Unpin seller", "sandbox.accounts.fund": "Fund with test USDC", "console.pause_all": "Pause all", "console.resume_all": "Resume all" };

/** The name of an operation in words: `agent_keys.create` is "Create agent key". */
function deed(action) {
	const parts = action.split("."), verb = words(parts.at(-1)), noun = singular(words(parts.at(-2) ?? ""));
	const text = `${verb} ${noun}`.trim();
	return DEEDS[action] ?? text[0].toUpperCase() + text.slice(1);
}

/** What an entry is about: by name where it has one. */
function objectOf({ subject: id, before, after }) {
	const { account_id, name, from: payer, amount_usdc, amount } = { ...before, ...after }, sum = amount_usdc ?? amount;
	const whose = account_id ?? payer;
	return [id.startsWith("acct_") ? named(id) : typeof name === "string" ? said(name) : code(id),
		sum && !isNaN(sum) && quiet(` · ${usdc(sum)} USDC`), typeof whose === "string" && whose.startsWith("acct_") && whose !== id && quiet(" · ", named(whose))];
}

/** @param {import("./api.js").Schemas["AuditEntry"]} it */
const auditRow = (it) => [moment(it.created_at), [deed(it.action)], h("span", objectOf(it)), h("span", keyName(it))];

/** @param {import("./api.js").Schemas["WebhookDetails"]} it */
function webhookRow({ webhook_id, url, events, account_ids: ids, low_balance_threshold_usdc: threshold, warning, health }) {
	const { attempts_24h: attempts, failures_24h: failures, last_success_at: last, latency_ms: latency } = health;
	const rotate = async ({ overlap_seconds }, app) => {
		const secret = await post("/console/webhooks/{webhook_id}/rotate-secret", { webhook_id, body: { overlap_seconds: Number(overlap_seconds) } });
		return () => app.showSecret(`New secret of ${url}`, secret);
	};
	const edit = () => [
		field("URL", "url", { type: "url", required: true, value: url }), eventFields(events),
		h("p.quiet", "Events of these accounts only; none of them means every account."),
		h("fieldset", h("legend", "Accounts"), ids.map((each) => check(named(each), each, true))),
		picker("Add an account (optional)", "added"),
		field("Tell of balances below, USDC", "low_balance_threshold_usdc", { value: threshold === null ? "" : String(threshold), placeholder: "never", inputmode: "decimal" }),
	];
	const save = async ({ url, added, low_balance_threshold_usdc: least, ...boxes }) => {
		const account_ids = [...ids.filter((each) => each in boxes), ...(added ? [added] : [])];
		await call("PATCH", "/console/webhooks/{webhook_id}", { webhook_id, body: { url, events: chosen(boxes), account_ids, low_balance_threshold_usdc: least.trim() ? Number(least) : null } });
		return "Saved.";
	};
	return [
		[h("strong.line", { title: url }, said(url)), quiet(events.length === EVENTS.length ? "every event" : events.join(", "), " · ",
			ids.length ? ids.map((each, i) => [i ? ", " : "", named(each)]) : "every account",
			threshold !== null && ` · below ${usdc(threshold)} USDC`), warning && h("p.warn", warning)],
		last ? moment(last) : quiet("never"),
		link(`#/deliveries?webhook_id=${webhook_id}`, failures ? `${failures} of ${attempts} failed` : attempts ? `${attempts} delivered` : "no attempts"),
		h("span.number", { "data-head": "Latency" }, latency === null ? quiet("–") : `${latency} ms`),
		h("span.buttons",
			change("Edit", edit, save, { title: `Edit ${url}`, action: "Save", look: "", wide: true }),
			does("Test", () => post("/console/webhooks/{webhook_id}/test", { webhook_id }), "A test event is on its way: see its deliveries."),
			change("Rotate", () => field("Both secrets sign for", "overlap_seconds", { required: true, value: "86400", options: [["86400", "24 hours"], ["3600", "1 hour"], ["604800", "7 days"], ["0", "no time: the old one leaked"]] }),
				rotate, { title: `Rotate the secret of ${url}?`, action: "Rotate", look: "" }),
			change("Delete", "Nothing more is sent to it.", () => call("DELETE", "/console/webhooks/{webhook_id}", { webhook_id }).then(() => "Done."), { title: `Delete ${url}?` })),
	];
}

const eventFields = (events) => h("fieldset", h("legend", "Events"), EVENTS.map((type) => check(type, type, events.includes(type))));
const chosen = (boxes) => /** @type {any} */ (EVENTS.filter((type) => type in boxes));

const newWebhook = () => change("New webhook", () => [field("URL", "url", { type: "url", required: true }), eventFields(EVENTS)], async ({ url, ...boxes }, app) => {
	const created = await post("/v1/webhooks", { body: { url, events: chosen(boxes) } });
	return () => app.showSecret("New webhook", created);
}, { title: "New webhook", action: "Create", look: "primary" });

const sellerFields = (it) => [
	field("Category", "category", { value: it.category ?? "", placeholder: "as its challenge says", maxlength: 64 }),
	field("Paid at these addresses only, one a line", "recipients", { value: (it.recipients ?? []).join("\n"), rows: 2, placeholder: "any" }),
	field("At most, USDC a payment", "max_amount", { value: it.max_amount ? String(Number(it.max_amount)) : "", placeholder: "no limit", inputmode: "decimal" }),
	check("Blocked: never pay it", "blocked", it.blocked), check("The treasury pays fees that it does not", "sponsor_fees", it.sponsor_fees),
];

const pin = (origin, given) => call("PUT", "/console/origins/{origin}", { origin, body: {
	category: given.category.trim() || null, recipients: lines(given.recipients).length ? lines(given.recipients) : null,
	max_amount: given.max_amount.trim() || null, blocked: "blocked" in given, sponsor_fees: "sponsor_fees" in given,
} }).then(() => `${origin} is pinned.`);

/** @param {import("./api.js").Schemas["PinnedSeller"]} it */
const sellerRow = (it) => [
	[said(it.origin)], it.category ? said(it.category) : quiet("its own"),
	[it.recipients ? it.recipients.map((each) => [code(each), " "]) : quiet("any address")], h("span.number", { "data-head": "At most" }, it.max_amount ? usdc(it.max_amount) : quiet("no limit")),
	it.blocked ? badge("rejected", "blocked") : "",
	h("span.buttons", change("Edit", () => sellerFields(it), (given) => pin(it.origin, given), { title: `Edit ${it.origin}`, action: "Save", look: "" }),
		change("Unpin", "Its challenges say again what it is.", () => call("DELETE", "/console/origins/{origin}", { origin: it.origin }).then(() => "Done."), { title: `Unpin ${it.origin}?` })),
];

const newSeller = (origin = "") => change("Pin a seller", () => [
	field("Origin", "origin", { value: origin, required: true, placeholder: "https://…", type: "url" }), sellerFields({}),
], ({ origin, ...given }) => pin(origin.replace(/\/$/, ""), given), { title: "Pin a seller", action: "Pin", look: "primary" });

/** Lists, and what is created in them. @type {Record<string, any>} */
const TABS = {
	agents: {
		label: "Agent keys", path: AGENT_KEYS, create: () => newKey(accountField()), exports: "agent-keys", ...KEYS,
		none: ["No agent has a key. Create one:", "client.agent_keys.create(account_id)"],
	},
	operators: {
		label: "Operator keys", path: OPERATOR_KEYS, exports: "operator-keys", ...KEYS, refusal: "Signed in by a link, this browser can neither create nor revoke operator keys.",
		create: () => change("New operator key", () => field("Name", "name", { maxlength: 100, required: true }), async ({ name }, app) => {
			const created = await post(OPERATOR_KEYS, { body: { name } });
			return () => app.showSecret("New operator key", created);
		}, { title: "New operator key", action: "Create", look: "primary" }),
	},
	webhooks: {
		label: "Webhooks", path: "/console/webhooks", create: newWebhook, row: webhookRow, exports: "webhooks",
		heads: ["Endpoint", "Last success", ["24 hours", ""], ["Latency", "number"], ["", "end"]],
		cols: "minmax(0, 1fr) 9rem 8.5rem 5rem 22.5rem",
		none: ["No webhooks. Register one:", REGISTER],
	},
	sellers: {
		label: "Sellers", path: "/console/origins", exports: "sellers", row: sellerRow, create: newSeller,
		heads: ["Origin", "Category", "Paid at", ["At most", "number"], "", ""],
		cols: "minmax(0, 1.2fr) 6rem minmax(0, 1fr) 6rem 5rem 11rem",
		none: ["No seller is pinned: their challenges say what they are. Pin one:", 'client.sellers.put("https://…", category="data")'],
	},
	audit: {
		label: "Audit", path: "/console/audit", keyOf: JSON.stringify, exports: "audit",
		heads: ["When", "What", "Which", "Who"], cols: "9.5rem minmax(0, 1.2fr) minmax(0, 1.4fr) minmax(0, 1fr)",
		filters: {
			account_id: ["Account", { picks: true }], action: ["Action", { type: "search", placeholder: "policies.put" }], key_id: ["Key", { type: "search", placeholder: "key_…" }], ...TIMES,
		},
		none: ["No key has changed anything yet. Try:", "client.policies.pause(account_id)"],
		row: auditRow,
		fold: (it) => [
			changes(it.before, it.after), facts({
				Action: h("code", it.action), Subject: subject(it.subject), Key: it.key_id && h("code", it.key_id), Request: it.request_id && h("code", it.request_id),
			}),
		],
	},
	requests: {
		label: "Requests", path: "/console/requests", exports: "requests",
		heads: ["When", "Request", "Who", ["Status", "number"], ["Took", "number"]], cols: "9.5rem minmax(0, 2fr) minmax(0, 1fr) 5rem 5rem",
		none: ["No requests yet.", ""], fold: json,
		row: (it) => [
			moment(it.at), [h("strong", it.method), " ", it.route], h("span", keyName(it)),
			h(it.status >= 400 || it.status === null ? "strong.number.bad" : "span.number", it.status ?? "none"), h("span.number.quiet", { "data-head": "Took" }, span(it.duration_ms)),
		],
	},
};

export function access({ app, id, asked: { origin } }) {
	const chosen = Object.hasOwn(TABS, id) ? id : "agents", { me } = app;
	const { path, create, filters: by, refusal, ...others } = TABS[chosen], isRefused = refusal && me.isConsole;
	// To revoke the key of this tab would end the rest.
	const pick = others.row === keyRow && !isRefused && {
		verb: "Revoke", done: "revoked", what: "keys", effect: "They are refused from now on.",
		allows: (it) => it.key_id !== me.key_id, label: (it) => `${it.name ?? "no name"} · ${it.key_id}`, each: (it) => revoke(path, it),
	};
	return [
		h("div.actions.corner", create && !isRefused && create(origin)),
		h("p.tabs.wide", Object.entries(TABS).map(([id, { label }]) =>
			h("a", { href: `#/access/${id}`, "aria-current": id === chosen && "true" }, label))),
		by && filters(by),
		isRefused && h("p.quiet", refusal),
		list({ ...others, path, pick, }),
	];
}
