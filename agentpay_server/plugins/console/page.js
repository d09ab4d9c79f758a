// @ts-check

import { at, pause, send } from "./api.js";
import { $, button, code, Component, field, form, h, link, plain, quiet, said, singular, useApp, useEffect, useLayoutEffect, useRef, useState, using } from "./ui.js";

const PAUSE_MS = 1000, POLL_MS = 4000, QUIET_POLL_MS = 15000;
const PLACES = "a[href], button, summary, input, select";

/**
 * A page of the console, from when it is opened until it is left. It reads all its parts again after each change and
 * every few seconds, and shows them together. Nothing of it moves while a dialog is open.
 */
export class Page extends Component {
	leaving = new AbortController();
	signal = this.leaving.signal;
	/** What reads the parts. @type {Set<() => Promise<() => void>>} */
	loads = new Set();
	/** The keys of the rows that are open. @type {Set<string>} */
	open = new Set(this.props.place.left?.open);
	state = { title: this.props.place.label, problem: "", isBusy: true };
	/** @type {Record<string, string>} */
	asked = this.props.place.asked;
	/** @type {import("./app.js").App} */
	app = this.props.app;
	reload = () => {};

	constructor(props) {
		super(props);
		this.app.page = this;
	}

	componentDidMount() {
		scrollTo(0, 0);
		$("h1").focus({ preventScroll: true });
		this.run();
	}

	componentWillUnmount() {
		this.leaving.abort();
		if (this.app.page === this) this.app.page = null;
	}

	/** Read a path, and the names of accounts in what it returns. @type {typeof import("./api.js").read} */
	get = (path, given) => this.app.get(path, { .../** @type {any} */ (given), signal: this.signal });

	/** Read a part with the page, from now on. */
	join(load) {
		this.loads.add(load);
		if (!this.state.isBusy) this.reload();
		return () => { this.loads.delete(load); };
	}

	async run() {
		const { app, signal } = this;
		while (!signal.aborted) {
			const wanted = new AbortController();
			this.reload = () => wanted.abort();
			await app.undisturbed();
			// Nothing is lost while the page is hidden: the stream begins anew when it is seen.
			if (!document.hidden && !signal.aborted) await this.update();
			await pause(PAUSE_MS, signal);
			await pause(app.state.hasStream ? QUIET_POLL_MS : POLL_MS, signal, wanted.signal);
		}
	}

	async update() {
		const { app, signal } = this, isFirst = this.state.isBusy;
		const frame = await Promise.allSettled([app.readSummary(signal)]);
		const parts = frame[0].status === "fulfilled" ? await Promise.allSettled([...this.loads].map((load) => load())) : [];
		await app.undisturbed();
		if (signal.aborted) return;
		const [error] = [...frame, ...parts].flatMap((it) => (it.status === "rejected" ? [it.reason] : []));
		if (error && error.status === undefined) console.error(error);
		const back = keepFocus();
		for (const part of parts) if (part.status === "fulfilled") part.value();
		await new Promise((/** @type {(value?: unknown) => void} */ resolve) => this.setState({ problem: error?.message ?? "", isBusy: false }, resolve));
		back();
		if (isFirst && !scrollY) scrollTo(0, this.props.place.left?.top ?? 0);
	}

	render({ place, app }, { title, problem, isBusy }) {
		document.title = `${plain(title)} · agentpay console`;
		return h("main", h("h1", { tabindex: -1 }, h("bdi", title)), h("p.problem", { role: "alert" }, problem),
			h("div.page", { "aria-busy": isBusy && "true" }, h(place.content, { app, page: this, id: place.id, asked: place.asked })));
	}
}

/** Where the focus is, for when it is gone: the next row gets it, or the heading if there is none. */
function keepFocus() {
	const focused = /** @type {any} */ (document.activeElement), row = focused?.closest("[data-row]"), list = row?.parentElement;
	const place = list ? [...list.children].indexOf(row) : -1;
	return () => {
		if (!focused || focused === document.body || focused.isConnected) return;
		const heir = list?.isConnected && list.children[Math.min(place, list.children.length - 1)];
		const next = heir && (heir.matches("[tabindex]") ? heir : heir.matches("[data-row]") ? $(PLACES, heir) : null);
		(next ?? $("h1"))?.focus({ preventScroll: true });
	};
}

/** What `work` reads, with the page and as often as it; undefined until then. */
export function useLoad(work) {
	const { page } = useApp(), [found, show] = useState(/** @type {any} */ (undefined)), latest = useRef(work);
	latest.current = work;
	useLayoutEffect(() => page.join(async () => {
		const found = await latest.current(page);
		return () => show(() => found);
	}), []);
	return found;
}

/** A part of the page that shows what `work` reads. */
export const part = (work, render) => h(Part, { work, render });

function Part({ work, render }) {
	const found = useLoad(work), app = useApp();
	return h("div", found && render(found, app));
}

/** One object of the server. @type {import("../../../tests/browser/console.d.ts").ReadPart} */
export const one = (path, given, render) => part((page) => page.get(path, given), render);
/** Names the page by what it shows. */
export const titled = (title) => h(Titled, { title });

function Titled({ title }) {
	const { page } = useApp();
	useLayoutEffect(() => page.setState({ title }), [title]);
	return null;
}

/** Who is paid over HTTP 402 or in sessions, whose addresses say nothing: by the transfer or session, as far as needed. */
export async function payeesOf({ known: { sessions }, get }, wanted, query = {}) {
	if (!wanted.length) return new Map();
	const [payments, newest] = await Promise.all([get("/payments", { query: { ...query, limit: 100 } }), get("/sessions", { query: { ...query, limit: 100 } })]);
	const older = wanted.filter((id) => id.startsWith("sess_") && !sessions.has(id) && !newest.data.some((it) => it.session_id === id)).slice(0, 20);
	for (const it of [...newest.data, ...await Promise.all(older.map((session_id) => get("/sessions/{session_id}", { session_id })))]) sessions.set(it.session_id, it);
	return new Map([...sessions, ...payments.data.map((it) => [it.transfer_id, it])]);
}

/** A button whose dialog names what it changes; `work` gets the values of its fields, and may return what follows it. */
export const change = (label, body, work, options = {}) => using((app) => {
	const { action = label, title = `${action}?`, look = "danger", typed, wide, ...attributes } = options;
	return button(`${label}…`, () => app.act(async () => {
		const content = typeof body === "string" ? h("p", body) : await body(app);
		const done = await app.ask({ title, action, typed, look: look || "primary", wide, work: (given) => work(given, app) }, content);
		return typeof done === "function" ? done() : done;
	}), { class: look, ...attributes });
});

/** A button that changes something at once. */
export const does = (label, work, done, attributes) => using((app) => button(label, () => app.act(() => work(app), done), attributes));
export const named = (id) => using((app) => (app.accountOf(id).name ? said(app.nameOf(id)) : code(id)));
export const party = (id) => using((app) => (app.accountOf(id).name ? h("a.party", { href: `#/accounts/${id}`, title: id }, said(app.nameOf(id))) : code(id)));

/** Who used a key: its name, or whose agent it is. */
export const keyName = ({ key_id: id, key_name: name, key_account_id: account }) =>
	(name ? said(name) : account ? h("span", "agent of ", named(account)) : id ? code(id) : quiet("the server"));

/** A field that finds an account on the server while somebody types. Its value is the account's identifier. */
export const picker = (label, name = "account_id", props = {}) => h(Picker, { label, name, ...props });

function Picker({ label, name, required = false, value = "", any = false, ...props }) {
	const app = useApp(), chosen = useRef(null), input = useRef(null), turns = useRef(0), [{ matches, on }, offer] = useState({ matches: /** @type {import("./api.js").Schemas["AccountDetails"][]} */ ([]), on: -1 });
	const isOpen = matches.length > 0, [id] = useState(() => `pick-${Math.random()}`);
	const close = () => offer({ matches: [], on: -1 });
	const demand = () => input.current?.setCustomValidity(required && !chosen.current.value ? "Choose an account from the list." : "");
	const choose = (value, text) => {
		const isNew = chosen.current.value !== value;
		[chosen.current.value, input.current.value] = [value, text];
		turns.current++;
		demand();
		close();
		if (isNew) chosen.current.dispatchEvent(new Event("change", { bubbles: true }));
	};
	const pick = (it) => choose(it.account_id, it.name);
	const search = async () => {
		const mine = ++turns.current, q = input.current.value.trim();
		const accounts = q ? (await app.get("/console/search", { query: { limit: 8, q } })).accounts : (await app.get("/console/accounts", { query: { limit: 8 } })).data;
		if (mine === turns.current && document.activeElement === input.current) offer({ matches: accounts, on: -1 });
	};
	const seek = () => search().catch(() => {});
	const typed = (event) => {
		event.stopPropagation();
		// An address may be paid without an account.
		chosen.current.value = any ? input.current.value.trim() : "";
		demand();
		// What was found for other text is no choice.
		close();
		seek();
	};
	const left = () => {
		if (!chosen.current) return;
		const exact = matches.filter((it) => it.name === input.current.value.trim());
		if (!chosen.current.value && exact.length === 1) pick(exact[0]);
		if (!input.current.value && chosen.current.value && !any) choose("", "");
		close();
	};
	const press = (event) => {
		const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], wanted = matches[on] ?? (matches.length === 1 ? matches[0] : null);
		if (step) offer({ matches, on: isOpen ? (Math.max(on, step < 0 ? 0 : -1) + step + matches.length) % matches.length : -1 });
		else if (event.key === "Escape" && isOpen) close();
		else if (event.key === "Enter" && isOpen && wanted) pick(wanted);
		else return;
		event.preventDefault();
		event.stopPropagation();
	};
	useEffect(() => {
		if (!any) demand();
		if (value) app.details([value]).finally(() => { input.current && (input.current.value = app.nameOf(value)); }).catch(() => {});
	}, []);
	return h("label.field.picker", h("span", label),
		h("input", {
			ref: input, type: "text", role: "combobox", autocomplete: "off", "aria-expanded": String(isOpen), "aria-controls": id, "aria-autocomplete": "list",
			placeholder: any ? "Account or address" : required ? "Name, handle or address" : "Name or handle", required, input: typed, focus: seek, blur: left, keydown: press, ...props,
		}),
		h("input", { ref: chosen, type: "hidden", name, defaultValue: value }),
		h("ul.menu", { id, role: "listbox", "aria-label": "Matches", hidden: !isOpen }, matches.map((it, i) => h("li", {
			role: "option", "aria-selected": String(i === on), mousedown: (event) => {
				event.preventDefault();
				pick(it);
			},
		}, said(it.name), quiet(` ${it.handle}`)))));
}

export const accountField = (props = {}) => picker("Account", "account_id", { required: true, ...props });
const here = (query) => at(location.hash.split("?")[0] || "#/", query);
export const instant = (local) => (isNaN(Date.parse(local)) ? local : new Date(local).toISOString());
export const inTime = (/** @type {any} */ { since, until, ...others }) => ({ ...others, since: instant(since), until: instant(until) });
/** What the address asks of a list, with moments in UTC. */
const askedOf = ({ back, sort, shown, by, id, origin, ...others }) => inTime(others);
/** Whether a list is narrowed by what somebody typed. */
const isFiltered = (asked) => Object.keys(asked).some((name) => !["cursor", "back", "sort", "shown", "needs_attention", "by"].includes(name));

export const filters = (fields) => using(({ page }) => {
	const { asked } = page;
	const go = (given) => { location.hash = here(given); };
	const inputs = Object.entries(fields).map(([name, [label, props]]) => (props.picks
		? picker(label, name, { value: asked[name], placeholder: "Name" }) : field(label, name, { ...props, value: asked[name] })));
	return h("details.filters", { open: innerWidth > 760 || isFiltered(asked) }, h("summary", "Filters"),
		form("fields", go, { change: (event) => event.currentTarget.requestSubmit() }, asked.sort && h("input", { type: "hidden", name: "sort", value: asked.sort }), inputs));
});

/** The first page of a list in another order. */
const inOrder = (asked, sort) => here({ ...asked, sort, cursor: "", back: "" });

/** A column's head. With a key, it sorts the whole list on the server: names from A on, numbers from the largest. */
function headOf(head, asked) {
	const [label, look = "", key] = [head].flat(), { sort } = asked, first = look === "number" ? `-${key}` : key;
	if (!key) return h(look ? `span.${look}` : "span", label);
	const isUp = sort === key, isDown = sort === `-${key}`, other = first === key ? `-${key}` : key;
	const how = isUp ? ", sorted from the smallest" : isDown ? ", sorted from the largest" : ", sort";
	return h(look ? `span.${look}` : "span", h(`a.by${isUp ? ".up" : isDown ? ".down" : ""}`, { href: inOrder(asked, sort === first ? other : first), "aria-label": label + how }, label));
}

/** The orders that heads offer, for a screen too narrow for heads. */
function sorter(heads, asked) {
	const by = heads.map((head) => [head].flat()).filter(([, , key]) => key);
	const options = [["", "Newest first"], ...by.flatMap(([label, look, key]) => (look === "number"
		? [[`-${key}`, `${label}, largest first`], [key, `${label}, smallest first`]] : [[key, `${label}, A to Z`], [`-${key}`, `${label}, Z to A`]]))];
	const choose = ({ target }) => { location.hash = inOrder(asked, target.value); };
	return by.length > 0 && field("Sort by", "sort", { options, required: true, value: asked.sort, look: ".sorter", change: choose });
}

/** Several rows at once: which are picked by their checkboxes, with Shift a range, and the bar with one action on them. */
function usePicks(items, keyOf, pick) {
	const app = useApp(), { signal } = app.page, [keys, choose] = useState(/** @type {any[]} */ ([])), last = useRef(null);
	if (!pick) return { boxOf: () => null, bar: null };
	const { verb, done, what, effect, look, label, each, allows = () => true } = pick, some = (number) => `${number} ${number === 1 ? singular(what) : what}`;
	const able = items.filter(allows), chosen = able.filter((it) => keys.includes(keyOf(it)));
	const toggle = (key) => ({ target: { checked }, shiftKey }) => {
		const [from, to] = [last.current, key].map((it) => able.findIndex((other) => keyOf(other) === it)).sort((a, b) => a - b);
		const touched = shiftKey && from >= 0 ? able.slice(from, to + 1).map(keyOf) : [key];
		last.current = key;
		choose((before) => (checked ? [...new Set([...before, ...touched])] : before.filter((it) => !touched.includes(it))));
	};
	const work = async () => {
		const failed = [];
		for (const it of chosen) {
			try {
				// Cancel ends it, and who signs in next has not decided this.
				if (signal.aborted || !$("dialog[open]")) throw Error("Not done: it was cancelled.");
				await each(it);
				choose((before) => before.filter((key) => key !== keyOf(it)));
			} catch (error) {
				failed.push(h("li", said(label(it)), `: ${error.message}`));
			}
		}
		const told = `${some(chosen.length - failed.length)} ${done}${failed.length ? `, ${failed.length} not` : ""}.`;
		return !failed.length || signal.aborted ? told : () => app.ask({ title: told, action: "Close", cancel: "", wide: true }, h("ul", failed)).then(() => told);
	};
	return {
		// To the box of a row that may not be picked belongs a place all the same.
		boxOf: (it) => (allows(it) ? h("input.pick", { type: "checkbox", "aria-label": `Select ${label(it)}`, checked: keys.includes(keyOf(it)) || undefined, click: toggle(keyOf(it)) }) : null),
		bar: h("div.picked", { "aria-live": "polite" }, chosen.length > 0 && h("div.actions", h("strong.grow", `${some(chosen.length)} selected`),
			button("Clear", () => choose([])),
			change(`${verb} ${some(chosen.length)}`, () => [h("p", effect), h("ul", chosen.map((it) => h("li", said(label(it)))))], work, { look }))),
	};
}

/** What of `rows` is shown: rows that are being read do not move, and new ones wait for their button. */
function useHeld(rows, end, isHolding, keyOf, element) {
	const shown = useRef(/** @type {any[]} */ ([])), [, again] = useState(0), { current: list } = element;
	const current = new Map(rows.map((row) => [keyOf(row), row])), isRead = list?.contains(document.activeElement) || $("details[open]", list ?? document.body);
	// A row that is missing was undone, unless it is older than what was read.
	shown.current = isHolding && shown.current.length && isRead ? shown.current.map((row) => current.get(keyOf(row)) ?? (row.at <= end && row)).filter(Boolean) : rows;
	const waiting = rows.filter((row) => !shown.current.some((it) => keyOf(it) === keyOf(row))).length;
	const fresh = isHolding && button(`${waiting}${waiting === rows.length ? " or more" : ""} new`, () => {
		shown.current = rows;
		again((turn) => turn + 1);
		$("summary", element.current)?.focus();
	}, { hidden: !waiting, class: "fresh" });
	return { shown: shown.current, fresh };
}

/**
 * A list that stays current: one page of the API. A `row` is an element, or cells, which stand in the columns `cols`
 * below `heads`. `present` may change what is drawn; `grows` shows more below instead of another page; `holds` lets new
 * rows wait while others are read; `pick` lets several rows be picked for one action. `asked` replaces the page's query.
 * @type {import("../../../tests/browser/console.d.ts").List}
 */
export const list = (given) => h(List, given);

function List({ path, query, look = "", row, fold, none, heads, cols, asked: own, grows = false, holds = false, exports = "", pick = null, present = (items, isMore, page) => items, keyOf = (item) => Object.values(item)[0] }) {
	const { page } = useApp(), asked = own ?? page.asked, given = { limit: 50, ...askedOf(asked), ...query }, table = useRef(null), element = useRef(null);
	const found = useLoad(async () => {
		let items = /** @type {any[]} */ ([]), { cursor } = given, isMore = true;
		while (isMore && items.length < (grows ? Number(asked.shown ?? 50) : 1)) {
			const { data, ...found } = /** @type {any} */ (await page.get(path, { query: { ...given, cursor } }));
			items = [...items, ...data];
			({ cursor, has_more: isMore } = found);
		}
		return { rows: await present(items, isMore, page), isMore, cursor };
	}), { rows, isMore, cursor } = found ?? { rows: [], isMore: false, cursor: "" };
	const { shown, fresh } = useHeld(rows, isMore ? rows.at(-1)?.at ?? "" : "", holds, keyOf, element), { boxOf, bar } = usePicks(shown, keyOf, pick);
	useLayoutEffect(() => {
		const digits = [...table.current.querySelectorAll(".number .usdc")].map((each) => Number(each.dataset.digits));
		table.current.style.setProperty("--most", String(Math.max(0, ...digits)));
	});
	const { cursor: on = "", back, ...others } = asked, steps = back === undefined ? [] : back.split(",");
	const older = { ...others, cursor, back: [...steps, on].join() || "," };
	const empty = isFiltered(asked)
		? h("li.empty", h("p", "Nothing matches these filters."), h("p", link(location.hash.split("?")[0], "Clear the filters")))
		: none && h("li.empty", h("p", none[0]), none[1] && h("code", none[1]));
	const body = h(`ul.rows${look}${heads ? "" : ".card"}`, { ref: heads ? element : (it) => { element.current = table.current = it; } },
		shown.map((item) => h(Row, { key: keyOf(item), name: keyOf(item), item, row, fold, isPicking: Boolean(pick), box: boxOf(item) })), found && !shown.length && empty);
	return [
		fresh,
		heads ? h("div.card.listing", { ref: table, style: { "--cols": pick ? `1.25rem ${cols}` : cols } }, sorter(heads, asked),
			h("div.row.heads", pick && h("span"), heads.map((head) => headOf(head, asked))), body, bar) : body,
		h("div.foot", h("p.actions.turns",
			on && link(here({ ...others, cursor: steps.at(-1), back: steps.length > 1 ? steps.slice(0, -1).join() || "," : "" }), "Newer"),
			isMore && (own ? quiet("Only the newest are shown.") : grows ? link(here({ ...asked, shown: rows.length + 50 }), "Show more") : link(here(older), "Older"))),
		exports && exporter(path, given, exports)),
	];
}

/** A row: an element that `row` makes of its item, or its cells, and what it unfolds. */
function Row({ name, item, row, fold, isPicking, box }) {
	const app = useApp(), { open } = app.page, [isOpen, unfold] = useState(open.has(name)), made = row(item, app);
	if (!Array.isArray(made)) return made;
	const cells = made.map((cell) => (cell?.constructor === undefined && cell?.type ? cell : h(Array.isArray(cell) ? "span.grow" : "span", cell)));
	const toggle = ({ currentTarget: { open: isOn } }) => {
		open[isOn ? "add" : "delete"](name);
		unfold(isOn);
	};
	// What unfolds a row contains no other control: the box of such a row lies above its place.
	const place = isPicking && ((!fold && box) || h("span.pick"));
	return fold ? h("li", { "data-row": "" }, h("details", { open: isOpen, toggle }, h("summary.row", place, cells), isOpen && h("div.fold", fold(item, app))), box)
		: h("li.row", { "data-row": "" }, place, cells);
}

/** Buttons that save the whole list under its filters, as the server prints it. */
export const exporter = (path, /** @type {any} */ { limit, cursor, ...query }, name, label = "Export") => using((app) => {
	const save = (kind, type, end) => button(kind, () => app.report(async () => {
		app.tell("Reading the list…");
		const response = await send("GET", path, { query, headers: { Accept: type } });
		const whole = await response.blob().catch(() => {
			throw new Error("The export broke off, and nothing was saved. Try again.");
		});
		const url = URL.createObjectURL(whole), file = `${name}.${end}`;
		Object.assign(document.createElement("a"), { href: url, download: file }).click();
		setTimeout(() => URL.revokeObjectURL(url), 60000);
		return `${file} is complete.`;
	}), { "aria-label": `${label} as ${kind}` });
	return h("span.exports", quiet(label), save("CSV", "text/csv", "csv"), save("JSON", "application/jsonl", "jsonl"));
});
