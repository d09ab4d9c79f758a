// @ts-check
// Builds the page from text nodes and attributes only: memos, names, URLs and responses are hostile, so nothing
// here parses markup.

const is = (value) => value !== undefined && value !== null && value !== false;

// Characters that hide or reorder text are shown as escapes, so that a name cannot pose as another.
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export const plain = (text) => String(text).replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** An element: its tag and classes, attributes if any (a function listens to that event), its children. */
export function h(spec, ...rest) {
  const [tag, ...classes] = spec.split("."), node = /** @type {any} */ (document.createElement(tag));
  node.className = classes.join(" ");
  for (const [name, value] of Object.entries(rest[0]?.constructor === Object ? rest.shift() : {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "style") Object.assign(node.style, value);
    else if (is(value) && (name !== "href" || /^(#|https?:\/\/)/.test(value))) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...rest.flat(9).filter(is).map((child) => (child instanceof Node ? child : plain(child))));
  return node;
}

export const $ = (selector, root = /** @type {any} */ (document)) => root.querySelector(selector);

/** Text that somebody else wrote, isolated from the direction of the text around it. */
export const said = (text) => h("bdi", text);
export const quiet = (...children) => h("span.quiet", children);
export const words = (text) => text.replaceAll("_", " ");
export const whole = (text) => text && h("code", text);
export const link = (href, ...children) => h("a", { href }, children);
export const json = (value) => h("pre", { tabindex: 0, role: "group", "aria-label": "JSON" }, JSON.stringify(value, null, 2));

/** An identifier or address, shortened; whole on hover. */
export function code(id) {
  const text = plain(id ?? "–");
  return h("code", { title: text }, text.length > 20 ? `${text.slice(0, 9)}…${text.slice(-5)}` : text);
}

// --- Amounts: strings, so that they stay exact

const USDC = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 });

export const usdc = (amount) => USDC.format(amount);
export const big = (amount, after = " USDC") => h("p.amount", usdc(amount), h("small", after));

const micro = (amount) => BigInt(amount.replace(".", ""));

export const minus = (amount, less) => usdc(`${micro(amount) - micro(less)}E-6`);

/** Parts of a whole as a bar, each with its look. */
export const meter = (meaning, total, parts) => h("div.meter", { role: "img", "aria-label": meaning },
  Object.entries(parts).map(([look, part]) => h(`span.${look}`, { style: { width: `${Math.min(100, (part / total || 0) * 100)}%` } })));

// --- Times

/** The server's time: on a test chain it may stand still, or be years away. */
export const clock = { now: () => Date.now() };

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A moment in the reader's zone, with its day unless that is today; in UTC on hover. */
export function moment(iso) {
  if (!iso) return quiet("–");
  const at = new Date(iso), day = DAY.format(at);
  return h("time", { datetime: iso, title: iso }, day !== DAY.format(clock.now()) && `${day}, `, CLOCK.format(at));
}

/** @type {[number, number, string][]} */
const UNITS = [[172800, 86400, "days"], [5400, 3600, "h"], [90, 60, "min"], [1, 1, "s"], [0, 0.001, "ms"]];

export function span(ms) {
  const seconds = Math.max(0, ms / 1000), [, unit, name] = UNITS.find(([from]) => seconds >= from);
  return `${Math.round(seconds / unit)} ${name}`;
}

// --- Parts of pages

/** Labels with their values; those without one are left out. */
export const facts = (labelled, show = (value) => value) => h("dl.facts", Object.entries(labelled).map(([label, value]) => {
  const shown = show(value);
  return is(shown) && [h("dt", words(label)), h("dd", shown)];
}));

/** The named fields of an object. */
export const pick = (it, names) => Object.fromEntries(names.split(" ").map((name) => [name, it[name]]));

const LOOKS = [
  ["ok", "✓", "settled delivered active"], ["warn", "!", "pending_approval retrying paused low"],
  ["bad", "✕", "rejected failed undelivered rejection"], ["info", "◔", ""],
];

/** A status: a sign, a word and a colour, never the colour alone. */
export function badge(status, label = status) {
  const [look, sign] = LOOKS.find(([, , all]) => all.split(" ").includes(status)) ?? LOOKS[3];
  return h(`span.badge.${look}`, h("span", { "aria-hidden": "true" }, `${sign} `), words(label));
}

export const count = (number, what) => h("span.quiet", number, h("span.sr", ` ${what}`));

export function button(label, act, { look = "", ...props } = /** @type {any} */ ({})) {
  return h(`button.${look}`, { type: "button", click: act, ...props }, label);
}

/** A labelled input, or a choice: its options, or pairs of value and text, may still be on their way. */
export function field(label, name, { options, ...props } = /** @type {any} */ ({})) {
  const input = h(options ? "select" : "input", { name, autocomplete: "off", ...props });
  const fill = (all) => input.append(...all.map((option) => {
    const [value, text = value] = [option].flat();
    return h("option", { value, selected: value === props.value }, text);
  }));
  if (options) Promise.resolve(options).then(fill, () => {});
  return h("label.field", h("span", label), input);
}

const valuesOf = (form) => Object.fromEntries(new FormData(form));

/** A form that calls `submit` with its values. */
export const form = (look, submit, ...children) => h(`form.${look}`, { submit: (event) => {
  event.preventDefault();
  submit(valuesOf(event.target));
} }, children);

const PLACES = "a[href], button, summary, input, select";

/** Show items in order. An element stays while its item is the same; a new one inherits focus and what is unfolded. */
export function show(parent, items, identity, render, none = null) {
  const old = new Map([...parent.children].map((node) => [node.itemKey, node]));
  let focused = /** @type {any} */ (document.activeElement);
  const nodes = items.map((item) => {
    const itemLooks = JSON.stringify(item), itemKey = identity(item), before = old.get(itemKey);
    if (before?.itemLooks === itemLooks) return before;
    const node = Object.assign(render(item), { itemKey, itemLooks }), all = (root, selector) => [...root.querySelectorAll(selector)];
    if (before?.contains(focused)) focused = all(node, PLACES)[all(before, PLACES).indexOf(focused)] ?? node;
    if (before) all(before, "details").forEach((each, i) => all(node, "details")[i]?.toggleAttribute("open", each.open));
    return node;
  });
  if (none && !nodes.length) nodes.push(none);
  for (const node of [...parent.children]) if (!nodes.includes(node)) node.remove();
  nodes.forEach((node, i) => { if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null); });
  if (focused !== document.activeElement) focused?.focus({ preventScroll: true });
}

// --- Speaking with the operator

let telling = 0;

/** Say something, also to screen readers; it goes away by itself. */
export function tell(text) {
  const region = $("#live");
  region.textContent = plain(text);
  clearTimeout(telling);
  telling = setTimeout(() => region.replaceChildren(), 8000);
}

/**
 * Ask in a dialog; return the values of its fields, or false. Without fields focus starts on Cancel, so that Enter
 * alone never moves money. `typed` must be typed to enable the action.
 */
export const ask = ({ title, action, look = "primary", typed = "", cancel = "Cancel" }, ...body) => new Promise((resolve) => {
  const go = h(`button.${look}`, { value: "go", disabled: Boolean(typed) }, action);
  const content = h("form", { method: "dialog" }, h("h2", { id: "asked" }, title), body);
  const back = cancel && button(cancel, () => box.close(), { autofocus: !$("label", content) });
  const check = (event) => { go.disabled = event.target.value.trim() !== typed; };
  content.append(typed && field(`Type ${typed} to confirm`, "typed", { input: check }), h("div.actions", back, go));
  const close = () => {
    box.remove();
    resolve(box.returnValue && valuesOf(content));
  };
  const box = h("dialog", { "aria-labelledby": "asked", close }, content);
  document.body.append(box);
  box.showModal();
});

export const copies = (label, text) => button(label, async () => {
  const outcome = await navigator.clipboard?.writeText(text).then(() => "Copied.", () => "");
  tell(outcome || "The browser does not allow copying.");
});

/** Show the secret of something that was created. */
export const showSecret = (title, { key, secret = key }) => ask({ title, action: "I have stored it", cancel: "" },
  h("p", "It is never shown again."), h("p.secret", whole(secret), copies("Copy", secret)));
