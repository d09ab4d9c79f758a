// @ts-check

import { KEY, pause, read, send } from "./api.js";
import { $, ask, button, code, field, form, h, link, plain, quiet, said, show, singular, tell, undisturbed } from "./ui.js";

export let me = { cluster: "", key_id: "", is_test_money: false, isConsole: false };

/** What the server can do beside the operator's own objects, and the rules of a policy, from the summary. @type {any} */
export const able = { clock: true, points: true, rules: [] };

export async function meet() {
	known.clear();
	me = { ...await read("/whoami"), isConsole: (sessionStorage[KEY] ?? "").startsWith("ap_console_") };
}

/** Its `loads` read its parts; its `signal` ends when it is left. @type {any} */
let page;

export let reload = () => {};

/** Whether events arrive: then pages are read again for what has no event only. */
export const live = { isStreaming: false };

const PAUSE_MS = 1000, POLL_MS = 4000, QUIET_POLL_MS = 15000;

export async function turn(title, content, { id, asked, signal }, before, onDrawn) {
	const { loads } = page = { id, asked, signal, loads: [], title, summary: null };
	const problem = h("p.problem", { role: "alert" }), root = h("div.page", { "aria-busy": "true" });
	$("main").replaceChildren(title, problem, root);
	root.append(...content(page).flat(9).filter(Boolean));
	const update = async () => {
		try {
			page.summary = await before(signal);
			await Promise.all(loads.map((load) => load()));
			problem.textContent = "";
		} catch (error) {
			if (signal.aborted) return;
			if (error.status === undefined) console.error(error);
			problem.textContent = plain(error.message);
		}
		if (root.hasAttribute("aria-busy") && !signal.aborted) onDrawn();
		root.removeAttribute("aria-busy");
	};
	while (!signal.aborted) {
		const wanted = new AbortController();
		reload = () => wanted.abort();
		await undisturbed();
		// Nothing is lost while the page is hidden: the stream begins anew when it is seen.
		if (!document.hidden && !signal.aborted) await update();
		await pause(PAUSE_MS, signal);
		await pause(live.isStreaming ? QUIET_POLL_MS : POLL_MS, signal, wanted.signal);
	}
}

/** The summary that was read with the page. */
export const summary = () => page.summary;

/** Give the page the name of what it shows. */
export function titled(...name) {
	page.title.replaceChildren(...name);
	document.title = `${page.title.textContent} · agentpay console`;
}

export async function act(work, done = "Done.") {
	await report(work, done);
	reload();
}

/** Do what changes nothing, and say how it ended: the page is not drawn again. */
async function report(work, done = "Done.") {
	try {
		const said = await work();
		if (said !== "") tell(typeof said === "string" ? said : done);
	} catch (error) {
		tell(error.message);
	}
}

/** A button whose dialog names what it changes; `work` gets the values of its fields, and may return what follows it. */
export function change(label, body, work, options = {}) {
	const { action = label, title = `${action}?`, look = "danger", typed, wide, ...attributes } = /** @type {any} */ (options);
	return button(`${label}…`, () => act(async () => {
		const content = typeof body === "string" ? h("p", body) : await body();
		const done = await ask({ title, action, typed, look: look || "primary", wide, work }, content);
		return typeof done === "function" ? done() : done;
	}), { class: look, ...attributes });
}

const known = new Map();

function learn({ data, accounts, ...one }) {
	for (const it of [data, accounts, [one]].find(Array.isArray)) if (it.policy && it.account_id) known.set(it.account_id, { ...known.get(it.account_id), ...it });
}

/** Read accounts in full, all in one request; one of another operator has no name here. */
export async function details(ids, signal = page.signal) {
	const wanted = [...new Set(ids)].filter(Boolean).slice(0, 100);
	if (!wanted.length) return;
	learn(await read(`/console/accounts?limit=100&ids=${wanted.join()}`, signal));
	for (const id of wanted) if (!known.has(id)) known.set(id, {});
}

/** Read a path, and the names of accounts in what it returns. */
export async function get(path) {
	const { signal } = page, found = await read(path, signal);
	learn(found);
	await details((JSON.stringify(found).match(/acct_\w+/g) ?? []).filter((id) => !known.has(id)), signal);
	return found;
}

export const accountOf = (id) => known.get(id) ?? {};
export const nameOf = (id) => accountOf(id).name ?? id;
export const named = (id) => (accountOf(id).name ? said(nameOf(id)) : code(id));
export const party = (id) => (accountOf(id).name ? h("a.party", { href: `#/accounts/${id}`, title: id }, named(id)) : code(id));

/** Who used a key: its name, or whose agent it is. */
export const keyName = ({ key_id: id, key_name: name, key_account_id: account }) =>
	(name ? said(name) : account ? h("span", "agent of ", named(account)) : id ? code(id) : quiet("the server"));

/** A field that finds an account on the server while somebody types. Its value is the account's identifier. */
export function picker(label, name = "account_id", { required = false, value = "", any = false, ...props } = /** @type {any} */ ({})) {
	const chosen = h("input", { type: "hidden", name, value });
	const menu = h("ul.menu", { role: "listbox", "aria-label": "Matches", hidden: true });
	const id = `pick-${name}-${Math.random().toString(36).slice(2)}`;
	menu.id = id;
	const input = h("input", {
		type: "text", role: "combobox", autocomplete: "off", "aria-expanded": "false", "aria-controls": id, "aria-autocomplete": "list",
		placeholder: any ? "Account or address" : required ? "Name, handle or address" : "Name or handle", required, ...props,
	});
	const close = () => {
		menu.hidden = true;
		input.setAttribute("aria-expanded", "false");
	};
	const choose = (value, text) => {
		const isNew = chosen.value !== value;
		[chosen.value, input.value] = [value, text];
		input.setCustomValidity("");
		close();
		if (isNew) input.dispatchEvent(new Event("change", { bubbles: true }));
	};
	let turns = 0;
	const search = async () => {
		const mine = ++turns, q = input.value.trim();
		const found = q ? await read(`/console/search?limit=8&q=${encodeURIComponent(q)}`) : { accounts: (await read("/console/accounts?limit=8")).data };
		if (mine !== turns || document.activeElement !== input) return;
		learn(found);
		menu.replaceChildren(...found.accounts.map((it) => h("li", {
			role: "option", "aria-selected": "false", mousedown: (event) => {
				event.preventDefault();
				choose(it.account_id, it.name);
			},
		}, said(it.name), quiet(` ${it.handle}`))));
		menu.hidden = !found.accounts.length;
		input.setAttribute("aria-expanded", String(!menu.hidden));
	};
	const move = (step) => {
		const all = [...menu.children], at = all.findIndex((it) => it.ariaSelected === "true");
		const next = all[(at + step + all.length) % all.length];
		for (const each of all) each.ariaSelected = String(each === next);
	};
	const node = h("label.field.picker", h("span", label), input, chosen, menu);
	input.addEventListener("input", (event) => {
		event.stopPropagation();
		// An address may be paid without an account.
		chosen.value = any ? input.value.trim() : "";
		input.setCustomValidity(required && !chosen.value ? "Choose an account from the list." : "");
		search().catch(() => {});
	});
	input.addEventListener("focus", () => search().catch(() => {}));
	input.addEventListener("blur", () => {
		const exact = [...menu.children].filter((it) => !menu.hidden && $("bdi", it).textContent === plain(input.value.trim()));
		if (!chosen.value && exact.length === 1) exact[0].dispatchEvent(new Event("mousedown", { cancelable: true }));
		if (!input.value && chosen.value && !any) choose("", "");
		close();
	});
	input.addEventListener("keydown", (event) => {
		if (event.key === "ArrowDown" || event.key === "ArrowUp") move(event.key === "ArrowDown" ? 1 : -1);
		else if (event.key === "Escape" && !menu.hidden) close();
		else if (event.key === "Enter" && !menu.hidden) {
			const on = $("[aria-selected=true]", menu) ?? (menu.children.length === 1 ? menu.firstElementChild : null);
			if (!on) return;
			on.dispatchEvent(new Event("mousedown", { cancelable: true }));
		} else return;
		event.preventDefault();
		event.stopPropagation();
	});
	if (value) details([value]).then(() => { input.value = nameOf(value); }, () => { input.value = value; });
	else if (required && !any) input.setCustomValidity("Choose an account from the list.");
	return node;
}

export const accountField = (props) => picker("Account", "account_id", { required: true, ...props });

export const at = (path, query) => {
	const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
	return given ? `${path}?${given}` : path;
};
const here = (query) => at(location.hash.split("?")[0] || "#/", query);

export const instant = (local) => (isNaN(Date.parse(local)) ? local : new Date(local).toISOString());

export const inTime = ({ since, until, ...others }) => ({ ...others, since: instant(since), until: instant(until) });

/** What the address asks, with moments in UTC. */
function asked() {
	const { back, sort, shown, ...others } = page.asked;
	return inTime(others);
}

const isFiltered = () => Object.keys(page.asked).some((name) => !["cursor", "back", "sort", "shown", "needs_attention", "by"].includes(name));

export function filters(fields) {
	const go = (given) => { location.hash = here(given); };
	const inputs = Object.entries(fields).map(([name, [label, props]]) => (props.picks
		? picker(label, name, { value: page.asked[name], placeholder: "Name" }) : field(label, name, { ...props, value: page.asked[name] })));
	const node = form("fields", go, inputs);
	node.addEventListener("change", () => node.requestSubmit());
	return h("details.filters", { open: innerWidth > 760 || isFiltered() }, h("summary", "Filters"), node);
}

/** The first page of this list in another order. */
const inOrder = (sort) => here({ ...page.asked, sort, cursor: "", back: "" });

/** A column's head. With a key, it sorts the whole list on the server: names from A on, numbers from the largest. */
function headOf(head) {
	const [label, look = "", key] = [head].flat(), { sort } = page.asked, first = look === "number" ? `-${key}` : key;
	if (!key) return h(look ? `span.${look}` : "span", label);
	const isUp = sort === key, isDown = sort === `-${key}`, other = first === key ? `-${key}` : key;
	const how = isUp ? ", sorted from the smallest" : isDown ? ", sorted from the largest" : ", sort";
	return h(look ? `span.${look}` : "span", h(`a.by${isUp ? ".up" : isDown ? ".down" : ""}`, { href: inOrder(sort === first ? other : first), "aria-label": label + how }, label));
}

/** The orders that heads offer, for a screen too narrow for heads. */
function sorter(heads) {
	const by = heads.map((head) => [head].flat()).filter(([, , key]) => key), { sort } = page.asked;
	const options = [["", "Newest first"], ...by.flatMap(([label, look, key]) => (look === "number"
		? [[`-${key}`, `${label}, largest first`], [key, `${label}, smallest first`]] : [[key, `${label}, A to Z`], [`-${key}`, `${label}, Z to A`]]))];
	const node = field("Sort by", "sort", { options, required: true, value: sort ?? "" });
	node.classList.add("sorter");
	node.addEventListener("change", ({ target }) => { location.hash = inOrder(target.value); });
	return by.length ? node : "";
}

/**
 * The bar of a list whose rows are picked by checkboxes, with Shift a range: one action on all of them, by one request
 * after another. `allows` says which rows have a checkbox.
 */
function picking(element, /** @type {any} */ { verb, done, what, effect, look, label, each }) {
	const bar = h("div.picked", { "aria-live": "polite" }), boxes = () => [...element.querySelectorAll("input.pick")];
	const rowAt = (box) => box.closest("[data-row]"), picked = () => boxes().filter((box) => box.checked);
	const some = (number) => `${number} ${number === 1 ? singular(what) : what}`;
	const work = async (chosen) => {
		const { signal } = page, failed = [];
		for (const box of chosen) {
			const { item, itemKey } = rowAt(box);
			try {
				// Cancel ends it, and who signs in next has not decided this.
				if (signal.aborted || !$("dialog[open]")) throw Error("Not done: it was cancelled.");
				await each(item);
				// Its row may have been drawn again.
				for (const each of boxes()) if (rowAt(each).itemKey === itemKey) each.checked = false;
			} catch (error) {
				failed.push(h("li", said(label(item)), `: ${error.message}`));
			}
		}
		const told = `${some(chosen.length - failed.length)} ${done}${failed.length ? `, ${failed.length} not` : ""}.`;
		refresh();
		return !failed.length || signal.aborted ? told : () => ask({ title: told, action: "Close", cancel: "", wide: true }, h("ul", failed)).then(() => told);
	};
	const refresh = () => show(bar, picked().length ? [picked().map((box) => rowAt(box).itemKey)] : [], () => "", (keys) => h("div.actions",
		h("strong.grow", `${some(keys.length)} selected`),
		button("Clear", () => {
			for (const box of picked()) box.checked = false;
			refresh();
		}),
		change(`${verb} ${some(keys.length)}`, () => [h("p", effect), h("ul", picked().map((box) => h("li", said(label(rowAt(box).item)))))], () => work(picked()), { look })));
	let last;
	element.addEventListener("click", ({ target, shiftKey }) => {
		if (!target.matches("input.pick")) return;
		const [from, to] = [boxes().findIndex((box) => rowAt(box).itemKey === last), boxes().indexOf(target)].sort((a, b) => a - b);
		if (shiftKey && from >= 0) for (const box of boxes().slice(from, to + 1)) box.checked = target.checked;
		last = rowAt(target).itemKey;
		refresh();
	});
	return { bar, refresh };
}

/**
 * A list that stays current: one page of the API. A `row` is an element, or cells, which
 * stand in the columns `cols` below `heads`. `present` may change what is drawn; `grows` shows more below instead of
 * another page; `pick` lets several rows be picked for one action.
 */
export function list(/** @type {any} */ {
	path, query, as = "ul.rows", row, fold, none, heads, cols, grows = false, exports = "", pick = null,
	present = (items, draw) => draw(items), identity = (item) => Object.values(item)[0],
}) {
	const element = h(as), more = h("p.actions.turns"), picks = pick ? picking(element, pick) : null;
	const given = { limit: 50, ...asked(), ...query };
	const empty = isFiltered()
		? h("li.empty", h("p", "Nothing matches these filters."), h("p", link(location.hash.split("?")[0], "Clear the filters")))
		: none && h("li.empty", h("p", none[0]), none[1] && h("code", none[1]));
	const draw = async (shown) => {
		await undisturbed();
		await show(element, shown, identity, (item) => rowOf(item, row, fold, pick), empty);
		picks?.refresh();
		const digits = [...element.querySelectorAll(".number .usdc")].map((each) => Number(each.style.getPropertyValue("--digits")));
		table.style.setProperty("--most", String(Math.max(0, ...digits)));
	};
	page.loads.push(async () => {
		let items = [], { cursor } = given, isMore = true;
		while (isMore && items.length < (grows ? Number(page.asked.shown ?? 50) : 1)) {
			const { data, ...found } = await get(at(path, { ...given, cursor }));
			items = [...items, ...(data ?? [found])];
			({ cursor, has_more: isMore } = found);
		}
		await present(items, draw, isMore);
		const { cursor: on = "", back, ...others } = page.asked, steps = back === undefined ? [] : back.split(",");
		const older = { ...others, cursor, back: [...steps, on].join() || "," };
		more.replaceChildren(...[
			on && link(here({ ...others, cursor: steps.at(-1), back: steps.length > 1 ? steps.slice(0, -1).join() || "," : "" }), "Newer"),
			isMore && (grows ? link(here({ ...page.asked, shown: items.length + 50 }), "Show more") : link(here(older), "Older")),
		].filter(Boolean));
	});
	const table = heads ? h("div.card.listing", sorter(heads), h("div.row.heads", pick && h("span"), heads.map(headOf)), element, picks?.bar) : element;
	if (cols) table.style.setProperty("--cols", pick ? `1.25rem ${cols}` : cols);
	if (!heads && as.startsWith("ul.rows")) element.classList.add("card");
	return [table, h("div.foot", more, exports && exporter(path, given, exports))];
}

export const one = (path, row, present) => list({ path, as: "div", row, present }).slice(0, 1);

/** An element that shows what `work` reads. */
export function part(work, render) {
	const element = h("div");
	page.loads.push(async () => show(element, [await work()], () => "", render));
	return element;
}

/** Save the whole list under its filters, as the server prints it. */
export function exporter(path, /** @type {any} */ { limit, cursor, ...given }, name, label = "Export") {
	// A click on the other button is lost when the page is drawn again under it.
	const save = (kind, type, end) => button(kind, () => report(async () => {
		tell("Reading the list…");
		const response = await send("GET", at(path, given), { headers: { Accept: type } });
		const whole = await response.blob().catch(() => {
			throw new Error("The export broke off, and nothing was saved. Try again.");
		});
		const url = URL.createObjectURL(whole), file = `${name}.${end}`;
		Object.assign(document.createElement("a"), { href: url, download: file }).click();
		setTimeout(() => URL.revokeObjectURL(url), 60000);
		return `${file} is complete.`;
	}), { "aria-label": `${label} as ${kind}` });
	return h("span.exports", quiet(label), save("CSV", "text/csv", "csv"), save("JSON", "application/jsonl", "jsonl"));
}

function rowOf(item, row, fold, pick) {
	let node = row(item);
	if (Array.isArray(node)) {
		const cells = node.map((cell) => (cell instanceof Node ? cell : h(Array.isArray(cell) ? "span.grow" : "span", cell)));
		const box = pick && (pick.allows?.(item) ?? true) && h("input.pick", { type: "checkbox", "aria-label": `Select ${plain(pick.label(item))}` });
		// What unfolds a row contains no other control: the box of such a row lies above its place.
		if (pick) cells.unshift(!fold && box || h("span.pick"));
		const unfold = ({ target }) => { if (target.children.length === 1) target.append(h("div.fold", fold(item))); };
		node = fold ? h("li", h("details", { toggle: unfold }, h("summary.row", cells)), box) : h("li.row", cells);
	}
	node.dataset.row = "";
	return node;
}
