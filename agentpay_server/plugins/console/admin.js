// @ts-check

import { call, post, read, send } from "./api.js";
import { EVENTS, REGISTER, TIMES } from "./history.js";
import {
	able, accountField, accountOf, act, at, change, details, filters, get, keyName, list, me, named, nameOf, one, part, party, picker, summary, titled,
} from "./page.js";
import {
	ask, badge, balanceOf, big, button, changes, chart, code, copies, facts, field, h, json, link, meter, moment, money, plain, quiet, said, showSecret, singular, span,
	STAY, usdc, words, ZONE,
} from "./ui.js";

const HOUR = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

const tile = (page, label, count, look = "") => h("li", link(`#/${page}`, h(`strong.${count && look}`, count), label));

/** Spend over time, of one account or of all. */
function spending({ by = "hour" }, account_id, limitOf = () => null) {
	const tab = (name, label) => h("a", { href: at(location.hash.split("?")[0] || "#/overview", { by: name }), "aria-current": by === name && "true" }, label);
	return h("section.card",
		h("div.head", h("h2.grow", "Spend"), h("p.tabs", tab("hour", "24 hours"), tab("day", ZONE.endsWith("UTC") ? "30 days" : "30 days of UTC"))),
		part(async () => ({ ...await get(at("/console/spend", { account_id, by })), limit: await limitOf() }),
			({ data, limit }) => chart(data, limit, (iso) => (by === "hour" ? HOUR : DAY).format(new Date(iso)), by === "hour")));
}

const SORTS = ["name", "balance", "spent", "limit"];

export const overview = ({ asked }) => [
	h("div.top", part(async () => summary(), (it) => h("ul.tiles",
		tile("approvals", "Waiting for approval", it.pending_approvals, "warn"),
		tile("deliveries?needs_attention=true", "Deliveries need attention", it.undelivered_deliveries, "bad"),
		tile("sessions?status=open", "Open sessions", it.open_sessions))), spending(asked)),
	h("div.head", h("h2.grow", "Accounts"), actions()),
	list({
		path: "/console/accounts", exports: "accounts",
		query: { by: "", sort: SORTS.includes((asked.sort ?? "").replace("-", "")) ? asked.sort : "" },
		heads: [["Account", "", "name"], "Status", ["Balance", "number", "balance"], ["Spent in 24 h", "number", "spent"], ["Daily limit", "number", "limit"], ""],
		cols: "minmax(0, 1fr) 5.5rem 10.5rem 9.5rem 9.5rem minmax(5rem, .15fr)",
		none: ["No accounts yet. Create one:", 'client.accounts.create(name="Research bot")'],
		pick: {
			verb: "Pause", done: "paused", what: "accounts", effect: "Their transfers are refused from now on.",
			allows: (it) => !it.policy.paused, label: (it) => it.name, each: (it) => put(it.account_id, { paused: true }),
		},
		row: (it) => [
			[party(it.account_id), quiet(" ", said(it.handle))], standing(it),
			h("strong.number", { "data-head": "Balance" }, balanceOf(it, money)), h("span.number", { "data-head": "Spent" }, money(it.spent_usdc)),
			h("span.number", { "data-head": "Limit" }, it.policy.max_daily_spend === null ? quiet("none") : money(it.policy.max_daily_spend)), spent(it),
		],
	}),
];

function spent({ spent_usdc: spent, reserved_usdc: reserved, remaining_usdc: left, policy: { max_daily_spend: limit } }) {
	if (left === null) return "";
	return meter(`${usdc(spent)} of ${usdc(limit)} spent, ${usdc(reserved)} of it reserved`, limit, { spent: Math.max(0, spent - reserved), reserved });
}

/** The fields of a policy's rules of one kind, and what is given in them. */
const policyFields = (kind, policy) => rulesOf(kind).map((each) => FIELDS[kind](each, policy[each.name]));
const policyOf = (kind, given, policy) => Object.fromEntries(rulesOf(kind).map(({ name }) => [name, VALUES[kind](given[name], policy[name])]));
const rulesOf = (kind) => able.rules.filter((it) => it.kind === kind);

const FIELDS = {
	amount: ({ name, label, null: none }, value) => field(`${label}, USDC`, name, {
		value: (value ?? null) === null ? "" : String(value), inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?",
		placeholder: none, title: "An amount such as 25.50, or empty",
	}),
	list: ({ name, label, null: none }, value) => field(`${label}, one a line`, name, { value: (value ?? []).join("\n"), rows: 3, placeholder: none }),
	flag: ({ name, label }, value) => h("label.check", h("input", { type: "checkbox", name, checked: value }), label),
};
const VALUES = {
	amount: (given) => (given.trim() === "" ? null : Number(given)),
	list: (given, before) => (lines(given).length ? lines(given) : before?.length === 0 ? [] : null),
	flag: (given) => given !== undefined,
};

const newAccount = () => change("New account", () => [nameField({ required: true }), h("div.two", policyFields("amount", {}))], async ({ name, ...given }) => {
	const limits = policyOf("amount", given, {}), { account_id: id } = await post("/v1/accounts", { name });
	const failed = Object.values(limits).some((limit) => limit !== null) && await put(id, limits).then(() => null, ({ message }) => message);
	location.hash = `#/accounts/${id}`;
	return failed ? () => ask({ title: `${plain(name)} is created, but setting its limits failed`, action: "Close", cancel: "" },
		h("p", failed), h("p", "Set them by “Edit policy” on its page.")).then(() => "") : `${name} is created.`;
}, { title: "New account", action: "Create", look: "primary" });

const standing = (it) => (it.signing_stopped_at ? badge("failed", "suspended") : badge(it.status));

const CAUSES = {
	__proto__: null,
	landed_late: ["A transaction landed after it was considered expired, so it may have paid twice.", "whether its payment was also made by another transaction of the history"],
	unknown_debit: ["USDC left the account in a transaction that this server does not know.", "whether another server or person has the account's key, or the database is an older copy"],
	unknown_payout: ["A session has paid an amount that this server does not know.", "whether another server closed it, or the database is an older copy"],
};

function suspended({ account_id: id, name, signing_stopped_at: since, suspension: why }) {
	const [cause, check] = CAUSES[why?.cause] ?? ["A transaction landed that the books did not expect.", "whether the history matches the chain"];
	return h("div.problem",
		h("p", h("strong", "Suspended since ", moment(since)), ": nothing of it is signed. ", cause),
		why && facts({
			About: subject(why.subject), Transaction: why.tx_signature ? h("code", why.tx_signature) : "Only the balance shows it",
			Explorer: why.chain_explorer_url && h("a", { href: why.chain_explorer_url, target: "_blank", rel: "noreferrer" }, why.chain_explorer_url),
		}),
		h("p", `Check ${check}. Then let it sign again here, or with `, h("code", `agentpay accounts unblock ${id}`), ". ", link(`#/access/audit?account_id=${id}`, "Audit trail")),
		change("Unblock", "Only after its history matches the chain: its transfers are signed again.",
			() => post(`/console/accounts/${id}/allow-signing`).then(() => `${name} signs again.`), { title: `Unblock ${plain(name)}?`, action: "Unblock" }));
}

const budget = (it) => [it.balance_usdc === null ? h("p.amount", quiet("Balance unknown: the chain does not respond")) : big(it.balance_usdc), it.signing_stopped_at && suspended(it),
it.remaining_usdc === null ? h("p.quiet", `${usdc(it.spent_usdc)} spent in 24 h${held(it)}, no daily limit`) : limited(it)];

const held = ({ reserved_usdc: reserved }) => (Number(reserved) ? `, ${usdc(reserved)} of it reserved` : "");

function limited({ spent_usdc: spent, reserved_usdc: reserved, remaining_usdc: left, policy: { max_daily_spend: limit }, ...it }) {
	const text = `${usdc(left)} left of ${usdc(limit)} a day`;
	return [
		meter(`${text}: ${usdc(spent)} spent, ${usdc(reserved)} of it reserved`, limit, { spent: spent - reserved, reserved }),
		h("p", text, quiet(held({ reserved_usdc: reserved })), it.next_release_at && quiet(` · +${usdc(it.next_release_usdc)} at `, moment(it.next_release_at))),
	];
}

export const account = ({ id, asked }) => [
	one(`/console/accounts/${id}`, (it) => {
		titled(said(it.name));
		return h("div.two",
			h("div.card",
				h("div.head", h("span.grow", quiet(said(it.handle))), standing(it)), budget(it),
				h("dl.facts", h("dt", "Account"), h("dd", code(it.account_id), " ", copies("Copy id", it.account_id, "tiny")),
					h("dt", "Address"), h("dd", h("code", it.chain_address)),
					h("dt", "USDC account"), h("dd", h("code", it.usdc_token_account)),
					h("dt", "Created"), h("dd", moment(it.created_at))),
				h("div.actions", moving(it), me.is_test_money && funding(it), pausing(it))),
			h("div.card", h("div.head", h("h2.grow", "Policy"), editing(it)), facts(Object.fromEntries(able.rules.map((each) => [each.label, rule(each.name, it.policy[each.name])])))));
	}),
	spending(asked, id, async () => accountOf(id).policy?.max_daily_spend ?? null),
	h("div.head", h("h2.grow", "History"), link(`#/timeline?account_id=${id}`, "All events"), link(`#/access/audit?account_id=${id}`, "Audit trail")),
	filters({ status: ["Status", { options: ["settled", "rejected"] }], ...TIMES }),
	list({
		path: "/console/transactions", query: { account_id: id, by: "" }, exports: "history",
		heads: ["When", "What", "With", ["USDC", "number"], ["", "end"]], cols: "9.5rem 10rem minmax(0, 1fr) 9rem 4rem",
		none: ["Nothing yet. Let the agent pay:", 'client.transfers.create(from_=…, to=…, amount="1")'],
		present: async (items, draw) => draw(await withSellers(items, id)),
		row: ({ direction, memo, rejection_reason: reason, transfer_id, session_id, seller, chain_explorer_url: explorer, ...it }) => {
			const isIn = direction === "in";
			const subject = isIn || !transfer_id ? session_id && `sessions/${session_id}` : `transfers/${transfer_id}`;
			const whom = seller ? ["to ", said(seller), quiet(" · 402")] : it.counterparty ? [isIn ? "from " : "to ", party(it.counterparty)] : it.type === "deposit" ? "Minted" : words(it.type);
			return [
				moment(it.created_at), badge(it.status, it.type),
				[
					whom, memo && [quiet(" · "), said(memo)], reason && quiet(` · ${words(reason)}`),
					it.type === "deposit" && [quiet(" · "), code(it.tx_signature), explorer && [" ", h("a", { href: explorer, target: "_blank", rel: "noreferrer" }, "Explorer")]],
				],
				h("strong.number", money(it.amount_usdc, it.status === "settled" ? (isIn ? "+" : "−") : "")), subject ? link(`#/${subject}`, "Open") : "",
			];
		},
	}),
];

/** Sellers of payments and sessions over HTTP 402, whose addresses say nothing. */
async function withSellers(items, account_id) {
	const isFar = (it) => it.direction === "out" && it.counterparty && !it.counterparty.startsWith("acct_");
	if (!items.some(isFar)) return items;
	const [payments, sessions] = await Promise.all(["/payments", "/sessions"].map((path) => read(at(path, { account_id, limit: 100 }))));
	const sellers = new Map([...payments.data.map((it) => [it.transfer_id, it.origin]), ...sessions.data.map((it) => [it.session_id, it.origin])]);
	return items.map((it) => (isFar(it) ? { ...it, seller: sellers.get(it.transfer_id ?? it.session_id) } : it));
}

/** A rule of a policy in words: what null means differs from field to field. */
function rule(name, value) {
	const { kind, null: none } = able.rules.find((it) => it.name === name);
	if (kind === "flag") return value ? "yes" : none;
	if (value === null) return quiet(none);
	if (kind === "amount") return `${usdc(value)} USDC`;
	if (!value.length) return h("span.bad", none === "everybody" ? "nobody" : "none");
	return none === "everybody" ? h("ul", value.map((each) => h("li", party(each)))) : value.map((each) => [said(each), " "]);
}

/** Change a policy under its version, so that no other change is undone. */
async function put(id, change) {
	const path = `/v1/accounts/${id}/policy`, response = await send("GET", path);
	const { account_id, updated_at, ...policy } = await response.json();
	await call("PUT", path, { body: { ...policy, ...change }, headers: { "If-Match": response.headers.get("ETag") ?? "" } });
}

function pausing({ account_id: id, name, policy: { paused } }) {
	const effect = paused ? "It can pay again." : "Its transfers are refused from now on.", label = paused ? "Resume" : "Pause";
	return change(label, effect, () => put(id, { paused: !paused }).then(() => `${name} is ${paused ? "active" : "paused"}.`),
		{ title: `${label} ${plain(name)}?`, action: label, look: paused ? "" : "danger" });
}

const pausingAll = (label, effect, action, look) => change(label, effect, async () => {
	const { changed, paused } = await post(`/console/accounts/${action}`);
	return `${changed} accounts ${action}d; ${paused} are paused now.`;
}, { look });

export const actions = () => [
	pausingAll("Resume all", "Those that “Pause all” has paused can pay again.", "resume", ""),
	pausingAll("Pause all", "Transfers of all accounts are refused from now on.", "pause", "danger"), newAccount(),
];

const lines = (text) => text.split(/[\n,]/).map((each) => each.trim()).filter(Boolean);

const editing = ({ account_id: id, name, policy }) => button("Edit policy…", () => act(async () => {
	return ask({ title: `Policy of ${plain(name)}`, action: "Review", wide: true, work: review },
		h("div.two", policyFields("amount", policy)), policyFields("list", policy), h("div.actions", policyFields("flag", policy)));
	async function review(given) {
		const wanted = Object.keys(FIELDS).flatMap((kind) => Object.entries(policyOf(kind, given, policy)));
		const changed = Object.fromEntries(wanted.filter(([each, value]) => JSON.stringify(value) !== JSON.stringify(policy[each])));
		if (!Object.keys(changed).length) return "Nothing changes.";
		const before = Object.fromEntries(Object.keys(changed).map((each) => [each, policy[each]]));
		const isSure = await ask({ title: `Change the policy of ${plain(name)}?`, action: "Save", wide: true },
			h("p", "It holds from the next transfer on."), changes(before, changed, rule));
		if (!isSure) throw STAY;
		await put(id, changed);
		return "The policy is saved.";
	}
}));

const funding = ({ account_id: id, name }) => change("Fund", () => field("USDC", "amount", { value: "100", required: true, inputmode: "decimal" }),
	({ amount }) => post(`/sandbox/accounts/${id}/fund`, { amount }).then(() => `${usdc(amount)} test USDC minted.`),
	{ title: `Fund ${plain(name)} with test USDC?`, action: "Fund", look: "" });

/** Ask what to move, show how the policy judges it, then pay: the same again under the same idempotency key. */
const moving = ({ account_id: id, name }) => button("Move USDC…", () => act(() => {
	const keys = new Map();
	return ask({ title: `Move USDC from ${plain(name)}`, action: "Check", work: (given) => move(id, name, given, keys) },
		picker("To", "to", { required: true, any: true }), field("USDC", "amount", { required: true, inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?" }),
		field("Memo (optional)", "memo", { maxlength: 200 }));
}), { class: "primary" });

async function move(id, name, given, keys) {
	const body = { from: id, to: given.to, amount: given.amount.trim(), memo: given.memo || undefined };
	const check = await post("/transfers/check", body), decision = check.decision ?? check.would, sum = usdc(body.amount);
	await details([given.to].filter((each) => each.startsWith("acct_")));
	if (decision === "reject") throw new Error(check.message ?? "The policy refuses it.");
	const verdict = decision === "escalate" ? h("p.warn", "It waits for approval under Approvals.") : h("p.ok", "The policy allows it.");
	const about = facts({ From: said(name), To: named(given.to), Memo: body.memo && said(body.memo), "Left today": check.remaining_usdc && usdc(check.remaining_usdc) });
	const title = `Move ${sum} USDC from ${plain(name)} to ${plain(nameOf(given.to))}?`;
	const isSure = await ask({ title, action: `Move ${sum} USDC`, typed: me.is_test_money ? "" : sum }, about, verdict);
	if (!isSure) throw STAY;
	const asked = JSON.stringify(body), idempotency_key = keys.get(asked) ?? `console-${crypto.randomUUID?.() ?? Date.now()}`;
	keys.set(asked, idempotency_key);
	try {
		const { status } = await post("/v1/transfers", { ...body, idempotency_key });
		return `${sum} USDC: ${words(status)}.`;
	} catch (error) {
		// What was decided is decided; whatever else is wrong, the transfer may exist.
		if (error.status === 402) keys.delete(asked);
		throw error;
	}
}

const nameField = (props) => field("Name", "name", { maxlength: 100, ...props });
const keyOf = ({ name, ...given }) => ({ ...given, name: name || undefined });
const remove = (label, title, effect, path) => change(label, effect, () => call("DELETE", path).then(() => "Done."), { title, action: label });

const keyRow = (it, path) => [
	[
		it.name ? said(it.name) : quiet("no name"),
		it.expires_at && quiet(` · ${it.kind ?? "agent"} key until `, moment(it.expires_at)),
		it.max_total_usdc && quiet(` · ${usdc(it.spent_total_usdc)} of ${usdc(it.max_total_usdc)} spent`),
	],
	it.account_id ? party(it.account_id) : quiet(it.kind ?? ""), code(it.key_id), moment(it.created_at),
	path === "/console/operator-keys" && me.isConsole ? ""
		: remove("Revoke", `Revoke the key ${plain(it.name ?? it.key_id)}?`, "It is refused from now on.", `${path}/${it.key_id}`),
];
const KEYS = { heads: ["Name", "For", "Key", "Created", ["", "end"]], cols: "minmax(0, 1.2fr) minmax(0, 1fr) 10rem 9.5rem 6.5rem" };

/** Lists, and what is created in them. @type {Record<string, any>} */
const TABS = {
	agents: {
		label: "Agent keys", path: "/console/agent-keys", create: "New agent key", row: keyRow, exports: "agent-keys", ...KEYS,
		fields: () => [accountField(), nameField(),
			field("Expires after seconds", "expires_in", { inputmode: "numeric", pattern: "[0-9]+" }),
			field("Most it may spend, USDC", "max_total_usdc", { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?" })],
		none: ["No agent has a key. Create one:", "client.agent_keys.create(account_id)"],
		bodyOf: ({ expires_in, max_total_usdc, name, ...given }) => ({
			...keyOf({ name, ...given }), expires_in: expires_in ? Number(expires_in) : undefined, max_total_usdc: max_total_usdc || undefined,
		}),
	},
	operators: {
		label: "Operator keys", path: "/console/operator-keys", create: "New operator key", row: keyRow, exports: "operator-keys", ...KEYS,
		fields: () => nameField({ required: true }), refusal: "Signed in by a link, this browser can neither create nor revoke operator keys.",
	},
	webhooks: {
		label: "Webhooks", path: "/console/webhooks", create: "New webhook", createPath: "/v1/webhooks", row: webhookRow, exports: "webhooks",
		heads: ["Endpoint", "Last success", ["24 hours", ""], ["Latency", "number"], ["", "end"]],
		cols: "minmax(0, 1fr) 9rem 8.5rem 5rem 22.5rem",
		fields: () => [field("URL", "url", { type: "url", required: true }), h("fieldset", h("legend", "Events"), EVENTS.map(checkbox))],
		bodyOf: ({ url, ...events }) => ({ url, events: Object.keys(events) }),
		none: ["No webhooks. Register one:", REGISTER],
	},
	sellers: {
		label: "Sellers", path: "/console/origins", exports: "sellers", row: sellerRow,
		heads: ["Origin", "Category", "Paid at", ["At most", "number"], "", ""],
		cols: "minmax(0, 1.2fr) 6rem minmax(0, 1fr) 6rem 5rem 11rem",
		none: ["No seller is pinned: their challenges say what they are. Pin one:", 'client.sellers.put("https://…", category="data")'],
	},
	audit: {
		label: "Audit", path: "/console/audit", identity: JSON.stringify, exports: "audit",
		heads: ["When", "What", "Which", "Who"], cols: "9.5rem minmax(0, 1.2fr) minmax(0, 1.4fr) minmax(0, 1fr)",
		filters: { account_id: ["Account", { picks: true }] },
		none: ["No key has changed anything yet. Try:", "client.policies.pause(account_id)"],
		row: (it) => [moment(it.created_at), [deed(it.action)], h("span", objectOf(it)), h("span", keyName(it))],
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

const checkbox = (type) => h("label", h("input", { type: "checkbox", name: type, checked: true }), type);

const PAGES = { acct: "accounts", txn: "transfers", sess: "sessions" };
const subject = (id) => {
	const page = PAGES[id.split("_")[0]];
	return page ? link(`#/${page}/${id}`, h("code", id)) : h("code", id);
};

function webhookRow({ webhook_id: id, url, events, account_ids: ids, low_balance_threshold_usdc: threshold, warning, health }, all) {
	const path = `${all}/${id}`, name = plain(url);
	const rotate = async ({ overlap_seconds }) => {
		const secret = await post(`${path}/rotate-secret`, { overlap_seconds: Number(overlap_seconds) });
		return () => showSecret(`New secret of ${name}`, secret);
	};
	const { attempts_24h: attempts, failures_24h: failures, last_success_at: last, latency_ms: latency } = health;
	return [
		[h("strong.line", { title: url }, said(url)), quiet(events.length === EVENTS.length ? "every event" : events.join(", "), " · ",
			ids.length ? ids.map((each, i) => [i ? ", " : "", named(each)]) : "every account",
			threshold !== null && ` · below ${usdc(threshold)} USDC`), warning && h("p.warn", warning)],
		last ? moment(last) : quiet("never"),
		link(`#/deliveries?webhook_id=${id}`, failures ? `${failures} of ${attempts} failed` : attempts ? `${attempts} delivered` : "no attempts"),
		h("span.number", { "data-head": "Latency" }, latency === null ? quiet("–") : `${latency} ms`),
		h("span.buttons",
			change("Edit", () => [
				h("p.quiet", "Events of these accounts only; none of them means every account."),
				h("fieldset", h("legend", "Accounts"), ids.map((each) => h("label", h("input", { type: "checkbox", name: each, checked: true }), named(each)))),
				picker("Add an account (optional)", "added"),
				field("Tell of balances below, USDC", "low_balance_threshold_usdc", { value: threshold === null ? "" : String(threshold), placeholder: "never", inputmode: "decimal" }),
			], async ({ added, low_balance_threshold_usdc: least, ...kept }) => {
				const account_ids = [...Object.keys(kept), ...(added ? [added] : [])];
				await call("PATCH", path, { body: { account_ids, low_balance_threshold_usdc: least.trim() ? Number(least) : null } });
				return "Saved.";
			}, { title: `Edit ${name}`, action: "Save", look: "" }),
			button("Test", () => act(() => post(`${path}/test`), "A test event is on its way: see its deliveries.")),
			change("Rotate", () => field("Both secrets sign for", "overlap_seconds", { required: true, value: "86400", options: [["86400", "24 hours"], ["3600", "1 hour"], ["604800", "7 days"], ["0", "no time: the old one leaked"]] }),
				rotate, { title: `Rotate the secret of ${name}?`, action: "Rotate", look: "" }),
			remove("Delete", `Delete ${name}?`, "Nothing more is sent to it.", path)),
	];
}

const sellerFields = (it) => [
	field("Category", "category", { value: it.category ?? "", placeholder: "as its challenge says", maxlength: 64 }),
	field("Paid at these addresses only, one a line", "recipients", { value: (it.recipients ?? []).join("\n"), rows: 2, placeholder: "any" }),
	field("At most, USDC a payment", "max_amount", { value: it.max_amount ? String(Number(it.max_amount)) : "", placeholder: "no limit", inputmode: "decimal" }),
	h("label.check", h("input", { type: "checkbox", name: "blocked", checked: it.blocked }), "Blocked: never pay it"),
	h("label.check", h("input", { type: "checkbox", name: "sponsor_fees", checked: it.sponsor_fees }), "The treasury pays fees that it does not"),
];

const pin = (origin, given) => call("PUT", `/console/origins/${encodeURIComponent(origin)}`, { body: {
	category: given.category.trim() || null, recipients: lines(given.recipients).length ? lines(given.recipients) : null,
	max_amount: given.max_amount.trim() || null, blocked: "blocked" in given, sponsor_fees: "sponsor_fees" in given,
} }).then(() => `${origin} is pinned.`);

function sellerRow(it) {
	return [
		[said(it.origin)], it.category ? said(it.category) : quiet("its own"),
		[it.recipients ? it.recipients.map((each) => [code(each), " "]) : quiet("any address")], h("span.number", { "data-head": "At most" }, it.max_amount ? usdc(it.max_amount) : quiet("no limit")),
		it.blocked ? badge("rejected", "blocked") : "",
		h("span.buttons", change("Edit", () => sellerFields(it), (given) => pin(it.origin, given), { title: `Edit ${plain(it.origin)}`, action: "Save", look: "" }),
			remove("Unpin", `Unpin ${plain(it.origin)}?`, "Its challenges say again what it is.", `/console/origins/${encodeURIComponent(it.origin)}`)),
	];
}

const newSeller = (origin = "") => change("Pin a seller", () => [
	field("Origin", "origin", { value: origin, required: true, placeholder: "https://…", type: "url" }), ...sellerFields({}),
], ({ origin, ...given }) => pin(origin.replace(/\/$/, ""), given), { title: "Pin a seller", action: "Pin", look: "primary" });

export function access({ id, asked: { origin } }) {
	const chosen = Object.hasOwn(TABS, id) ? id : "agents";
	const { path, createPath = path, create, fields, row, bodyOf = keyOf, filters: by, refusal, ...others } = TABS[chosen];
	const work = async (given) => {
		const created = await post(createPath, bodyOf(given));
		return () => showSecret(create, created);
	};
	const isRefused = refusal && me.isConsole;
	// To revoke the key of this tab would end the rest.
	const pick = row === keyRow && !isRefused && {
		verb: "Revoke", done: "revoked", what: "keys", effect: "They are refused from now on.",
		allows: (it) => it.key_id !== me.key_id, label: (it) => `${it.name ?? "no name"} · ${it.key_id}`, each: (it) => call("DELETE", `${path}/${it.key_id}`),
	};
	return [
		h("div.actions.corner", create && !isRefused && change(create, fields, work, { title: create, action: "Create", look: "primary" }),
			chosen === "sellers" && newSeller(origin)),
		h("p.tabs.wide", Object.entries(TABS).map(([id, { label }]) =>
			h("a", { href: `#/access/${id}`, "aria-current": id === chosen && "true" }, label))),
		by && filters(by),
		isRefused && h("p.quiet", refusal),
		...list({ ...others, path, pick, query: { origin: "" }, row: (it) => row(it, path) }),
	];
}
