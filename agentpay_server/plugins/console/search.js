// @ts-check

import { read } from "./api.js";
import { $, badge, balanceOf, code, h, link, moment, quiet, said, usdc } from "./ui.js";

const WAIT_MS = 120;

/**
 * Find anything on the server, from every page: a dialog with one field, and links to what is found. `offers` are links
 * and buttons, of which those are shown whose words begin with what is typed.
 */
export function find(offers) {
	if ($("dialog[open]")) return;
	const offered = h("div"), found = h("div"), results = h("div.results", { "aria-live": "polite" }, offered, found);
	const input = h("input", {
		type: "search", "aria-label": "Search", autocomplete: "off", autofocus: true,
		placeholder: "Name, address, identifier, signature, memo, amount", maxlength: 200,
	});
	for (const offer of offers) offer.className = "";
	let wait = 0, turn = 0;
	const look = async () => {
		const mine = ++turn, q = input.value.trim();
		if (!q) return found.replaceChildren();
		try {
			const all = await read(`/console/search?limit=6&q=${encodeURIComponent(q)}`);
			if (mine === turn) found.replaceChildren(...groups(all, q, Boolean(offered.firstChild)));
		} catch (error) {
			if (mine === turn) found.replaceChildren(h("p.problem", error.message));
		}
	};
	input.addEventListener("input", () => {
		const typed = input.value.trim().toLowerCase(), fit = offers.filter((it) => typed && ` ${it.textContent}`.toLowerCase().includes(` ${typed}`));
		offered.replaceChildren(...fit.length ? [group("Actions", fit)] : []);
		clearTimeout(wait);
		wait = setTimeout(look, WAIT_MS);
	});
	const box = h("dialog.search", { "aria-label": "Search", close: () => box.remove() }, h("div", input, results));
	// Before the action opens its own dialog.
	box.addEventListener("click", ({ target }) => { if (target === box || target.closest("a, button")) box.close(); }, { capture: true });
	box.addEventListener("keydown", (event) => {
		const links = [...results.querySelectorAll("a, button")], on = links.indexOf(document.activeElement);
		if (event.key === "ArrowDown") (links[on + 1] ?? links[0])?.focus();
		else if (event.key === "ArrowUp") (links[on - 1] ?? input).focus();
		else if (event.key === "Enter" && event.target === input) links[0]?.click();
		else return;
		event.preventDefault();
	});
	document.body.append(box);
	box.showModal();
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
