// @ts-check
// The test bench: time, money from nowhere, faults, and points of the world to go back to. Test chains only.

import { call } from "./api.js";
import { accounts, confirmed } from "./data.js";
import { button, clock, code, empty, field, h, moment, plain, quiet, show, tell, usdc, words } from "./ui.js";

const CHAIN = { chain_down: "No call to the chain is answered", chain_reply_lost: "A send executes, its reply is lost", chain_never_lands: "A send never executes", chain_slow: "A transaction is not known at first" };
const OPERATIONS = ["POST /v1/transfers", "GET /v1/transfers/{transfer_id}", "GET /v1/accounts", "GET /v1/accounts/{account_id}/balance", "POST /sessions", "POST /sessions/{session_id}/charges"];
const EFFECTS = { delay: "held for 3 s", internal_error: "500", reset: "connection dropped", reply_lost: "processed, reply lost" };
const STEPS = { "Run what is due": 0, "+30 s": 30, "+5 min": 300, "+1 h": 3600, "+24 h": 86400 };

export function bench(view) {
  const change = (done, method, path, body = undefined) => view.act(() => call(method, `/sandbox/${path}`, { body }), done);
  const arm = (name, body) => change(`${words(name)} is armed.`, "PUT", `faults/${encodeURI(name)}`, body), disarm = (name) => change("Disarmed.", "DELETE", `faults/${encodeURI(name)}`);
  const advance = (seconds) => change(seconds ? "The clock has moved, and what fell due has run." : "What was due has run.", "POST", "clock/advance", { seconds });
  const jump = async () => {
    const [retries, waits] = await Promise.all(["/console/deliveries?status=retrying&limit=100", "/console/approvals?limit=100"].map(view.get));
    const due = Math.min(...[...retries.data.map((it) => it.next_attempt_at), ...waits.data.map((it) => it.expires_at)].filter(Boolean).map(Date.parse));
    if (due === Infinity) tell("No delivery and no approval is due.");
    else await advance(Math.max(0, (due - clock.now()) / 1000));
  };
  const form = (act, label, ...fields) => h("form.fields", { submit: (event) => { event.preventDefault(); act(Object.fromEntries(new FormData(event.target))); } }, fields, h("button", label));
  const time = h("p.amount"), faults = h("ul.rows"), saved = h("ul.rows"), armed = new Set();
  const switches = Object.entries(CHAIN).map(([name, what]) => [name, what, button("", () => (armed.has(name) ? disarm(name) : arm(name, {})), { role: "switch", "aria-label": words(name), look: "switch" })]);
  const disarmAll = button("Disarm all", () => change("Nothing fails any more.", "DELETE", "faults"));
  view.root.append(h("div.benches", [
    ["Clock", time, h("div.actions", Object.entries(STEPS).map(([label, seconds]) => button(label, () => advance(seconds))), button("To the next due", jump))],
    ["Fund", form(({ account_id, amount }) => change(`${usdc(amount)} test USDC minted.`, "POST", `accounts/${account_id}/fund`, { amount }), "Fund",
      field("Account", "account_id", { options: accounts(view) }), field("USDC", "amount", { value: "100", required: true, inputmode: "decimal", pattern: "[0-9]{1,9}(\\.[0-9]{1,6})?" }))],
    ["Rewind", saved, savePoint(view)],
    ["Chain faults", h("ul.rows", switches.map(([name, what, toggle]) => h("li.row", toggle, h("span.grow", h("strong", words(name)), h("br"), quiet(what)), button("Once", () => arm(name, { times: 1 }), { "aria-label": `Arm ${words(name)} once` }))))],
    ["Request faults", form(({ operation, effect }) => arm(`http:${operation}`, { times: 1, effect, ...(effect === "delay" && { delay_ms: 3000 }) }), "Arm once",
      field("Request", "operation", { options: OPERATIONS.map((it) => [it, it]) }), field("Outcome", "effect", { options: Object.entries(EFFECTS) }))],
    ["Armed", faults, disarmAll],
  ].map(([title, ...parts]) => h("section.card", h("h2", title), parts))));
  view.load(async () => {
    const [{ now }, { data }, all] = await Promise.all([view.get("/sandbox/clock"), view.get("/sandbox/faults?limit=100"), points(view)]);
    time.replaceChildren(moment(now));
    armed.clear();
    for (const it of data) armed.add(it.name);
    for (const [name, , toggle] of switches) {
      toggle.setAttribute("aria-checked", armed.has(name));
      toggle.textContent = armed.has(name) ? "On" : "Off";
    }
    disarmAll.hidden = !data.length;
    show(faults, data, "name", (it) => h("li.row", h("span.grow", plain(it.name), quiet(it.effect ? ` · ${words(it.effect)}` : "", it.times ? ` · ${it.times} times` : " · until disarmed")), button("Disarm", () => disarm(it.name), { "aria-label": `Disarm ${it.name}` })), empty("Nothing is armed. Arm a fault here, or:", 'server.sandbox.set_fault("chain_down")'));
    show(saved, all, "id", (it) => pointRow(view, it.point), empty("No points yet. Save one, try something, and go back; or:", "server.sandbox.snapshot()"));
  });
}

// --- Points of the world: here, and among the events of the timeline

/** Points as rows of the timeline, newest first: those after a moment. */
export async function points(view, after = "") {
  const { data } = await view.get("/sandbox/snapshots?limit=64");
  return data.map((it) => ({ id: it.snapshot_id, at: it.created_at, point: it })).filter((row) => row.at >= after);
}

export const savePoint = (view) => button("Save this point", () => view.act(() => call("POST", "/sandbox/snapshots"), "Saved."));

export const pointRow = (view, it) => h("li.row.point", moment(it.created_at), h("span.grow", "Saved point ", code(it.snapshot_id)),
  button("Go back…", () => confirmed(view, { title: "Go back to this point?", action: "Go back" }, h("p", "Everything created since is gone, for every operator of this server."), () => call("POST", `/sandbox/snapshots/${it.snapshot_id}/restore`), "The world is as it was.")));
