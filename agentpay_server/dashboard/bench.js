// @ts-check
// The test bench: time, money from nowhere, faults, and points of the world to go back to. Test chains only.

import { call } from "./api.js";
import { accounts, now } from "./data.js";
import { ask, button, empty, field, h, moment, plain, quiet, select, show, tell, usdc, words } from "./ui.js";

const CHAIN = { chain_down: "No call to the chain is answered", chain_reply_lost: "A send executes, its reply is lost", chain_never_lands: "A send never executes", chain_slow: "A transaction is not known at first" };
const OPERATIONS = ["POST /v1/transfers", "GET /v1/transfers/{transfer_id}", "GET /v1/accounts", "GET /v1/accounts/{account_id}/balance", "POST /sessions", "POST /sessions/{session_id}/charges"];
const EFFECTS = { delay: "held for 3 s", internal_error: "500", reset: "connection dropped", reply_lost: "processed, reply lost" };

export function bench(view) {
  const time = h("p.amount"), faults = h("ul.rows"), points = h("ul.rows"), payee = select("account_id", []), input = (props) => h("input", { autocomplete: "off", ...props });
  const advance = (seconds) => view.act(() => call("POST", "/sandbox/clock/advance", { body: { seconds } }), seconds ? "The clock has moved, and what fell due has run." : "What was due has run.");
  const jump = async () => {
    const [retries, waits] = await Promise.all(["/console/deliveries?status=retrying&limit=100", "/console/approvals?limit=100"].map(view.get));
    const due = [...retries.data.map((it) => it.next_attempt_at), ...waits.data.map((it) => it.expires_at)].filter(Boolean).map(Date.parse).sort((a, b) => a - b)[0];
    if (!due) return tell("No delivery and no approval is due.");
    await advance(Math.max(0, (due - now()) / 1000));
  };
  const form = (act, label, ...fields) => h("form.filters", { submit: (event) => { event.preventDefault(); act(Object.fromEntries(new FormData(event.target))); } }, fields, h("button", { type: "submit" }, label));
  const fault = (name, body) => view.act(() => call("PUT", `/sandbox/faults/${encodeURI(name)}`, { body }), `${words(name)} is armed.`);
  const disarm = (name) => view.act(() => call("DELETE", `/sandbox/faults/${encodeURI(name)}`), "Disarmed.");
  const switches = Object.entries(CHAIN).map(([name, what]) => [name, button("", () => (armed.has(name) ? disarm(name) : fault(name, {})), { role: "switch", "aria-label": words(name), look: "switch" }), what]);
  const armed = new Set();
  const rewind = async (it) => {
    if (await ask({ title: "Go back to this point?", action: "Go back", look: "danger" }, h("p", "Everything created since is gone, for every operator of this server."))) await view.act(() => call("POST", `/sandbox/snapshots/${it.snapshot_id}/restore`), "The world is as it was.");
  };
  view.root.append(h("div.benches",
    h("section.card", h("h2", "Clock"), time, h("div.actions", [["Run what is due", 0], ["+30 s", 30], ["+5 min", 300], ["+1 h", 3600], ["+24 h", 86400]].map(([label, seconds]) => button(String(label), () => advance(seconds))), button("To the next due", jump))),
    h("section.card", h("h2", "Fund"), form(({ account_id, amount }) => view.act(() => call("POST", `/sandbox/accounts/${account_id}/fund`, { body: { amount } }), `${usdc(amount)} test USDC minted.`), "Fund",
      field("Account", payee), field("USDC", input({ name: "amount", value: "100", required: true, inputmode: "decimal", pattern: "[0-9]{1,9}(\\.[0-9]{1,6})?" })))),
    h("section.card", h("h2", "Chain faults"), h("ul.rows", switches.map(([name, toggle, what]) => h("li.row", toggle, h("span.grow", h("strong", words(name)), h("br"), quiet(what)), button("Once", () => fault(name, { times: 1 }), { "aria-label": `Arm ${words(name)} once` }))))),
    h("section.card", h("h2", "Request faults"), form(({ operation, effect }) => fault(`http:${operation}`, { times: 1, effect, ...(effect === "delay" && { delay_ms: 3000 }) }), "Arm once",
      field("Request", select("operation", OPERATIONS.map((it) => [it, it]))), field("Outcome", select("effect", Object.entries(EFFECTS))))),
    h("section.card", h("h2", "Armed"), faults, h("div.actions", button("Disarm all", () => view.act(() => call("DELETE", "/sandbox/faults"), "Nothing fails any more.")))),
    h("section.card", h("h2", "Rewind"), points, h("div.actions", button("Save this point", () => view.act(() => call("POST", "/sandbox/snapshots"), "Saved."), { look: "primary" })))));
  view.load(async () => {
    const [clock, list, saved] = await Promise.all(["/sandbox/clock", "/sandbox/faults?limit=100", "/sandbox/snapshots?limit=64"].map(view.get));
    time.replaceChildren(moment(clock.now));
    armed.clear();
    for (const it of list.data) armed.add(it.name);
    for (const [name, toggle] of switches) {
      toggle.setAttribute("aria-checked", String(armed.has(name)));
      toggle.textContent = armed.has(name) ? "On" : "Off";
    }
    show(faults, list.data, (it) => it.name, (it) => h("li.row", h("span.grow", plain(it.name), quiet(it.effect ? ` · ${words(it.effect)}` : "", it.times ? ` · ${it.times} times` : " · until disarmed")), button("Disarm", () => disarm(it.name), { "aria-label": `Disarm ${it.name}` })), empty("Nothing is armed."));
    show(points, saved.data, (it) => it.snapshot_id, (it) => h("li.row", moment(it.created_at), h("span.grow", quiet(it.snapshot_id)), button("Go back…", () => rewind(it))), empty("No points yet. Save one, try something, and go back; or:", "server.sandbox.snapshot()"));
    // Once: a chain that is down tells no balances.
    if (!payee.firstChild) payee.append(...(await accounts(view)).data.map((it) => h("option", { value: it.account_id }, plain(it.name))));
  });
}
