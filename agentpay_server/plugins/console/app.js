// @ts-check

import { access, account, actions, overview } from "./admin.js";
import { call, follow, KEY, pause, post, read } from "./api.js";
import { bench } from "./bench.js";
import { deliveries, sessions, timeline } from "./history.js";
import { able, live, me, meet, reload, turn } from "./page.js";
import { find } from "./search.js";
import { approvals, transfer } from "./transfer.js";
import { $, ask, button, clock, code, dismiss, facts, field, form, h, link, said, tell, ZONE } from "./ui.js";

/** Name, title, content, key after `g`, icon or page of the bar. @type {any[][]} */
const PAGES = [
	["overview", "Overview", overview, "o", "M4 4h6v7H4zM14 4h6v4h-6zM14 12h6v8h-6zM4 15h6v5H4z"],
	["approvals", "Approvals", approvals, "a", "M4 12.5 9.5 18 20 6"],
	["timeline", "Timeline", timeline, "t", "M5 6h14M5 12h10M5 18h6"],
	["deliveries", "Deliveries", deliveries, "d", "M4 12 20 4l-5 16-3.5-6.5zM11.5 13.5 20 4"],
	["sessions", "Sessions", sessions, "s", "M12 4a8 8 0 1 0 8 8M12 8v4l3 2"],
	["access", "Access", access, "k", "M12 9a4 4 0 1 0-3 6L13 12h7v4M17 12v3"],
	["bench", "Test bench", bench, "b", "M9 4h6M10 4v6l-5 9h14l-5-9V4"],
	["transfers", "Transfer", transfer, "", "timeline"],
	["accounts", "Account", account, "", "overview"],
];
const BAR = PAGES.slice(0, 7);
const KEYS = {
	"j k": "Next, previous row", "a r": "Approve, reject the row", "/ Ctrl-K": "Search for anything, or for an action", "?": "This list", Esc: "Leave a dialog or field",
};
const CLUSTERS = { __proto__: null, embedded: "built-in chain" };
const NAME = "agentpay console", REFUSED = "This key is unknown, revoked or expired.";

const app = $("#app");
let signedIn = new AbortController(), shown = new AbortController();
signedIn.abort();

function signIn(why) {
	signedIn.abort();
	shown.abort();
	dismiss();
	delete sessionStorage[KEY];
	const submit = (given) => { keep(given); begin(); };
	app.replaceChildren(h("main", form("card.signin", submit, h("h1", NAME),
		h("p", "Open the sign-in link that the server or ", h("code", "agentpay-server console-link"), " printed."),
		h("p.quiet", "Or paste an operator key. It stays in this tab."),
		field("Operator key", "key", { type: "password", required: true, "aria-describedby": "why" }),
		h("p.bad", { id: "why", role: "alert" }, why), h("button.primary", "Sign in"))));
	document.title = `Sign in · ${NAME}`;
	$("input").focus();
}

const keep = ({ key }) => { sessionStorage[KEY] = key.trim(); };

async function redeem() {
	const [, code] = location.hash.split("#code=");
	if (!code) return "";
	history.replaceState(null, "", location.pathname);
	try {
		return await replace(await post("/console/sign-in", { code }));
	} catch (error) {
		return error.message;
	}
}

/** A link from elsewhere must not move this tab to another operator unnoticed. */
async function replace({ key }) {
	const held = sessionStorage[KEY];
	const [before, now] = await Promise.all([held && whose(held), whose(key)]).catch(async (error) => {
		// Unknown is no reason to replace it.
		await revoke(key);
		throw error;
	});
	const isOther = before && now && before.id !== now.id;
	if (isOther && !await ask(
		{ title: `Leave ${before.name}?`, action: `Sign in as ${now.name}`, look: "danger", cancel: `Stay ${before.name}` },
		facts({ "Signed in as": operator(before), "The link signs in as": operator(now) }),
	)) {
		await revoke(key);
		return "";
	}
	keep({ key });
	await revoke(held);
	return "";
}

/** The operator of a key; undefined if the key is not accepted. */
const whose = (key) => Promise.all(["/whoami", "/console/summary"].map((path) => call("GET", path, { key }))).then(
	([{ operator_id: id }, { operator_name: name }]) => ({ id, name }),
	(error) => {
		if (![401, 403].includes(error.status)) throw error;
	});

const operator = ({ id, name }) => [said(name), " ", code(id)];

/** End the key of a sign-in link on the server too; a pasted key belongs to its owner. */
async function revoke(key) {
	if (!key?.startsWith("ap_console_")) return;
	try {
		const { key_id: id } = await call("GET", "/whoami", { key });
		await call("DELETE", `/console/operator-keys/${id}`, { key });
	} catch (error) {
		if (error.status !== 401) tell(`The sign-in may stay valid until it expires. ${error.message}`);
	}
}

/** Open tabs lend their key to a new one, and end together: the key is stored in tabs only, so they ask each other. */
const tabs = new BroadcastChannel("agentpay.console");
let isAsking = false;

tabs.addEventListener("message", ({ data: { wants, key, ends } }) => {
	if (wants && sessionStorage[KEY]) tabs.postMessage({ key: sessionStorage[KEY] });
	if (ends && ends === sessionStorage[KEY]) signIn("Signed out in another tab.");
	if (key && isAsking && !sessionStorage[KEY]) {
		keep({ key });
		begin();
	}
});

/** Whoever has a key may answer at any time; the page to sign in is there at once. */
function borrow() {
	isAsking = true;
	tabs.postMessage({ wants: true });
}

async function signOut() {
	const held = sessionStorage[KEY];
	signIn("Signed out.");
	tabs.postMessage({ ends: held });
	await revoke(held);
}

async function begin(problem = "") {
	if (!sessionStorage[KEY]) {
		signIn(problem);
		if (!problem) borrow();
		return;
	}
	isAsking = false;
	try {
		// An agent's key may not read the summary.
		const [, summary] = await Promise.all([meet(), read("/console/summary")]);
		counts = summary;
		allow(summary);
		start(summary.operator_name);
		if (problem) tell(problem);
	} catch (error) {
		if ([401, 403].includes(error.status)) return signIn(error.status === 401 ? REFUSED : error.message);
		app.replaceChildren(h("main", h("h1", NAME), h("p.problem", { role: "alert" }, error.message, " Trying again.")));
		await pause(2000);
		return begin(problem);
	}
}

function icon(path) {
	const svg = $("#icon").content.firstElementChild.cloneNode(true);
	svg.firstElementChild.setAttribute("d", path);
	return svg;
}

function start(whom) {
	signedIn.abort();
	signedIn = new AbortController();
	const { signal } = signedIn, state = h("span.state");
	const places = pages().map(([name, label, , , path]) =>
		h("a", { href: `#/${name}`, "data-page": name }, icon(path), h("span", label), h("span.count")));
	app.replaceChildren(
		h("header",
			h("a.brand", { href: "#/overview" }, icon("M5 18 12 5l7 13M8 14h8"), "agentpay"),
			me.is_test_money ? h("span.money.test", "TEST MONEY") : h("span.money.real", "REAL MONEY"),
			h("span.quiet.whom", said(whom), ` · ${CLUSTERS[me.cluster] ?? me.cluster}`), h("span.grow"),
			button([icon("M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14M16 16l4.5 4.5"), h("span", "Search"), h("kbd", "/")], seek, { class: "find", "aria-label": "Search" }), state,
			button("?", help, { "aria-label": "Keyboard shortcuts" }), button("Sign out", signOut)),
		h("nav", { "aria-label": "Pages" }, places), h("section.strip", { "aria-label": "Health" }, h("ul"), h("span", `Times in ${ZONE}`)), h("main"));
	let isStreaming = false, isAnswered = true, isChained = true, isWell = true;
	const showState = () => {
		const isLive = isStreaming && isAnswered && isChained && navigator.onLine;
		const text = isLive ? "Live" : !navigator.onLine ? "Offline" : isStreaming && isAnswered ? "No chain" : "Reconnecting…";
		if (state.textContent && state.textContent !== text) tell(text);
		state.textContent = text;
		state.classList.toggle("live", isLive && isWell);
	};
	const onState = (isLive, hasStream = isLive) => {
		isStreaming = isLive;
		live.isStreaming = hasStream;
		showState();
	};
	for (const [name, answers] of Object.entries({ answered: true, unanswered: false })) addEventListener(name, () => {
		if (isAnswered === answers) return;
		isAnswered = answers;
		showState();
	}, { signal });
	addEventListener("health", (/** @type {any} */ { detail }) => {
		[isChained, isWell] = [detail.is_chain_reachable, !detail.needs_attention.length];
		// Before the stream is connected, nothing is known that a change could be told of.
		if (state.textContent) showState();
	}, { signal });
	addEventListener("offline", showState, { signal });
	addEventListener("online", showState, { signal });
	follow({ signal, onChange: () => reload(), onState });
	route();
}

const allow = (summary) => Object.assign(able, { clock: summary.is_clock_manual, points: summary.keeps_snapshots, rules: summary.policy_rules });

/** The newest summary, until the page that it was read for has used it. @type {any} */
let counts;

/** Read the summary, which has the frame's numbers and the server's time. */
async function readFrame(signal) {
	const summary = counts ?? await read("/console/summary", signal);
	counts = undefined;
	$("[data-page=approvals] .count").textContent = summary.pending_approvals || "";
	$("[data-page=deliveries] .count").textContent = summary.undelivered_deliveries || "";
	allow(summary);
	$(".strip ul").replaceChildren(...health(summary));
	dispatchEvent(new CustomEvent("health", { detail: summary }));
	const now = Date.parse(summary.now), since = performance.now();
	// The browser's clock may be wrong.
	clock.now = () => (summary.is_clock_manual ? now : now + performance.now() - since);
	return summary;
}

const SOL = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });

/** What may need attention: how it is, and where to look; what is not well is marked. */
function health(/** @type {any} */ it) {
	const sol = (lamports) => `${SOL.format(lamports / 1e9)} SOL`, days = it.treasury_days_left, burn = it.treasury_burn_lamports;
	const treasury = [it.treasury_lamports === null ? "unknown" : sol(it.treasury_lamports), burn && `${sol(burn)} a day`, days !== null && `${days} days left`].filter(Boolean).join(", ");
	const parts = {
		chain: [`Chain ${it.is_chain_reachable ? "responds" : "does not respond"}`],
		suspended_accounts: [`${it.suspended_accounts} suspended`, "#/overview"],
		paused: [`${it.paused_accounts} of ${it.accounts} paused`, "#/overview"],
		approvals: [`${it.pending_approvals} waiting`, "#/approvals"],
		undelivered_deliveries: [`${it.undelivered_deliveries} undelivered`, "#/deliveries?needs_attention=true"],
		stuck_settlements: [`${it.stuck_settlements} stuck`, "#/timeline"],
		// Test money's treasury never runs dry.
		...((!me.is_test_money || it.needs_attention.includes("treasury")) && { treasury: [`Treasury ${treasury}`] }),
		...Object.fromEntries(it.needs_attention.filter((part) => ["clock", "workers"].includes(part)).map((part) => [part, [`${part === "clock" ? "Clock differs" : "Work is late"}`]])),
	};
	return Object.entries(parts).map(([part, [text, href]]) => h(it.needs_attention.includes(part) ? "li.bad" : "li", href ? h("a", { href }, text) : text));
}

/** How each entry of the history was left: how far it was scrolled, and which rows were open. */
const left = new Map();

const folding = (look) => /** @type {any[]} */ ([...document.querySelectorAll(`[data-row]:has(> details${look})`)]);

function leave({ entry }) {
	if (entry) left.set(entry, { top: scrollY, keys: folding("[open]").map((row) => row.itemKey) });
}

/** Show a page that has been drawn as it was left. */
async function restore({ top, keys }) {
	const rows = folding(":not([open])").filter((row) => keys.includes(row.itemKey));
	await Promise.all(rows.map(({ firstElementChild: row }) => new Promise((resolve) => {
		// Its content is added on that event, which comes later.
		row.addEventListener("toggle", resolve, { once: true });
		row.open = true;
	})));
	if (!scrollY) scrollTo(0, top);
}

function route() {
	if (signedIn.signal.aborted) return;
	const main = $("main"), entry = history.state ?? Math.random();
	leave(main);
	history.replaceState(main.entry = entry, "");
	const [path, search] = location.hash.slice(2).split("?"), [wanted, id = ""] = path.split("/");
	const [name, label, content, letter, owner] = PAGES.find(([name]) => name === wanted) ?? PAGES[0];
	shown.abort();
	shown = new AbortController();
	const title = h("h1", { tabindex: -1 }, label), current = letter ? name : owner;
	document.title = `${label} · ${NAME}`;
	for (const place of document.querySelectorAll("nav a")) place.ariaCurrent = place.getAttribute("data-page") === current ? "page" : null;
	const asked = Object.fromEntries(new URLSearchParams(search));
	turn(title, content, { id: encodeURIComponent(id), asked, signal: shown.signal }, readFrame, () => { if (left.has(entry)) restore(left.get(entry)); });
	scrollTo(0, 0);
	title.focus({ preventScroll: true });
}

/** The pages of the bar that this server has. */
const pages = () => BAR.filter(([name]) => name !== "bench" || me.is_test_money);

const seek = () => find([...pages().map(([name, label]) => link(`#/${name}`, label)), ...actions()]);

let isGoing = false;

function press(event) {
	const on = event.target, letter = event.key;
	const isWith = event.ctrlKey || event.metaKey;
	if (event.altKey || $("dialog[open]") || signedIn.signal.aborted || (isWith && letter !== "k")) return;
	if (!isWith && on.matches?.("input:not(.pick), select, textarea")) {
		if (letter === "Escape") on.blur();
		return;
	}
	const row = document.activeElement?.closest("[data-row]"), to = isGoing && BAR.find(([, , , key]) => key === letter);
	isGoing = letter === "g";
	if (isWith) seek();
	else if (to) location.hash = `#/${to[0]}`;
	else if (letter === "?") help();
	else if (letter === "/") seek();
	else if (letter === "j" || letter === "k") {
		const rows = [...document.querySelectorAll("[data-row]")], next = rows[row ? rows.indexOf(row) + (letter === "j" ? 1 : -1) : 0];
		const place = next && (next.matches("[tabindex]") ? next : $("summary, a[href], button", next));
		place?.focus();
	} else if (row && "ar".includes(letter)) $(`[data-hot=${letter}]`, row)?.click();
	else return;
	event.preventDefault();
}

function help() {
	const pages = Object.fromEntries(BAR.map(([, label, , letter]) => [`g ${letter}`, label]));
	ask({ title: "Keyboard", action: "Close", cancel: "" }, facts({ ...pages, ...KEYS }));
}

addEventListener("unauthorized", () => { if (!signedIn.signal.aborted) signIn(REFUSED); });
addEventListener("hashchange", () => (location.hash.startsWith("#code=") ? location.reload() : route()));
addEventListener("keydown", press);
history.scrollRestoration = "manual";
begin(await redeem());
