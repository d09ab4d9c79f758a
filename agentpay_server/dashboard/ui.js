// @ts-check
// Builds the page. Data becomes text nodes and attributes only: memos, names, URLs and responses are written by
// others, so nothing here parses markup.

/**
 * Return an element: its tag and classes, attributes if any (a function listens to that event), its children.
 * @param {string} spec
 * @param {...any} rest
 * @returns {any}
 */
export function h(spec, ...rest) {
  const [tag, ...classes] = spec.split("."), node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(rest[0]?.constructor === Object ? rest.shift() : {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (is(value) && (name !== "href" || /^(#|https?:\/\/)/.test(value))) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...rest.flat(3).filter(is));
  return node;
}

const is = (value) => value !== undefined && value !== null && value !== false;

export const $ = (selector, root = /** @type {any} */ (document)) => root.querySelector(selector);

// Characters that hide, reorder or break text are shown as escapes, so that a name cannot pose as another.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export const plain = (text) => String(text).replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Text that somebody else wrote, isolated from the direction of the text around it. */
export const said = (text) => h("bdi", plain(text));
export const quiet = (...children) => h("span.quiet", children);
export const words = (text) => plain(text).replaceAll("_", " ");
export const whole = (text) => text && h("code.all", plain(text));
export const link = (href, ...children) => h("a", { href, ...(!href.startsWith("#") && { target: "_blank", rel: "noopener noreferrer" }) }, children);
export const json = (value) => h("pre", { tabindex: 0, role: "group", "aria-label": "JSON" }, JSON.stringify(value, null, 2).split("\n").map(plain).join("\n"));

/** An identifier or address, shortened in the middle, whole on hover. */
export function code(id) {
  const text = plain(id ?? "–");
  return h("code", { title: text }, text.length > 20 ? `${text.slice(0, 9)}…${text.slice(-5)}` : text);
}

// --- Amounts: exact, since only the length of a bar becomes a number

/** An amount without trailing zeros, its thousands separated. */
export function usdc(amount) {
  const [units, fraction = ""] = String(amount ?? "–").split(".");
  return is(amount) ? `${units.replace(/\B(?=(\d{3})+$)/g, ",")}.${fraction.replace(/0+$/, "").padEnd(2, "0")}` : units;
}

export const big = (amount, after = " USDC") => h("p.amount", usdc(amount), h("small", after));

function micro(amount) {
  const [units, fraction = ""] = amount.split(".");
  return BigInt(units + fraction.slice(0, 6).padEnd(6, "0"));
}

export function minus(amount, less) {
  const left = micro(amount) - micro(less), text = String(left).replace("-", "").padStart(7, "0");
  return `${left < 0n ? "-" : ""}${text.slice(0, -6)}.${text.slice(-6)}`;
}

/** Parts of a whole as a bar, each with its look, and its meaning as text. */
export const meter = (meaning, total, ...parts) => h("div.meter", { role: "img", "aria-label": meaning }, parts.map(([look, amount]) => {
  const part = h(`span.${look}`);
  part.style.width = `${Math.min(100, (Number(amount) / Number(total) || 0) * 100)}%`;
  return part;
}));

// --- Times

/** The server's time: on a test chain it may stand still, or be years away. */
export const clock = { now: () => Date.now() };

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A moment in the reader's zone, with its day if that is not today; the exact UTC on hover. */
export function moment(iso) {
  if (!iso) return quiet("–");
  const at = new Date(iso), day = DAY.format(at);
  return h("time", { datetime: iso, title: iso }, day === DAY.format(clock.now()) ? "" : `${day}, `, CLOCK.format(at));
}

/** @type {[number, number, string][]} */
const UNITS = [[172800, 86400, "days"], [5400, 3600, "h"], [90, 60, "min"], [1, 1, "s"], [0, 0.001, "ms"]];

/** A length of time in its largest unit. */
export function span(ms) {
  const seconds = Math.max(0, ms / 1000), [, unit, name] = /** @type {any} */ (UNITS.find(([from]) => seconds >= from));
  return `${Math.round(seconds / unit)} ${name}`;
}

// --- Parts of pages

/** Labelled values; those without a value are left out. */
export const facts = (...pairs) => h("dl.facts", pairs.filter(([, value]) => is(value)).map(([label, ...value]) => [h("dt", label), h("dd", value)]));

const LOOKS = { ok: ["✓", "settled delivered active"], info: ["◔", "open opening submitted pending closing"], warn: ["!", "pending_approval retrying paused low"], bad: ["✕", "rejected failed undelivered rejection"] };

/** A status: a sign, a word and a colour, never the colour alone. */
export function badge(status, label = status) {
  const [look, [sign]] = Object.entries(LOOKS).find(([, [, all]]) => all.split(" ").includes(status)) ?? ["info", ["·"]];
  return h(`span.badge.${look}`, h("span", { "aria-hidden": "true" }, `${sign} `), words(label));
}

export const button = (label, act, { look = "", ...props } = /** @type {any} */ ({})) => h(look ? `button.${look}` : "button", { type: "button", click: act, ...props }, label);

/** A labelled input, or a choice among options, which may still be on their way. */
export function field(label, name, { options, ...props } = /** @type {any} */ ({})) {
  const input = h(options ? "select" : "input", { name, autocomplete: "off", ...props });
  if (options) Promise.resolve(options).then((all) => input.append(...all.map(([value, text]) => h("option", { value, selected: value === props.value }, plain(text)))), () => {});
  return h("label.field", h("span", label), input);
}

/** What an empty list says: what would be here, and the command or code that fills it. */
export const empty = (text, command = "") => h("li.empty", h("p", text), command && h("code", command));

export const count = (number, what) => h("span.quiet.n", number, h("span.sr", ` ${what}`));

/** A row that unfolds. What is within is built when it is opened: most never are. */
export function unfolding(summary, within) {
  const line = h("summary.row", summary), node = h("details", { toggle: () => { if (node.open && !line.nextSibling) node.append(h("div.fold", within())); } }, line);
  return h("li", node);
}

const PLACES = "a[href], button, summary, input, select";

/** Show items in order. An element is kept as long as its item is the same, with its focus and what is unfolded. */
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
  const kept = new Set(nodes), isWithin = focused && focused !== document.body;
  for (const node of [...parent.children]) if (!kept.has(node)) node.remove();
  nodes.forEach((node, i) => { if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null); });
  if (isWithin && focused !== document.activeElement) focused.focus({ preventScroll: true });
}

// --- Speaking with the operator

let telling = 0;

/** Say something to those who see and to those who listen; it goes away by itself. */
export function tell(text, look = "info") {
  const region = $("#live"), put = (className, textContent) => Object.assign(region, { className, textContent });
  put(look, plain(text));
  clearTimeout(telling);
  telling = setTimeout(() => put("", ""), 8000);
}

/**
 * Ask in a dialog. Focus starts on Cancel, so that Enter alone never moves money. `typed` must be typed to enable
 * the action. Return false if cancelled, else the form's data.
 */
export function ask({ title, action, look = "primary", typed = "", cancel = "Cancel", takesText = false }, ...body) {
  return new Promise((resolve) => {
    let result = /** @type {any} */ (false);
    const go = h(`button.${look}`, { type: "submit", disabled: Boolean(typed) }, action);
    const form = h("form", { submit: (event) => {
      event.preventDefault();
      result = Object.fromEntries(new FormData(form));
      box.close();
    } }, h("h2", { id: "asked" }, plain(title)), body,
    typed && field(`Type ${typed} to confirm`, "typed", { inputmode: "decimal", input: (event) => { go.disabled = event.target.value.trim() !== typed; } }),
    h("div.actions", cancel && button(cancel, () => box.close(), { autofocus: !takesText }), go));
    const box = h("dialog", { "aria-labelledby": "asked", close: () => { box.remove(); resolve(result); } }, form);
    document.body.append(box);
    box.showModal();
  });
}

export const copies = (label, text) => button(label, () => (navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => tell("Copied."), () => tell("The browser did not allow copying.", "bad")));

/** Show a secret: this once. */
export const showSecret = (title, secret) => ask({ title, action: "I have stored it", cancel: "" }, h("p", "It is shown now and never again."), h("p.secret", h("code", plain(secret)), copies("Copy", secret)));
