// @ts-check
// Keys, webhooks and the audit trail.

import { call } from "./api.js";
import { accounts, confirmed, feed, learn, party } from "./data.js";
import { EVENTS } from "./history.js";
import { badge, button, code, empty, field, h, json, link, moment, plain, quiet, said, showSecret, unfolding } from "./ui.js";

const TABS = { agents: ["Agent keys", agents], operators: ["Operator keys", operators], webhooks: ["Webhooks", webhooks], audit: ["Audit", audit] };

export function access(view) {
  const chosen = Object.hasOwn(TABS, view.id) ? view.id : "agents";
  view.root.append(h("p.tabs", Object.entries(TABS).map(([id, [label]]) => h("a", { href: `#/access/${id}`, "aria-current": id === chosen && "true" }, label))));
  TABS[chosen][1](view);
}

/** Offer to create something, whose secret is then shown once. */
const creates = (view, title, path, fields, bodyOf = (given) => given) => view.root.append(h("div.actions", button(`${title}…`, () => confirmed(view, { title, action: "Create", look: "primary", takesText: true }, fields(),
  async (given) => {
    const { key, secret } = await call("POST", path, { body: bodyOf(Object.fromEntries(Object.entries(given).filter(([, value]) => value))) });
    showSecret(title, key ?? secret);
  }, ""), { look: "primary" })));

const removes = (view, action, path, warning) => button(`${action}…`, () => confirmed(view, { title: `${action} it?`, action }, h("p", warning), () => call("DELETE", path)), { look: "danger" });

const NAME = { maxlength: 100 };

function agents(view) {
  creates(view, "New agent key", "/console/agent-keys", () => [field("Account", "account_id", { options: accounts(view) }), field("Name", "name", NAME)]);
  feed(view, {
    path: "/console/agent-keys", key: "key_id", before: (items) => learn(view, items.map((it) => it.account_id)),
    none: empty("No agent has a key. Create one here, or:", "client.console.agent_keys.create(account_id)"),
    row: (it) => h("li.row", moment(it.created_at), code(it.key_id), h("span.grow", it.name ? said(it.name) : quiet("no name"), quiet(" for "), party(it.account_id)),
      removes(view, "Revoke", `/console/agent-keys/${it.key_id}`, "The agent that uses it is refused from its next request on.")),
  });
}

function operators(view) {
  creates(view, "New operator key", "/console/operator-keys", () => field("Name", "name", { ...NAME, required: true }));
  feed(view, {
    path: "/console/operator-keys", key: "key_id",
    row: (it) => h("li.row", moment(it.created_at), code(it.key_id), h("span.grow", said(it.name), it.expires_at && quiet(" until ", moment(it.expires_at))), it.kind !== "operator" && badge("open", it.kind),
      removes(view, "Revoke", `/console/operator-keys/${it.key_id}`, "Whoever uses it is refused from the next request on. If it is the key of this tab, you are signed out.")),
  });
}

function webhooks(view) {
  creates(view, "New webhook", "/v1/webhooks", () => [field("URL", "url", { type: "url", required: true }), h("fieldset", h("legend", "Events"), EVENTS.map((type) => h("label", h("input", { type: "checkbox", name: type, checked: true }), type)))],
    ({ url, ...events }) => ({ url, events: Object.keys(events) }));
  const rotate = (it) => confirmed(view, { title: "Rotate the secret?", action: "Rotate", look: "primary" }, h("p", "Both secrets sign for 24 hours; then the new one alone."), async () => {
    const { secret } = await call("POST", `/console/webhooks/${it.webhook_id}/rotate-secret`);
    showSecret("New secret", secret);
  }, "");
  feed(view, {
    path: "/console/webhooks", key: "webhook_id", none: empty("No webhooks. Register one here, or:", 'client.webhooks.create(url="https://…", events=["transfer.settled"])'),
    row: (it) => h("li.row", h("span.grow", said(it.url), h("br"), quiet(it.events.length === EVENTS.length ? "every event" : it.events.map(plain).join(", "))),
      link(`#/deliveries?webhook_id=${it.webhook_id}`, "Deliveries"), button("Rotate…", () => rotate(it)), removes(view, "Delete", `/console/webhooks/${it.webhook_id}`, "Nothing is sent to it from then on.")),
  });
}

function audit(view) {
  feed(view, {
    path: "/console/audit", key: "", none: empty("Nothing was changed yet. Every change by a key appears here, such as that of:", "client.policies.pause(account_id)"),
    row: (it) => unfolding([moment(it.created_at), h("span.grow", plain(it.action)), code(it.subject), it.key_id ? code(it.key_id) : quiet("server")], () => json(it)),
  });
}
