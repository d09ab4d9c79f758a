// @ts-check

const is = (value) => (value ?? false) !== false;

// Characters that hide or reorder text let one name pose as another. A joiner between two emoji draws one.
const HIDDEN = /(?<![\p{Extended_Pictographic}\p{EMod}\uFE0F](?=\u200D\p{Extended_Pictographic}))(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

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

export function svg(name, attributes, ...children) {
	const node = document.createElementNS("http://www.w3.org/2000/svg", name);
	for (const [key, value] of Object.entries(attributes)) if (is(value)) node.setAttribute(key, String(value));
	node.append(...children.flat(9).filter(is));
	return node;
}

export const $ = (selector, root = /** @type {any} */ (document)) => root.querySelector(selector);

export const said = (text) => h("bdi", text);
export const quiet = (...children) => h("span.quiet", children);
/** Whether the agent reported that the seller did not deliver what it was paid for. */
export const isUndelivered = (pay) => Boolean(pay?.outcome) && (pay.outcome.status_code < 200 || pay.outcome.status_code > 399);
export const words = (text) => text.replaceAll("_", " ");
export const whole = (text) => text && h("code", text);
export const link = (href, ...children) => h("a", { href }, children);
export const json = (value) => h("pre", JSON.stringify(value, null, 2));

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
	const node = h("span.usdc", sign, text.slice(0, end), rest && h("span.sub", rest));
	node.style.setProperty("--digits", String(rest.length));
	return node;
}

/** How much of a limit is used: amber from 80 % on, red at 100 %, and said. */
export function meter(meaning, total, parts) {
	const micros = (amount) => Math.round(amount * 1e6), limit = micros(total);
	const used = Object.values(parts).reduce((sum, part) => sum + micros(part), 0);
	const [look, state] = used >= limit ? ["bad", ", used up"] : used * 5 >= limit * 4 ? ["warn", `, ${Math.floor(used / limit * 100)} % used`] : ["", ""];
	return h(`div.meter.${look}`, { role: "img", "aria-label": meaning + state }, Object.entries(parts).map(([part, amount]) => h(`span.${part}`, { style: { flexGrow: amount / total || 0 } })));
}

/** The server's time: on a test chain it may stand still. */
export const clock = { now: () => Date.now() };

/** The zone of all times that are shown. */
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

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
	const heads = ["Field", "Before", "After"];
	return names.length ? table(heads, h("tbody", names.map((name) =>
		h("tr", cells(heads, [words(name), before ? show(name, before[name]) : quiet("–"), after ? show(name, after[name]) : quiet("–")])))))
		: quiet("Nothing changes.");
};

const valueOf = (value) => (value === undefined || value === null ? quiet("none") : typeof value === "object" ? h("code", JSON.stringify(value)) : said(String(value)));

export const fields = (it, names) => facts(Object.fromEntries(names.split(" ").map((name) => [name, it[name]])), whole);

/** A table whose cells keep their heads on a phone. `heads` are texts, or pairs of a text and a look. */
export const table = (heads, rows) => h("table", h("thead", h("tr", heads.map((head) => cell("th", head)))), rows);

/** A plural in the singular. */
export const singular = (noun) => noun.replace(/ies$/, "y").replace(/s$/, "");

const cell = (tag, head, ...content) => {
	const [text, look = ""] = [head].flat();
	return h(look ? `${tag}.${look}` : tag, tag === "th" ? { scope: "col" } : { "data-head": text }, tag === "th" ? text : content);
};

export const cells = (heads, values) => heads.map((head, i) => cell("td", head, values[i] ?? ""));

const LOOKS = {
	settled: "ok", delivered: "ok", active: "ok", pending_approval: "warn", retrying: "warn", paused: "warn", low: "warn",
	rejected: "bad", failed: "bad", undelivered: "bad", redelivered: "ok",
};

export const badge = (status, label = status) => h(`span.badge.${LOOKS[status] ?? "info"}`, words(label));

export const count = (number, what) => quiet(`${number} ${what}${number === 1 ? "" : "s"}`);

export const button = (label, act, attributes) => h("button", { type: "button", click: act, ...attributes }, label);

/** `options` are values or pairs of value and text, or a promise of them. */
export function field(label, name, { options, ...props } = /** @type {any} */ ({})) {
	const input = h(options ? "select" : props.rows ? "textarea" : "input", { name, autocomplete: "off", ...props });
	if (props.rows) input.value = props.value ?? "";
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

const all = (root, selector) => [...root.querySelectorAll(selector)];
const SLICE_MS = 12;

/** Let the browser draw and react, if this task has lasted long enough. */
async function breathe(since) {
	if (performance.now() - since < SLICE_MS) return since;
	await new Promise((resolve) => setTimeout(resolve));
	return performance.now();
}

/**
 * An element stays while its item is the same; a new one inherits focus, what is unfolded and what is checked. Many rows are created in
 * slices; a list that was empty grows with them.
 */
export async function show(parent, items, identity, render, none = null) {
	const turn = parent.turn = {}, old = new Map([...parent.children].map((node) => [node.itemKey, node])), nodes = [];
	let since = performance.now();
	for (const item of items) {
		const itemLooks = JSON.stringify(item), itemKey = identity(item), before = old.get(itemKey);
		if (before?.itemLooks === itemLooks) {
			nodes.push(before);
			continue;
		}
		nodes.push(Object.assign(render(item), { item, itemKey, itemLooks }));
		const now = await breathe(since);
		// A later call draws something newer.
		if (parent.turn !== turn) return;
		if (now !== since && !old.size) parent.append(...nodes.slice(parent.children.length));
		since = now;
	}
	if (none && !nodes.length) nodes.push(none);
	let focused = /** @type {any} */ (document.activeElement);
	const place = [...parent.children].findIndex((node) => node.contains(focused));
	for (const node of nodes) {
		const before = old.get(node.itemKey);
		if (!before || before === node) continue;
		if (before.contains(focused)) focused = all(node, PLACES)[all(before, PLACES).indexOf(focused)] ?? node;
		for (const [kind, state] of [["details", "open"], ["input.pick", "checked"]]) all(before, kind).forEach((each, i) => Object.assign(all(node, kind)[i] ?? {}, { [state]: each[state] }));
	}
	for (const node of [...parent.children]) if (!nodes.includes(node)) node.remove();
	nodes.forEach((node, i) => { if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null); });
	if (focused !== document.activeElement) focused?.focus({ preventScroll: true });
	if (place < 0 || parent.contains(document.activeElement)) return;
	// What had the focus is gone: the next row gets it, or the heading if there is none.
	const heir = nodes[Math.min(place, nodes.length - 1)];
	const next = heir?.matches("[tabindex]") ? heir : heir?.matches("[data-row]") ? $(PLACES, heir) : null;
	next?.focus({ preventScroll: true });
	if (!parent.contains(document.activeElement)) $("h1")?.focus({ preventScroll: true });
}

let telling = 0;

export function tell(text) {
	const region = $("#live");
	region.textContent = plain(text);
	clearTimeout(telling);
	telling = setTimeout(() => region.replaceChildren(), 8000);
}

/** Say at its field what was refused; what belongs to none, above all. */
function blame(content, { message = "", summary = message, details = [] } = /** @type {any} */ ({})) {
	for (const each of all(content, ".fault")) each.remove();
	for (const each of all(content, "[aria-invalid]")) each.removeAttribute("aria-invalid");
	const others = details.filter(({ field, message }) => {
		const input = content.elements[field.split(/[.[]/)[0]];
		if (!input?.labels) return true;
		input.ariaInvalid = "true";
		input.labels[0].append(h("span.fault.bad", { role: "alert" }, message));
		return false;
	});
	const text = [details.length && !others.length ? "" : summary, ...others.map((it) => `${it.field} ${it.message}`)].join(" ").trim();
	if (text) $("h2", content).after(h("p.fault.problem", { role: "alert" }, text));
	$("[aria-invalid]", content)?.focus();
}

/** What `work` of a dialog throws to leave it open, without a fault. */
export const STAY = new Error("");

/**
 * Ask in a dialog; return the values of its fields, or what `work` makes of them: until that succeeds, the dialog stays
 * as it is and says why. Without fields, focus starts on Cancel: Enter alone moves no money. `kept` is never left by Esc.
 */
export const ask = (/** @type {any} */ {
	title, action, look = "primary", typed = "", cancel = "Cancel", wide = false, work = null, kept = false,
}, ...body) => new Promise((resolve) => {
	const go = h("button", { value: "go", class: look, disabled: Boolean(typed) }, action);
	let running = null;
	const submit = async (event) => {
		if (!work) return;
		event.preventDefault();
		if (running) return;
		blame(content);
		running = (async () => work(valuesOf(content)))();
		try {
			await running;
			box.close("go");
		} catch (error) {
			if (!box.open) return;
			running = null;
			blame(content, error);
		}
	};
	const content = h("form", { method: "dialog", submit }, h("h2", title), body);
	const back = cancel && button(cancel, () => box.close(), { autofocus: !$("label", content) });
	const check = (event) => { go.disabled = event.target.value.trim() !== typed; };
	content.append(typed && field(`Type ${typed} to confirm`, "typed", { input: check }), h("div.actions", back, go));
	const close = () => {
		box.remove();
		resolve(work ? running ?? "" : box.returnValue && valuesOf(content));
	};
	const stay = (event) => { if (kept && (event.type === "cancel" || event.key === "Escape")) event.preventDefault(); };
	const box = h(wide ? "dialog.wide" : "dialog", { "aria-label": title, close, keydown: stay, cancel: stay, closedby: kept && "none" }, content);
	document.body.append(box);
	box.showModal();
});

/** Leave every dialog without an answer. */
export const dismiss = () => { for (const box of all(document, "dialog[open]")) box.close(); };

/** What a dialog is about stays where it is: lists are drawn again once no dialog is open. */
export const undisturbed = () => new Promise((resolve) => {
	const look = () => {
		const box = $("dialog[open]");
		if (box) box.addEventListener("close", () => setTimeout(look), { once: true });
		else resolve(undefined);
	};
	look();
});

export const copies = (label, text, look = "") => button(label, async () => {
	const outcome = await navigator.clipboard?.writeText(text).then(() => "Copied.", () => "");
	tell(outcome || "The browser does not allow copying.");
}, { class: look });

export const showSecret = (title, { key, secret = key }) => ask({ title, action: "I have stored it", cancel: "", kept: true },
	h("p", "It is never shown again."), h("p.secret", whole(secret), copies("Copy", secret)));

const WIDTH = 640, HEIGHT = 120;
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Zero, and two to four round amounts up to `top`. */
function ticks(top) {
	const power = 10 ** Math.floor(Math.log10(top / 2)), step = power * [5, 2, 1].find((each) => each * power <= top / 2);
	return [0, 1, 2, 3, 4].map((each) => each * step).filter((amount) => amount <= top);
}

/**
 * Spend by period against a daily limit, with a mark for refusals. `at` names a period. The limit is compared with the
 * day's bar; of hours, with their running total, which is drawn as a line.
 */
export function chart(data, limit, at, isOfHours = false) {
	const amounts = data.map((it) => Number(it.settled_usdc)), most = Math.max(...amounts, 0);
	const total = amounts.reduce((sum, amount) => sum + amount, 0);
	// A limit far above all spends would flatten them.
	const isLimitShown = limit !== null && limit <= (isOfHours ? total : most) * 4, hasSum = isOfHours && isLimitShown;
	const top = Math.max(hasSum ? total : most, isLimitShown ? limit : 0, 0.000001) * 1.08, step = WIDTH / data.length;
	const y = (amount) => HEIGHT - (amount / top) * HEIGHT, refused = data.reduce((sum, it) => sum + it.rejected, 0);
	if (!total && !refused) return h("p.quiet", `Nothing was spent from ${at(data[0].at)} to ${at(data.at(-1).at)}.`);
	const bars = data.map((it, i) => [
		svg("rect", { class: "hit", x: i * step, y: 0, width: step, height: HEIGHT },
			svg("title", {}, `${at(it.at)}: ${usdc(it.settled_usdc)} USDC${it.rejected ? `, ${it.rejected} rejected` : ""}`)),
		amounts[i] > 0 && svg("rect", {
			class: limit !== null && !isOfHours && amounts[i] > limit ? "bar over" : "bar", x: i * step + step * 0.12, width: step * 0.76, rx: 2,
			y: Math.min(y(amounts[i]), HEIGHT - 2), height: Math.max(2, HEIGHT - y(amounts[i])),
		}),
		it.rejected > 0 && svg("rect", { class: "refused", x: i * step + step * 0.12, width: step * 0.76, y: HEIGHT + 5, height: Math.min(11, 3 + it.rejected), rx: 1 }),
	]);
	let sum = 0;
	const sums = amounts.map((amount, i) => `${(i + 0.5) * step},${y(sum += amount)}`).join(" ");
	const meaning = `${usdc(total)} USDC spent from ${at(data[0].at)} to ${at(data.at(-1).at)}, ${refused} rejected`;
	const edge = (i) => h("span", at(data[i].at)), level = (look, amount) => svg("line", { class: look, x1: 0, x2: WIDTH, y1: y(amount), y2: y(amount) });
	return h("figure.chart", { role: "img", "aria-label": meaning },
		h("figcaption", h("strong", `${cents(total)} USDC`), refused > 0 && h("span.bad", `${refused} rejected`),
			h("span.grow"), quiet(`most in ${isOfHours ? "an hour" : "a day"} ${cents(most)}`), isLimitShown && h("span.limit", `limit ${cents(limit)} a day`)),
		h("div.plot",
			h("div.values", ticks(top).map((amount) => h("span", { style: { top: `${y(amount)}px` } }, SHORT.format(amount)))),
			svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 16}`, preserveAspectRatio: "none", "aria-hidden": "true" }, ticks(top).map((amount) => level("base", amount)), bars,
				hasSum && svg("polyline", { class: "sum", points: sums }), isLimitShown && level("limit", limit)),
			h("div.axis", edge(0), data.length > 2 && edge(data.length >> 1), edge(data.length - 1))));
}
