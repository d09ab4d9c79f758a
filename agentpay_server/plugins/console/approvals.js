// @ts-check

import { post, read } from "./api.js";
import { change, list, party } from "./page.js";
import { ago, big, facts, field, h, link, minus, quiet, said, span, usdc, whole, words } from "./ui.js";

export const approvals = ({ app }) => list({
	path: "/console/approvals", look: ".approvals", grows: true, exports: "approvals", query: { sort: "expires" },
	none: ["No transfer waits. Let a policy ask for approval:", "client.policies.update(account_id, escalation_threshold=20)"],
	present: async (items) => {
		await app.details(items.map((it) => it.from));
		return items.map((it) => judged(it, app));
	},
	row: (it) => h("li.approval", { tabindex: -1, "data-row": "" },
		big(it.amount_usdc),
		h("div.about",
			h("p", party(it.from), quiet(" pays "), party(it.to)),
			h("p", memoOf(it), it.category && quiet(" · ", said(it.category)), " ", link(`#/transfers/${it.transfer_id}`, "Details")),
			it.splits && splitsOf(it)),
		h("div.about.quiet", h("p", `Asked ${it.age}${it.ends ? `, expires in ${it.ends}` : ""}`), h("p", "Leaves ", afterwards(it))),
		h("div.actions", reject(it, app), approve(it, app))),
});

/** A pending transfer with what is left after it. */
export const judged = (it, app) => ({
	...it, left: remains(it, app), age: ago(app.now() - Date.parse(it.created_at)), ends: it.expires_at && span(Date.parse(it.expires_at) - app.now()),
});

export const stakes = (it) => facts({
	Splits: splitsOf(it), Category: it.category && said(it.category), Asked: it.age, "Expires in": it.ends, Leaves: afterwards(it),
});

export const splitsOf = ({ splits }) => splits?.map((part) => h("div", `${usdc(part.amount_usdc)} of it to `, whole(part.recipient)));
export const memoOf = ({ memo }) => (memo ? h("q", said(memo)) : quiet("No memo"));

function remains({ from, amount_usdc: amount }, app) {
	const { balance_usdc: balance, remaining_usdc: left, policy } = app.accountOf(from);
	return balance !== undefined && `${balance === null ? "an unknown" : minus(balance, amount)} balance${left ? `, ${minus(left, amount)} of ${usdc(policy.max_daily_spend)} a day` : ""}`;
}

const afterwards = ({ left }) => left && h(left.includes("-") ? "span.bad" : "span", left);
/** A decision's question names its object. */
const question = (verb, it, { nameOf }) => `${verb} ${usdc(it.amount_usdc)} USDC from ${nameOf(it.from)} to ${nameOf(it.to)}?`;

export function approve(it, app) {
	const sum = usdc(it.amount_usdc), { nameOf } = app;
	const details = () => facts({
		From: said(nameOf(it.from)), To: [said(nameOf(it.to)), " ", whole(it.to)],
		Splits: splitsOf(it), Memo: memoOf(it), Leaves: afterwards(it),
	});
	return change("Approve", details, () => decide(it, "approve", `${sum} USDC paid to ${nameOf(it.to)}.`),
		{ title: question("Pay", it, app), action: `Pay ${sum} USDC`, typed: app.me.is_test_money ? "" : sum, look: "primary", "data-hot": "a" });
}

export function reject(it, app) {
	const done = `Rejected: ${usdc(it.amount_usdc)} USDC stay with ${app.nameOf(it.from)}.`;
	return change("Reject", () => [h("p", memoOf(it)), field("Reason, shown to the agent (optional)", "reason", { maxlength: 200 })],
		({ reason }) => decide(it, "reject", done, { reason: reason.trim() || undefined }),
		{ title: question("Reject", it, app), action: "Reject", "data-hot": "r" });
}

/** Send a decision; return what became of the transfer. Approval does not yet pay behind HTTP 402. */
async function decide({ transfer_id }, /** @type {"approve" | "reject"} */ what, done, /** @type {any} */ body = undefined) {
	try {
		const { status } = await post(`/console/approvals/{transfer_id}/${what}`, { transfer_id, body });
		return what === "reject" || status === "settled" ? done : "Approved.";
	} catch (error) {
		// The transfer is refused: that is decided.
		if (error.status === 402) return error.message;
		if (error.code !== "not_pending") throw error;
		const { status, message } = await read("/v1/transfers/{transfer_id}", { transfer_id });
		return `Somebody else was faster: this transfer is ${words(status)}. ${message ?? ""}`;
	}
}
