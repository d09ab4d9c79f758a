// @ts-check
// The page that is shown: what it reads, its lists and filters, and changes that ask first.

import { at, call, pause } from "./api.js";
import { ask, button, clock, code, field, form, h, link, plain, said, show, tell } from "./ui.js";

/** Whose key this is. Money counts as real until the server says otherwise. */
export let me = { cluster: "", is_test_money: false };

export async function meet() {
  known.clear();
  clock.now = () => Date.now();
  me.is_test_money = false;
  me = await call("GET", "/whoami");
}

// --- The page, one at a time

/** The identifier and query of its address, how its parts are read, and a signal until it is left. */
let page = { id: "", asked: /** @type {any} */ ({}), loads: [], signal: AbortSignal.abort() };

export let reload = async () => {};

/** Show a page in `root`; `content` returns its nodes. Every time it is read, `before` comes first. */
export function turn(content, { id, asked, signal }, { root, problem, before }) {
  const { loads } = page = { id, asked, signal, loads: [] };
  root.append(...content(page).flat());
  reload = paced(async () => {
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
  }, signal);
  reload();
}

const PAUSE_MS = 1000;

/** Return a function that does work never twice at once, and once a pause at most. */
function paced(work, signal) {
  let isBusy = false, isWanted = false;
  return async () => {
    isWanted = true;
    if (isBusy) return;
    isBusy = true;
    // Silent while hidden: once the page is seen again, the stream begins anew and everything is read.
    while (isWanted && !signal.aborted && !document.hidden) {
      isWanted = false;
      await work();
      await pause(PAUSE_MS, signal);
    }
    isBusy = false;
  };
}

/** Do something, say what it returns or that it is done, and read the page again. */
export async function act(work, done = "Done.") {
  try {
    const said = await work();
    tell(typeof said === "string" ? said : done);
  } catch (error) {
    tell(error.message);
  }
  reload();
}

/** A button that does `work` once a dialog has confirmed it, with the values of the fields in `body`. */
export function change(label, body, work, { title = `${label}?`, action = label, done, look = "danger", typed, ...props } = /** @type {any} */ ({})) {
  return button(`${label}…`, () => act(async () => {
    const given = await ask({ title, action, typed, look: look || "primary" }, typeof body === "string" ? h("p", body) : await body());
    return given ? work(given) : "";
  }, done), { look, ...props });
}

// --- Reading, and the names of accounts

const ACCOUNTS = "/v1/accounts?limit=100";
const known = new Map();

/** Read something for this page, and the accounts in it. */
export async function get(path) {
  const options = { signal: page.signal }, read = (path) => call("GET", path, undefined, options), found = await read(path);
  const learn = ({ data, ...one }) => (data ?? [one]).forEach((it) => { if (it.policy) known.set(it.account_id, it); });
  const strangers = () => [...new Set(JSON.stringify(found).match(/acct_\w+/g))].filter((id) => !known.has(id));
  learn(found);
  if (!known.size && strangers().length) learn(await read(ACCOUNTS));
  // An account of another operator has no name here.
  const forget = (id) => (error) => { if (error.status === 404) known.set(id, {}); };
  await Promise.all(strangers().slice(0, 20).map((id) => read(`/v1/accounts/${id}`).then(learn, forget(id))));
  return found;
}

/** What was read last about an account. */
export const accountOf = (id) => known.get(id) ?? {};
export const nameOf = (id) => accountOf(id).name ?? id;

/** An account by its name, anything else by its address. */
export const named = (id) => (accountOf(id).name ? said(nameOf(id)) : code(id));
export const party = (id) => (accountOf(id).name ? h("a.party", { href: `#/accounts/${id}`, title: id }, named(id)) : code(id));

export const accountField = (options = accounts()) => field("Account", "account_id", { options, required: true });
export const accounts = async () => (await get(ACCOUNTS)).data.map((it) => [it.account_id, it.name]);

// --- Filters

export const TIMES = { since: ["After", { type: "datetime-local" }], until: ["Up to", { type: "datetime-local" }] };

const KINDS = { txn: "transfer_id", sess: "session_id", acct: "account_id", evt: "event_id" };

/** The address of this page with another query. */
const here = (query) => at(location.hash.split("?")[0] || "#/", query);

export const instant = (local) => local && new Date(local).toISOString();

/** What the address asks of a list: its moments in UTC, and an identifier under the name of its kind. */
function asked() {
  const { id = "", since, until, ...others } = page.asked, kind = KINDS[id.split("_")[0]];
  return { ...others, since: instant(since), until: instant(until), ...(kind && { [kind]: id }) };
}

export function filters(fields) {
  const go = (given) => { location.hash = here(given); };
  const inputs = Object.entries(fields).map(([name, [label, { options, ...props }]]) => field(label, name, {
    ...props, value: page.asked[name], options: options && Promise.resolve(options).then((all) => [["", "All"], ...all]),
  }));
  const node = form("fields", go, inputs);
  node.addEventListener("change", () => node.requestSubmit());
  return h("details.filters", { open: innerWidth > 760 || Object.keys(page.asked).length > 0 }, h("summary", "Filters"), node);
}

// --- Lists

/**
 * A list that stays current, the newest first, one page of the API or as many as make it `isEnough`. A `row` is an
 * element or its cells, of which one that is an array grows; `fold` is what it unfolds, built when it is opened.
 * `present` may change what is drawn. An object instead of a page is a list of one. `none` is a sentence and the code
 * that ends it.
 */
export function list(/** @type {any} */ {
  path, query, as = "ul.rows.card", row, fold, none, isEnough = () => true,
  present = (items, draw) => draw(items), identity = (item) => Object.values(item)[0],
}) {
  const element = h(as), older = h("p.actions"), empty = none && h("li.empty", h("p", none[0]), h("code", none[1]));
  const draw = (shown) => show(element, shown, identity, (item) => rowOf(row(item), fold && (() => fold(item))), empty);
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

/** A row that the keyboard reaches. */
function rowOf(row, fold) {
  const line = Array.isArray(row) && row.map((cell) => (Array.isArray(cell) ? h("span.grow", cell) : cell));
  const node = !line ? row : fold ? h("li", h("details", h("summary.row", line))) : h("li.row", line);
  if (fold && line) node.firstChild.addEventListener("toggle", () => node.firstChild.append(h("div.fold", fold())), { once: true });
  node.dataset.row = "";
  return node;
}
