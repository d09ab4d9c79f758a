// @ts-check
// The server's API and its stream of events. The key is in this tab's sessionStorage and in the Authorization
// header; there is no cookie.

const KEY = "agentpay.key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  clear: () => sessionStorage.removeItem(KEY),
};

/** An error with the status of a response, 0 if there was none, and the code and sentences in its body. */
const failure = (status, body) => {
  const faults = (body?.details ?? []).map(({ field, message }) => `${field} ${message}`);
  const text = [body?.message ?? `The server responded with status ${status}.`, ...faults].join(" ");
  return Object.assign(new Error(text), { status, code: body?.error });
};

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
    const doubt = method === "GET" ? "" : " The outcome is unknown until this page shows it.";
    throw failure(0, { message: `The server does not respond.${doubt}` });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  if (response.status === 401 && held === key.get()) dispatchEvent(new Event("unauthorized"));
  throw failure(response.status, problem);
}

/** Send a request; return the content of its response. */
export async function call(method, path, body = undefined, options = {}) {
  const response = await send(method, path, { body, ...options });
  return response.status === 204 ? null : response.json();
}

export const post = (path, body = undefined) => call("POST", path, body);

export function at(path, query) {
  const given = String(new URLSearchParams(Object.entries(query).filter(([, value]) => value)));
  return given ? `${path}?${given}` : path;
}

export const pause = (ms, signal = undefined) => new Promise((resolve) => {
  const timer = AbortSignal.timeout(ms);
  timer.addEventListener("abort", resolve);
  signal?.addEventListener("abort", resolve, { signal: timer });
});

const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 15000, POLL_MS = 3000, SILENCE_MS = 40000;

/**
 * Call `onChange` after each change, and `onState` with whether the connection is live, until the signal. Silent
 * while the page is hidden. Polls a server that has no stream to give.
 */
export async function follow({ signal, onChange, onState }) {
  let lastId = "", failures = 0;
  const onNews = (id = lastId) => {
    [lastId, failures] = [id, 0];
    onState(true);
    onChange();
  };
  while (!signal.aborted) {
    const turn = new AbortController(), ended = AbortSignal.any([signal, turn.signal]);
    document.addEventListener("visibilitychange", () => turn.abort(), { signal: ended });
    try {
      if (document.hidden) await pause(LONGEST_PAUSE_MS, ended);
      else await listen(lastId, ended, onNews);
    } catch (error) {
      if (ended.aborted) continue;
      const polls = [404, 429].includes(error.status);
      if (polls) onNews();
      else onState(false);
      await pause(polls ? POLL_MS : Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures++) * (0.5 + Math.random() / 2), ended);
    }
    turn.abort();
  }
}

/** Read the stream from the last event on; call `onNews` after its start, and with the last identifier of new events. */
async function listen(lastId, signal, onNews) {
  const response = await send("GET", "/console/stream", { signal, headers: lastId && { "Last-Event-ID": lastId } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  onNews();
  for (;;) {
    const silence = setTimeout(() => reader.cancel(), SILENCE_MS), { value, done } = await reader.read();
    clearTimeout(silence);
    if (done) return pause(FIRST_PAUSE_MS, signal);
    const text = rest + value, id = text.match(/^id: .*(?=\n)/gm)?.at(-1);
    rest = text.slice(text.lastIndexOf("\n") + 1);
    if (id) onNews(id.slice(4));
  }
}
