// @ts-check
// What pages share: who the key is, the names of accounts, filters, lists, and changes that ask first.

import { at, call } from "./api.js";
import { ask, button, clock, code, field, h, plain, said, show } from "./ui.js";

// A `view` is a page while it is shown: its `root`, the `id` and query (`asked`) of its address. It can `get`
// something, `load` itself now, after changes and regularly, and `act`: change something and load itself again.

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

/** Read something, and the names of the accounts in it. */
export async function read(path, signal) {
  const options = { signal }, found = await call("GET", path, options);
  const learn = (/** @type {any} */ { data, ...one }) => (data ?? [one]).forEach((it) => { if (it.policy) names.set(it.account_id, it.name); });
  learn(found);
  const unknown = () => [...new Set(JSON.stringify(found).match(/acct_\w+/g))].filter((id) => !names.has(id)).slice(0, 20);
  if (!names.size && unknown().length) learn(await call("GET", NEWEST, options));
  // An account of another operator has no name here.
  await Promise.all(unknown().map((id) => call("GET", `/v1/accounts/${id}`, options).then(learn, (error) => { if (error.status === 404) names.set(id, ""); })));
  return found;
}

const NEWEST = "/v1/accounts?limit=100";

export const nameOf = (id) => plain(names.get(id) || id);

/** An account by its name, anything else by its address. */
export const named = (id) => (names.get(id) ? said(names.get(id)) : code(id));
export const party = (id) => (names.get(id) ? h("a.party", { href: `#/accounts/${id}`, title: id }, named(id)) : code(id));

export const accounts = async (view) => (await view.get(NEWEST)).data.map((it) => [it.account_id, it.name]);

// --- Filters

export const TIMES = { since: ["After", { type: "datetime-local" }], until: ["Up to", { type: "datetime-local" }] };

export const instants = (asked) => Object.fromEntries(Object.entries(asked).map(([name, value]) => [name, value && name in TIMES ? new Date(value).toISOString() : value]));

const SUBJECTS = { txn: "transfer_id", sess: "session_id", acct: "account_id", evt: "event_id" };

/** The query for what an identifier names, if a list has such a filter. */
export function about(id, kinds) {
  const subject = SUBJECTS[id.split("_")[0]];
  return kinds.includes(subject) ? { [subject]: id } : {};
}

export function filters(view, fields) {
  const go = (event) => {
    event.preventDefault();
    location.hash = at(location.hash.split("?")[0], Object.fromEntries(new FormData(form)));
  };
  const form = h("form.fields", { change: go, submit: go }, Object.entries(fields).map(([name, [label, { options, ...props }]]) =>
    field(label, name, { ...props, value: view.asked[name], options: options && Promise.resolve(options).then((all) => [["", "All"], ...all]) })));
  view.root.append(h("details.filters", { open: innerWidth > 760 || Object.keys(view.asked).length > 0 }, h("summary", "Filters"), form));
}

// --- Lists

const MOST = 1000;

/** A list that stays current, the newest first; older pages on demand, or until `isEnough`. */
export function feed(view, /** @type {any} */ { path, query = instants(view.asked), key, row, none, list = h("ul.rows.card"), before, isEnough = () => true, seconds, draw = (items) => show(list, items, key, (item) => rowOf(row(item)), none) }) {
  let items = [], cursor = "", more = false, isLonger = false;
  const older = h("div.actions"), idOf = (item) => item[key] ?? JSON.stringify(item), page = (cursor) => view.get(at(path, { limit: 50, ...query, cursor }));
  view.root.append(list, older);
  const readOlder = async () => {
    const next = await page(cursor);
    items = [...items, ...next.data].slice(0, MOST);
    [cursor, more, isLonger] = [next.cursor, next.has_more && items.length < MOST, true];
  };
  return view.load(async () => {
    const newest = await page(""), fresh = new Set(newest.data.map(idOf)), rest = items.filter((item) => !fresh.has(idOf(item)));
    if (isLonger && rest.length < items.length) items = [...newest.data, ...rest].slice(0, MOST);
    else [items, cursor, more, isLonger] = [newest.data, newest.cursor, newest.has_more, false];
    while (more && !isEnough(items)) await readOlder();
    await before?.(items, more);
    draw(items);
    older.replaceChildren(more ? button("Load older", () => view.act(readOlder)) : items.length < MOST ? "" : `These are the newest ${MOST}.`);
  }, seconds);
}

/** A row that the keyboard reaches. */
export function rowOf(node) {
  node.dataset.row = "";
  return node;
}

// --- Changes

/** A button that does `work` once a dialog has confirmed it, with the values of the fields in `body`, which may have to be read. */
export const changes = (view, label, work, { title = `${label}?`, action = label, body, done = "Done.", look = "danger", typed, ...props } = /** @type {any} */ ({})) => button(`${label}…`, async () => {
  const given = await ask({ title, action, typed, look: look || "primary" }, (await body?.()) ?? "");
  if (given) await view.act(() => work(given), done);
}, { look, ...props });
