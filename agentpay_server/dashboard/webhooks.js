// @ts-check
// Deliveries: what was sent where, how it was answered, what comes next, and sending it again.

import { call } from "./api.js";
import { any, confirmed, feed, filters, instants, TIMES } from "./data.js";
import { badge, button, code, count, empty, field, h, link, moment, plain, quiet, said, tell, unfolding } from "./ui.js";

export function deliveries(view) {
  const { about = "", ...asked } = view.asked, urls = new Map();
  const webhooks = view.get("/console/webhooks?limit=100").then(({ data }) => data.map((it) => [it.webhook_id, it.url]));
  filters(view, "deliveries", {
    about: ["Event or transfer", { type: "search", placeholder: "evt_… or txn_…", "data-search": "" }],
    webhook_id: ["Webhook", { options: webhooks.then((all) => [["", "All"], ...all]) }],
    status: ["Status", { options: any("pending retrying delivered undelivered") }],
    ...TIMES,
  });
  const replayAll = () => confirmed(view, { title: "Replay undelivered events?", action: "Replay", look: "primary", takesText: true }, [h("p", asked.webhook_id ? "To this webhook." : "To every webhook."), field("Created after", "since", { type: "datetime-local", required: true, value: asked.since })], async (given) => {
    const { replayed, has_more } = await call("POST", "/console/deliveries/replay", { body: { ...instants(given), status: "undelivered", ...(asked.webhook_id && { webhook_id: asked.webhook_id }) } });
    tell(`${replayed} replayed.${has_more ? " There are more: replay once more." : ""}`);
  }, "");
  view.root.append(h("div.actions", button("Replay undelivered…", replayAll)));
  const replay = (it) => view.act(() => call("POST", `/console/events/${it.event_id}/replay`, { body: { webhook_id: it.webhook_id } }), "Sent again, as a new delivery of the same event.");
  feed(view, {
    path: "/console/deliveries", query: { ...instants(asked), [about.startsWith("txn_") ? "transfer_id" : "event_id"]: about }, key: "delivery_id",
    none: empty("No deliveries. A webhook gets the events that it asks for:", 'client.webhooks.create(url="https://…", events=["transfer.settled"])'),
    before: async () => (await webhooks).forEach(([id, url]) => urls.set(id, url)),
    row: (it) => {
      const last = it.attempts.at(-1), url = urls.get(it.webhook_id);
      return unfolding([last ? moment(last.at) : quiet("not yet"), badge(it.status), h("span.grow", plain(it.event_type), quiet(" → "), url ? said(url) : code(it.webhook_id)), h("span.sum", last && answer(last)), count(it.attempts.length, "attempts")],
        () => [h("p.head", code(it.delivery_id), link(`#/deliveries?about=${it.event_id}`, "This event"), link(`#/deliveries?webhook_id=${it.webhook_id}`, "This webhook"), h("span.grow"), button("Replay", () => replay(it))),
          h("ol", it.attempts.map((each) => h("li", moment(each.at), " ", h("strong", answer(each)), quiet(` ${each.duration_ms} ms`), each.error && h("p", said(each.error)), each.response_excerpt && h("pre", plain(each.response_excerpt))))),
          it.next_attempt_at && h("p", "Next attempt ", moment(it.next_attempt_at))]);
    },
  });
}

const answer = (attempt) => String(attempt.status_code ?? "no answer");
