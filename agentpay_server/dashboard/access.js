// @ts-check
// Keys, webhooks and the audit trail.

import { call } from "./api.js";
import { accounts, changes, feed, party } from "./data.js";
import { EVENTS } from "./history.js";
import { code, empty, field, h, json, link, moment, plain, quiet, said, showSecret, unfolding } from "./ui.js";

const NAME = { maxlength: 100 };

const keyRow = (path) => (view, it) => h("li.row", moment(it.created_at), code(it.key_id),
  h("span.grow", it.name ? said(it.name) : quiet("no name"), it.account_id && [quiet(" for "), party(it.account_id)], it.expires_at && quiet(` · ${it.kind} key until `, moment(it.expires_at))),
  changes(view, "Revoke", () => call("DELETE", `${path}/${it.key_id}`), { body: () => h("p", "It is refused from the next request on.") }));

/** @type {Record<string, any>} */
const TABS = {
  agents: {
    label: "Agent keys", path: "/console/agent-keys", key: "key_id", create: "New agent key", row: keyRow("/console/agent-keys"),
    fields: async (view) => [field("Account", "account_id", { required: true, options: await accounts(view).catch(() => []) }), field("Name", "name", NAME)],
    none: empty("No agent has a key. Create one:", "client.console.agent_keys.create(account_id)"),
  },
  operators: {
    label: "Operator keys", path: "/console/operator-keys", key: "key_id", create: "New operator key", row: keyRow("/console/operator-keys"),
    fields: () => field("Name", "name", { ...NAME, required: true }),
  },
  webhooks: {
    label: "Webhooks", path: "/console/webhooks", key: "webhook_id", create: "New webhook", createPath: "/v1/webhooks",
    fields: () => [field("URL", "url", { type: "url", required: true }), h("fieldset", h("legend", "Events"), EVENTS.map((type) => h("label", h("input", { type: "checkbox", name: type, checked: true }), type)))],
    bodyOf: ({ url, ...events }) => ({ url, events: Object.keys(events) }),
    none: empty("No webhooks. Register one:", 'client.webhooks.create(url="https://…", events=["transfer.settled"])'),
    row: (view, it) => {
      const path = `/console/webhooks/${it.webhook_id}`;
      const rotate = async () => { showSecret("New secret", (await call("POST", `${path}/rotate-secret`)).secret); };
      return h("li.row", h("span.grow", said(it.url), h("br"), quiet(it.events.length === EVENTS.length ? "every event" : it.events.map(plain).join(", "))), link(`#/deliveries?webhook_id=${it.webhook_id}`, "Deliveries"),
        changes(view, "Rotate", rotate, { look: "", done: "", body: () => h("p", "Both secrets sign for 24 hours; then only the new one.") }),
        changes(view, "Delete", () => call("DELETE", path), { body: () => h("p", "Nothing more is sent to it.") }));
    },
  },
  audit: {
    label: "Audit", path: "/console/audit", none: empty("Nothing was changed by a key yet, such as by:", "client.policies.pause(account_id)"),
    row: (view, it) => unfolding([moment(it.created_at), h("span.grow", plain(it.action)), code(it.subject), it.key_id ? code(it.key_id) : quiet("server")], () => json(it)),
  },
};

export function access(view) {
  const chosen = Object.hasOwn(TABS, view.id) ? view.id : "agents", { path, createPath = path, create, fields, bodyOf = (given) => given, row, ...list } = TABS[chosen];
  view.root.append(h("p.tabs", Object.entries(TABS).map(([id, { label }]) => h("a", { href: `#/access/${id}`, "aria-current": id === chosen && "true" }, label))));
  const work = async (given) => {
    const { key, secret } = await call("POST", createPath, { body: bodyOf(Object.fromEntries(Object.entries(given).filter(([, value]) => value))) });
    showSecret(create, key ?? secret);
  };
  if (create) view.root.append(h("div.actions", changes(view, create, work, { title: create, action: "Create", body: () => fields(view), done: "", look: "primary" })));
  feed(view, { ...list, path, row: (it) => row(view, it) });
}
