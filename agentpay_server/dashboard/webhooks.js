// @ts-check
// Deliveries: what was sent where, how it was answered, what comes next, and sending it again.

import { call } from "./api.js";
import { about, changes, feed, filters, instants, TIMES } from "./data.js";
import { badge, button, code, count, empty, field, h, link, moment, plain, quiet, said, tell, unfolding } from "./ui.js";

export function deliveries(view) {
  const { id = "", ...asked } = view.asked, { webhook_id } = asked, urls = new Map();
  const webhooks = view.get("/console/webhooks?limit=100").then(({ data }) => data.map((it) => [it.webhook_id, it.url]));
  filters(view, {
    id: ["Event or transfer", { type: "search" }],
    webhook_id: ["Webhook", { options: webhooks }],
    status: ["Status", { options: ["pending", "retrying", "delivered", "undelivered"] }],
    ...TIMES,
  });
  const replayAll = async (given) => {
    const { replayed, has_more } = await call("POST", "/console/deliveries/replay", { body: { ...instants(given), status: "undelivered", webhook_id } });
    tell(`${replayed} replayed.${has_more ? " There are more." : ""}`);
  };
  view.root.append(h("div.actions", changes(view, "Replay undelivered", replayAll, {
    action: "Replay", done: "", look: "", body: () => [h("p", webhook_id ? "To this webhook." : "To every webhook."), field("Created after", "since", { type: "datetime-local", required: true, value: asked.since })],
  })));
  const replay = (it) => view.act(() => call("POST", `/console/events/${it.event_id}/replay`, { body: { webhook_id: it.webhook_id } }), "Replayed as a new delivery of the same event.");
  const answer = (attempt) => String(attempt.status_code ?? "no response");
  feed(view, {
    path: "/console/deliveries", query: { ...instants(asked), ...about(id, ["event_id", "transfer_id"]) }, key: "delivery_id",
    none: empty("No deliveries. Register a webhook:", 'client.webhooks.create(url="https://…", events=["transfer.settled"])'),
    before: async () => (await webhooks).forEach(([id, url]) => urls.set(id, url)),
    row: (it) => {
      const last = it.attempts.at(-1), url = urls.get(it.webhook_id);
      return unfolding([last ? moment(last.at) : quiet("not yet"), badge(it.status), h("span.grow", plain(it.event_type), quiet(" → "), url ? said(url) : code(it.webhook_id)), h("span.sum", last && answer(last)), count(it.attempts.length, "attempts")],
        () => [h("p.head", code(it.delivery_id), link(`#/deliveries?id=${it.event_id}`, "This event"), h("span.grow"), button("Replay", () => replay(it))),
          h("ol", it.attempts.map((each) => h("li", moment(each.at), " ", h("strong", answer(each)), quiet(` ${each.duration_ms} ms`), each.error && h("p", said(each.error)), each.response_excerpt && h("pre", plain(each.response_excerpt))))),
          it.next_attempt_at && h("p", "Next attempt ", moment(it.next_attempt_at))]);
    },
  });
}
