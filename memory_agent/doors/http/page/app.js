import { html, render } from "./vendor/preact.js";

const KEY = "page_key";

// Sign in with the ticket of `memory-agent open`, which is removed from the address, or continue a session.
async function signIn() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has("token")) return fetch("/page/session", { headers: { "X-Page-Key": localStorage.getItem(KEY) ?? "" } });
  history.replaceState(null, "", location.pathname);
  const headers = { "Content-Type": "application/json" };
  return fetch("/page/session", { method: "POST", headers, body: JSON.stringify({ token: given.get("token") }) });
}

async function show() {
  const answer = await signIn();
  const found = await answer.json();
  if (!answer.ok) return render(html`<p>${found.detail}</p>`, document.body);
  localStorage.setItem(KEY, found.page_key);
  const headers = { "Content-Type": "application/json", "X-Page-Key": found.page_key };
  const stats = await (await fetch("/v1/stats", { method: "POST", headers, body: "{}" })).json();
  return render(html`<p>Signed in: ${stats.user_id} has ${stats.memories} memories.</p>`, document.body);
}

show();
