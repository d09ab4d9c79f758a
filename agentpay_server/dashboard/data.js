// @ts-check
// What several pages read: who the key is, the names of accounts, the counts, the server's time, lists.

import { at, call } from "./api.js";
import { button, code, field, h, plain, said, show } from "./ui.js";

/**
 * @typedef {object} View a page while it is shown
 * @property {HTMLElement} root where it is built
 * @property {AbortSignal} signal aborted when another page takes its place
 * @property {string} id what follows the page's name in the address
 * @property {URLSearchParams} query
 * @property {(path: string) => Promise<any>} get
 * @property {(load: () => Promise<any>, seconds?: number) => any} load read now, after every change, and every so many seconds
 * @property {(work: () => Promise<any>, done?: string) => Promise<any>} act change something, tell how it went, and read again
 */

/** Whose key this is. Money counts as real until the server says otherwise. */
export let me = { cluster: "", is_test_money: false, kind: "" };

export async function meet() {
  me = { ...me, is_test_money: false };
  me = await call("GET", "/whoami");
}

let reading = 0;

/** The server's time, as it was last read: on a test chain it may stand still, or be years away. */
export const now = () => (me.is_test_money && reading) || Date.now();

export async function readClock(signal) {
  if (me.is_test_money) reading = Date.parse((await call("GET", "/sandbox/clock", { signal })).now);
}

const names = new Map();

/** Forget everything that belongs to a key. */
export function forget() {
  names.clear();
  reading = 0;
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
export const meetAll = (list) => list.forEach((it) => names.set(it.account_id, it.name));

export const nameOf = (id) => plain(names.get(id) || id);

/** An account by its name, anything else by its address. */
export const party = (id) => (names.get(id) ? h("a.party", { href: `#/accounts/${id}`, title: id }, said(names.get(id))) : code(id));

/** The newest accounts. */
export async function accounts(view) {
  const page = await view.get("/v1/accounts?limit=100");
  meetAll(page.data);
  return page;
}

/** Fields whose values become the query of a page's address. */
export function filters(page, ...fields) {
  const go = (event) => {
    event.preventDefault();
    location.hash = at(`#/${page}`, Object.fromEntries(new FormData(form)));
  };
  const form = h("form.filters", { change: go, submit: go }, fields);
  return form;
}

/** @type {(asked: any) => any} */
export const moments = ({ since, until }) => [["since", "After", since], ["until", "Up to", until]].map(([name, label, value]) => field(label, h("input", { type: "datetime-local", name, value })));

/**
 * A query with the moments that a page's address has in the reader's zone.
 * @type {(asked: any) => any}
 */
export const instants = (asked) => Object.fromEntries(Object.entries(asked).map(([name, value]) => [name, value && ["since", "until"].includes(name) ? new Date(value).toISOString() : value]));

/** What there is and what waits, in numbers. */
export const summary = (signal) => call("GET", "/console/summary", { signal });

/**
 * A list that is read page by page: the newest first, and kept current; older ones on demand.
 * @param {View} view
 * @param {{path: string, query?: any, keyOf: (item: any) => string, row?: (item: any) => any, none?: any, list?: any, before?: (items: any[]) => any, draw?: (items: any[]) => any, seconds?: number}} options
 */
export function feed(view, { path, query = {}, keyOf, row, none, list = h("ul.rows.card"), before, draw = (items) => show(list, items, keyOf, row, none), seconds }) {
  let items = [], cursor = "", more = false, isLonger = false;
  const older = h("div.actions");
  view.root.append(list, older);
  const render = async () => {
    await before?.(items);
    draw(items);
    older.replaceChildren(more ? button("Load older", () => view.act(async () => {
      const page = await view.get(at(path, { limit: 50, ...query, cursor }));
      items = [...items, ...page.data].slice(0, 1000);
      [cursor, more, isLonger] = [page.cursor, page.has_more && items.length < 1000, true];
    })) : "");
  };
  return view.load(async () => {
    const page = await view.get(at(path, { limit: 50, ...query }));
    const fresh = new Set(page.data.map(keyOf)), joins = isLonger && items.some((item) => fresh.has(keyOf(item)));
    items = joins ? [...page.data, ...items.filter((item) => !fresh.has(keyOf(item)))].slice(0, 1000) : page.data;
    if (!joins) [cursor, more, isLonger] = [page.cursor, page.has_more, false];
    await render();
  }, seconds);
}
