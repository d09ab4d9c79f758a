// @ts-check
// Deliveries: what was sent where, how it was answered, what comes next, and sending it again.

import { call } from "./api.js";
import { feed, filters, instants, moments } from "./data.js";
import { ask, badge, button, code, empty, field, h, link, moment, plain, quiet, said, select, tell, unfolding } from "./ui.js";

export function deliveries(view) {
  const asked = Object.fromEntries(view.query);
  const status = select("status", ["", "pending", "retrying", "delivered", "undelivered"].map((it) => [it]), asked.status);
  const kept = ["event_id", "webhook_id"].filter((name) => asked[name]);
  const replayMany = async () => {
    const told = await ask({ title: "Replay undelivered events?", action: "Replay", takesText: true }, h("p", kept.includes("webhook_id") ? "To this webhook." : "To every webhook."), field("Created after", h("input", { type: "datetime-local", name: "since", required: true, value: asked.since })));
    if (told) await view.act(async () => {
      const { replayed, has_more } = await call("POST", "/console/deliveries/replay", { body: { ...instants(told), status: "undelivered", ...(asked.webhook_id && { webhook_id: asked.webhook_id }) } });
      tell(`${replayed} sent again.${has_more ? " There are more: replay once more." : ""}`);
    });
  };
  view.root.append(filters("deliveries", field("Status", status), moments(asked), kept.map((name) => [h("input", { type: "hidden", name, value: asked[name] }), h("p", code(asked[name]), " ", link("#/deliveries", "Show all"))])),
    h("div.actions", button("Replay undelivered…", replayMany)));
  const replay = (it) => view.act(() => call("POST", `/console/events/${it.event_id}/replay`, { body: { webhook_id: it.webhook_id } }), "Sent again, as a new delivery of the same event.");
  feed(view, {
    path: "/console/deliveries", query: instants(asked), keyOf: (it) => it.delivery_id,
    none: empty("No deliveries. A webhook gets the events that it asks for:", 'client.webhooks.create(url="https://…", events=["transfer.settled"])'),
    row: (it) => {
      const last = it.attempts.at(-1);
      return h("li", { "data-row": true }, unfolding(h("summary.row", last ? moment(last.at) : quiet("not yet"), badge(it.status), h("span.grow", plain(it.event_type), quiet(" → "), code(it.webhook_id)),
        h("span.sum", last ? answer(last) : ""), h("span.quiet.n", String(it.attempts.length), h("span.sr", " attempts"))),
      () => h("div.fold", h("p.head", code(it.delivery_id), link(`#/deliveries?event_id=${it.event_id}`, "This event"), link(`#/deliveries?webhook_id=${it.webhook_id}`, "This webhook"), h("span.grow"), button("Replay", () => replay(it))),
        h("ol", it.attempts.map((each) => h("li", moment(each.at), " ", h("strong", answer(each)), quiet(` ${each.duration_ms} ms`), each.error && h("p", said(each.error)), each.response_excerpt && h("pre", plain(each.response_excerpt))))),
        it.next_attempt_at && h("p", "Next attempt ", moment(it.next_attempt_at)))));
    },
  });
}

const answer = (attempt) => (attempt.status_code === null ? "no answer" : String(attempt.status_code));
