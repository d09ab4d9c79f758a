// @ts-check

import { badge, balanceOf, code, h, link, moment, quiet, said, usdc, useApp, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const WAIT_MS = 120;

/**
 * Find anything on the server, from every page: a dialog with one field, and links to what is found. `offers` are words
 * with a link or a button, of which those are shown whose words begin with what is typed.
 */
export function Search({ offers, close }) {
	const app = useApp(), box = useRef(null), [typed, type] = useState(""), [found, show] = useState(/** @type {any} */ (null)), q = typed.trim();
	useLayoutEffect(() => box.current.showModal(), []);
	useEffect(() => {
		if (!q) return show(null);
		const wanted = new AbortController(), { signal } = wanted;
		const wait = setTimeout(() => app.get("/console/search", { query: { limit: 6, q }, signal }).then(
			(all) => show({ q, all }), ({ message }) => { if (!signal.aborted) show({ message }); }), WAIT_MS);
		return () => {
			clearTimeout(wait);
			wanted.abort();
		};
	}, [q]);
	const fit = offers.filter(([words]) => q && ` ${words}`.toLowerCase().includes(` ${q.toLowerCase()}`)).map(([, offer]) => offer);
	const press = (event) => {
		const links = [...box.current.querySelectorAll(".results :is(a, button)")], on = links.indexOf(document.activeElement), input = box.current.querySelector("input");
		if (event.key === "ArrowDown") (links[on + 1] ?? links[0])?.focus();
		else if (event.key === "ArrowUp") (links[on - 1] ?? input).focus();
		else if (event.key === "Enter" && event.target === input) links[0]?.click();
		else return;
		event.preventDefault();
	};
	// Before the action opens its own dialog.
	const leave = ({ target }) => { if (target === box.current || target.closest("a, button")) box.current.close(); };
	return h("dialog.search", { ref: box, "aria-label": "Search", close, clickCapture: leave, keydown: press }, h("div",
		h("input", {
			type: "search", "aria-label": "Search", autocomplete: "off", autofocus: true, input: ({ target }) => type(target.value),
			placeholder: "Name, address, identifier, signature, memo, amount", maxlength: 200,
		}),
		h("div.results", { "aria-live": "polite" }, fit.length > 0 && group("Actions", fit),
			found && (found.message ? h("p.problem", found.message) : groups(found.all, found.q, fit.length > 0)))));
}

const group = (label, items) => h("section", h("h3", label), h("ul", items.map((item) => h("li", item))));

function groups({ accounts, transfers, sessions, deposits, events, parts_since: since }, q, isOffered) {
	const all = [
		["Accounts", accounts, (it) => [`accounts/${it.account_id}`, h("strong", said(it.name)), quiet(said(it.handle)), h("span.number", balanceOf(it))]],
		["Transfers and payments", transfers, (it) => [
			`transfers/${it.transfer_id}`, h("strong", usdc(it.amount_usdc)), quiet(it.memo ? said(it.memo) : code(it.transfer_id)), badge(it.status)]],
		["Sessions", sessions, (it) => [`sessions/${it.session_id}`, h("strong", `${usdc(it.cap_usdc)} cap`), quiet(code(it.session_id)), badge(it.status)]],
		["Deposits", deposits, (it) => [`accounts/${it.account_id}`, h("strong", usdc(it.amount_usdc)), quiet(code(it.tx_signature)), moment(it.created_at)]],
		["Events", events, (it) => [`timeline?q=${it.data.transfer_id ?? it.data.session_id ?? it.id}`, h("strong", it.type), quiet(code(it.id)), moment(it.created_at)]],
	];
	const shown = all.filter(([, items]) => items.length).map(([label, items, row]) => group(label, items.map((item) => {
		const [page, ...parts] = row(item);
		return link(`#/${page}`, parts);
	})));
	return [
		...shown, !shown.length && !isOffered && h("p.empty", "Nothing found for ", h("q", said(q)), "."),
		since && h("p.quiet", "Parts of memos and origins were looked for back to ", moment(since), ". Everything else was looked for in all."),
	].filter(Boolean);
}
