// @ts-check

import { post } from "./api.js";
import { change, filters, list, one, party, titled } from "./page.js";
import { badge, big, facts, h, link, meter, moment, quiet, said, usdc, whole, words } from "./ui.js";

export const sessions = ({ id }) => (id ? one("/sessions/{session_id}", { session_id: id }, session) : [
	filters({
		account_id: ["Account", { picks: true }],
		status: ["Status", { options: ["opening", "open", "closing", "settled", "failed"] }],
	}),
	list({
		path: "/sessions", exports: "sessions",
		heads: ["Opened", "Status", "From → to", "Charged of cap", ["USDC", "number"], ["", "end"]],
		cols: "8.5rem 6.5rem minmax(0, 1fr) minmax(0, .5fr) 9rem 3.5rem",
		none: ["No sessions. An agent opens one with a cap:", 'client.sessions.open(account_id=…, to=…, cap_usdc="3")'],
		row: (it) => [
			moment(it.opened_at), badge(it.status), [party(it.account_id), quiet(" → "), payee(it)], chargedMeter(it),
			h("span.number", h("strong", usdc(it.running_total_usdc)), quiet(` of ${usdc(it.cap_usdc)}`)), link(`#/sessions/${it.session_id}`, "Open"),
		],
	}),
]);

/** Who is paid: over HTTP 402 the seller, whose address says nothing. */
const payee = (it) => (it.origin ? [said(it.origin), quiet(" · MPP")] : party(it.to));
const chargedMeter = ({ running_total_usdc: total, cap_usdc: cap }) => meter(`${usdc(total)} of ${usdc(cap)} USDC charged`, cap, { spent: total });

function charged({ running_total_usdc: total, cap_usdc: cap, status, ...it }) {
	const end = { settled: `${usdc(it.settled_usdc)} paid, ${usdc(it.returned_usdc)} returned`, failed: "Never funded" };
	return [
		h("div.head", h("span.grow", party(it.account_id), quiet(" → "), payee(it)), badge(status)),
		big(total, ` of ${usdc(cap)} USDC`), chargedMeter({ running_total_usdc: total, cap_usdc: cap }),
		h("p", end[status] ?? (it.protocol === "mpp" ? "Locked in its channel until the seller settles, or until it is closed by force" : "In escrow until it closes"), it.closing_reason && h("span.warn", ` · ${words(it.closing_reason)}`)),
	];
}

const session = (it, app) => [titled(`Session of ${app.nameOf(it.account_id)}`), h("div.page",
	h("div.card", charged(it), it.status === "open" && h("div.actions",
		change("Close", `${usdc(it.running_total_usdc)} USDC go to the payee; the rest returns.${it.protocol === "mpp" ? " If the seller does not settle, the channel is closed by force after its grace period." : ""}`,
			() => post("/sessions/{session_id}/close", { session_id: it.session_id }).then(() => "Closed."),
			{ title: `Close the session of ${app.nameOf(it.account_id)}?`, action: "Close" }))),
	h("div.card",
		facts({
			Opened: moment(it.opened_at), Settled: it.settled_at && moment(it.settled_at), Kind: KINDS[it.protocol] ?? it.protocol, Category: it.category && said(it.category),
			URL: it.url && said(it.url), Session: whole(it.session_id), "Paid to": whole(it.to), [it.channel ? "Channel" : "Escrow"]: whole(it.channel ?? it.escrow_token_account),
			"Opening transaction": whole(it.tx_signature), "Settling transaction": whole(it.settlement_tx_signature),
		}),
		h("p", link(`#/timeline?q=${it.session_id}`, "All events"))))];

const KINDS = { __proto__: null, mpp: "MPP session: the seller collects vouchers over HTTP 402", escrow: "Escrow: the payee's charges are posted by this server" };
