// @ts-check
// The page that is shown: lists, filters and changes.

import { pause, read } from "./api.js";
import { $, ask, button, code, field, form, h, link, plain, said, show, tell } from "./ui.js";

/** Whose key this is. */
export let me = { cluster: "", is_test_money: false };

export async function meet() {
	known.clear();
	me = await read("/whoami");
}

/** Its `loads` read its parts; its `signal` ends when it is left. @type {any} */
let page;

export let reload = () => {};

const PAUSE_MS = 1000, POLL_MS = 4000;

/** Show a page, and read it until it is left. */
export async function turn(title, content, { id, asked, signal }, before) {
	const { loads } = page = { id, asked, signal, loads: [] };
	const problem = h("p.problem", { role: "alert" }), root = h("div.page", { "aria-busy": "true" });
	$("main").replaceChildren(title, problem, root);
	root.append(...content(page).flat());
	const update = async () => {
		try {
			await before(signal);
			await Promise.all(loads.map((load) => load()));
			problem.textContent = "";
		} catch (error) {
			if (signal.aborted) return;
			if (error.status === undefined) console.error(error);
			problem.textContent = plain(error.message);
		}
		root.removeAttribute("aria-busy");
	};
	while (!signal.aborted) {
		const wanted = new AbortController();
		reload = () => wanted.abort();
		// Nothing is lost while the page is hidden: the stream begins anew when it is seen.
		if (!document.hidden) await update();
		await pause(PAUSE_MS, signal);
		await pause(POLL_MS, signal, wanted.signal);
	}
}

/** Do something, say what it returns or `done`, and read the page again. */
export async function act(work, done = "Done.") {
	try {
		const said = await work();
		tell(typeof said === "string" ? said : done);
	} catch (error) {
		tell(error.message);
	}
	reload();
}

/** A button that does `work` with the values of a dialog. */
export function change(label, body, work, options = {}) {
	const { action = label, title = `${action}?`, look = "danger", typed, ...attributes } = /** @type {any} */ (options);
	return button(`${label}…`, () => act(async () => {
		const given = await ask({ title, action, typed, look: look || "primary" }, typeof body === "string" ? h("p", body) : await body());
		return given ? work(given) : "";
	}), { class: look, ...attributes });
}

const ACCOUNTS = "/v1/accounts?limit=100";
const known = new Map();

/** Read something for this page, and the accounts in it. */
export async function get(path) {
	const { signal } = page, found = await read(path, signal);
	const learn = ({ data, ...one }) => (data ?? [one]).forEach((it) => { if (it.policy) known.set(it.account_id, it); });
	const strangers = () => [...new Set(JSON.stringify(found).match(/acct_\w+/g))].filter((id) => !known.has(id));
	learn(found);
	if (!known.size && strangers().length) learn(await read(ACCOUNTS, signal));
	// An account of another operator has no name here.
	const forget = (id) => (error) => { if (error.status === 404) known.set(id, {}); };
	await Promise.all(strangers().slice(0, 20).map((id) => read(`/v1/accounts/${id}`, signal).then(learn, forget(id))));
	return found;
}

export const accountOf = (id) => known.get(id) ?? {};
export const nameOf = (id) => accountOf(id).name ?? id;
export const named = (id) => (accountOf(id).name ? said(nameOf(id)) : code(id));
export const party = (id) => (accountOf(id).name ? h("a.party", { href: `#/accounts/${id}`, title: id }, named(id)) : code(id));

export const accounts = async () => (await get(ACCOUNTS)).data.map((it) => [it.account_id, it.name]);
export const accountField = () => field("Account", "account_id", { options: accounts(), required: true });

const KINDS = { __proto__: null, txn: "transfer_id", sess: "session_id", acct: "account_id", evt: "event_id" };

const at = (path, query) => `${path}?${new URLSearchParams(Object.entries(query).filter(([, value]) => value))}`;
const here = (query) => at(location.hash.split("?")[0] || "#/", query);

export const instant = (local) => (isNaN(Date.parse(local)) ? local : new Date(local).toISOString());

/** What the address asks: moments in UTC, an identifier under the name of its kind. */
function asked() {
	const { id = "", since, until, ...others } = page.asked, kind = KINDS[id.split("_")[0]];
	return { ...others, since: instant(since), until: instant(until), ...(kind && { [kind]: id }) };
}

export function filters(fields) {
	const go = (given) => { location.hash = here(given); };
	const inputs = Object.entries(fields).map(([name, [label, props]]) => field(label, name, { ...props, value: page.asked[name] }));
	const node = form("fields", go, inputs);
	node.addEventListener("change", () => node.requestSubmit());
	return h("details", { open: innerWidth > 760 || Object.keys(page.asked).length > 0 }, h("summary", "Filters"), node);
}

/**
 * A list that stays current: one page of the API, or as many as `isEnough` wants. A `row` is an element, or cells of
 * which an array grows. `present` may change what is drawn.
 */
export function list(/** @type {any} */ {
	path, query, as = "ul.rows.card", row, fold, none, isEnough = () => true,
	present = (items, draw) => draw(items), identity = (item) => Object.values(item)[0],
}) {
	const element = h(as), older = h("p.actions"), empty = none && h("li.empty", h("p", none[0]), h("code", none[1]));
	const draw = (shown) => show(element, shown, identity, (item) => rowOf(item, row, fold), empty);
	const given = { limit: 50, ...asked(), ...query };
	page.loads.push(async () => {
		let items = [], { cursor } = given, more = true;
		while (more && !(items.length && isEnough(items))) {
			const { data, ...found } = await get(at(path, { ...given, cursor }));
			items = [...items, ...(data ?? [found])];
			({ cursor, has_more: more } = found);
		}
		await present(items, draw, more);
		older.replaceChildren(more ? link(here({ ...page.asked, cursor }), "Older") : "");
	});
	return [element, older];
}

export const one = (path, row, present) => list({ path, as: "div", row, present });

function rowOf(item, row, fold) {
	let node = row(item);
	if (Array.isArray(node)) {
		const cells = node.map((cell) => (Array.isArray(cell) ? h("span.grow", cell) : cell));
		const unfold = ({ target }) => { if (target.children.length === 1) target.append(h("div.fold", fold(item))); };
		node = fold ? h("li", h("details", { toggle: unfold }, h("summary.row", cells))) : h("li.row", cells);
	}
	node.dataset.row = "";
	return node;
}
