// @ts-check
// The console: sign-in, the frame around the pages, the way between them, and the keyboard.

import { access } from "./access.js";
import { ApiError, call, follow, key, pause, whenUnauthorized } from "./api.js";
import { bench } from "./bench.js";
import { me, meet, readClock } from "./data.js";
import { session, sessions, timeline } from "./history.js";
import { account, approvals, overview } from "./money.js";
import { transfer } from "./transfer.js";
import { $, ask, button, facts, field, h, plain, quiet, tell } from "./ui.js";
import { deliveries } from "./webhooks.js";

// Name: title, page, key after `g`, icon. Without a key: the page of the bar that it belongs to.
/** @type {Record<string, any[]>} */
const PAGES = {
  overview: ["Overview", overview, "o", "M4 4h6v7H4zM14 4h6v4h-6zM14 12h6v8h-6zM4 15h6v5H4z"],
  approvals: ["Approvals", approvals, "a", "M4 12.5 9.5 18 20 6"],
  timeline: ["Timeline", timeline, "t", "M5 6h14M5 12h10M5 18h6"],
  deliveries: ["Deliveries", deliveries, "d", "M4 12 20 4l-5 16-3.5-6.5zM11.5 13.5 20 4"],
  sessions: ["Sessions", (view) => (view.id ? session : sessions)(view), "s", "M12 4a8 8 0 1 0 8 8M12 8v4l3 2"],
  access: ["Access", access, "k", "M12 9a4 4 0 1 0-3 6L13 12h7v4M17 12v3"],
  bench: ["Test bench", bench, "b", "M9 4h6M10 4v6l-5 9h14l-5-9V4"],
  transfers: ["Transfer", transfer, "", "timeline"],
  accounts: ["Account", account, "", "overview"],
};
const BAR = Object.entries(PAGES).filter(([, [, , letter]]) => letter);
const KEYS = { j: "Next row", k: "Previous row", a: "Approve the row, after a confirmation", r: "Reject the row, after a confirmation", "/": "Search", "?": "This list", Esc: "Leave a dialog or a field" };

const app = $("#app");
let signedIn = new AbortController(), shown = new AbortController();
let reload = () => {}, main = /** @type {any} */ (null);

function icon(path) {
  const [svg, line] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.ariaHidden = "true";
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

// --- Sign-in

function signIn(why = "") {
  signedIn.abort();
  shown.abort();
  key.clear();
  const label = field("Operator key", "key", { type: "password", required: true, placeholder: "ap_operator_…", "aria-describedby": "why" }), input = $("input", label);
  const go = h("button.primary", "Sign in"), note = h("p.bad", { id: "why", role: "alert" }, why);
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    key.set(input.value.trim());
    try {
      await enter();
    } catch (error) {
      key.clear();
      note.textContent = error.status === 401 ? "The server does not accept this key." : plain(error.message);
      go.disabled = false;
      input.select();
    }
  };
  app.replaceChildren(h("main", { id: "main" }, h("form.card.signin", { submit }, h("h1", "agentpay console"),
    h("p", "Open a sign-in link: ", h("code", "agentpay-server serve"), " prints one when it starts, and ", h("code", "agentpay-server console-link"), " another."),
    h("p.quiet", "Or paste an operator key. It stays in this tab, and ends with it."), label, note, go)));
  document.title = "Sign in · agentpay console";
  input.focus();
}

/** Exchange the code of a sign-in link, which leaves the address at once, for a key; return what went wrong. */
async function redeem() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code"), before = key.get();
  if (!code) return "";
  history.replaceState(null, "", location.pathname);
  key.clear();
  try {
    key.set((await call("POST", "/console/sign-in", { body: { code } })).key);
    return "";
  } catch (error) {
    if (before) key.set(before);
    return plain(error.message);
  }
}

async function enter() {
  await meet();
  if (me.kind === "agent") throw new ApiError(403, { message: "This is the key of an agent; the console needs an operator key." });
  start();
}

// --- The frame

function start() {
  signedIn = new AbortController();
  const { signal } = signedIn, counts = {}, state = h("span.state", { "data-is": "" }, "Connecting…");
  main = h("main", { id: "main" });
  app.replaceChildren(
    h("header", h("a.brand", { href: "#/overview" }, icon("M5 18 12 5l7 13M8 14h8"), "agentpay"),
      me.is_test_money ? h("span.money.test", "TEST MONEY") : h("span.money.real", "REAL MONEY"), h("span.quiet.cluster", plain(me.cluster)), h("span.grow"), state,
      button("?", help, { "aria-label": "Keyboard shortcuts", look: "bare" }), button("Sign out", () => signIn("Signed out."), { look: "bare" })),
    h("nav", { "aria-label": "Pages" }, BAR.filter(([name]) => name !== "bench" || me.is_test_money).map(([name, [label, , , path]]) => {
      counts[name] = h("span.count", { hidden: true });
      return h("a", { href: `#/${name}`, "data-page": name }, icon(path), h("span", label), counts[name]);
    })), main);
  const count = paced(async () => {
    const [it] = await Promise.all([call("GET", "/console/summary", { signal }), readClock(signal)]);
    for (const [name, number, what] of [["approvals", it.pending_approvals, "waiting"], ["deliveries", it.undelivered_deliveries, "undelivered"]]) {
      counts[name].hidden = !number;
      counts[name].replaceChildren(number > 99 ? "99+" : number, h("span.sr", ` ${what}`));
    }
  }, signal, 2000);
  follow({ signal, onChange: () => { count(); reload(); }, onState: (is) => {
    const was = state.dataset.is;
    if (was === is) return;
    state.dataset.is = is;
    state.textContent = is === "live" ? "Live" : "Reconnecting…";
    if (is !== "live") tell("The connection to the server is lost; reconnecting.", "warn");
    else if (was) tell("Connected again.");
  } });
  count();
  route();
}

/** Return a function that does work which is asked for often: never twice at once, at most once a pause. */
function paced(work, signal, pauseMs) {
  let isBusy = false, isWanted = false;
  return async () => {
    isWanted = true;
    if (isBusy) return;
    isBusy = true;
    while (isWanted && !signal.aborted) {
      isWanted = false;
      // What fails is read again once the connection is back.
      await work().catch(() => {});
      await pause(pauseMs, signal);
    }
    isBusy = false;
  };
}

// --- The way between pages

function route() {
  if (!main || !key.get() || signedIn.signal.aborted) return;
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?"), [wanted, id = ""] = path.split("/");
  const name = Object.hasOwn(PAGES, wanted) ? wanted : "overview", [label, page, letter, owner] = PAGES[name];
  shown.abort();
  shown = new AbortController();
  const { signal } = shown, root = h("div.page", { "aria-busy": "true" }), isFirst = !main.firstChild;
  const problem = h("p.problem", { role: "alert", hidden: true }), title = h("h1", { tabindex: -1 }, label);
  reload = () => {};
  document.title = `${label} · agentpay console`;
  for (const place of document.querySelectorAll("nav a")) place.ariaCurrent = place.getAttribute("data-page") === (letter ? name : owner) ? "page" : null;
  main.replaceChildren(title, problem, root);
  scrollTo(0, 0);
  if (!isFirst) title.focus({ preventScroll: true });
  const say = (text) => {
    problem.textContent = plain(text);
    problem.hidden = !text;
  };
  page({
    root, id: encodeURIComponent(decodeURIComponent(id)), asked: Object.fromEntries(new URLSearchParams(search)),
    get: (path) => call("GET", path, { signal }),
    load: (load, seconds = 10) => {
      if (signal.aborted) return;
      reload = paced(() => load().then(() => say(""), (error) => {
        if (signal.aborted) return;
        if (!(error instanceof ApiError)) console.error(error);
        say(error.message);
      }).then(() => root.removeAttribute("aria-busy")), signal, 1000);
      const timer = setInterval(() => { if (!document.hidden) reload(); }, seconds * 1000);
      signal.addEventListener("abort", () => clearInterval(timer));
      return reload();
    },
    act: async (work, done = "") => {
      try {
        await work();
        if (done) tell(done);
      } catch (error) {
        if (!signal.aborted) tell(error.message, "bad");
      }
      if (!signal.aborted) reload();
    },
  });
}

// --- The keyboard

let isGoing = false;

function press(event) {
  const on = event.target, letter = event.key;
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]") || signedIn.signal.aborted) return;
  if (on.matches?.("input, select, textarea")) {
    if (letter === "Escape") on.blur();
    return;
  }
  const row = document.activeElement?.closest("[data-row]"), wasGoing = isGoing;
  isGoing = letter === "g";
  const to = wasGoing && BAR.find(([, page]) => page[2] === letter);
  if (to) location.hash = `#/${to[0]}`;
  else if (letter === "?") help();
  else if (letter === "/") search();
  else if (letter === "j" || letter === "k") {
    const rows = [...main.querySelectorAll("[data-row]")], next = rows[row ? rows.indexOf(row) + (letter === "j" ? 1 : -1) : 0];
    const place = next && (next.matches("[tabindex]") ? next : $("summary, a[href], button", next));
    place?.focus();
    place?.scrollIntoView({ block: "nearest" });
  } else if (row && "ar".includes(letter)) $(`[data-hot=${letter}]`, row)?.click();
  else return;
  event.preventDefault();
}

/** Search here, or else in the timeline. */
function search() {
  const input = $("[data-search]");
  if (input) {
    input.closest("details").open = true;
    input.focus();
  } else {
    addEventListener("hashchange", search, { once: true });
    location.hash = "#/timeline";
  }
}

function help() {
  const pages = BAR.map(([, [label, , letter]]) => [["g", letter], label]), others = Object.entries(KEYS).map(([letter, what]) => [[letter], what]);
  ask({ title: "Keyboard", action: "Close", cancel: "" }, facts(...[...pages, ...others].map(([letters, what]) => [letters.map((letter) => h("kbd", letter)), what])));
}

// --- The start

const EXPIRED = "The key is no longer accepted: it was revoked, or has expired.";
whenUnauthorized(() => { if (main && !signedIn.signal.aborted) signIn(EXPIRED); });
addEventListener("hashchange", () => (location.hash.startsWith("#code=") ? location.reload() : route()));
const refusal = await redeem();
addEventListener("keydown", press);
while (key.get() && !main) {
  try {
    await enter();
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      signIn(error.status === 401 ? EXPIRED : error.message);
      break;
    }
    app.replaceChildren(h("main", h("h1", "agentpay console"), h("p.problem", { role: "alert" }, plain(error.message), quiet(" Trying again."))));
    await pause(2000);
  }
}
if (!main && !$("form")) signIn(refusal);
else if (refusal) tell(refusal, "bad");
