// @ts-check
// The server's API and its stream of events. The key is in this tab's sessionStorage and in the Authorization
// header; there is no cookie.

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

/** Send a request; return its response. The window gets the event `unauthorized` when the key is refused. */
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
    throw new ApiError(0, { message: `The server does not respond.${method === "GET" ? "" : " The outcome is unknown until this page shows it."}` });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  if (response.status === 401 && held === key.get()) dispatchEvent(new Event("unauthorized"));
  throw new ApiError(response.status, problem);
}

/** Send a request; return the content of its response. */
export async function call(method, path, options = {}) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

export function at(path, query) {
  const given = String(new URLSearchParams(Object.entries(query).filter(([, value]) => value)));
  return given ? `${path}?${given}` : path;
}

const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 15000, POLL_MS = 3000, SILENCE_MS = 40000;

/**
 * Call `onChange` after each change, and `onState` with whether the connection is live, until the signal. Silent
 * while the page is hidden. Polls a server that has no stream to give.
 */
export async function follow({ signal, onChange, onState }) {
  const seen = { id: "" };
  let failures = 0;
  const onNews = () => {
    failures = 0;
    onState(true);
    onChange();
  };
  while (!signal.aborted) {
    const turn = new AbortController(), end = () => turn.abort();
    for (const [source, event] of [[document, "visibilitychange"], [signal, "abort"]]) source.addEventListener(event, end, { signal: turn.signal });
    try {
      if (document.hidden) await pause(LONGEST_PAUSE_MS, turn.signal);
      else await listen(seen, turn.signal, onNews).catch((error) => {
        if (![404, 429].includes(error.status)) throw error;
        onNews();
        return pause(POLL_MS, turn.signal);
      });
    } catch {
      if (turn.signal.aborted) continue;
      onState(false);
      await pause(Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures) * (0.5 + Math.random() / 2), signal);
      failures += 1;
    } finally {
      end();
    }
  }
}

/** Read the stream from the last event on; call `onNews` after its start and after events. */
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

export async function pause(ms, signal = undefined) {
  const over = new AbortController();
  await new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal?.addEventListener("abort", resolve, { signal: over.signal });
  });
  over.abort();
}
