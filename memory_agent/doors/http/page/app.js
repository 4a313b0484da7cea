/* The shell: navigation, routes, keys, theme, the user shown, sign-in, and whether the daemon answers. */

import { html, render, useCallback, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact.js";
import * as api from "./api.js";
import { Command, Dialog, Field, Loading, Problem, Toasts, toast, useKeys, useStore } from "./parts.js";

/** The views by group, in the order of the navigation. Each is a module whose default export is { title, key, view, keys? }. */
const GROUPS = [
  ["Memories", ["timeline", "search", "map"]],
  ["Work", ["runs", "sessions", "live"]],
  ["Learning", ["learned", "shared"]],
  ["Care", ["quarantine", "erase", "health"]],
];
const THEME = "memory-agent.theme";
const PREFIX_MS = 1500;

/* Routes: `#/timeline?kind=finding&id=...` is { view: "timeline", params: { kind: "finding", id: "..." } }. */

function routeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  return { view: path || GROUPS[0][1][0], params: Object.fromEntries(new URLSearchParams(query)) };
}

function hrefOf(view, params = {}) {
  const set = Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#/${view}${set.length ? `?${new URLSearchParams(set)}` : ""}`;
}

/** Go to a view. `replace` does not add to the browser's history. */
function navigate(view, params = {}, { replace = false } = {}) {
  if (!replace) location.hash = hrefOf(view, params);
  else {
    history.replaceState(null, "", hrefOf(view, params));
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}
navigate.href = hrefOf;

function useRoute() {
  const [route, setRoute] = useState(routeOf(location.hash));
  useEffect(() => {
    const read = () => setRoute(routeOf(location.hash));
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return route;
}

/* Theme */

const system = matchMedia("(prefers-color-scheme: dark)");
const themeNow = () => localStorage.getItem(THEME) ?? (system.matches ? "dark" : "light");
const showTheme = () => { document.documentElement.dataset.theme = themeNow(); };
showTheme();

function useTheme() {
  const [theme, setTheme] = useState(themeNow());
  useEffect(() => {
    const follow = () => { showTheme(); setTheme(themeNow()); };
    system.addEventListener("change", follow);
    addEventListener("storage", follow);
    return () => { system.removeEventListener("change", follow); removeEventListener("storage", follow); };
  }, []);
  const turn = useCallback(() => {
    const next = themeNow() === "dark" ? "light" : "dark";
    localStorage.setItem(THEME, next);
    showTheme();
    setTheme(next);
  }, []);
  return [theme, turn];
}

/* Parts of the shell */

function Navigation({ views, route, isOpen, onGo, user, children }) {
  return html`<header class=${`side ${isOpen ? "open" : ""}`}>
    <div class="brand">Memory</div>
    ${user}
    <nav aria-label="Views" class="stack">${GROUPS.map(([group, names]) => html`<div key=${group}>
      <h2 id=${`nav-${group}`}>${group}</h2>
      <ul aria-labelledby=${`nav-${group}`}>${names.filter((name) => views[name]).map((name) => html`<li key=${name}>
        <a href=${hrefOf(name)} aria-current=${route.view === name ? "page" : undefined} onClick=${onGo}>${views[name].title}<kbd aria-hidden="true">g ${views[name].key}</kbd></a>
      </li>`)}</ul>
    </div>`)}</nav>
    <div class="foot">${children}</div>
  </header>`;
}

function UserSwitch() {
  const { user, bound } = useStore(api.sessionState);
  const [text, setText] = useState(user);
  useEffect(() => setText(user), [user]);
  if (bound !== null) return html`<div class="user cut" title="The key is for this user only"><span>User</span>${bound}</div>`;
  const change = (event) => {
    event.preventDefault();
    const name = text.trim();
    if (api.isUserName(name)) return api.switchUser(name);
    if (name) toast("A user's name has 1 to 128 ASCII letters, digits and ._:@+-, without a leading dot.", "bad");
    return setText(user);
  };
  return html`<form class="user" onSubmit=${change}><label><span>User</span><input title="The user whose memory is shown" value=${text} spellcheck=${false} autocomplete="off" onInput=${(event) => setText(event.target.value)} onBlur=${change} /></label></form>`;
}

function Connection() {
  const { state } = useStore(api.connection);
  return html`<span class="row muted" role="status"><span class=${`dot ${state}`}></span>${state === "away" ? "Reconnecting" : "Connected"}</span>`;
}

/** Says that the daemon is away, counts down, and offers to try now. */
function Away() {
  const { state, again, isOutdated } = useStore(api.connection);
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (state !== "away") return undefined;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [state, again]);
  if (isOutdated && state === "online") {
    return html`<div class="banner" role="status"><span class="grow">The daemon was updated. Reload the page once you no longer need what you typed.</span><button onClick=${() => location.reload()}>Reload</button></div>`;
  }
  if (state !== "away") return null;
  const seconds = Math.max(0, Math.ceil((again - now) / 1000));
  return html`<div class="banner" role="alert">
    <span class="grow">The daemon does not answer. If it was stopped, start it: <code>memory-agent serve --light</code>. What you typed is kept. ${seconds ? `Next attempt in ${seconds} s.` : "Trying …"}</span>
    <button onClick=${api.probeNow}>Try now</button>
  </div>`;
}

/** Says whose memory is shown after a link or another tab signed in with another key. */
function OtherKey() {
  const { isOther, user } = useStore(api.sessionState);
  if (!isOther) return null;
  return html`<div class="banner" role="alert">
    <span class="grow">A link or another tab has signed this browser in with another key. This is the memory of <b>${user}</b>.</span>
    <button onClick=${() => api.sessionState.set({ isOther: false })}>OK</button>
  </div>`;
}

/** Says that the key may not read memories, so that every view would be an error. */
function NoRecall() {
  const { state, scopes } = useStore(api.sessionState);
  if (state !== "signed-in" || scopes.includes("recall")) return null;
  return html`<div class="banner" role="alert">
    <span class="grow">This key lacks the scope <b>recall</b>, so no memory can be shown. Sign out, and sign in with another key.</span>
  </div>`;
}

/** The sign-in form, above the views if a session ended by itself: what was typed there is kept. */
function SignIn({ problem: reason, isKept }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setProblem(null);
    await api.signIn(token).catch((error) => setProblem(error.code === "unauthorized" ? { code: error.code, detail: "This key is unknown, revoked or expired. Make a new one with memory-agent keys create." } : error));
  };
  return html`<${Dialog} title="Sign in">
    <p class="muted">${reason || "This browser has no valid session."}${isKept ? " What you typed on the page is kept." : ""}</p>
    <p>Open the page from a terminal, which signs you in:</p>
    <${Command} text="memory-agent open" />
    <form onSubmit=${submit}>
      <${Field} label="Or paste a key" hint="Made by memory-agent keys create, with the scope recall.">
        <input type="password" autocomplete="off" autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
      </${Field}>
      <${Problem} problem=${problem} />
      <div class="actions"><button class="primary" disabled=${!token.trim()}>Sign in</button></div>
    </form>
  </${Dialog}>`;
}

const KEYS = [["/", "Search"], ["j k", "Next, previous row"], ["Enter", "Open the row"], ["Esc", "Close"], ["t", "Dark or light"], ["?", "This help"]];

/** The keys of every view and of the shown view, and `g` followed by a view's key. */
function Help({ views, shown, onClose }) {
  const section = (title, rows) => html`<section><h2>${title}</h2><dl class="facts">${rows.map(([keys, what]) => html`<dt key=${keys}>${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${what}</dd>`)}</dl></section>`;
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <div class="keys">
      ${section("Everywhere", KEYS)}
      ${shown?.keys && section(shown.title, shown.keys)}
      ${section("Go to", Object.values(views).map(({ key, title }) => [`g ${key}`, title]))}
    </div>
    <p class="muted">The API behind this page: <a href="/docs">/docs</a></p>
    <div class="actions"><button autofocus onClick=${onClose}>Close</button></div>
  </${Dialog}>`;
}

/** A view. If it throws, the error takes its place until another address is opened, and the rest of the page works. */
function Guarded({ View, ...props }) {
  const [error, reset] = useErrorBoundary((thrown) => console.error(thrown));
  useEffect(() => { if (error) reset(); }, [props.route]);
  if (error) return html`<div class="body"><h1 class="hidden">Error</h1><${Problem} problem=${{ code: "page_error", detail: `This view failed: ${error.message}. This is an error of the page; the memory is not affected.` }} retry=${reset} /></div>`;
  return html`<${View} ...${props} />`;
}

function App({ views }) {
  const route = useRoute();
  const session = useStore(api.sessionState);
  const [theme, turnTheme] = useTheme();
  const [open, setOpen] = useState("");
  const prefix = useRef(0);

  const byKey = Object.fromEntries(Object.entries(views).map(([name, { key }]) => [key, name]));
  const keys = { "/": () => (route.view === "search" ? document.querySelector("#query")?.focus() : navigate("search")), "?": () => setOpen("help"), t: turnTheme, g: () => { prefix.current = Date.now(); } };
  // Handles `g` followed by a view's key, before the keys of the shown view.
  const go = (event) => {
    if (Date.now() - prefix.current > PREFIX_MS || !byKey[event.key]) return;
    prefix.current = 0;
    event.preventDefault();
    navigate(byKey[event.key]);
  };
  useEffect(() => {
    addEventListener("keydown", go, true);
    return () => removeEventListener("keydown", go, true);
  }, []);
  useKeys(keys);
  useEffect(() => { document.title = `${views[route.view]?.title ?? "Not found"} – Memory`; }, [route.view]);
  useEffect(() => setOpen(""), [route]);

  if (session.state === "starting") return html`<div class="empty"><${Away} /><${Loading} what="Connecting" /></div>`;
  const View = views[route.view]?.view;
  const isKnown = session.state === "signed-in" || session.isKept;
  const signOut = async () => { await api.signOut(); navigate(GROUPS[0][1][0], {}, { replace: true }); };
  return html`<div class="shell">
    <div class="top" role="region" aria-label="Page">
      <button class="plain" aria-expanded=${open === "menu"} aria-label="Menu" onClick=${() => setOpen(open === "menu" ? "" : "menu")}>☰</button>
      <b class="grow">${views[route.view]?.title}</b><${Connection} />
    </div>
    <${Navigation} views=${views} route=${route} isOpen=${open === "menu"} onGo=${() => setOpen("")} user=${isKnown && html`<${UserSwitch} />`}>
      <${Connection} />
      <div class="row actions">
        <button class="plain" onClick=${turnTheme} title="t">${theme === "dark" ? "Light" : "Dark"}</button>
        <button class="plain" onClick=${() => setOpen("help")} title="?">Keys</button>
        <button class="plain" onClick=${signOut}>Sign out</button>
      </div>
    </${Navigation}>
    <main class="main">
      <${Away} /><${OtherKey} /><${NoRecall} />
      ${isKnown && (View ? html`<${Guarded} View=${View} key=${`${route.view} ${session.user} ${session.scopes}`} route=${route} navigate=${navigate} api=${api} />`
        : html`<div class="body"><h1 class="hidden">Not found</h1><${Problem} problem=${{ code: "not_found", detail: `There is no view ${route.view}, or it could not be loaded. Choose one from the navigation, or reload the page.` }} /></div>`)}
    </main>
    ${session.state === "signed-out" && html`<${SignIn} problem=${session.problem} isKept=${session.isKept} />`}
    ${open === "help" && html`<${Help} views=${views} shown=${views[route.view]} onClose=${() => setOpen("")} />`}
    <${Toasts} />
  </div>`;
}

async function loadViews() {
  const names = GROUPS.flatMap(([, group]) => group);
  const loaded = await Promise.allSettled(names.map((name) => import(`./${name}.js`)));
  const found = names.map((name, place) => [name, loaded[place].value?.default]).filter(([, view]) => view);
  return Object.fromEntries(found);
}

/* An address with a token, opened in this tab, signs in and leaves the view as it is. Ahead of `useRoute`, which reads the address. */
addEventListener("hashchange", ({ oldURL }) => { if (location.hash.startsWith("#token=")) api.start(new URL(oldURL).hash || "#/"); });
api.start();
const views = await loadViews();
render(html`<${App} views=${views} />`, document.querySelector("#app"));
