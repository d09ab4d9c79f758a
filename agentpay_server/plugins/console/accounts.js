// @ts-check

import { keyList } from "./access.js";
import { at, call, post, send } from "./api.js";
import { chart } from "./chart.js";
import { change, filters, list, named, one, part, party, payeesOf, picker, titled } from "./page.js";
import { TIMES } from "./timeline.js";
import {
	badge, balanceOf, big, changes, check, code, copies, facts, field, h, lines, link, meter, moment, money, quiet, said, STAY, subject, SUM, usdc, whole, words, ZONE,
} from "./ui.js";

const HOUR = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const tile = (page, label, count, look = "") => h("li", link(`#/${page}`, h(`strong.${count && look}`, count), label));

/** Spend over time, of one account or of all; with a limit a day, if `limitOf` an account finds one. */
function spending({ by = "hour" }, account_id, limitOf = (_app) => null) {
	const tab = (name, label) => h("a", { href: at(location.hash.split("?")[0] || "#/overview", { by: name }), "aria-current": by === name && "true" }, label);
	return h("section.card",
		h("div.head", h("h2.grow", "Spend"), h("p.tabs", tab("hour", "24 hours"), tab("day", ZONE.endsWith("UTC") ? "30 days" : "30 days of UTC"))),
		part((page) => page.get("/console/spend", { query: { account_id, by } }),
			({ data }, app) => chart(data, limitOf(app), (iso) => (by === "hour" ? HOUR : DAY).format(new Date(iso)), by === "hour")));
}

const SORTS = ["name", "balance", "spent", "limit"];

export const overview = ({ app, asked }) => {
	const { summary: it } = app.state;
	return [
		h("div.top", h("ul.tiles",
			tile("approvals", "Waiting for approval", it.pending_approvals, "warn"),
			tile("deliveries?needs_attention=true", "Deliveries need attention", it.undelivered_deliveries, "bad"),
			tile("sessions?status=open", "Open sessions", it.open_sessions)), spending(asked)),
		h("div.head", h("h2.grow", "Accounts"), resumeAll(), pauseAll(), newAccount()),
		list({
			path: "/console/accounts", exports: "accounts",
			query: { sort: SORTS.includes((asked.sort ?? "").replace("-", "")) ? asked.sort : undefined },
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
};

function spent({ spent_usdc: spent, reserved_usdc: reserved, remaining_usdc: left, policy: { max_daily_spend: limit } }) {
	if (left === null) return "";
	return meter(`${usdc(spent)} of ${usdc(limit)} spent, ${usdc(reserved)} of it reserved`, limit, { spent: Math.max(0, spent - reserved), reserved });
}

/** The fields of a policy's rules of one kind, and what is given in them. */
const rulesOf = (app, kind) => app.state.summary.policy_rules.filter((it) => it.kind === kind);
const policyFields = (app, kind, policy) => rulesOf(app, kind).map((each) => FIELDS[kind](each, policy[each.name]));
const policyOf = (app, kind, given, policy) => Object.fromEntries(rulesOf(app, kind).map(({ name }) => [name, VALUES[kind](given[name], policy[name])]));

const FIELDS = {
	amount: ({ name, label, null: none }, value) => field(`${label}, USDC`, name, {
		...SUM, value: (value ?? null) === null ? "" : String(value), placeholder: none, title: "An amount such as 25.50, or empty",
	}),
	list: ({ name, label, null: none }, value) => field(`${label}, one a line`, name, { value: (value ?? []).join("\n"), rows: 3, placeholder: none }),
	flag: ({ name, label }, value) => check(label, name, value),
};
const VALUES = {
	amount: (given) => (given.trim() === "" ? null : Number(given)),
	list: (given, before) => (lines(given).length ? lines(given) : before?.length === 0 ? [] : null),
	flag: (given) => given !== undefined,
};

export const newAccount = () => change("New account", (app) => [field("Name", "name", { maxlength: 100, required: true }), h("div.two", policyFields(app, "amount", {}))], async ({ name, ...given }, app) => {
	const limits = policyOf(app, "amount", given, {}), { account_id: id } = await post("/v1/accounts", { body: { name } });
	const failed = Object.values(limits).some((limit) => limit !== null) && await put(id, limits).then(() => null, ({ message }) => message);
	location.hash = `#/accounts/${id}`;
	return failed ? () => app.ask({ title: `${name} is created, but setting its limits failed`, action: "Close", cancel: "" },
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
			() => post("/console/accounts/{account_id}/allow-signing", { account_id: id }).then(() => `${name} signs again.`), { title: `Unblock ${name}?`, action: "Unblock" }));
}

const held = (it) => (Number(it.reserved_usdc) ? `, ${usdc(it.reserved_usdc)} of it reserved` : "");

function budget(it) {
	const { spent_usdc: spent, reserved_usdc: reserved, remaining_usdc: left, policy: { max_daily_spend: limit } } = it, text = `${usdc(left)} left of ${usdc(limit)} a day`;
	return [
		it.balance_usdc === null ? h("p.amount", quiet("Balance unknown: the chain does not respond")) : big(it.balance_usdc), it.signing_stopped_at && suspended(it),
		left === null ? h("p.quiet", `${usdc(spent)} spent in 24 h${held(it)}, no daily limit`) : [
			meter(`${text}: ${usdc(spent)} spent, ${usdc(reserved)} of it reserved`, limit, { spent: spent - reserved, reserved }),
			h("p", text, quiet(held(it)), it.next_release_at && quiet(` · +${usdc(it.next_release_usdc)} at `, moment(it.next_release_at))),
		],
	];
}

export const account = ({ app, id, asked }) => [
	one("/console/accounts/{account_id}", { account_id: id }, (it) => [
		titled(it.name), h("div.two",
			h("div.card",
				h("div.head", h("span.grow", quiet(said(it.handle))), standing(it)), budget(it), facts({
					Account: [code(it.account_id), " ", copies("Copy id", it.account_id, "tiny")], Address: whole(it.chain_address), "USDC account": whole(it.usdc_token_account), Created: moment(it.created_at),
				}),
				h("div.actions", moving(it), app.me.is_test_money && funding(it), pausing(it))),
			h("div.card", h("div.head", h("h2.grow", "Policy"), link(`#/access/audit?account_id=${id}&action=policies.put`, "Its history"), editing(it)),
				facts(Object.fromEntries(app.state.summary.policy_rules.map((each) => [each.label, rule(app, each.name, it.policy[each.name])]))))),
	]),
	spending(asked, id, () => app.accountOf(id).policy?.max_daily_spend ?? null),
	keyList(id),
	h("div.head", h("h2.grow", "History"), link(`#/transfers?account_id=${id}`, "Transfers"), link(`#/timeline?account_id=${id}`, "All events"), link(`#/access/audit?account_id=${id}`, "Audit trail")),
	filters({ status: ["Status", { options: ["settled", "rejected"] }], ...TIMES }),
	list({
		path: "/console/transactions", query: { account_id: id }, exports: "history",
		heads: ["When", "What", "With", ["USDC", "number"], ["", "end"]], cols: "9.5rem 10rem minmax(0, 1fr) 9rem 4rem",
		none: ["Nothing yet. Let the agent pay:", 'client.transfers.create(from_=…, to=…, amount="1")'],
		present: async (items) => {
			const sellers = await payeesOf(app, items.filter(isFar).map(subjectOf), { account_id: id });
			return items.map((it) => ({ ...it, seller: isFar(it) ? sellers.get(subjectOf(it))?.origin : null }));
		},
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

/** Whether an entry pays an address outside, and what its seller is found by. */
const isFar = (it) => it.direction === "out" && it.counterparty && !it.counterparty.startsWith("acct_");
const subjectOf = (it) => it.transfer_id ?? it.session_id;

/** A rule of a policy in words: what null means differs from field to field. */
function rule(app, name, value) {
	const { kind, null: none } = app.state.summary.policy_rules.find((it) => it.name === name);
	if (kind === "flag") return value ? "yes" : none;
	if (value === null) return quiet(none);
	if (kind === "amount") return `${usdc(value)} USDC`;
	if (!value.length) return h("span.bad", none === "everybody" ? "nobody" : "none");
	return none === "everybody" ? h("ul", value.map((each) => h("li", party(each)))) : value.map((each) => [said(each), " "]);
}

/** Change a policy under its version, so that no other change is undone; nor one of what was shown as `before`. */
async function put(id, change, before = {}) {
	const path = "/v1/accounts/{account_id}/policy", response = await send("GET", path, { account_id: id });
	const { account_id, updated_at, ...policy } = await response.json();
	const stale = Object.keys(before).filter((name) => JSON.stringify(policy[name]) !== JSON.stringify(before[name])).map(words);
	if (stale.length) throw new Error(`Another person has changed ${stale.join(", ")} in the meantime. Nothing is saved: open the form again.`);
	await call("PUT", path, { account_id, body: { ...policy, ...change }, headers: { "If-Match": response.headers.get("ETag") ?? "" } });
}

function pausing({ account_id: id, name, policy: { paused } }) {
	const effect = paused ? "It can pay again." : "Its transfers are refused from now on.", label = paused ? "Resume" : "Pause";
	return change(label, effect, () => put(id, { paused: !paused }).then(() => `${name} is ${paused ? "active" : "paused"}.`),
		{ title: `${label} ${name}?`, action: label, look: paused ? "" : "danger" });
}

const all = (label, effect, /** @type {"pause" | "resume"} */ action, look) => change(label, effect, async () => {
	const { changed, paused } = await post(`/console/accounts/${action}`);
	return `${changed} accounts ${action}d; ${paused} are paused now.`;
}, { look });

export const resumeAll = () => all("Resume all", "Those that “Pause all” has paused can pay again.", "resume", "");
export const pauseAll = () => all("Pause all", "Transfers of all accounts are refused from now on.", "pause", "danger");

const editing = ({ account_id: id, name, policy }) => change("Edit policy", (app) => [
	h("div.two", policyFields(app, "amount", policy)), policyFields(app, "list", policy), h("div.actions", policyFields(app, "flag", policy)),
], async (given, app) => {
	const wanted = Object.keys(FIELDS).flatMap((kind) => Object.entries(policyOf(app, kind, given, policy)));
	const changed = Object.fromEntries(wanted.filter(([each, value]) => JSON.stringify(value) !== JSON.stringify(policy[each])));
	if (!Object.keys(changed).length) return "Nothing changes.";
	const before = Object.fromEntries(Object.keys(changed).map((each) => [each, policy[each]]));
	const isSure = await app.ask({ title: `Change the policy of ${name}?`, action: "Save", wide: true },
		h("p", "It holds from the next transfer on."), changes(before, changed, (name, value) => rule(app, name, value)));
	if (!isSure) throw STAY;
	await put(id, changed, before);
	return "The policy is saved.";
}, { title: `Policy of ${name}`, action: "Review", look: "", wide: true });

const funding = ({ account_id: id, name }) => change("Fund", () => field("USDC", "amount", { value: "100", required: true, inputmode: "decimal" }),
	({ amount }) => post("/sandbox/accounts/{account_id}/fund", { account_id: id, body: { amount } }).then(() => `${usdc(amount)} test USDC minted.`),
	{ title: `Fund ${name} with test USDC?`, action: "Fund", look: "" });

/** Ask what to move, show how the policy judges it, then pay: the same again under the same idempotency key. */
function moving({ account_id: id, name }) {
	const keys = new Map(), fields = () => [
		picker("To", "to", { required: true, any: true }), field("USDC", "amount", { required: true, ...SUM }), field("Memo (optional)", "memo", { maxlength: 200 }),
	];
	return change("Move USDC", fields, (given, app) => move(app, id, name, given, keys), { title: `Move USDC from ${name}`, action: "Check", look: "primary" });
}

async function move(app, id, name, given, keys) {
	const body = { from: id, to: given.to, amount: given.amount.trim(), memo: given.memo || undefined };
	const check = await post("/transfers/check", { body }), { decision } = check, sum = usdc(body.amount);
	await app.details([given.to].filter((each) => each.startsWith("acct_")));
	if (decision === "reject") throw new Error(check.message ?? "The policy refuses it.");
	const verdict = decision === "escalate" ? h("p.warn", "It waits for approval under Approvals.") : h("p.ok", "The policy allows it.");
	const about = facts({ From: said(name), To: named(given.to), Memo: body.memo && said(body.memo), "Left today": check.remaining_usdc && usdc(check.remaining_usdc) });
	const title = `Move ${sum} USDC from ${name} to ${app.nameOf(given.to)}?`;
	const isSure = await app.ask({ title, action: `Move ${sum} USDC`, typed: app.me.is_test_money ? "" : sum }, about, verdict);
	if (!isSure) throw STAY;
	const asked = JSON.stringify(body), idempotency_key = keys.get(asked) ?? `console-${crypto.randomUUID?.() ?? Date.now()}`;
	keys.set(asked, idempotency_key);
	try {
		const { status } = await post("/v1/transfers", { body: { ...body, idempotency_key } });
		return `${sum} USDC: ${words(status)}.`;
	} catch (error) {
		// What was decided is decided; whatever else is wrong, the transfer may exist.
		if (error.status === 402) keys.delete(asked);
		throw error;
	}
}
