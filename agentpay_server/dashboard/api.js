// @ts-check
// The server's API: one key, one fetch, errors with the server's own sentence; and the stream of events.
// The key is in this tab's sessionStorage and in the Authorization header. There is no cookie.

const KEY = "agentpay.key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  clear: () => sessionStorage.removeItem(KEY),
};

/** A response that is not a success; status 0 if there was none. */
export class ApiError extends Error {
  constructor(status, body) {
    super([body?.message ?? `The server responded with status ${status}.`, ...(body?.details ?? []).map((fault) => `${fault.field} ${fault.message}`)].join(" "));
    this.status = status;
    this.code = body?.error;
  }
}

let onUnauthorized = () => {};

export const whenUnauthorized = (act) => { onUnauthorized = act; };

/** Send a request; return its response. */
export async function send(method, path, { body, signal, headers } = /** @type {any} */ ({})) {
  const held = key.get();
  let response;
  try {
    response = await fetch(path, {
      method, signal, cache: "no-store", credentials: "omit", redirect: "error",
      headers: { ...(held && { Authorization: `Bearer ${held}` }), ...(body && { "Content-Type": "application/json" }), ...headers },
      body: body && JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { message: method === "GET" ? "The server does not respond." : "The server did not respond. The outcome is unknown until this page shows it." });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  if (response.status === 401 && held && held === key.get()) onUnauthorized();
  throw new ApiError(response.status, problem);
}

/** Read or change something: as `send`, but return what the response holds. */
export async function call(method, path, options = {}) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

/** A path with the parameters that have a value. */
export function at(path, query) {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return given ? `${path}?${given}` : path;
}

const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 15000, POLL_MS = 2000, SILENCE_MS = 40000;

/**
 * Follow what happens until the signal: `onChange` after each change, `onState` with `live` or `reconnecting`.
 * Silent while the page is hidden. After a failure it pauses, longer each time, with jitter. It polls a server
 * that has no stream to give.
 */
export async function follow({ signal, onChange, onState }) {
  const seen = { id: "" };
  let failures = 0;
  const isLive = () => { failures = 0; onState("live"); };
  while (!signal.aborted) {
    const turn = new AbortController(), end = () => turn.abort();
    for (const [source, event] of [[document, "visibilitychange"], [signal, "abort"]]) source.addEventListener(event, end, { signal: turn.signal });
    try {
      if (document.hidden) await pause(2 ** 31 - 1, turn.signal);
      else await listen(seen, turn.signal, () => { isLive(); onChange(); }).catch(async (error) => {
        if (![404, 429].includes(error.status)) throw error;
        const newest = (await call("GET", "/console/events?limit=1", { signal: turn.signal })).data[0]?.id;
        if (failures || newest !== seen.id) onChange();
        seen.id = newest;
        isLive();
        await pause(POLL_MS, turn.signal);
      });
    } catch {
      if (turn.signal.aborted) continue;
      onState("reconnecting");
      await pause(Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures) * (0.5 + Math.random() / 2), signal);
      failures += 1;
    } finally {
      end();
    }
  }
}

/** Read the stream, from the last event on, until the server ends it; `onNews` after its start and after events. */
async function listen(seen, signal, onNews) {
  const response = await send("GET", "/console/stream", { signal, headers: seen.id ? { "Last-Event-ID": seen.id } : {} });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  onNews();
  for (;;) {
    const silence = setTimeout(() => reader.cancel(), SILENCE_MS), { value, done } = await reader.read();
    clearTimeout(silence);
    if (done) return pause(FIRST_PAUSE_MS, signal);
    const lines = (rest + value).split("\n"), ids = lines.slice(0, -1).filter((line) => line.startsWith("id: "));
    rest = lines.at(-1);
    if (ids.length) {
      seen.id = ids.at(-1).slice(4);
      onNews();
    }
  }
}

/** Return after a while, or at the signal. */
export const pause = (ms, signal = undefined) => new Promise((resolve) => {
  const done = () => { clearTimeout(timer); signal?.removeEventListener("abort", done); resolve(); };
  const timer = setTimeout(done, ms);
  signal?.addEventListener("abort", done);
});
