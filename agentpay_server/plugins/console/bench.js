// @ts-check

import { call, post } from "./api.js";
import { accountField, change, does, list, one } from "./page.js";
import { code, field, form, h, moment, quiet, usdc, words } from "./ui.js";

const CHAIN = {
	chain_down: "no response", chain_reply_lost: "sent and executed",
	chain_never_lands: "sent, never executed", chain_slow: "unknown at first",
};
const EFFECTS = { delay: "held for 3 s", internal_error: "500", unavailable: "503", rate_limited: "429", reset: "connection dropped", reply_lost: "processed, reply lost" };
const STEPS = { "Run what is due": 0, "+30 s": 30, "+5 min": 300, "+1 h": 3600, "+24 h": 86400 };
const advance = (seconds) => post("/sandbox/clock/advance", { body: { seconds } }).then(() => "The clock has moved.");
const fund = ({ account_id, amount }) => post("/sandbox/accounts/{account_id}/fund", { account_id, body: { amount } }).then(() => `${usdc(amount)} test USDC minted.`);
const arm = (name, body) => call("PUT", "/sandbox/faults/{name}", { name, body });
const armOnce = ({ operation, effect }) => arm(`http:${operation}`, { times: 1, effect, delay_ms: effect === "delay" ? 3000 : undefined });

async function jump({ get, now }) {
	const query = { limit: 100 }, lists = await Promise.all([get("/console/deliveries", { query: { ...query, status: "retrying" } }), get("/console/approvals", { query })]);
	const due = Math.min(...lists.flatMap(({ data }) => data.map((it) => Date.parse(it.next_attempt_at ?? it.expires_at))));
	return due === Infinity ? "No delivery and no approval is due." : advance(Math.max(0, (due - now()) / 1000));
}

const section = (title, ...parts) => h("section.card", h("h2", title), parts);

export const bench = ({ app }) => h("div.benches",
	section("Clock", one("/sandbox/clock", {}, ({ now }) => h("p.amount", moment(now))),
		app.state.summary.is_clock_manual ? h("div.actions", Object.entries(STEPS).map(([label, seconds]) => does(label, () => advance(seconds))), does("To the next due", jump))
			: h("p.quiet", "This server runs on the system's clock. Start one with --clock manual to move time.")),
	section("Fund", form("fields", (given) => app.act(() => fund(given)), {}, accountField(), field("USDC", "amount", { value: "100", required: true }), h("button", "Fund"))),
	section("Rewind", app.state.summary.keeps_snapshots ? [
		list({
			path: "/sandbox/snapshots", query: { limit: 64 }, row: pointRow,
			none: ["No points yet. Save one, or:", "server.sandbox.snapshot()"],
		}),
		savePoint()] : h("p.quiet", "This server stores its data outside its memory, so it keeps no points to go back to.")),
	section("Faults",
		list({
			path: "/sandbox/faults",
			present: (armed) => {
				const names = new Set([...Object.keys(CHAIN), ...armed.map((it) => it.name)]);
				return [...names].map((name) => /** @type {any} */ ({ name, ...armed.find((it) => it.name === name) }));
			},
			row: faultRow,
		}),
		form("fields", (given) => app.act(() => armOnce(given)), {}, field("Request", "operation", { value: "POST /v1/transfers", required: true }),
			field("Outcome", "effect", { options: Object.entries(EFFECTS), required: true }), h("button", "Arm once"))));

function faultRow({ name, times, effect }) {
	const isOn = times !== undefined;
	return [
		does(isOn ? "On" : "Off", () => (isOn ? call("DELETE", "/sandbox/faults/{name}", { name }) : arm(name, {})), undefined, { role: "switch", "aria-checked": String(isOn), "aria-label": words(name) }),
		[h("strong", words(name)), h("br"), quiet(CHAIN[name] ?? EFFECTS[effect], times && ` · ${times} times`)],
	];
}

export async function points({ get }, after) {
	const { data } = await get("/sandbox/snapshots", { query: { limit: 64 } });
	return data.map((point) => ({ id: point.snapshot_id, at: point.created_at, point })).filter((row) => row.at >= after);
}

export const savePoint = () => does("Save this point", () => post("/sandbox/snapshots"), "Saved.");

export const pointRow = (it) => h("li.row.point", { "data-row": "" }, moment(it.created_at), h("span.grow", "Saved point ", code(it.snapshot_id)),
	change("Go back", "Everything created since is gone, for every operator of this server.",
		() => post("/sandbox/snapshots/{snapshot_id}/restore", { snapshot_id: it.snapshot_id }).then(() => "Restored."),
		{ title: "Go back to this point?", action: "Go back" }));
