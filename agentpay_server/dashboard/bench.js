// @ts-check
// The test bench: time, money from nowhere, faults, and points of the world to go back to. Test chains only.

import { call } from "./api.js";
import { accounts, changes } from "./data.js";
import { button, clock, code, empty, field, h, moment, quiet, show, tell, usdc, words } from "./ui.js";

const CHAIN = { chain_down: "The chain does not respond", chain_reply_lost: "A send executes, its reply is lost", chain_never_lands: "A send never executes", chain_slow: "A transaction is not known at first" };
const EFFECTS = { delay: "held for 3 s", internal_error: "500", reset: "connection dropped", reply_lost: "processed, reply lost" };
const STEPS = { "Run what is due": 0, "+30 s": 30, "+5 min": 300, "+1 h": 3600, "+24 h": 86400 };

export function bench(view) {
  const change = (done, method, path, body = undefined) => view.act(() => call(method, `/sandbox/${path}`, { body }), done);
  const arm = (name, body) => change("Armed.", "PUT", `faults/${encodeURI(name)}`, body), disarm = (name) => change("Disarmed.", "DELETE", `faults/${encodeURI(name)}`);
  const advance = (seconds) => change("The clock has moved, and what was due has run.", "POST", "clock/advance", { seconds });
  const jump = async () => {
    const [retries, waits] = await Promise.all(["/console/deliveries?status=retrying&limit=100", "/console/approvals?limit=100"].map(view.get));
    const due = Math.min(...[...retries.data, ...waits.data].map((it) => Date.parse(it.next_attempt_at ?? it.expires_at)));
    if (due === Infinity) tell("No delivery and no approval is due.");
    else await advance(Math.max(0, (due - clock.now()) / 1000));
  };
  const form = (label, act, ...fields) => h("form.fields", { submit: (event) => {
    event.preventDefault();
    act(Object.fromEntries(new FormData(event.target)));
  } }, fields, h("button", label));
  const time = h("p.amount"), faults = h("ul.rows"), saved = h("ul.rows");
  view.root.append(h("div.benches", [
    ["Clock", time, h("div.actions", Object.entries(STEPS).map(([label, seconds]) => button(label, () => advance(seconds))), button("To the next due", jump))],
    ["Fund", form("Fund", ({ account_id, amount }) => change(`${usdc(amount)} test USDC minted.`, "POST", `accounts/${account_id}/fund`, { amount }),
      field("Account", "account_id", { required: true, options: accounts(view) }), field("USDC", "amount", { value: "100", required: true }))],
    ["Rewind", saved, savePoint(view)],
    ["Faults", faults, form("Arm once", ({ operation, effect }) => arm(`http:${operation}`, { times: 1, effect, delay_ms: effect === "delay" ? 3000 : undefined }),
      field("Request", "operation", { value: "POST /v1/transfers", required: true }), field("Outcome", "effect", { options: Object.entries(EFFECTS) }))],
  ].map(([title, ...parts]) => h("section.card", h("h2", title), parts))));
  view.load(async () => {
    const [{ now }, { data }, all] = await Promise.all([view.get("/sandbox/clock"), view.get("/sandbox/faults?limit=100"), points(view)]);
    time.replaceChildren(moment(now));
    const armed = new Map(data.map((it) => [it.name, it]));
    show(faults, [...new Set([...Object.keys(CHAIN), ...armed.keys()])].map((name) => ({ name, isOn: armed.has(name), ...armed.get(name) })), "name", ({ name, isOn, effect, times }) => h("li.row",
      button(isOn ? "On" : "Off", () => (isOn ? disarm(name) : arm(name, {})), { role: "switch", "aria-checked": String(isOn), "aria-label": words(name), look: "switch" }),
      h("span.grow", h("strong", words(name)), h("br"), quiet(CHAIN[name] ?? EFFECTS[effect], times && ` · ${times} times`))));
    show(saved, all, "id", (it) => pointRow(view, it.point), empty("No points yet. Save one, or:", "server.sandbox.snapshot()"));
  });
}

// --- Points of the world: here, and in the timeline

/** Points after a moment as rows of the timeline, newest first. */
export async function points(view, after = "") {
  const { data } = await view.get("/sandbox/snapshots?limit=64");
  return data.map((it) => ({ id: it.snapshot_id, at: it.created_at, point: it })).filter((row) => row.at >= after);
}

export const savePoint = (view) => button("Save this point", () => view.act(() => call("POST", "/sandbox/snapshots"), "Saved."));

export const pointRow = (view, it) => h("li.row.point", moment(it.created_at), h("span.grow", "Saved point ", code(it.snapshot_id)),
  changes(view, "Go back", () => call("POST", `/sandbox/snapshots/${it.snapshot_id}/restore`), { body: () => h("p", "Everything created since is gone, for every operator of this server."), done: "Restored." }));
