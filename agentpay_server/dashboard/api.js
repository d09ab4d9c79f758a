// @ts-check
// The server's API: one key, one fetch, errors with the server's own sentence; and what happens, as it happens.
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
    this.code = body?.error ?? "";
  }
}

let onUnauthorized = () => {};

export const whenUnauthorized = (act) => { onUnauthorized = act; };

/**
 * Send a request; returns its response.
 * @param {string} method
 * @param {string} path
 * @param {{body?: any, signal?: AbortSignal, headers?: Record<string, string>}} [options]
 */
export async function send(method, path, { body, signal, headers } = {}) {
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
  const told = await response.json().catch(() => null);
  if (response.status === 401 && held && held === key.get()) onUnauthorized();
  throw new ApiError(response.status, told);
}

/** Read or change something: as `send`, and returns what the response holds. */
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
 * Silent while the page is hidden; after a failure it pauses, longer each time, with jitter. A server that has no
 * stream to give is asked again and again.
 */
export async function follow({ signal, onChange, onState }) {
  const seen = { id: "", failures: 0 };
  const isLive = () => { seen.failures = 0; onState("live"); };
  while (!signal.aborted) {
    await visible(signal);
    const turn = untilHidden(signal);
    try {
      await listen(seen, turn, () => { isLive(); onChange(); }).catch(async (error) => {
        if (![404, 429].includes(error.status)) throw error;
        const newest = (await call("GET", "/console/events?limit=1", { signal: turn.signal })).data[0]?.id ?? "";
        if (seen.failures || newest !== seen.id) onChange();
        seen.id = newest;
        isLive();
        await pause(POLL_MS, turn.signal);
      });
    } catch {
      if (turn.signal.aborted) continue;
      onState("reconnecting");
      await pause(Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** seen.failures) * (0.5 + Math.random() / 2), signal);
      seen.failures += 1;
    } finally {
      turn.abort();
    }
  }
}

/** Read the stream of events, from the one that was seen last, until the server ends it; `onNews` at its start, too. */
async function listen(seen, turn, onNews) {
  const response = await send("GET", "/console/stream", { signal: turn.signal, headers: seen.id ? { "Last-Event-ID": seen.id } : {} });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "\n";
  onNews();
  for (;;) {
    const silence = setTimeout(() => reader.cancel(), SILENCE_MS), { value, done } = await reader.read();
    clearTimeout(silence);
    if (done) return pause(FIRST_PAUSE_MS, turn.signal);
    const lines = (rest + value).split("\n"), ids = lines.slice(0, -1).filter((line) => line.startsWith("id: "));
    rest = lines.at(-1);
    if (ids.length) {
      seen.id = ids.at(-1).slice(4);
      onNews();
    }
  }
}

/** What is aborted at the signal, or when the page is hidden. */
function untilHidden(signal) {
  const turn = new AbortController(), end = () => { if (document.hidden || signal.aborted) turn.abort(); };
  document.addEventListener("visibilitychange", end, { signal: turn.signal });
  signal.addEventListener("abort", end, { signal: turn.signal });
  return turn;
}

/** Return once the page is visible. */
async function visible(signal) {
  while (document.hidden && !signal.aborted) await new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
    signal.addEventListener("abort", resolve, { once: true });
  });
}

/**
 * Return after a while, or at the signal.
 * @type {(ms: number, signal?: AbortSignal) => Promise<void>}
 */
export const pause = (ms, signal) => new Promise((resolve) => {
  const done = () => { clearTimeout(timer); signal?.removeEventListener("abort", done); resolve(); };
  const timer = setTimeout(done, ms);
  signal?.addEventListener("abort", done);
});
