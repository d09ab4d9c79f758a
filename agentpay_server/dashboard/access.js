// @ts-check
// Keys, webhooks and the audit trail.

import { call } from "./api.js";
import { accounts, feed, learn, party } from "./data.js";
import { ask, badge, button, code, empty, field, h, json, moment, plain, quiet, said, select, showSecret, unfolding } from "./ui.js";

const TABS = { agents: "Agent keys", operators: "Operator keys", webhooks: "Webhooks", audit: "Audit" };
const EVENTS = ["transfer.initiated", "transfer.settled", "transfer.rejected", "session.opened", "session.cap_warning", "session.cap_reached", "session.settled", "balance.low_threshold", "escalation.required"];

export function access(view) {
  const tab = Object.hasOwn(TABS, view.id) ? view.id : "agents";
  view.root.append(h("p.tabs", Object.entries(TABS).map(([id, label]) => h("a", { href: `#/access/${id}`, "aria-current": id === tab && "true" }, label))));
  ({ agents, operators, webhooks, audit })[tab](view);
}

/** Ask, create what is asked for, and show its secret once. */
const create = (view, label, title, path, fields, secret) => view.root.append(h("div.actions", button(label, async () => {
  const told = await ask({ title, action: "Create", takesText: true }, await fields());
  if (told) await view.act(async () => {
    const { account_id, name, url, ...events } = told;
    const body = url === undefined ? { ...(account_id && { account_id }), ...(name && { name }) } : { url, events: Object.keys(events) };
    const made = await call("POST", path, { body });
    showSecret(title, made[secret]);
  });
}, { look: "primary" })));

const remove = (view, label, path, told) => button(`${label}…`, async () => {
  if (await ask({ title: `${label} it?`, action: label, look: "danger" }, h("p", told))) await view.act(() => call("DELETE", path), "Done.");
}, { look: "danger" });

const nameField = (required) => field("Name", h("input", { name: "name", maxlength: 100, required }));

function agents(view) {
  create(view, "New agent key…", "New agent key", "/console/agent-keys", async () => {
    const page = await accounts(view);
    return [field("Account", select("account_id", page.data.map((it) => [it.account_id, it.name]))), nameField(false)];
  }, "key");
  feed(view, {
    path: "/console/agent-keys", keyOf: (it) => it.key_id, before: (items) => learn(view, items.map((it) => it.account_id)),
    none: empty("No agent has a key. Create one here, or:", "client.console.agent_keys.create(account_id)"),
    row: (it) => h("li.row", { "data-row": true }, moment(it.created_at), code(it.key_id), h("span.grow", it.name ? said(it.name) : quiet("no name"), quiet(" for "), party(it.account_id)),
      remove(view, "Revoke", `/console/agent-keys/${it.key_id}`, "The agent that uses it is refused from its next request on.")),
  });
}

function operators(view) {
  create(view, "New operator key…", "New operator key", "/console/operator-keys", () => nameField(true), "key");
  feed(view, {
    path: "/console/operator-keys", keyOf: (it) => it.key_id,
    row: (it) => h("li.row", { "data-row": true }, moment(it.created_at), code(it.key_id), h("span.grow", said(it.name), it.expires_at && quiet(" until ", moment(it.expires_at))), it.kind && it.kind !== "operator" && badge("open", it.kind),
      remove(view, "Revoke", `/console/operator-keys/${it.key_id}`, "Whoever uses it is refused from the next request on. If it is the key of this tab, you are signed out.")),
  });
}

function webhooks(view) {
  create(view, "New webhook…", "New webhook", "/v1/webhooks", () => [field("URL", h("input", { name: "url", type: "url", required: true })),
    h("fieldset", h("legend", "Events"), EVENTS.map((type) => h("label", h("input", { type: "checkbox", name: type, checked: true }), type)))], "secret");
  const rotate = async (it) => {
    if (await ask({ title: "Rotate the secret?", action: "Rotate" }, h("p", "Both secrets sign for 24 hours; then the new one alone."))) await view.act(async () => {
      const made = await call("POST", `/console/webhooks/${it.webhook_id}/rotate-secret`);
      showSecret("New secret", made.secret);
    });
  };
  feed(view, {
    path: "/console/webhooks", keyOf: (it) => it.webhook_id, none: empty("No webhooks. Register one here, or:", 'client.webhooks.create(url="https://…", events=["transfer.settled"])'),
    row: (it) => h("li.row", { "data-row": true }, h("span.grow", said(it.url), h("br"), quiet(it.events.length === EVENTS.length ? "every event" : it.events.map(plain).join(", "))),
      h("a", { href: `#/deliveries?webhook_id=${it.webhook_id}` }, "Deliveries"), button("Rotate…", () => rotate(it)), remove(view, "Delete", `/console/webhooks/${it.webhook_id}`, "Nothing is sent to it from then on.")),
  });
}

function audit(view) {
  feed(view, {
    path: "/console/audit", keyOf: (it) => `${it.created_at} ${it.action} ${it.subject} ${it.request_id}`, none: empty("Nothing was changed yet."),
    row: (it) => h("li", { "data-row": true }, unfolding(h("summary.row", moment(it.created_at), h("span.grow", plain(it.action)), code(it.subject), it.key_id ? code(it.key_id) : quiet("server")), () => h("div.fold", json(it)))),
  });
}
