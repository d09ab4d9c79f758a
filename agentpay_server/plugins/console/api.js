// @ts-check

export const KEY = "agentpay.key";

/** The prefix of every path that is not part of `/v1`. */
const EXTENSIONS = "/ext/v1";

function failure(status, body) {
	const { error: code, message = `The server responded with status ${status}.`, details = [] } = body ?? {};
	const faults = details.map((it) => `${it.field} ${it.message}`);
	return Object.assign(new Error([message, ...faults].join(" ")), { status, code, summary: message, faults, details });
}

/** The window gets the event `unauthorized` when the key is refused. */
export async function send(method, path, { body, signal, headers, key = sessionStorage[KEY] } = /** @type {any} */ ({})) {
	let response;
	try {
		response = await fetch(path.startsWith("/v1/") ? path : EXTENSIONS + path, {
			method, signal, cache: "no-store", credentials: "omit", redirect: "error",
			headers: { ...(key && { Authorization: `Bearer ${key}` }), ...headers },
			body: body && new Blob([JSON.stringify(body)], { type: "application/json" }),
		});
	} catch (error) {
		if (signal?.aborted) throw error;
		dispatchEvent(new Event("unanswered"));
		const doubt = method === "GET" ? "" : " The outcome is unknown until this page shows it.";
		throw failure(0, { message: `The server does not respond.${doubt}` });
	}
	dispatchEvent(new Event("answered"));
	if (response.ok) return response;
	const problem = await response.json().catch(() => null);
	if (response.status === 401 && key === sessionStorage[KEY]) dispatchEvent(new Event("unauthorized"));
	throw failure(response.status, problem);
}

export async function call(method, path, options) {
	const response = await send(method, path, options);
	return response.status === 204 ? null : response.json();
}

export const read = (path, signal) => call("GET", path, { signal });
export const post = (path, body) => call("POST", path, { body });

export const pause = (ms, ...signals) => new Promise((resolve) => {
	const ended = AbortSignal.any([AbortSignal.timeout(ms), ...signals]);
	ended.addEventListener("abort", resolve);
	if (ended.aborted) resolve();
});

const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 15000, SILENCE_MS = 40000;

export async function follow({ signal, onChange, onState }) {
	let failures = 0;
	const onNews = () => {
		failures = 0;
		onState(true);
		onChange();
	};
	while (!signal.aborted) {
		const turn = new AbortController(), ended = AbortSignal.any([signal, turn.signal]);
		document.addEventListener("visibilitychange", () => turn.abort(), { signal: ended });
		try {
			if (document.hidden) await pause(LONGEST_PAUSE_MS, ended);
			else await listen(ended, onNews);
		} catch (error) {
			if (ended.aborted) continue;
			// A server that has no stream, or none to spare, is polled all the same.
			onState([404, 429].includes(error.status), false);
			await pause(Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures++) * (0.5 + Math.random() / 2), ended);
		}
		turn.abort();
	}
}

async function listen(signal, onNews) {
	const { body } = await send("GET", "/console/stream", { signal }), reader = body.pipeThrough(new TextDecoderStream()).getReader();
	onNews();
	for (;;) {
		const silence = setTimeout(() => reader.cancel(), SILENCE_MS), { value, done } = await reader.read();
		clearTimeout(silence);
		if (done) return pause(FIRST_PAUSE_MS, signal);
		if (value.includes("id:")) onNews();
	}
}
