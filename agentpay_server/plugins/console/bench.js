// @ts-check

import { call, post } from "./api.js";
import { able, accountField, act, change, get, list, one } from "./page.js";
import { button, clock, code, field, form, h, moment, quiet, tell, usdc, words } from "./ui.js";

const CHAIN = {
	chain_down: "no response", chain_reply_lost: "sent and executed",
	chain_never_lands: "sent, never executed", chain_slow: "unknown at first",
};
const EFFECTS = { delay: "held for 3 s", internal_error: "500", unavailable: "503", rate_limited: "429", reset: "connection dropped", reply_lost: "processed, reply lost" };
const STEPS = { "Run what is due": 0, "+30 s": 30, "+5 min": 300, "+1 h": 3600, "+24 h": 86400 };

const advance = (seconds) => act(() => post("/sandbox/clock/advance", { seconds }), "The clock has moved.");
const fund = ({ account_id: id, amount }) =>
	act(() => post(`/sandbox/accounts/${id}/fund`, { amount }), `${usdc(amount)} test USDC minted.`);
const fault = (method, name, body) => act(() => call(method, `/sandbox/faults/${encodeURI(name)}`, { body }));
const armOnce = ({ operation, effect }) =>
	fault("PUT", `http:${operation}`, { times: 1, effect, delay_ms: effect === "delay" ? 3000 : undefined });

async function jump() {
	const lists = await Promise.all(["/console/deliveries?status=retrying&limit=100", "/console/approvals?limit=100"].map(get));
	const due = Math.min(...lists.flatMap(({ data }) => data.map((it) => Date.parse(it.next_attempt_at ?? it.expires_at))));
	if (due === Infinity) tell("No delivery and no approval is due.");
	else await advance(Math.max(0, (due - clock.now()) / 1000));
}

const section = (title, ...parts) => h("section.card", h("h2", title), parts);

export const bench = () => [h("div.benches",
	section("Clock", one("/sandbox/clock", ({ now }) => h("p.amount", moment(now))),
		able.clock ? h("div.actions", Object.entries(STEPS).map(([label, seconds]) => button(label, () => advance(seconds))), button("To the next due", jump))
			: h("p.quiet", "This server runs on the system's clock. Start one with --clock manual to move time.")),
	section("Fund", form("fields", fund, accountField(), field("USDC", "amount", { value: "100", required: true }), h("button", "Fund"))),
	section("Rewind", able.points ? [
		list({
			path: "/sandbox/snapshots", query: { limit: 64 }, as: "ul.rows", row: pointRow,
			none: ["No points yet. Save one, or:", "server.sandbox.snapshot()"],
		}),
		savePoint()] : h("p.quiet", "This server stores its data outside its memory, so it keeps no points to go back to.")),
	section("Faults",
		list({
			path: "/sandbox/faults", as: "ul.rows",
			present: (armed, draw) => {
				const names = new Set([...Object.keys(CHAIN), ...armed.map((it) => it.name)]);
				draw([...names].map((name) => ({ name, ...armed.find((it) => it.name === name) })));
			},
			row: faultRow,
		}),
		form("fields", armOnce, field("Request", "operation", { value: "POST /v1/transfers", required: true }),
			field("Outcome", "effect", { options: Object.entries(EFFECTS), required: true }), h("button", "Arm once"))))];

function faultRow({ name, times, effect }) {
	const isOn = times !== undefined, toggle = () => (isOn ? fault("DELETE", name) : fault("PUT", name, {}));
	return [
		button(isOn ? "On" : "Off", toggle, { role: "switch", "aria-checked": String(isOn), "aria-label": words(name) }),
		[h("strong", words(name)), h("br"), quiet(CHAIN[name] ?? EFFECTS[effect], times && ` · ${times} times`)],
	];
}

export async function points(after) {
	const { data } = await get("/sandbox/snapshots?limit=64");
	return data.map((point) => ({ id: point.snapshot_id, at: point.created_at, point })).filter((row) => row.at >= after);
}

export const savePoint = () => button("Save this point", () => act(() => post("/sandbox/snapshots"), "Saved."));

export const pointRow = (it) => h("li.row.point", moment(it.created_at), h("span.grow", "Saved point ", code(it.snapshot_id)),
	change("Go back", "Everything created since is gone, for every operator of this server.",
		() => post(`/sandbox/snapshots/${it.snapshot_id}/restore`).then(() => "Restored."),
		{ title: "Go back to this point?", action: "Go back" }));
