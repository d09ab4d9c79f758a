// @ts-check
// Elements. Memos, names, URLs and responses are hostile, so nothing here parses markup.

const is = (value) => (value ?? false) !== false;

// Characters that hide or reorder text let one name pose as another.
const HIDDEN = /(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

export const plain = (text) => String(text).replace(HIDDEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

/** An element: `tag.class`, attributes if any (a function is a listener), children. */
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

/** Text of others: its direction ends with it. */
export const said = (text) => h("bdi", text);
export const quiet = (...children) => h("span.quiet", children);
export const words = (text) => text.replaceAll("_", " ");
export const whole = (text) => text && h("code", text);
export const link = (href, ...children) => h("a", { href }, children);
export const json = (value) => h("pre", JSON.stringify(value, null, 2));

export function code(id) {
	const text = plain(id ?? "–");
	return h("code", { title: text }, text.length > 20 ? `${text.slice(0, 9)}…${text.slice(-5)}` : text);
}

// Amounts stay strings, and so exact.
const USDC = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 });
const micro = (amount) => BigInt(amount.replace(".", ""));

export const usdc = (amount) => USDC.format(amount);
export const minus = (amount, less) => usdc(`${micro(amount) - micro(less)}E-6`);
export const big = (amount, after = " USDC") => h("p.amount", usdc(amount), h("small", after));

export const meter = (meaning, total, parts) => h("div.meter", { role: "img", "aria-label": meaning },
	Object.entries(parts).map(([look, part]) => h(`span.${look}`, { style: { width: `${Math.min(100, (part / total || 0) * 100)}%` } })));

/** The server's time: on a test chain it may stand still. */
export const clock = { now: () => Date.now() };

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export function moment(iso) {
	if (!iso) return quiet("–");
	const at = new Date(iso), day = DAY.format(at);
	return h("time", { datetime: iso, title: iso }, day !== DAY.format(clock.now()) && `${day}, `, CLOCK.format(at));
}

const UNITS = { days: 86400000, h: 3600000, min: 60000, s: 1000 };

export function span(ms) {
	const [name, unit] = Object.entries(UNITS).find(([, unit]) => ms >= 1.5 * unit) ?? ["ms", 1];
	return `${Math.round(Math.max(0, ms) / unit)} ${name}`;
}

export const facts = (labelled, show = (value) => value) => h("dl.facts", Object.entries(labelled).map(([label, value]) => {
	const shown = show(value);
	return is(shown) && [h("dt", words(label)), h("dd", shown)];
}));

export const fields = (it, names) => facts(Object.fromEntries(names.split(" ").map((name) => [name, it[name]])), whole);

const LOOKS = {
	settled: "ok", delivered: "ok", active: "ok", pending_approval: "warn", retrying: "warn", paused: "warn", low: "warn",
	rejected: "bad", failed: "bad", undelivered: "bad",
};

export const badge = (status, label = status) => h(`span.badge.${LOOKS[status] ?? "info"}`, words(label));

export const count = (number, what) => quiet(`${number} ${what}${number === 1 ? "" : "s"}`);

export const button = (label, act, attributes) => h("button", { type: "button", click: act, ...attributes }, label);

/** An input, or a choice of `options`: values or pairs of value and text, which may be a promise. */
export function field(label, name, { options, ...props } = /** @type {any} */ ({})) {
	const input = h(options ? "select" : "input", { name, autocomplete: "off", ...props });
	const fill = (all) => input.append(...(props.required ? all : [["", "All"], ...all]).map((option) => {
		const [value, text = value] = [option].flat();
		return h("option", { value, selected: value === props.value }, text);
	}));
	if (options) Promise.resolve(options).then(fill, () => {});
	return h("label.field", h("span", label), input);
}

const valuesOf = (form) => Object.fromEntries(new FormData(form));

export const form = (look, submit, ...children) => h(`form.${look}`, { submit: (event) => {
	event.preventDefault();
	submit(valuesOf(event.target));
} }, children);

const PLACES = "a[href], button, summary, input, select";

/** An element stays while its item is the same; a new one inherits focus and what is unfolded. */
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

let telling = 0;

export function tell(text) {
	const region = $("#live");
	region.textContent = plain(text);
	clearTimeout(telling);
	telling = setTimeout(() => region.replaceChildren(), 8000);
}

/** Ask in a dialog; return the values of its fields. Without any, focus starts on Cancel: Enter alone moves no money. */
export const ask = ({ title, action, look = "primary", typed = "", cancel = "Cancel" }, ...body) => new Promise((resolve) => {
	const go = h("button", { value: "go", class: look, disabled: Boolean(typed) }, action);
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

export const showSecret = (title, { key, secret = key }) => ask({ title, action: "I have stored it", cancel: "" },
	h("p", "It is never shown again."), h("p.secret", whole(secret), copies("Copy", secret)));
