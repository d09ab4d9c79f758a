// @ts-check
// What several pages share: who the key is, the names of accounts, filters, lists, and changes that ask first.

import { at, call } from "./api.js";
import { ask, button, clock, code, field, h, plain, said, show, words } from "./ui.js";

// A `view` is a page while it is shown: its `root`, the `id` and query (`asked`) of its address, and `get`. `load`
// reads now, after every change and every so many seconds; `act` changes something, tells how it went, and reads again.

/** Whose key this is. Money counts as real until the server says otherwise. */
export let me = { cluster: "", is_test_money: false, kind: "" };

const names = new Map();

export async function meet() {
  names.clear();
  clock.now = () => Date.now();
  me = { ...me, is_test_money: false };
  me = await call("GET", "/whoami");
}

export async function readClock(signal) {
  if (!me.is_test_money) return;
  const now = Date.parse((await call("GET", "/sandbox/clock", { signal })).now);
  clock.now = () => now;
}

/** Learn the names of accounts; what is not an account of this operator has none. */
export async function learn(view, ids) {
  if (!names.size) await accounts(view);
  const unknown = [...new Set(ids)].filter((id) => id?.startsWith("acct_") && !names.has(id)).slice(0, 20);
  await Promise.all(unknown.map(async (id) => {
    const account = await view.get(`/v1/accounts/${id}`).catch((error) => { if (error.status !== 404) throw error; });
    names.set(id, account?.name ?? "");
  }));
}

/** Learn the names of accounts that were read in full. */
export const learnAll = (list) => list.forEach((it) => names.set(it.account_id, it.name));

export const nameOf = (id) => plain(names.get(id) || id);

/** An account by its name, anything else by its address. */
export const named = (id) => (names.get(id) ? said(names.get(id)) : code(id));
export const party = (id) => (names.get(id) ? h("a.party", { href: `#/accounts/${id}`, title: id }, named(id)) : code(id));

/** The newest accounts, as options of a choice. */
export async function accounts(view) {
  const { data } = await view.get("/v1/accounts?limit=100");
  learnAll(data);
  return data.map((it) => [it.account_id, it.name]);
}

// --- Filters

/** Options that name every value of a list; none is all. */
export const any = (values) => [["", "All"], ...values.split(" ").map((value) => [value, words(value)])];

export const TIMES = { since: ["After", { type: "datetime-local" }], until: ["Up to", { type: "datetime-local" }] };

/** A query with the moments that a page's address has in the reader's zone. */
export const instants = (asked) => Object.fromEntries(Object.entries(asked).map(([name, value]) => [name, value && name in TIMES ? new Date(value).toISOString() : value]));

/** Add fields whose values are the query of the page's address. */
export function filters(view, page, fields) {
  const go = (event) => {
    event.preventDefault();
    location.hash = at(`#/${page}`, Object.fromEntries(new FormData(form)));
  };
  const form = h("form.fields", { change: go, submit: go }, Object.entries(fields).map(([name, [label, props]]) => field(label, name, { ...props, value: view.asked[name] })));
  view.root.append(h("details.filters", { open: innerWidth > 760 || Object.keys(view.asked).length > 0 }, h("summary", "Filters"), form));
}

// --- Lists

const MOST = 1000;

/** A list that is read page by page: the newest first, and kept current; older ones on demand, or until `isEnough`. */
export function feed(view, /** @type {any} */ { path, query = {}, key, row, none, list = h("ul.rows.card"), before, beside, isEnough = () => true, seconds, draw = (items) => show(list, items, key, (item) => rowOf(row(item)), none) }) {
  let items = [], cursor = "", more = false, isLonger = false;
  const older = h("div.actions"), idOf = (item) => item[key] ?? JSON.stringify(item), read = (cursor) => view.get(at(path, { limit: 50, ...query, cursor }));
  view.root.append(list, older);
  const readOlder = async () => {
    const page = await read(cursor);
    items = [...items, ...page.data].slice(0, MOST);
    [cursor, more, isLonger] = [page.cursor, page.has_more && items.length < MOST, true];
  };
  return view.load(async () => {
    const [page] = await Promise.all([read(""), beside?.()]), fresh = new Set(page.data.map(idOf)), rest = items.filter((item) => !fresh.has(idOf(item)));
    if (isLonger && rest.length < items.length) items = [...page.data, ...rest].slice(0, MOST);
    else [items, cursor, more, isLonger] = [page.data, page.cursor, page.has_more, false];
    while (more && !isEnough(items)) await readOlder();
    await before?.(items, more);
    draw(items);
    older.replaceChildren(more ? button("Load older", () => view.act(readOlder)) : items.length < MOST ? "" : `These are the newest ${MOST}. Narrow the time to see older ones.`);
  }, seconds);
}

/** A row that the keyboard reaches. */
export function rowOf(node) {
  node.dataset.row = "";
  return node;
}

// --- Changes

/** Change something once the operator has confirmed it. */
export async function confirmed(view, asked, body, work, done = "Done.") {
  const given = await ask({ look: "danger", ...asked }, body);
  if (given) await view.act(() => work(given), done);
}
