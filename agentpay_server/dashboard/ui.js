// @ts-check
// Builds the page from text nodes and attributes only: memos, names, URLs and responses are hostile, so nothing
// here parses markup.

const is = (value) => value !== undefined && value !== null && value !== false;

/** An element: its tag and classes, attributes if any (a function listens to that event), its children. */
export function h(spec, ...rest) {
  const [tag, ...classes] = spec.split("."), node = /** @type {any} */ (document.createElement(tag));
  node.className = classes.join(" ");
  for (const [name, value] of Object.entries(rest[0]?.constructor === Object ? rest.shift() : {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "style") Object.assign(node.style, value);
    else if (is(value) && (name !== "href" || /^(#|https?:\/\/)/.test(value))) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...rest.flat(3).filter(is));
  return node;
}

export const $ = (selector, root = /** @type {any} */ (document)) => root.querySelector(selector);

// Characters that hide or reorder text are shown as escapes, so that a name cannot pose as another.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export const plain = (text) => String(text).replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Text that somebody else wrote, isolated from the direction of the text around it. */
export const said = (text) => h("bdi", plain(text));
export const quiet = (...children) => h("span.quiet", children);
export const words = (text) => plain(text).replaceAll("_", " ");
export const whole = (text) => text && h("code", plain(text));
export const link = (href, ...children) => h("a", { href, ...(!href.startsWith("#") && { target: "_blank", rel: "noopener noreferrer" }) }, children);
export const json = (value) => h("pre", { tabindex: 0, role: "group", "aria-label": "JSON" }, JSON.stringify(value, null, 2).split("\n").map(plain).join("\n"));

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

export const minus = (amount, less) => `${micro(amount) - micro(less)}E-6`;

/** Parts of a whole as a bar, each with its look. */
export const meter = (meaning, total, ...parts) => h("div.meter", { role: "img", "aria-label": meaning },
  parts.map(([look, amount]) => h(`span.${look}`, { style: { width: `${Math.min(100, (amount / total || 0) * 100)}%` } })));

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
export const facts = (...pairs) => h("dl.facts", pairs.filter(([, value]) => is(value)).map(([label, ...value]) => [h("dt", label), h("dd", value)]));

const LOOKS = [["ok", "✓", "settled delivered active"], ["warn", "!", "pending_approval retrying paused low"], ["bad", "✕", "rejected failed undelivered rejection"], ["info", "◔", ""]];

/** A status: a sign, a word and a colour, never the colour alone. */
export function badge(status, label = status) {
  const [look, sign] = LOOKS.find(([, , all]) => all.split(" ").includes(status)) ?? LOOKS[3];
  return h(`span.badge.${look}`, h("span", { "aria-hidden": "true" }, `${sign} `), words(label));
}

export const button = (label, act, { look = "", ...props } = /** @type {any} */ ({})) => h(`button.${look}`, { type: "button", click: act, ...props }, label);

/** A labelled input, or a choice: its options, or pairs of value and text, may still be on their way. */
export function field(label, name, { options, ...props } = /** @type {any} */ ({})) {
  const input = h(options ? "select" : "input", { name, autocomplete: "off", ...props });
  const fill = (all) => input.append(...all.map((option) => {
    const [value, text = value] = [option].flat();
    return h("option", { value, selected: value === props.value }, plain(text));
  }));
  if (options) Promise.resolve(options).then(fill, () => {});
  return h("label.field", h("span", label), input);
}

export const empty = (text, command) => h("li.empty", h("p", text), h("code", command));

export const count = (number, what) => h("span.quiet.n", number, h("span.sr", ` ${what}`));

/** A row that unfolds. What is within is built when it is opened. */
export function unfolding(summary, within) {
  const node = h("details", h("summary.row", summary));
  node.addEventListener("toggle", () => node.append(h("div.fold", within())), { once: true });
  return h("li", node);
}

const PLACES = "a[href], button, summary, input, select";

/** Show items in order. An element stays while its item is the same; a new one inherits focus and what is unfolded. */
export function show(parent, items, key, render, none = null) {
  const old = new Map([...parent.children].map((node) => [node.itemKey, node]));
  let focused = /** @type {any} */ (document.activeElement);
  const nodes = items.map((item) => {
    const itemLooks = JSON.stringify(item), itemKey = item[key] ?? itemLooks, before = old.get(itemKey);
    if (before?.itemLooks === itemLooks) return before;
    const node = Object.assign(render(item), { itemKey, itemLooks });
    if (before?.contains(focused)) focused = node.querySelectorAll(PLACES)[[...before.querySelectorAll(PLACES)].indexOf(focused)] ?? node;
    before?.querySelectorAll("details").forEach((each, i) => { node.querySelectorAll("details")[i]?.toggleAttribute("open", each.open); });
    return node;
  });
  if (none && !nodes.length) nodes.push(none);
  const kept = new Set(nodes);
  for (const node of [...parent.children]) if (!kept.has(node)) node.remove();
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
 * Ask in a dialog; return the form's data, or false. Without fields focus starts on Cancel, so that Enter alone never
 * moves money. `typed` must be typed to enable the action.
 */
export function ask({ title, action, look = "primary", typed = "", cancel = "Cancel" }, ...body) {
  return new Promise((resolve) => {
    let result = /** @type {any} */ (false);
    const go = h(`button.${look}`, { disabled: Boolean(typed) }, action);
    const back = cancel && button(cancel, () => box.close());
    const form = h("form", { submit: (event) => {
      event.preventDefault();
      result = Object.fromEntries(new FormData(form));
      box.close();
    } }, h("h2", { id: "asked" }, plain(title)), body);
    const isSafe = !$("label", form) && back;
    form.append(typed && field(`Type ${typed} to confirm`, "typed", { input: (event) => { go.disabled = event.target.value.trim() !== typed; } }), h("div.actions", back, go));
    const box = h("dialog", { "aria-labelledby": "asked", close: () => { box.remove(); resolve(result); } }, form);
    document.body.append(box);
    box.showModal();
    if (isSafe) back.focus();
  });
}

export const copies = (label, text) => button(label, async () => {
  const outcome = await navigator.clipboard?.writeText(text).then(() => "Copied.", () => "");
  tell(outcome || "The browser does not allow copying.");
});

export const showSecret = (title, secret) => ask({ title, action: "I have stored it", cancel: "" }, h("p", "It is never shown again."), h("p.secret", h("code", plain(secret)), copies("Copy", secret)));
