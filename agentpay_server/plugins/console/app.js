// @ts-check

import { call, follow, KEY, pause, post, read } from "./api.js";
import { access } from "./access.js";
import { account, newAccount, overview, pauseAll, resumeAll } from "./accounts.js";
import { approvals } from "./approvals.js";
import { bench } from "./bench.js";
import { deliveries } from "./deliveries.js";
import { Page } from "./page.js";
import { Search } from "./search.js";
import { sessions } from "./sessions.js";
import { timeline } from "./timeline.js";
import { transfers } from "./transfers.js";
import { $, button, code, Component, copies, Dialog, facts, field, form, h, link, render, Root, said, ZONE } from "./ui.js";

/** Name, title, content, key after `g`, icon. @type {any[][]} */
const PAGES = [
	["overview", "Overview", overview, "o", "M4 4h6v7H4zM14 4h6v4h-6zM14 12h6v8h-6zM4 15h6v5H4z"],
	["approvals", "Approvals", approvals, "a", "M4 12.5 9.5 18 20 6"],
	["transfers", "Transfers", transfers, "p", "M4 8h14M14 4l4 4-4 4M20 16H6M10 12l-4 4 4 4"],
	["timeline", "Timeline", timeline, "t", "M5 6h14M5 12h10M5 18h6"],
	["deliveries", "Deliveries", deliveries, "d", "M4 12 20 4l-5 16-3.5-6.5zM11.5 13.5 20 4"],
	["sessions", "Sessions", sessions, "s", "M12 4a8 8 0 1 0 8 8M12 8v4l3 2"],
	["access", "Access", access, "k", "M12 9a4 4 0 1 0-3 6L13 12h7v4M17 12v3"],
	["bench", "Test bench", bench, "b", "M9 4h6M10 4v6l-5 9h14l-5-9V4"],
];
/** Pages of the overview. */
const OTHERS = [["accounts", "Account", account]];
const KEYS = {
	"j k": "Next, previous row", "a r": "Approve, reject the row", "/ Ctrl-K": "Search for anything, or for an action", "?": "This list", Esc: "Leave a dialog or field",
};
const CLUSTERS = { __proto__: null, embedded: "built-in chain" };
const NAME = "agentpay console", REFUSED = "This key is unknown, revoked or expired.";
const LOGO = "M5 18 12 5l7 13M8 14h8", LENS = "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14M16 16l4.5 4.5";
const icon = (d) => h("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d }));
const keep = (key) => { sessionStorage[KEY] = key.trim(); };
const operator = ({ id, name }) => [said(name), " ", code(id)];

/** The operator of a key; undefined if the key is not accepted. */
const whose = (key) => Promise.all([read("/whoami", { key }), read("/console/summary", { key })]).then(
	([{ operator_id: id }, { operator_name: name }]) => ({ id, name }),
	(error) => {
		if (![401, 403].includes(error.status)) throw error;
	});

/** What a sign-in knows: accounts and sessions by identifier, and how each entry of the history was left. */
const nothing = () => ({ accounts: new Map(), sessions: new Map(), left: new Map() });

/** The console: who is signed in, the frame around each page, and what its pages share. */
export class App extends Component {
	signedIn = new AbortController();
	tabs = new BroadcastChannel("agentpay.console");
	known = nothing();
	/** The identity of the key. @type {import("./api.js").Schemas["Identity"] & { isConsole: boolean }} */
	me = /** @type {any} */ ({});
	isAsking = false;
	isGoing = false;
	isNew = false;
	/** The page that is shown. @type {any} */
	page = null;
	/** The server's time: on a test chain it may stand still. */
	now = () => Date.now();
	state = {
		/** What is drawn: nothing yet, the sign-in, that the server is tried again, or a page. */
		phase: "", why: "", place: /** @type {any} */ (null), turns: 0,
		summary: /** @type {any} */ (null), told: "", isSeeking: false, dialogs: /** @type {any[]} */ ([]),
		isStreaming: /** @type {boolean | null} */ (null), hasStream: false, isAnswered: true, isOnline: navigator.onLine,
	};
	telling = 0;
	closed = [];

	async componentDidMount() {
		addEventListener("unauthorized", () => { if (!this.signedIn.signal.aborted) this.signIn(REFUSED); });
		addEventListener("hashchange", () => (location.hash.startsWith("#code=") ? location.reload() : this.route()));
		addEventListener("keydown", (event) => this.press(event));
		for (const [name, isAnswered] of Object.entries({ answered: true, unanswered: false })) addEventListener(name, () => { if (this.state.isAnswered !== isAnswered) this.setState({ isAnswered }); });
		for (const name of ["offline", "online"]) addEventListener(name, () => this.setState({ isOnline: navigator.onLine }));
		this.tabs.addEventListener("message", ({ data }) => this.hear(data));
		history.scrollRestoration = "manual";
		this.signedIn.abort();
		this.begin(await this.redeem());
	}

	signIn(why) {
		this.signedIn.abort();
		this.known = nothing();
		delete sessionStorage[KEY];
		document.title = `Sign in · ${NAME}`;
		this.setState({ phase: "sign-in", why, dialogs: [], told: "", isSeeking: false, summary: null, isStreaming: null });
	}

	async redeem() {
		const [, code] = location.hash.split("#code=");
		if (!code) return "";
		history.replaceState(null, "", location.pathname);
		try {
			return await this.replace(await post("/console/sign-in", { body: { code } }));
		} catch (error) {
			return error.message;
		}
	}

	/** A link from elsewhere must not move this tab to another operator unnoticed. */
	async replace({ key }) {
		const held = sessionStorage[KEY];
		const [before, now] = await Promise.all([held && whose(held), whose(key)]).catch(async (error) => {
			// Unknown is no reason to replace it.
			await this.revoke(key);
			throw error;
		});
		const isOther = before && now && before.id !== now.id;
		if (isOther && !await this.ask(
			{ title: `Leave ${before.name}?`, action: `Sign in as ${now.name}`, look: "danger", cancel: `Stay ${before.name}` },
			facts({ "Signed in as": operator(before), "The link signs in as": operator(now) }),
		)) {
			await this.revoke(key);
			return "";
		}
		keep(key);
		await this.revoke(held);
		return "";
	}

	/** End the key of a sign-in link on the server too; a pasted key belongs to its owner. */
	async revoke(key) {
		if (!key?.startsWith("ap_console_")) return;
		try {
			const { key_id } = await read("/whoami", { key });
			await call("DELETE", "/console/operator-keys/{key_id}", { key, key_id });
		} catch (error) {
			if (error.status !== 401) this.tell(`The sign-in may stay valid until it expires. ${error.message}`);
		}
	}

	/** Open tabs lend their key to a new one, and end together: the key is stored in tabs only, so they ask each other. */
	hear({ wants, key, ends }) {
		if (wants && sessionStorage[KEY]) this.tabs.postMessage({ key: sessionStorage[KEY] });
		if (ends && ends === sessionStorage[KEY]) this.signIn("Signed out in another tab.");
		if (key && this.isAsking && !sessionStorage[KEY]) {
			keep(key);
			this.begin();
		}
	}

	async signOut() {
		const held = sessionStorage[KEY];
		this.signIn("Signed out.");
		this.tabs.postMessage({ ends: held });
		await this.revoke(held);
	}

	async begin(problem = "") {
		if (!sessionStorage[KEY]) {
			this.signIn(problem);
			// Another tab may answer at any time; the page to sign in is there at once.
			this.isAsking = !problem;
			if (!problem) this.tabs.postMessage({ wants: true });
			return;
		}
		this.isAsking = false;
		try {
			// An agent's key may not read the summary.
			const [me, summary] = await Promise.all([read("/whoami"), read("/console/summary")]);
			this.known = nothing();
			this.me = { ...me, isConsole: sessionStorage[KEY].startsWith("ap_console_") };
			this.take(summary);
			this.isNew = true;
			this.signedIn.abort();
			this.signedIn = new AbortController();
			this.setState({ phase: "page", why: "", isStreaming: null });
			follow({
				signal: this.signedIn.signal, onChange: () => this.page?.reload(),
				onState: (isStreaming, hasStream = isStreaming) => this.setState({ isStreaming, hasStream }),
			});
			this.route();
			if (problem) this.tell(problem);
		} catch (error) {
			if ([401, 403].includes(error.status)) return this.signIn(error.status === 401 ? REFUSED : error.message);
			this.setState({ phase: "trying", why: `${error.message} Trying again.` });
			await pause(2000);
			return this.begin(problem);
		}
	}

	/** Read the summary, which has the frame's numbers and the server's time; the first page has that of the sign-in. */
	async readSummary(signal) {
		if (!this.isNew) this.take(await read("/console/summary", { signal }));
		this.isNew = false;
	}

	take(summary) {
		const now = Date.parse(summary.now), since = performance.now();
		// The browser's clock may be wrong.
		this.now = () => (summary.is_clock_manual ? now : now + performance.now() - since);
		this.setState({ summary });
	}

	route() {
		if (this.signedIn.signal.aborted) return;
		const { place: before } = this.state, { left } = this.known, entry = history.state ?? Math.random();
		if (before && this.page) left.set(before.entry, { top: scrollY, open: [...this.page.open] });
		history.replaceState(entry, "");
		const [path, search] = location.hash.slice(2).split("?"), [wanted, id = ""] = path.split("/");
		const [name, label, content, letter] = [...PAGES, ...OTHERS].find(([name]) => name === wanted) ?? PAGES[0];
		const place = { entry, name: letter ? name : "overview", label, content, id, asked: Object.fromEntries(new URLSearchParams(search)), left: left.get(entry) };
		this.setState(({ turns }) => ({ place, turns: turns + 1 }));
	}

	accountOf = (id) => this.known.accounts.get(id) ?? {};
	nameOf = (id) => this.accountOf(id).name ?? id;

	learn(/** @type {any} */ { data, accounts, ...one }) {
		const known = this.known.accounts;
		for (const it of [data, accounts, [one]].find(Array.isArray) ?? []) if (it.policy && it.account_id) known.set(it.account_id, { ...known.get(it.account_id), ...it });
	}

	/** Read accounts in full, all in one request; one of another operator has no name here. */
	async details(ids, signal = this.signedIn.signal) {
		const wanted = [...new Set(ids)].filter(Boolean).slice(0, 100), { accounts } = this.known;
		if (!wanted.length) return;
		this.learn(await read("/console/accounts", { query: { limit: 100, ids: wanted.join() }, signal }));
		for (const id of wanted) if (!accounts.has(id)) accounts.set(id, {});
	}

	/** Read a path, and the names of accounts in what it returns. @type {typeof read} */
	get = async (path, given) => {
		const found = await read(path, given);
		this.learn(found);
		await this.details((JSON.stringify(found).match(/acct_\w+/g) ?? []).filter((id) => !this.known.accounts.has(id)), given?.signal);
		return found;
	};

	tell(told) {
		clearTimeout(this.telling);
		this.telling = setTimeout(() => this.setState({ told: "" }), 8000);
		this.setState({ told });
	}

	/** Ask in a dialog: see `Dialog`. */
	ask = (asked, ...body) => new Promise((resolve) => {
		const key = Math.random(), end = (outcome) => {
			this.setState(({ dialogs }) => ({ dialogs: dialogs.filter((it) => it.key !== key) }));
			resolve(outcome);
		};
		this.setState(({ dialogs }) => ({ dialogs: [...dialogs, { ...asked, key, body, end }] }));
	});

	/** What a dialog is about stays where it is: pages are drawn again once no dialog is open. */
	undisturbed = () => (this.state.dialogs.length ? new Promise((resolve) => { this.closed.push(resolve); }) : Promise.resolve());

	/** Change something, and say how it ended. */
	async act(work, done = "Done.") {
		await this.report(work, done);
		this.page?.reload();
	}

	/** Do what changes nothing, and say how it ended: the page is not read again. */
	async report(work, done = "Done.") {
		try {
			const said = await work();
			if (said !== "") this.tell(typeof said === "string" ? said : done);
		} catch (error) {
			this.tell(error.message);
		}
	}

	showSecret = (title, { key, secret = key }) => this.ask({ title, action: "I have stored it", cancel: "", kept: true },
		h("p", "It is never shown again."), h("p.secret", h("code", secret), copies("Copy", secret)));

	/** The pages of the bar that this server has. */
	pages = () => PAGES.filter(([name]) => name !== "bench" || this.me.is_test_money);
	seek = () => this.setState({ isSeeking: true });
	help = () => this.ask({ title: "Keyboard", action: "Close", cancel: "" }, facts({ ...Object.fromEntries(PAGES.map(([, label, , letter]) => [`g ${letter}`, label])), ...KEYS }));

	press(event) {
		const on = event.target, letter = event.key, isWith = event.ctrlKey || event.metaKey;
		if (event.altKey || $("dialog[open]") || this.signedIn.signal.aborted || (isWith && letter !== "k")) return;
		if (!isWith && on.matches?.("input:not(.pick), select, textarea")) {
			if (letter === "Escape") on.blur();
			return;
		}
		const row = document.activeElement?.closest("[data-row]"), to = this.isGoing && PAGES.find(([, , , key]) => key === letter);
		this.isGoing = letter === "g";
		if (isWith) this.seek();
		else if (to) location.hash = `#/${to[0]}`;
		else if (letter === "?") this.help();
		else if (letter === "/") this.seek();
		else if (letter === "j" || letter === "k") {
			const rows = [...document.querySelectorAll("[data-row]")], next = rows[row ? rows.indexOf(row) + (letter === "j" ? 1 : -1) : 0];
			const place = next && (next.matches("[tabindex]") ? next : $("summary, a[href], button", next));
			place?.focus();
		} else if (row && "ar".includes(letter)) $(`[data-hot=${letter}]`, row)?.click();
		else return;
		event.preventDefault();
	}

	/** Whether the page is live, and whether all is well. */
	get health() {
		const { isStreaming, isAnswered, isOnline, summary } = this.state, isChained = summary?.is_chain_reachable, isLive = isStreaming && isAnswered && isChained && isOnline;
		const text = isStreaming === null ? "" : isLive ? "Live" : !isOnline ? "Offline" : isStreaming && isAnswered ? "No chain" : "Reconnecting…";
		return { text, isWell: isLive && !summary.needs_attention.length };
	}

	componentDidUpdate(_, before) {
		const { text } = this.health, was = this.shown;
		this.shown = text;
		// Before the stream is connected, nothing is known that a change could be told of.
		if (was && text && was !== text) this.tell(text);
		if (!this.state.dialogs.length) for (const done of this.closed.splice(0)) done();
		if (before.phase !== "sign-in" && this.state.phase === "sign-in") $("input")?.focus();
	}

	shown = "";

	render(_, { phase, why, dialogs, told, isSeeking, place, turns }) {
		const pages = phase === "page" && place ? this.frame(place, turns) : phase === "sign-in" ? h("main", this.signing(why))
			: phase === "trying" && h("main", h("h1", NAME), h("p.problem", { role: "alert" }, why));
		return h(Root.Provider, { value: this }, pages, h("p", { id: "live", role: "status" }, told), dialogs.map((it) => h(Dialog, it)),
			isSeeking && h(Search, { offers: [...this.pages().map(([name, label]) => [label, link(`#/${name}`, label)]), ["Resume all", resumeAll()], ["Pause all", pauseAll()], ["New account", newAccount()]], close: () => this.setState({ isSeeking: false }) }));
	}

	signing = (why) => form("card.signin", ({ key }) => { keep(key); this.begin(); }, {}, h("h1", NAME),
		h("p", "Open the sign-in link that the server or ", h("code", "agentpay-server console-link"), " printed."),
		h("p.quiet", "Or paste an operator key. It stays in this tab."),
		field("Operator key", "key", { type: "password", required: true, "aria-describedby": "why" }),
		h("p.bad", { id: "why", role: "alert" }, why), h("button.primary", "Sign in"));

	frame(place, turns) {
		const { me } = this, { summary } = this.state, { text, isWell } = this.health;
		const counts = { approvals: summary.pending_approvals, deliveries: summary.undelivered_deliveries };
		return [
			h("header",
				h("a.brand", { href: "#/overview" }, icon(LOGO), "agentpay"),
				me.is_test_money ? h("span.money.test", "TEST MONEY") : h("span.money.real", "REAL MONEY"),
				h("span.quiet.whom", said(summary.operator_name), ` · ${CLUSTERS[me.cluster] ?? me.cluster}`), h("span.grow"),
				button([icon(LENS), h("span", "Search"), h("kbd", "/")], this.seek, { class: "find", "aria-label": "Search" }), h(isWell ? "span.state.live" : "span.state", text),
				button("?", this.help, { "aria-label": "Keyboard shortcuts" }), button("Sign out", () => this.signOut())),
			h("nav", { "aria-label": "Pages" }, this.pages().map(([name, label, , , path]) =>
				h("a", { href: `#/${name}`, "data-page": name, "aria-current": place.name === name && "page" }, icon(path), h("span", label), h("span.count", counts[name] || "")))),
			h("section.strip", { "aria-label": "Health" }, h("ul", strip(summary, me.is_test_money)), h("span", `Times in ${ZONE}`)),
			h(Page, { key: turns, app: this, place }),
		];
	}
}

const SOL = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });

/** What may need attention: how it is, and where to look; what is not well is marked. */
function strip(/** @type {import("./api.js").Schemas["ConsoleSummary"]} */ it, isTest) {
	const sol = (lamports) => `${SOL.format(lamports / 1e9)} SOL`, days = it.treasury_days_left, burn = it.treasury_burn_lamports;
	const treasury = [it.treasury_lamports === null ? "unknown" : sol(it.treasury_lamports), burn && `${sol(burn)} a day`, days !== null && `${days} days left`].filter(Boolean).join(", ");
	const parts = {
		chain: [`Chain ${it.is_chain_reachable ? "responds" : "does not respond"}`],
		suspended_accounts: [`${it.suspended_accounts} suspended`, "#/overview"],
		paused: [`${it.paused_accounts} of ${it.accounts} paused`, "#/overview"],
		approvals: [`${it.pending_approvals} waiting`, "#/approvals"],
		undelivered_deliveries: [`${it.undelivered_deliveries} undelivered`, "#/deliveries?needs_attention=true"],
		stuck_settlements: [`${it.stuck_settlements} stuck`, "#/transfers?status=submitted"],
		// Test money's treasury never runs dry.
		...((!isTest || it.needs_attention.includes("treasury")) && { treasury: [`Treasury ${treasury}`] }),
		...Object.fromEntries(it.needs_attention.filter((part) => ["clock", "workers"].includes(part)).map((part) => [part, [`${part === "clock" ? "Clock differs" : "Work is late"}`]])),
	};
	return Object.entries(parts).map(([part, [text, href]]) => h(it.needs_attention.includes(part) ? "li.bad" : "li", href ? h("a", { href }, text) : text));
}

render(h(App, {}), $("#app"));
