// @ts-check
// The server's API and its stream of events.

/** Where in this tab's sessionStorage the key is; there is no cookie. */
export const KEY = "agentpay.key";

/** An error with the status of a response (0: none came), and the code and sentences in its body. */
function failure(status, body) {
	const faults = (body?.details ?? []).map(({ field, message }) => `${field} ${message}`);
	const text = [body?.message ?? `The server responded with status ${status}.`, ...faults].join(" ");
	return Object.assign(new Error(text), { status, code: body?.error });
}

/** Send a request; return its response. The window gets the event `unauthorized` when the key is refused. */
export async function send(method, path, { body, signal, headers } = /** @type {any} */ ({})) {
	const held = sessionStorage[KEY];
	let response;
	try {
		response = await fetch(path, {
			method, signal, cache: "no-store", credentials: "omit", redirect: "error",
			headers: { ...(held && { Authorization: `Bearer ${held}` }), ...headers },
			body: body && new Blob([JSON.stringify(body)], { type: "application/json" }),
		});
	} catch (error) {
		if (signal?.aborted) throw error;
		const doubt = method === "GET" ? "" : " The outcome is unknown until this page shows it.";
		throw failure(0, { message: `The server does not respond.${doubt}` });
	}
	if (response.ok) return response;
	const problem = await response.json().catch(() => null);
	if (response.status === 401 && held === sessionStorage[KEY]) dispatchEvent(new Event("unauthorized"));
	throw failure(response.status, problem);
}

export async function call(method, path, options) {
	const response = await send(method, path, options);
	return response.status === 204 ? null : response.json();
}

export const read = (path, signal) => call("GET", path, { signal });
export const post = (path, body) => call("POST", path, { body });

export function at(path, query) {
	const given = String(new URLSearchParams(Object.entries(query).filter(([, value]) => value)));
	return given ? `${path}?${given}` : path;
}

export const pause = (ms, signal) => new Promise((resolve) => {
	const timer = AbortSignal.timeout(ms);
	timer.addEventListener("abort", resolve);
	signal?.addEventListener("abort", resolve, { signal: timer });
});

const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 15000, SILENCE_MS = 40000;

/** Until the signal, call `onChange` after each change and `onState` with whether the connection is live. */
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
			// A server that has no stream, or none to spare, is polled all the same.
			onState([404, 429].includes(error.status));
			await pause(Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures++) * (0.5 + Math.random() / 2), ended);
		}
		turn.abort();
	}
}

/** Call `onNews` when the stream begins, and with the identifier of each new event. */
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
