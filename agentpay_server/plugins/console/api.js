// @ts-check

/** @typedef {import("../../../tests/browser/console.d.ts").Schemas} Schemas */

export const KEY = "agentpay.key";
/** The prefix of every path that is not part of `/v1`. */
const EXTENSIONS = "/ext/v1";

function failure(status, body) {
	const { error: code, message = `The server responded with status ${status}.`, details = [] } = body ?? {};
	const faults = details.map((it) => `${it.field} ${it.message}`);
	return Object.assign(new Error([message, ...faults].join(" ")), { status, code, summary: message, details });
}

/** An address with what of a query is given. */
export const at = (path, query = /** @type {any} */ ({})) => {
	const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
	return given ? `${path}?${given}` : path;
};

/**
 * Send a request to a path of the OpenAPI documents, without the extensions' prefix. What is `given` are its path
 * parameters, `query` and `body`. The window gets the event `unauthorized` when the key is refused.
 * @type {import("../../../tests/browser/console.d.ts").Send}
 */
export const send = async (method, path, given = /** @type {any} */ ({})) => {
	const { query, body, signal, headers, key = sessionStorage[KEY] } = given, params = /** @type {any} */ (given);
	const place = at(String(path).replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(params[name])), /** @type {any} */ (query));
	let response;
	try {
		response = await fetch(place.startsWith("/v1/") ? place : EXTENSIONS + place, {
			method: String(method), signal, cache: "no-store", credentials: "omit", redirect: "error",
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
};

/** @type {import("../../../tests/browser/console.d.ts").Call} */
export const call = async (method, path, given) => {
	const response = await send(method, path, given);
	return response.status === 204 ? /** @type {any} */ (null) : response.json();
};

/** @type {import("../../../tests/browser/console.d.ts").Read} */
export const read = (path, given) => call("GET", path, given);
/** @type {import("../../../tests/browser/console.d.ts").Post} */
export const post = (path, given) => call("POST", path, given);

/** @returns {Promise<unknown>} */
export const pause = (ms, ...signals) => new Promise((resolve) => {
	const ended = AbortSignal.any([AbortSignal.timeout(ms), ...signals]);
	ended.addEventListener("abort", resolve);
	if (ended.aborted) resolve(null);
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
	const { body } = await send("GET", "/console/stream", { signal }), reader = /** @type {any} */ (body).pipeThrough(new TextDecoderStream()).getReader();
	onNews();
	for (;;) {
		const silence = setTimeout(() => reader.cancel(), SILENCE_MS), { value, done } = await reader.read();
		clearTimeout(silence);
		if (done) return pause(FIRST_PAUSE_MS, signal);
		if (value.includes("id:")) onNews();
	}
}
