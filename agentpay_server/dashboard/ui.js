// @ts-check
// Builds the page. Data becomes text nodes and attributes only: memos, names, URLs and responses are written by
// others, so nothing here parses markup.

/**
 * Return an element: tag and classes, attributes if there are any (a function listens to that event), children.
 * @param {string} spec
 * @param {...any} rest
 * @returns {any}
 */
export function h(spec, ...rest) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  const props = rest[0]?.constructor === Object ? rest.shift() : {};
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name !== "href" || /^(#|https?:\/\/)/.test(value)) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...rest.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** @type {(selector: string, root?: any) => any} */
export const $ = (selector, root = document) => root.querySelector(selector);

// Characters that hide, reorder or break text are shown as escapes, so that a name cannot pose as another.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export const plain = (text) => String(text).replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Text that somebody else wrote, isolated from the direction of the text around it. */
export const said = (text) => h("bdi", plain(text));
export const quiet = (...children) => h("span.quiet", children);
export const words = (text) => plain(text).replaceAll("_", " ");
export const link = (href, ...children) => h("a", href.startsWith("#") ? { href } : { href, target: "_blank", rel: "noopener noreferrer" }, children);

export const json = (value) => h("pre", { tabindex: 0, role: "group", "aria-label": "JSON" }, JSON.stringify(value, null, 2).split("\n").map(plain).join("\n"));

/** An amount without trailing zeros, thousands separated; exact, since it never becomes a number. */
export function usdc(amount) {
  if (amount === null || amount === undefined) return "–";
  const [whole, fraction = ""] = String(amount).split(".");
  return `${whole.replace(/\B(?=(\d{3})+$)/g, ",")}.${fraction.replace(/0+$/, "").padEnd(2, "0")}`;
}

export const big = (amount, after = " USDC") => h("p.amount", usdc(amount), h("small", after));

/** An amount in millionths of a USDC. */
export function micro(amount) {
  const [whole, fraction = ""] = String(amount).split(".");
  return BigInt(whole) * 1000000n + BigInt(fraction.slice(0, 6).padEnd(6, "0"));
}

export function fromMicro(units) {
  const text = String(units < 0n ? -units : units).padStart(7, "0");
  return `${units < 0n ? "-" : ""}${text.slice(0, -6)}.${text.slice(-6)}`;
}

export const percent = (part, whole) => (whole > 0n ? Math.min(100, Number((part * 10000n) / whole) / 100) : part > 0n ? 100 : 0);

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A moment in the reader's zone, with its day if that is not today; the exact UTC on hover. */
export function moment(iso) {
  if (!iso) return quiet("–");
  const at = new Date(iso), day = DAY.format(at);
  return h("time", { datetime: iso, title: iso }, day === DAY.format(new Date()) ? CLOCK.format(at) : `${day}, ${CLOCK.format(at)}`);
}

/** A length of time in its largest unit. */
export function span(ms) {
  const seconds = Math.max(0, ms) / 1000;
  const [unit, name] = seconds < 1 ? [0.001, "ms"] : seconds < 90 ? [1, "s"] : seconds < 5400 ? [60, "min"] : seconds < 172800 ? [3600, "h"] : [86400, "days"];
  return `${Math.round(seconds / unit)} ${name}`;
}

/** An identifier or address, shortened in the middle, whole on hover. */
export function code(id) {
  if (!id) return quiet("–");
  const text = plain(id);
  return h("code", { title: text }, text.length > 20 ? `${text.slice(0, 9)}…${text.slice(-5)}` : text);
}

/** Labelled values; those without a value are left out. */
export const facts = (...pairs) => h("dl.facts", pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined).map(([label, ...value]) => [h("dt", label), h("dd", value)]));

const LOOKS = { ok: ["✓", "settled delivered active"], info: ["◔", "open opening submitted pending closing"], warn: ["!", "pending_approval retrying paused low"], bad: ["✕", "rejected failed undelivered rejection"] };

/** A status: a sign, a word and a colour, never the colour alone. */
export function badge(status, label = status) {
  const [look, [sign]] = Object.entries(LOOKS).find(([, [, all]]) => all.split(" ").includes(status)) ?? ["info", ["·"]];
  return h(`span.badge.${look}`, h("span", { "aria-hidden": "true" }, `${sign} `), words(label));
}

/** @type {(label: string, act: () => any, props?: any) => any} */
export const button = (label, act, { look = "", ...props } = {}) => h(`button${look && `.${look}`}`, { type: "button", click: act, ...props }, label);
export const field = (label, input) => h("label.field", h("span", label), input);
export const select = (name, options, chosen = "") => h("select", { name }, options.map(([value, label = words(value) || "All"]) => h("option", { value, selected: value === chosen }, plain(label))));

/** A bar of parts of a whole, each a look and percent, with its meaning as text. */
export const meter = (meaning, ...parts) => h("div.meter", { role: "img", "aria-label": meaning }, parts.map(([look, share]) => {
  const part = h(`span.${look}`);
  part.style.width = `${share}%`;
  return part;
}));

/** What an empty list says: what would be here, and the command or code that fills it. */
export const empty = (text, command) => h("li.empty", h("p", text), command && h("code", command));

/**
 * Show items in order. An element is kept as long as its item is the same, with its focus and what is unfolded.
 */
export function show(parent, items, keyOf, render, none = null) {
  const old = new Map([...parent.children].map((node) => [node.itemKey, node]));
  const nodes = (items.length || !none ? items : [none]).map((item) => {
    const key = item === none ? "" : keyOf(item), looks = item === none ? "" : JSON.stringify(item);
    const before = old.get(key);
    if (before?.itemLooks === looks) return before;
    const node = item === none ? none : render(item);
    Object.assign(node, { itemKey: key, itemLooks: looks });
    if (before) carry(before, node);
    return node;
  });
  const kept = new Set(nodes), focused = /** @type {any} */ (document.activeElement);
  for (const node of [...parent.children]) if (!kept.has(node)) node.remove();
  nodes.forEach((node, i) => { if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null); });
  for (const node of nodes) {
    node.takesFocus?.focus({ preventScroll: true });
    node.takesFocus = null;
  }
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

function carry(before, after) {
  const places = "a[href], button, summary, input, select";
  if (before.contains(document.activeElement)) {
    const index = [...before.querySelectorAll(places)].indexOf(document.activeElement);
    after.takesFocus = after.querySelectorAll(places)[index] ?? after;
  }
  const opened = before.querySelectorAll("details");
  after.querySelectorAll("details").forEach((node, i) => { node.open = opened[i]?.open ?? false; });
}

let telling = 0;

/** Say something to those who see and to those who listen; it goes away by itself. */
export function tell(text, look = "info") {
  const region = $("#live");
  region.className = look;
  region.textContent = plain(text);
  clearTimeout(telling);
  telling = setTimeout(() => { region.textContent = region.className = ""; }, 8000);
}

/**
 * Ask in a dialog. Focus starts on Cancel, so that Enter alone never moves money. `typed` is text that must be
 * typed to enable the action. Returns false if cancelled, else the form's data.
 * @returns {Promise<any>}
 */
export function ask({ title, action, look = "primary", typed = "", cancel = "Cancel", takesText = false }, ...body) {
  return new Promise((resolve) => {
    let result = /** @type {any} */ (false);
    const go = h(`button.${look}`, { type: "submit", disabled: Boolean(typed) }, action);
    const retyped = h("input", { autocomplete: "off", inputmode: "decimal", input: () => { go.disabled = retyped.value.trim() !== typed; } });
    const form = h("form", { submit: (event) => {
      event.preventDefault();
      if (go.disabled) return;
      result = Object.fromEntries(new FormData(form));
      box.close();
    } }, h("h2", { id: "asked" }, plain(title)), body, typed && field(`Type ${typed} to confirm`, retyped),
    h("div.actions", cancel && button(cancel, () => box.close(), { autofocus: !takesText }), go));
    const box = h("dialog", { "aria-labelledby": "asked", close: () => { box.remove(); resolve(result); } }, form);
    document.body.append(box);
    box.showModal();
  });
}

/** A row that unfolds. What is within is built when it is opened: most never are. */
export function unfolding(summary, within) {
  const node = h("details", summary);
  node.addEventListener("toggle", () => { if (node.open && !summary.nextSibling) node.append(within()); });
  return node;
}

export const copies = (label, text) => button(label, () => (navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => tell("Copied."), () => tell("The browser did not allow copying.", "bad")));

/** Show a secret: this once. */
export const showSecret = (title, secret) => ask({ title, action: "I have stored it", cancel: "" }, h("p", "It is shown now and never again."), h("p.secret", h("code", plain(secret)), copies("Copy", secret)));
