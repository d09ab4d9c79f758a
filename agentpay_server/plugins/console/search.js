// @ts-check

import { read } from "./api.js";
import { $, badge, balanceOf, code, h, link, moment, quiet, said, usdc } from "./ui.js";

const WAIT_MS = 120;

/** Find anything on the server, from every page: a dialog with one field, and links to what is found. */
export function find() {
	if ($("dialog[open]")) return;
	const results = h("div.results", { "aria-live": "polite" });
	const input = h("input", {
		type: "search", "aria-label": "Search", autocomplete: "off", autofocus: true,
		placeholder: "Name, address, identifier, signature, memo, amount", maxlength: 200,
	});
	let wait = 0, turn = 0;
	const look = async () => {
		const mine = ++turn, q = input.value.trim();
		if (!q) return results.replaceChildren();
		try {
			const found = await read(`/console/search?limit=6&q=${encodeURIComponent(q)}`);
			if (mine === turn) results.replaceChildren(...groups(found, q));
		} catch (error) {
			if (mine === turn) results.replaceChildren(h("p.problem", error.message));
		}
	};
	input.addEventListener("input", () => {
		clearTimeout(wait);
		wait = setTimeout(look, WAIT_MS);
	});
	const box = h("dialog.search", { "aria-label": "Search", close: () => box.remove(), click: (event) => {
		if (event.target === box || event.target.closest("a")) box.close();
	} }, h("div", input, results));
	box.addEventListener("keydown", (event) => {
		const links = [...results.querySelectorAll("a")], on = links.indexOf(document.activeElement);
		if (event.key === "ArrowDown") (links[on + 1] ?? links[0])?.focus();
		else if (event.key === "ArrowUp") (links[on - 1] ?? input).focus();
		else if (event.key === "Enter" && event.target === input) links[0]?.click();
		else return;
		event.preventDefault();
	});
	document.body.append(box);
	box.showModal();
}

function groups({ accounts, transfers, sessions, deposits, events, parts_since: since }, q) {
	const all = [
		["Accounts", accounts, (it) => [`accounts/${it.account_id}`, h("strong", said(it.name)), quiet(said(it.handle)), h("span.number", balanceOf(it))]],
		["Transfers and payments", transfers, (it) => [
			`transfers/${it.transfer_id}`, h("strong", usdc(it.amount_usdc)), quiet(it.memo ? said(it.memo) : code(it.transfer_id)), badge(it.status)]],
		["Sessions", sessions, (it) => [`sessions/${it.session_id}`, h("strong", `${usdc(it.cap_usdc)} cap`), quiet(code(it.session_id)), badge(it.status)]],
		["Deposits", deposits, (it) => [`accounts/${it.account_id}`, h("strong", usdc(it.amount_usdc)), quiet(code(it.tx_signature)), moment(it.created_at)]],
		["Events", events, (it) => [`timeline?q=${it.data.transfer_id ?? it.data.session_id ?? it.id}`, h("strong", it.type), quiet(code(it.id)), moment(it.created_at)]],
	];
	const shown = all.filter(([, items]) => items.length).map(([label, items, row]) => h("section", h("h3", label), h("ul", items.map((item) => {
		const [page, ...parts] = row(item);
		return h("li", link(`#/${page}`, parts));
	}))));
	return [
		...shown, !shown.length && h("p.empty", "Nothing found for ", h("q", said(q)), "."),
		since && h("p.quiet", "Parts of memos and origins were looked for back to ", moment(since), ". Everything else was looked for in all."),
	].filter(Boolean);
}
