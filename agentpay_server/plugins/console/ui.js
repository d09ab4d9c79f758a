// @ts-check

import * as preact from "./preact.js";

export const { Component, render, useEffect, useLayoutEffect, useRef, useState } = /** @type {typeof import("../../../tests/browser/preact.d.ts")} */ (/** @type {any} */ (preact));
const { createContext, h: create, useContext } = preact;
/** The root of the console, which has what its pages share: see `app.js`. @type {any} */
export const Root = createContext(null);
/** @returns {import("./app.js").App} */
export const useApp = () => useContext(Root);
/** What is drawn with what pages share. `render` uses no hook. */
export const using = (render) => h(Using, { render });
const Using = ({ render }) => render(useApp());
const is = (value) => (value ?? false) !== false;
// Characters that hide or reorder text let one name pose as another. A joiner between two emoji draws one.
const HIDDEN = /(?<![\p{Extended_Pictographic}\p{EMod}\uFE0F](?=\u200D\p{Extended_Pictographic}))(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
export const plain = (text) => String(text).replace(HIDDEN, (c) => `\\u${Number(c.codePointAt(0)).toString(16).padStart(4, "0")}`);
const safe = (child) => (Array.isArray(child) ? child.map(safe) : typeof child === "string" ? plain(child) : child);

/**
 * An element: `tag.class`, attributes if any (a function is a listener), children; or a component with its properties.
 * The only way to text and attributes: it escapes what hides, follows no address of another kind, and parses no markup.
 * @returns {any}
 */
export function h(spec, ...rest) {
	const given = rest[0]?.constructor === Object ? rest.shift() : {}, children = rest.map(safe);
	if (typeof spec === "function") return create(spec, given, ...children);
	const [tag, ...classes] = spec.split("."), props = /** @type {any} */ (classes.length ? { class: classes.join(" ") } : {});
	for (const [name, value] of Object.entries(given)) {
		if (name === "key" || name === "ref" || name === "style") props[name] = value;
		else if (typeof value === "function") props[`on${name}`] = value;
		else if (name === "title" || name.startsWith("aria-")) props[name] = is(value) ? plain(value) : undefined;
		else if (is(value) && typeof value !== "object" && (name !== "href" || /^(#|https?:\/\/)/.test(value))) props[name] = value;
	}
	return create(tag, props, ...children);
}

export const $ = (selector, root = /** @type {any} */ (document)) => root.querySelector(selector);
export const said = (text) => h("bdi", {}, text);
export const quiet = (...children) => h("span.quiet", children);
/** Whether the agent reported that the seller did not deliver what it was paid for. */
export const isUndelivered = (pay) => Boolean(pay?.outcome) && (pay.outcome.status_code < 200 || pay.outcome.status_code > 399);
export const words = (text) => text.replaceAll("_", " ");
export const whole = (text) => text && h("code", text);
export const link = (href, ...children) => h("a", { href }, children);
export const json = (value) => h("pre", JSON.stringify(value, null, 2));
const DIGITS = "0123456789abcdefghjkmnpqrstvwxyz";
/** When an object was created, from its identifier (a ULID, by rule R13). */
export const createdAt = (id) => new Date([...id.split("_")[1].slice(0, 10)].reduce((ms, digit) => ms * 32 + DIGITS.indexOf(digit), 0)).toISOString();
/** A field of an amount. */
export const SUM = { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,6})?" };
/** The words of a field with one a line. */
export const lines = (text) => text.split(/[\n,]/).map((each) => each.trim()).filter(Boolean);
const PAGES = { acct: "accounts", txn: "transfers", sess: "sessions" };
export const subject = (id) => {
	const page = PAGES[id.split("_")[0]];
	return page ? link(`#/${page}/${id}`, h("code", id)) : h("code", id);
};

/** An identifier or address, cut in its middle; other text stays whole. */
export function code(id) {
	const text = plain(id ?? "–");
	return h("code", { title: text }, text.length > 20 && /^\w+$/.test(text) ? `${text.slice(0, 9)}…${text.slice(-5)}` : text);
}

// Amounts stay strings, and so exact.
const USDC = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 });
const micro = (amount) => BigInt(amount.replace(".", ""));
export const usdc = (amount) => USDC.format(amount);
export const minus = (amount, less) => usdc(`${micro(amount) - micro(less)}E-6`);
export const big = (amount, after = " USDC") => h("p.amount", money(amount), h("small", after));
const CENTS = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
/** A balance; it is unknown while the chain does not respond. */
export const balanceOf = ({ balance_usdc: balance }, show = usdc) => (balance === null ? quiet("unknown") : show(balance));
/** About how much: what is shown exactly elsewhere. */
export const cents = (amount) => (Number(amount) && Number(amount) < 0.01 ? usdc(amount) : CENTS.format(amount));

/** An amount whose digits below a cent are quiet, and which aligns with those above and below it in a list. */
export function money(amount, sign = "") {
	const text = usdc(amount), end = text.indexOf(".") + 3, rest = text.slice(end);
	return h("span.usdc", { style: { "--digits": rest.length }, "data-digits": rest.length }, sign, text.slice(0, end), rest && h("span.sub", rest));
}

/** How much of a limit is used: amber from 80 % on, red at 100 %, and said. */
export function meter(meaning, total, parts) {
	const micros = (amount) => Math.round(amount * 1e6), limit = micros(total);
	const used = Object.values(parts).reduce((sum, part) => sum + micros(part), 0);
	const [look, state] = used >= limit ? ["bad", ", used up"] : used * 5 >= limit * 4 ? ["warn", `, ${Math.floor(used / limit * 100)} % used`] : ["", ""];
	return h(`div.meter.${look}`, { role: "img", "aria-label": meaning + state }, Object.entries(parts).map(([part, amount]) => h(`span.${part}`, { style: { flexGrow: amount / total || 0 } })));
}

/** The zone of all times that are shown. */
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** A moment in words, with its day unless that is today on the server. */
export function momentText(iso, app) {
	const at = new Date(iso), day = DAY.format(at);
	return day === DAY.format(app.now()) ? CLOCK.format(at) : `${day}, ${CLOCK.format(at)}`;
}

export const moment = (iso) => (iso ? using((app) => h("time", { datetime: iso, title: iso }, momentText(iso, app))) : quiet("–"));
const UNITS = { days: 86400000, h: 3600000, min: 60000, s: 1000 };

export function span(ms) {
	const [name, unit] = Object.entries(UNITS).find(([, unit]) => ms >= 1.5 * unit) ?? ["ms", 1];
	return `${Math.round(Math.max(0, ms) / unit)} ${name}`;
}

/** How long ago; of a moment that a clock puts into the future, too. */
export const ago = (ms) => (ms < 1000 ? "just now" : `${span(ms)} ago`);

export const facts = (labelled, show = (value) => value) => h("dl.facts", Object.entries(labelled).map(([label, value]) => {
	const shown = show(value);
	return is(shown) && [h("dt", words(label)), h("dd", shown)];
}));

/** What changed between two objects, as rows of field, before and after. */
export const changes = (before, after, show = (_, value) => valueOf(value)) => {
	const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])]
		.filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
	return names.length ? h("table", h("thead", h("tr", ["Field", "Before", "After"].map((head) => h("th", { scope: "col" }, head)))), h("tbody", names.map((name) =>
		h("tr", h("td", words(name)), [before, after].map((it) => h("td", it ? show(name, it[name]) : quiet("–"))))))) : quiet("Nothing changes.");
};

const valueOf = (value) => (value === undefined || value === null ? quiet("none") : typeof value === "object" ? h("code", JSON.stringify(value)) : said(String(value)));
export const fields = (it, names) => facts(Object.fromEntries(names.split(" ").map((name) => [name, it[name]])), whole);
/** A plural in the singular. */
export const singular = (noun) => noun.replace(/ies$/, "y").replace(/s$/, "");

const LOOKS = {
	settled: "ok", delivered: "ok", active: "ok", pending_approval: "warn", retrying: "warn", paused: "warn", low: "warn",
	rejected: "bad", failed: "bad", undelivered: "bad", redelivered: "ok",
};

export const badge = (status, label = status) => h(`span.badge.${LOOKS[status] ?? "info"}`, words(label));
export const count = (number, what) => quiet(`${number} ${what}${number === 1 ? "" : "s"}`);
export const button = (label, act, attributes) => h("button", { type: "button", click: act, ...attributes }, label);
/** What was refused in the form around a field, by the field's name. @type {any} */
const Faults = createContext({});
/** `options` are values or pairs of value and text. */
export const field = (label, name, props = {}) => h(Field, { label, name, ...props });

function Field({ label, name, options, look = "", value, ...props }) {
	const fault = useContext(Faults)[name];
	const given = { name, autocomplete: "off", "aria-invalid": fault && "true", ...props };
	const choices = options && (props.required ? options : [["", "All"], ...options]).map((option) => {
		const [each, text = each] = [option].flat();
		return h("option", { value: each, selected: each === (value ?? "") }, text);
	});
	return h(`label.field${look}`, h("span", label), options ? h("select", given, choices) : h(props.rows ? "textarea" : "input", { ...given, defaultValue: value ?? "" }),
		fault && h("span.fault.bad", { role: "alert" }, fault));
}

export const check = (label, name, checked = false) => h("label", { class: "check" }, h("input", { type: "checkbox", name, defaultChecked: checked }), label);
const valuesOf = (form) => /** @type {Record<string, string>} */ (Object.fromEntries(new FormData(form)));

export const form = (look, submit, attributes, ...children) => h(`form.${look}`, { ...attributes, submit: (event) => {
	event.preventDefault();
	submit(valuesOf(event.currentTarget));
} }, children);

/** What `work` of a dialog throws to leave it open, without a fault. */
export const STAY = new Error("");

/**
 * A dialog that asks. It ends with the values of its fields, or with what `work` makes of them: until that succeeds, the
 * dialog stays as it is and says why. Without fields, focus starts on Cancel: Enter alone moves no money. `kept` is never
 * left by Esc. What it is about was given when it was opened, and does not change with the page behind it.
 */
export function Dialog({ title, action, look = "primary", typed = "", cancel = "Cancel", wide = false, work, kept = false, body, end }) {
	const box = useRef(null), running = useRef(null), [{ text, faults }, blame] = useState({ text: "", faults: {} }), [isTyped, type] = useState(!typed);
	useLayoutEffect(() => {
		const { current } = box, back = $("button[type=button].cancel", current);
		current.showModal();
		if (!$("label:not(.typed)", current)) back?.focus();
		return () => end("");
	}, []);
	const submit = async (event) => {
		if (!work) return;
		event.preventDefault();
		if (running.current) return;
		const content = event.currentTarget, { current } = box;
		blame({ text: "", faults: {} });
		running.current = (async () => work(valuesOf(content)))();
		try {
			await running.current;
			current.close("go");
		} catch (error) {
			if (!current.open) return;
			running.current = null;
			const found = faultsOf(content, error);
			blame(found);
			content.elements[Object.keys(found.faults)[0]]?.focus();
		}
	};
	const close = () => end(work ? running.current ?? "" : box.current.returnValue && valuesOf($("form", box.current)));
	const stay = (event) => { if (kept && (event.type === "cancel" || event.key === "Escape")) event.preventDefault(); };
	return h(wide ? "dialog.wide" : "dialog", { ref: box, "aria-label": title, close, keydown: stay, cancel: stay, closedby: kept && "none" },
		h("form", { method: "dialog", submit }, h("h2", title), text && h("p.fault.problem", { role: "alert" }, text),
			h(Faults.Provider, { value: faults }, body,
				typed && field(`Type ${typed} to confirm`, "typed", { look: ".typed", input: (event) => type(event.target.value.trim() === typed) })),
			h("div.actions", cancel && button(cancel, () => box.current.close(), { class: "cancel" }), h("button", { value: "go", class: look, disabled: !isTyped }, action))));
}

/** What was refused, by field; what belongs to none, as text. */
function faultsOf(content, { message = "", summary = message, details = [] }) {
	const faults = {}, others = details.filter(({ field, message }) => {
		const name = field.split(/[.[]/)[0], isShown = content.elements[name]?.labels;
		if (isShown) faults[name] = message;
		return !isShown;
	});
	return { faults, text: [details.length && !others.length ? "" : summary, ...others.map((it) => `${it.field} ${it.message}`)].join(" ").trim() };
}

export const copies = (label, text, look = "") => using((app) => button(label, () => app.report(async () => {
	await navigator.clipboard.writeText(text).catch(() => { throw new Error("The browser does not allow copying."); });
	return "Copied.";
}), { class: look }));
