// @ts-check

import { post } from "./api.js";
import { change, filters, instant, list, useLoad } from "./page.js";
import { REGISTER, TIMES } from "./timeline.js";
import { badge, code, count, field, h, link, moment, momentText, quiet, said } from "./ui.js";

export function deliveries({ app, asked: { id = "", webhook_id, needs_attention: isOpen, status } }) {
	const webhooks = useLoad((page) => page.get("/console/webhooks", { query: { limit: 100 } }))?.data ?? [];
	const urlOf = (id) => webhooks.find((it) => it.webhook_id === id)?.url, { retrying_deliveries: retrying } = app.state.summary;
	const choice = () => [
		h("p", webhook_id ? "To this webhook." : "To every webhook."),
		field("Created after", "since", { type: "datetime-local", required: true }),
	];
	const replayAll = async ({ since }) => {
		const { replayed, earliest_at: earliest, has_more } = await post("/console/deliveries/replay", { body: { since: instant(since), webhook_id } });
		return `${replayed} replayed${earliest ? `, created from ${momentText(earliest, app)} on` : ""}.${has_more ? " There are more." : ""}`;
	};
	const replayOne = (it) => change("Replay", async () => [
		h("p", it.event_type, " ", code(it.event_id)),
		field("To", "to", { required: true, options: [[it.webhook_id, urlOf(it.webhook_id) ?? it.webhook_id], ["*", "Every webhook that subscribes to it"]] }),
	], async ({ to }) => {
		const { data } = await post("/console/events/{event_id}/replay", { event_id: it.event_id, body: to === "*" ? {} : { webhook_id: to } });
		return `Replayed as ${data.length === 1 ? "a new delivery" : `${data.length} new deliveries`}.`;
	}, { look: "", title: `Replay ${it.event_type}?`, action: "Replay" });
	const tab = (label, query, isOn) => h("a", { href: `#/deliveries${query}`, "aria-current": isOn && "true" }, label);
	return [
		h("div.actions.corner", change("Replay undelivered", choice, replayAll, { look: "", action: "Replay" })),
		h("p.tabs.wide", tab("Needs attention", "?needs_attention=true", isOpen), tab("Retrying", "?status=retrying", status === "retrying"),
			tab("All", "", !isOpen && status !== "retrying")),
		(isOpen || status === "undelivered") && h("p", retrying > 0 && link("#/deliveries?status=retrying", `${retrying} more being retried`)),
		filters({
			id: ["Event or transfer", { type: "search" }],
			webhook_id: ["Webhook", { options: webhooks.map((it) => [it.webhook_id, it.url]) }],
			status: ["Status", { options: ["pending", "retrying", "delivered", "undelivered"] }],
			...TIMES,
		}),
		list({
			path: "/console/deliveries", exports: "deliveries", query: id ? { [id.startsWith("txn_") ? "transfer_id" : "event_id"]: id } : {},
			heads: ["Last attempt", "Status", "Event → endpoint", "Attempts", ["Response", "number"]],
			cols: "9.5rem 9.5rem minmax(0, 1fr) 6.5rem 7rem",
			none: isOpen ? ["Nothing needs attention.", ""] : ["No deliveries. Register a webhook:", REGISTER],
			row: (it) => {
				const last = it.attempts.at(-1);
				return [
					last ? moment(last.at) : quiet("not yet"),
					it.redelivered_at ? badge("redelivered", "replayed") : badge(it.status),
					h("span.grow.line", { title: urlOf(it.webhook_id) }, it.event_type, quiet(" → "), urlOf(it.webhook_id) ? said(urlOf(it.webhook_id)) : code(it.webhook_id)),
					count(it.attempts.length, "attempt"), h("strong.number", last && answer(last)),
				];
			},
			pick: {
				verb: "Replay", done: "replayed", what: "deliveries", look: "", effect: "Each is sent once more, to its webhook.",
				label: (it) => `${it.event_type} ${it.event_id} → ${urlOf(it.webhook_id) ?? it.webhook_id}`,
				each: ({ event_id, webhook_id }) => post("/console/events/{event_id}/replay", { event_id, body: { webhook_id } }),
			},
			fold: (it) => [
				h("p.head", h("span.grow", code(it.delivery_id), " ", said(urlOf(it.webhook_id) ?? "")), replayOne(it)),
				it.redelivered_at && h("p", "Undelivered; a replay delivered it ", moment(it.redelivered_at), "."),
				h("ol", it.attempts.map(attempt)),
				it.next_attempt_at && h("p", "Next attempt ", moment(it.next_attempt_at)),
			],
		}),
	];
}

const answer = (attempt) => attempt.status_code ?? "no response";

const attempt = (it) => h("li", moment(it.at), " ", h("strong", answer(it)), quiet(` ${it.duration_ms} ms`),
	it.error && h("p", said(it.error)), it.response_excerpt && h("pre", it.response_excerpt));
