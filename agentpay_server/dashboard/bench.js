// @ts-check

import { call, post } from "./api.js";
import { able, accountField, act, change, get, list, one, reload } from "./page.js";
import { $, ask, button, clock, code, copies, dismiss, field, form, h, moment, plain, quiet, said, tell, usdc, whole, words } from "./ui.js";

const CHAIN = {
	chain_down: "no response", chain_reply_lost: "sent and executed",
	chain_never_lands: "sent, never executed", chain_slow: "unknown at first",
};
const EFFECTS = { delay: "held for 3 s", internal_error: "500", reset: "connection dropped", reply_lost: "processed, reply lost" };
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
	section("Scene", sceneForm()),
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

/** A scene that comes with the server, or a document: the text of the chosen one can be changed. */
function sceneForm() {
	const known = new Map(), problem = h("div.problem", { role: "alert" }), state = h("p.quiet");
	const loaded = get("/sandbox/scenes?limit=100").then(({ data }) => {
		for (const it of data.sort((one, other) => Number(one.name.includes(".")) - Number(other.name.includes(".")))) known.set(it.name, it);
		return [...[...known.keys()].map((name) => [name, words(name)]), ["own", "A document of your own"]];
	});
	const choice = field("Scene", "name", { options: loaded, required: true, "aria-label": "Scene" });
	const text = field("Document", "document", { rows: 12, required: true, spellcheck: "false", placeholder: '[accounts.agent]\nname = "Agent"\nbalance_usdc = "100"' });
	const go = h("button", "Build"), choose = () => {
		const { document: content = "", description = "It is TOML: accounts, and what belongs to them." } = known.get($("select", choice).value) ?? {};
		$("textarea", text).value = content;
		state.textContent = description;
		problem.textContent = "";
	};
	choice.addEventListener("change", choose);
	loaded.then(() => setTimeout(choose), (error) => { problem.textContent = plain(error.message); });
	return form("stack", async ({ name, document: content }) => {
		// A form ends lines by CR and LF.
		const written = content.replaceAll("\r\n", "\n");
		[go.disabled, go.textContent, problem.textContent] = [true, "Building…", ""];
		const built = await post("/sandbox/scenes", known.get(name)?.document === written ? { name } : { document: written }).catch((error) => {
			// Each fault has its own line; of an invalid document they say all.
			const told = error.code === "invalid_request" ? error.faults : [error.summary, ...error.faults];
			problem.replaceChildren(...told.map((line) => h("p", plain(line))));
		});
		[go.disabled, go.textContent] = [false, "Build"];
		if (built) await showScene(built);
		reload();
	}, choice, state, text, problem, h("div.actions", go));
}

const showScene = ({ accounts, agent_keys: keys, webhook_ids: webhooks, webhook_secrets: secrets, history }) => ask(
	{ title: "The scene is built", action: "Close", cancel: "", wide: true, kept: [...Object.values(keys).flat(), ...secrets].length > 0 },
	Object.entries(accounts).map(([name, id]) => [h("p", leave(`#/accounts/${id}`, said(name)), " ", code(id)), keys[name].map(secretLine)]),
	secrets.map((secret, i) => [h("p", "Secret of the webhook ", code(webhooks[i])), secretLine(secret)]),
	history.some(Boolean) && h("p", "History: ", history.filter(Boolean).map((id) => [
		leave(id.startsWith("sess_") ? `#/sessions/${id}` : `#/transfers/${id}`, code(id)), " "])),
	[...Object.values(keys).flat(), ...secrets].length > 0 && h("p", "Keys and secrets are never shown again."));

/** A link that closes the dialog in which it is. */
const leave = (href, ...children) => h("a", { href, click: dismiss }, children);

const secretLine = (secret) => h("p.secret", whole(secret), copies("Copy", secret));

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
