/* The daemon: verbs, streams, session, and whether it answers. Nothing here touches the document. */

const KEY = "memory-agent.page-key";
const USER = "memory-agent.user";
const SESSION = "/page/session";
/** The names that users may have. They appear in commands to copy, so no other name is accepted from an address. */
const USER_NAME = /^[A-Za-z0-9_@+:-][A-Za-z0-9._@+:-]{0,127}$/;
const FIRST_PAUSE_MS = 500;
const MOST_PAUSE_MS = 8000;
/** Verbs that only read: these are sent again after a lost connection. A test compares them with the table of verbs. */
const READS = new Set([
  "recall", "get", "stats", "list", "sessions", "map", "run_get", "run_list", "run_similar", "sona_status", "offered",
  "published", "search_shared", "shared_item", "shared_attachment", "own_name", "status", "quarantine_list",
]);

/** An error that the daemon answered, or `unreachable` if it did not answer. */
export class Problem extends Error {
  constructor({ code = "unexpected", detail = "", title = "", status = 0, retryable = false, retryAfterMs = 0 }) {
    super(detail || title || code);
    Object.assign(this, { code, detail: detail || title || code, title, status, retryable, retryAfterMs });
  }
}

/** A value with subscribers. `set` notifies them if a field changed. */
function observable(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(change) {
      if (Object.keys(change).every((name) => value[name] === change[name])) return;
      value = { ...value, ...change };
      for (const listener of [...listeners]) listener(value);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/**
 * `state`: starting, signed-out, or signed-in. `user`: the user shown. `bound`: the key's only user, or null. `isKept`: whether a
 * session ended by itself, so that what was typed is kept for the next one. `isOther`: whether a link or another tab signed in with
 * another key.
 */
export const sessionState = observable({
  state: "starting", user: "", bound: null, scopes: [], version: "", problem: "", isKept: false, isOther: false,
});
/**
 * `state`: online or away. `again`: the time (ms) of the next attempt. `restarts`: how often it came back. `isOutdated`: whether it
 * came back with a different version from this page's.
 */
export const connection = observable({ state: "online", again: 0, restarts: 0, isOutdated: false });

export const session = {
  get user() { return sessionState.get().user; },
  get bound() { return sessionState.get().bound; },
  get scopes() { return sessionState.get().scopes; },
  get version() { return sessionState.get().version; },
};

/** Whether the key permits `scope`: recall, publish, share, admin. */
export const may = (scope) => session.scopes.includes(scope);

/** Whether a user can have this name. */
export const isUserName = (name) => USER_NAME.test(name);

/** Show another user's memory. Requires a key for all users. */
export function switchUser(user) {
  localStorage.setItem(USER, user);
  sessionState.set({ user });
}

/**
 * Sign in with the token of the address (`#token=...&user=...`), or resume the browser's session. The token is removed from the
 * address, which becomes `address`.
 */
export async function start(address = "#/") {
  const { token, user } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (token === undefined) return resume();
  history.replaceState(null, "", location.pathname + address);
  const former = localStorage.getItem(KEY) && (await request("GET", SESSION).catch(() => null));
  try {
    return signedIn(await exchanged(token), { user, former });
  } catch (error) {
    return resume(error.status === 401 ? "The link was used before, or has expired." : error.detail);
  }
}

/** Continue the browser's session. `problem` is shown if there is none. */
async function resume(problem = "") {
  const { state, isKept, bound, scopes } = sessionState.get();
  const former = state === "signed-in" || isKept ? { user_id: bound, scopes } : null;
  try {
    await whileAway(async () => signedIn(await request("GET", SESSION), { former }));
  } catch (error) {
    sessionState.set({ state: "signed-out", problem: error.status === 401 ? problem : error.detail, isKept: former !== null });
  }
}

/** Exchange a ticket or a key for a session. Raises `Problem`. */
export const signIn = async (token) => signedIn(await exchanged(token));
const exchanged = (token) => request("POST", SESSION, { token: token.trim() });

export async function signOut() {
  await request("DELETE", SESSION).catch(() => null);
  localStorage.removeItem(KEY);
  signedOut();
}

const signedOut = () => sessionState.set({ state: "signed-out", problem: "", isKept: false, isOther: false });

/** `user` is the user to show, `former` the answer to the former sign-in, if any. */
function signedIn({ user_id: bound = null, scopes = [], page_key, version = "" }, { user = "", former = null } = {}) {
  if (page_key) localStorage.setItem(KEY, page_key);
  if (USER_NAME.test(user)) localStorage.setItem(USER, user);
  const named = localStorage.getItem(USER) ?? "";
  const isOther = former !== null && (former.user_id !== bound || String(former.scopes) !== String(scopes));
  sessionState.set({
    state: "signed-in", user: bound ?? (USER_NAME.test(named) ? named : "default"), bound, scopes, version, problem: "", isKept: false, isOther,
  });
}

/* Another tab signed in or out. */
addEventListener("storage", ({ key }) => {
  if (key !== KEY && key !== null) return;
  if (localStorage.getItem(KEY)) resume();
  else signedOut();
});

/**
 * Answer a verb for the shown user. Reads wait while the daemon is away, and are sent again. Raises `Problem`.
 * `call("list", { limit: 50 }, { signal })`
 */
export async function call(verb, params = {}, { signal, user = session.user } = {}) {
  const body = user ? { user_id: user, ...params } : params;
  const isRead = READS.has(verb) || params.dry_run === true;
  const send = () => request("POST", `/v1/${verb}`, body, { signal, isRead });
  return isRead ? whileAway(send, signal) : send();
}

async function request(method, path, body, { signal, isRead = path === SESSION } = {}) {
  const response = await answerOf(path, {
    method,
    signal,
    headers: headers(body === undefined ? {} : { "content-type": "application/json" }),
    body: body === undefined ? undefined : JSON.stringify(body),
  }, isRead);
  if (!response.ok) throw await problemOf(response);
  try {
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost(isRead ? UNANSWERED : UNCERTAIN);
  }
}

/** Send a request and record whether the daemon answers. While it is away, nothing is sent, because another program may have its port. */
async function answerOf(path, options, isRead = true) {
  if (isDown) throw lost(UNANSWERED);
  try {
    const response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
    if (response.status === 401 && path !== SESSION) ended();
    return response;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost(isRead ? UNANSWERED : UNCERTAIN);
  }
}

function ended() {
  if (sessionState.get().state !== "signed-in") return;
  sessionState.set({ state: "signed-out", problem: "The session has ended, or its key was revoked.", isKept: true });
}

function headers(more) {
  const pageKey = localStorage.getItem(KEY);
  return { ...more, ...(pageKey && { "x-page-key": pageKey }) };
}

async function problemOf(response) {
  const described = await response.json().catch(() => ({ detail: `The daemon answered ${response.status}.` }));
  const retryAfterMs = Number(response.headers.get("retry-after") ?? 0) * 1000;
  return new Problem({ ...described, status: response.status, retryAfterMs });
}

/* Reconnecting */

const UNANSWERED = "The daemon does not answer. This request changed nothing.";
const UNCERTAIN = "The daemon did not answer. It may have carried this out: look before you repeat it.";
let probing = null;
let isDown = false;

function lost(detail) {
  isDown = true;
  probe();
  return new Problem({ code: "unreachable", detail, retryable: true });
}

/** Probe the daemon until it answers, then ask for its version. `probeNow` ends a pause early. */
function probe() {
  probing ??= (async () => {
    for (let pauseMs = FIRST_PAUSE_MS; isDown; pauseMs = Math.min(pauseMs * 2, MOST_PAUSE_MS)) {
      connection.set({ state: "away", again: Date.now() + pauseMs });
      await new Promise((resolve) => {
        endPause = resolve;
        setTimeout(resolve, pauseMs);
      });
      isDown = !(await isDaemon());
    }
    probing = null;
    connection.set({ state: "online", again: 0, restarts: connection.get().restarts + 1 });
    const { version } = (await request("GET", SESSION).catch(() => null)) ?? {};
    if (version && session.version) connection.set({ isOutdated: version !== session.version });
  })();
  return probing;
}

/** Whether the program that has the port is a daemon. Sends neither the cookie nor the page key. */
async function isDaemon() {
  const options = { headers: { accept: "application/json" }, credentials: "omit", cache: "no-store", redirect: "error" };
  const answer = await fetch("/", options).then((response) => response.json()).catch(() => null);
  return typeof answer?.page === "string";
}

let endPause = () => {};
export const probeNow = () => endPause();

async function whileAway(send, signal) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await send();
    } catch (error) {
      if (signal?.aborted || !isTemporary(error, tries)) throw error;
      if (error.code === "unreachable") await probe();
      else await new Promise((resolve) => setTimeout(resolve, error.retryAfterMs || FIRST_PAUSE_MS));
      signal?.throwIfAborted();
    }
  }
}

/** A daemon that is starting answers 503 for some seconds. A daemon that is away is retried without a limit. */
const isTemporary = (error, tries) => error.code === "unreachable" || ([429, 503].includes(error.status) && tries < 5);

/* Streams */

/**
 * Follow a stream of server-sent events until `signal` aborts: `onEvent({ type, data, id })`, data parsed. Reconnects where
 * it ended, with `onState("open" | "away" | "refused", problem)`.
 */
export async function stream(path, onEvent, { signal, onState = () => {} } = {}) {
  let last = "";
  for (let pauseMs = FIRST_PAUSE_MS; !signal?.aborted; pauseMs = Math.min(pauseMs * 2, MOST_PAUSE_MS)) {
    try {
      const more = { accept: "text/event-stream", ...(last && { "last-event-id": last }) };
      const response = await answerOf(path, { signal, headers: headers(more) });
      if (!response.ok) throw await problemOf(response);
      onState("open");
      for await (const event of eventsIn(response.body)) {
        last = event.id || last;
        pauseMs = FIRST_PAUSE_MS;
        if (event.data !== null) onEvent(event);
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (error.status && !error.retryable) return onState("refused", error);
    }
    if (signal?.aborted) return;
    onState("away");
    if (isDown) await probe();
    else await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}

async function* eventsIn(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield eventOf(block);
    }
  } finally {
    reader.cancel().catch(() => null);
  }
}

function eventOf(block) {
  const event = { type: "message", id: "", data: null };
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    const [name, value] = [line.slice(0, at), line.slice(at + 2)];
    if (name === "event") event.type = value;
    else if (name === "id") event.id = value;
    else if (name === "data") event.data = JSON.parse(value);
  }
  return event;
}
