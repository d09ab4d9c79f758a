// @ts-check
// Keys, webhooks and the audit trail.

import { call, post } from "./api.js";
import { EVENTS, REGISTER } from "./history.js";
import { accountField, change, list, party } from "./page.js";
import { code, field, h, json, link, moment, quiet, said, showSecret } from "./ui.js";

const nameField = (props) => field("Name", "name", { maxlength: 100, ...props });
const keyOf = ({ name, ...given }) => ({ ...given, name: name || undefined });
const remove = (label, effect, path) => change(label, effect, () => call("DELETE", path));

const keyRow = (it, path) => [
	moment(it.created_at), code(it.key_id),
	[
		it.name ? said(it.name) : quiet("no name"), it.account_id && [quiet(" for "), party(it.account_id)],
		it.expires_at && quiet(` · ${it.kind} key until `, moment(it.expires_at)),
	],
	remove("Revoke", "It is refused from now on.", `${path}/${it.key_id}`),
];

/** Lists, and what is created in them. @type {Record<string, any>} */
const TABS = {
	agents: {
		label: "Agent keys", path: "/console/agent-keys", create: "New agent key", row: keyRow,
		fields: () => [accountField(), nameField()],
		none: ["No agent has a key. Create one:", "client.console.agent_keys.create(account_id)"],
	},
	operators: {
		label: "Operator keys", path: "/console/operator-keys", create: "New operator key", row: keyRow,
		fields: () => nameField({ required: true }),
	},
	webhooks: {
		label: "Webhooks", path: "/console/webhooks", create: "New webhook", createPath: "/v1/webhooks", row: webhookRow,
		fields: () => [field("URL", "url", { type: "url", required: true }), h("fieldset", h("legend", "Events"), EVENTS.map(checkbox))],
		bodyOf: ({ url, ...events }) => ({ url, events: Object.keys(events) }),
		none: ["No webhooks. Register one:", REGISTER],
	},
	audit: {
		label: "Audit", path: "/console/audit", identity: JSON.stringify, fold: json,
		none: ["Nothing was changed by a key yet, such as by:", "client.policies.pause(account_id)"],
		row: (it) => [moment(it.created_at), [it.action], code(it.subject), it.key_id ? code(it.key_id) : quiet("server")],
	},
};

const checkbox = (type) => h("label", h("input", { type: "checkbox", name: type, checked: true }), type);

function webhookRow({ webhook_id: id, url, events }, all) {
	const path = `${all}/${id}`, rotate = async () => showSecret("New secret", await post(`${path}/rotate-secret`));
	return [
		[said(url), h("br"), quiet(events.length === EVENTS.length ? "every event" : events.join(", "))],
		link(`#/deliveries?webhook_id=${id}`, "Deliveries"),
		change("Rotate", "Both secrets sign for 24 hours; then only the new one.", rotate, { look: "" }),
		remove("Delete", "Nothing more is sent to it.", path),
	];
}

export function access({ id }) {
	const chosen = Object.hasOwn(TABS, id) ? id : "agents";
	const { path, createPath = path, create, fields, row, bodyOf = keyOf, ...others } = TABS[chosen];
	const work = async (given) => showSecret(create, await post(createPath, bodyOf(given)));
	return [
		h("p.tabs", Object.entries(TABS).map(([id, { label }]) =>
			h("a", { href: `#/access/${id}`, "aria-current": id === chosen && "true" }, label))),
		h("div.actions", create && change(create, fields, work, { title: create, action: "Create", look: "primary" })),
		...list({ ...others, path, row: (it) => row(it, path) }),
	];
}
