/* The daemon: verbs, streams, session, and whether it answers. Nothing here touches the document. */

const KEY = "memory-agent.page-key";
const USER = "memory-agent.user";
const FIRST_PAUSE_MS = 500;
const MOST_PAUSE_MS = 8000;
/** Verbs that only read: these are sent again after a lost connection. */
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

/** `state`: starting, signed-out, or signed-in. `user`: the user shown. `bound`: the key's only user, or null. */
export const sessionState = observable({ state: "starting", user: "", bound: null, scopes: [], version: "", problem: "" });
/**
 * `state`: online or away. `again`: the time (ms) of the next attempt. `restarts`: how often it came back. `isOutdated`: whether it
 * came back with another version than this page's.
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

/** Show another user's memory. Only a key for all users may. */
export function switchUser(user) {
  localStorage.setItem(USER, user);
  sessionState.set({ user });
}

/** Sign in with the token of the address (`#token=...&user=...`), or resume the browser's session. */
export async function start() {
  const given = new URLSearchParams(location.hash.slice(1));
  const token = given.get("token");
  if (token) {
    if (given.get("user")) localStorage.setItem(USER, given.get("user"));
    history.replaceState(null, "", location.pathname + "#/");
    try {
      return await signIn(token);
    } catch (error) {
      if (error.code === "unreachable") return sessionState.set({ state: "signed-out", problem: error.detail });
      // A ticket is valid once: after a reload of the address, the session may still be.
    }
  }
  try {
    await whileAway(async () => signedIn(await request("GET", "/page/session")));
  } catch (error) {
    sessionState.set({ state: "signed-out", ...(error.status !== 401 && { problem: error.detail }) });
  }
}

/** Exchange a ticket or a key for a session. Raises `Problem`. */
export async function signIn(token) {
  signedIn(await request("POST", "/page/session", { token: token.trim() }));
}

export async function signOut() {
  await request("DELETE", "/page/session").catch(() => null);
  localStorage.removeItem(KEY);
  sessionState.set({ state: "signed-out", problem: "" });
}

function signedIn({ user_id = null, scopes = [], page_key, version = "" }) {
  if (page_key) localStorage.setItem(KEY, page_key);
  const user = user_id ?? (localStorage.getItem(USER) || "default");
  sessionState.set({ state: "signed-in", user, bound: user_id, scopes, version, problem: "" });
}

/**
 * Answer a verb for the shown user. Reads wait while the daemon is away, and are sent again. Raises `Problem`.
 * `call("list", { limit: 50 }, { signal })`
 */
export async function call(verb, params = {}, { signal, user = session.user, key } = {}) {
  const body = user ? { user_id: user, ...params } : params;
  const send = () => request("POST", `/v1/${verb}`, body, { signal, key });
  return READS.has(verb) ? whileAway(send, signal) : send();
}

async function request(method, path, body, { signal, key } = {}) {
  const response = await answerOf(path, {
    method,
    signal,
    headers: headers(body === undefined ? {} : { "content-type": "application/json" }, key),
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw await problemOf(response);
  try {
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost();
  }
}

/** Send a request and record whether the daemon answers. */
async function answerOf(path, options) {
  try {
    const response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
    answered();
    return response;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost();
  }
}

function headers(more, key) {
  const pageKey = localStorage.getItem(KEY);
  return { ...more, ...(pageKey && { "x-page-key": pageKey }), ...(key && { "idempotency-key": key }) };
}

async function problemOf(response) {
  const described = await response.json().catch(() => ({ detail: `The daemon answered ${response.status}.` }));
  const retryAfterMs = Number(response.headers.get("retry-after") ?? 0) * 1000;
  const problem = new Problem({ ...described, status: response.status, retryAfterMs });
  if (response.status === 401) {
    const wasSignedIn = sessionState.get().state === "signed-in";
    sessionState.set({ state: "signed-out", ...(wasSignedIn && { problem: "The session has ended, or its key was revoked." }) });
  }
  return problem;
}

/* Reconnecting */

let probing = null;
let isDown = false;

function lost() {
  isDown = true;
  probe();
  return new Problem({ code: "unreachable", detail: "The daemon does not answer. Nothing was changed by this page.", retryable: true });
}

function answered() {
  if (!isDown) return;
  isDown = false;
  connection.set({ state: "online", again: 0, restarts: connection.get().restarts + 1 });
}

/** Ask for the session until the daemon answers. `probeNow` ends a pause early. */
function probe() {
  probing ??= (async () => {
    for (let pauseMs = FIRST_PAUSE_MS; isDown; pauseMs = Math.min(pauseMs * 2, MOST_PAUSE_MS)) {
      connection.set({ state: "away", again: Date.now() + pauseMs });
      await new Promise((resolve) => {
        endPause = resolve;
        setTimeout(resolve, pauseMs);
      });
      const response = await fetch("/page/session", { headers: headers({}), cache: "no-store" }).catch(() => null);
      if (!response) continue;
      answered();
      const { version = session.version } = response.ok ? await response.json().catch(() => ({})) : {};
      if (session.version) connection.set({ isOutdated: version !== session.version });
    }
    probing = null;
  })();
  return probing;
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

/** A daemon that starts answers 503 for some seconds; the wait for one that is away has no end. */
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
