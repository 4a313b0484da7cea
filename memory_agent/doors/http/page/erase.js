/* Erasure: choose what, see exactly what would go, type a confirmation, keep the receipt. */

import { html, useEffect, useState } from "./vendor/preact.js";
import { call, may, session } from "./api.js";
import { Confirm, Facts, Field, Kind, Loading, Problem, Select, Text, Time, counted, download, plain, useCall } from "./parts.js";
import { KINDS, Lines } from "./words.js";

const SHOWN = 50;
const SUGGESTED = 200;
const LONG_MS = 600_000;
const WAYS = [
  ["session", "A session", "Its memories, runs, recalls and events."],
  ["run", "A run", "The memories of its events."],
  ["query", "Search results", "Memories selected from the answer to a query."],
  ["ids", "Ids", "Memories by their ids."],
  ["filter", "A filter", "Every memory that matches."],
  ["expired", "Expired", "Memories that are past a retention rule."],
  ["everything", "The whole user", "Memories, events, runs, what was learned and shared, and the folder."],
];
const idsIn = (text) => text.split(/[\s,]+/).filter(Boolean);
const atStart = (day) => new Date(`${day}T00:00:00`).toISOString();

/** The selection of `erase` for what was entered, or null while it names nothing. */
function selectionOf(way, entered) {
  const text = (entered[way] ?? "").trim?.() ?? "";
  if (way === "session") return text ? { session_id: text } : null;
  if (way === "run") return text ? { filter: { run_id: text } } : null;
  if (way === "ids") return idsIn(text).length ? { ids: idsIn(text) } : null;
  if (way === "query") return entered.picked?.length ? { ids: entered.picked } : null;
  if (way === "expired") return { expired: true };
  if (way === "everything") return { everything: true };
  const { kind, channel, type, tag, since, until } = entered;
  const filter = {
    ...(kind && { kinds: [kind] }), ...(channel?.trim() && { channel_id: channel.trim() }), ...(type?.trim() && { type: type.trim() }),
    ...(tag?.trim() && { tags: [tag.trim()] }), ...(since && { since: atStart(since) }), ...(until && { until: atStart(until) }),
  };
  return Object.keys(filter).length ? { filter } : null;
}

/** The first memories of a selection, as the reader sees them: `{ records, total }`, or null if the verb cannot list them. */
async function memoriesOf({ ids, session_id, filter, expired, everything }, signal) {
  if (expired) return null;
  if (ids) {
    const records = await call("get", { ids: ids.slice(0, SHOWN) }, { signal });
    return { records, total: null };
  }
  const chosen = everything ? null : session_id ? { session_id } : filter;
  return call("list", { limit: SHOWN, ...(chosen && { filter: chosen }) }, { signal });
}

const erase = (selection, dry_run, options) => call("erase", { selection, dry_run, deadline_ms: LONG_MS }, options);

/* 1. What */

function Filter({ entered, enter }) {
  const text = (name, label, hint) => html`<${Field} label=${label} hint=${hint}><input value=${entered[name] ?? ""} spellcheck=${false} onInput=${(event) => enter({ [name]: event.target.value })} /></${Field}>`;
  const day = (name, label) => html`<${Field} label=${label}><input type="date" value=${entered[name] ?? ""} onInput=${(event) => enter({ [name]: event.target.value })} /></${Field}>`;
  return html`<div class="fields">
    <${Field} label="Kind"><${Select} value=${entered.kind ?? ""} options=${[["", "any"], ...KINDS]} onChange=${(kind) => enter({ kind })} /></${Field}>
    ${text("channel", "Channel (project)")}${text("type", "Event type", "such as chat.user_msg")}${text("tag", "Tag")}${day("since", "From this day")}${day("until", "Before this day")}
  </div>`;
}

function Query({ entered, enter }) {
  const [state, setState] = useState({ found: entered.found ?? null, problem: null, isBusy: false });
  const search = async (event) => {
    event.preventDefault();
    setState({ ...state, isBusy: true, problem: null });
    try {
      const { memories } = await call("recall", { query: entered.query, top_k: SHOWN, unlogged: true });
      const found = memories.map(({ record }) => record);
      enter({ picked: [], found });
      setState({ found, problem: null, isBusy: false });
    } catch (problem) {
      setState({ found: null, problem, isBusy: false });
    }
  };
  const picked = entered.picked ?? [];
  const toggle = (id) => enter({ picked: picked.includes(id) ? picked.filter((one) => one !== id) : [...picked, id] });
  return html`<div class="stack">
    <form class="row" onSubmit=${search}>
      <input class="grow" aria-label="Query" placeholder="What the memories are about" value=${entered.query ?? ""} onInput=${(event) => enter({ query: event.target.value })} />
      <button disabled=${state.isBusy || !entered.query?.trim()}>Search</button>
    </form>
    <${Problem} problem=${state.problem} />
    ${state.found && !state.found.length && html`<p class="muted">No memory was found.</p>`}
    ${state.found?.length > 0 && html`<ul class="picks">${state.found.map((record) => html`<li key=${record.id}><label class="row">
      <input type="checkbox" checked=${picked.includes(record.id)} onChange=${() => toggle(record.id)} />
      <${Kind} kind=${record.kind} /><span class="grow"><${Text} one text=${record.text} /></span><span class="muted"><${Time} at=${record.timestamp} /></span>
    </label></li>`)}</ul>`}
  </div>`;
}

function What({ way, setWay, entered, enter }) {
  const entry = { session: "The session's id", run: "The run's id" }[way];
  const sessions = useCall("sessions", way === "session" ? { limit: SUGGESTED } : null).result?.sessions ?? [];
  const runs = useCall("run_list", way === "run" ? { limit: SUGGESTED } : null).result ?? [];
  const known = way === "session" ? sessions.map((one) => [one.session_id, one.title]) : runs.map((one) => [one.id, one.objective]);
  return html`<section class="section">
    <header><h2>What to erase</h2></header>
    <div class="ways" role="radiogroup" aria-label="What to erase">${WAYS.map(([name, label, what]) => html`<label key=${name} class="way">
      <input type="radio" name="way" checked=${way === name} onChange=${() => setWay(name)} /><b>${label}</b><span class="muted">${what}</span>
    </label>`)}</div>
    ${entry && html`<${Field} label=${entry}><input list="erasable" value=${entered[way] ?? ""} spellcheck=${false} autocomplete="off" onInput=${(event) => enter({ [way]: event.target.value })} /></${Field}>`}
    ${entry && html`<datalist id="erasable">${known.map(([id, title]) => html`<option key=${id} value=${id}>${plain((title ?? "").slice(0, 80))}</option>`)}</datalist>`}
    ${way === "ids" && html`<${Field} label="Ids" hint="Separated by spaces, commas or lines."><textarea rows="3" spellcheck=${false} value=${entered.ids ?? ""} onInput=${(event) => enter({ ids: event.target.value })}></textarea></${Field}>`}
    ${way === "query" && html`<${Query} entered=${entered} enter=${enter} />`}
    ${way === "filter" && html`<${Filter} entered=${entered} enter=${enter} />`}
  </section>`;
}

/* 2. Preview */

/** The preview of a selection, half a second after it was last changed: the receipt of a dry run, and the memories. */
function usePreview(selection, turn) {
  const asked = selection && JSON.stringify(selection);
  const [shown, setShown] = useState({ asked: null });
  useEffect(() => {
    if (!asked) return undefined;
    const stop = new AbortController();
    const { signal } = stop;
    const timer = setTimeout(() => {
      const chosen = JSON.parse(asked);
      Promise.all([erase(chosen, true, { signal }), memoriesOf(chosen, signal)]).then(
        ([receipt, memories]) => !signal.aborted && setShown({ asked, receipt, memories }),
        (problem) => !signal.aborted && setShown({ asked, problem }),
      );
    }, 500);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [asked, turn]);
  return asked && shown.asked === asked ? shown : {};
}

const isNothing = (receipt) => !receipt.memories && !receipt.events && !receipt.quarantined && !receipt.unpublished && !receipt.offers && !receipt.ratings;

const countsOf = (receipt) => [
  ["Memories", receipt.memories],
  ["Events in the journal", receipt.events],
  ["Events in quarantine", receipt.quarantined || null],
  ["Published blocks", receipt.published || null],
  ["Shared items", receipt.unpublished || null],
  ["Offers", receipt.offers || null],
  ["Ratings", receipt.ratings || null],
  ...Object.entries(receipt.by_rule).map(([rule, count]) => [`By the rule ${rule}`, count]),
  ["Unknown ids", receipt.unknown_ids.length ? html`<${Text} text=${receipt.unknown_ids.join(", ")} />` : null],
];

function Preview({ receipt, memories, problem, isAsked }) {
  if (!isAsked) return null;
  const left = memories ? receipt.memories - memories.records.length : 0;
  return html`<section class="section">
    <header><h2>What would be erased</h2><span class="muted">nothing is erased yet</span></header>
    <${Problem} problem=${problem} />
    ${!receipt && !problem && html`<${Loading} what="Counting" />`}
    ${receipt && html`<${Facts} rows=${countsOf(receipt)} />`}
    ${memories?.records.length > 0 && html`<ol class="told brief">${memories.records.map((record) => html`<li key=${record.id}>
      <span class="what"><span class="muted"><${Time} at=${record.timestamp} /></span> <${Kind} kind=${record.kind} /></span>
      <${Lines} text=${record.text} />
    </li>`)}</ol>`}
    ${left > 0 && html`<p class="muted">and ${counted(left, "more memory", "more memories")}.</p>`}
    ${receipt && html`<details><summary>What an erasure does not reach</summary><ul class="plain">${receipt.not_covered.map((one) => html`<li key=${one}>${one}</li>`)}</ul></details>`}
  </section>`;
}

/* 3. Receipt */

function Receipt({ receipt, onAgain }) {
  const save = () => download(`erasure-${receipt.erased_at.replace(/[:.]/g, "-")}.json`, JSON.stringify(receipt, null, 2), "application/json");
  return html`<section class="section receipt">
    <header><h2>Receipt</h2></header>
    <p class=${receipt.complete ? "good" : "warn"}>${receipt.complete ? "Complete: no file of the memory contains the erased data." : `Not complete yet: ${receipt.reason}`}</p>
    <${Facts} rows=${[
      ["User", html`<${Text} text=${receipt.user_id} />`],
      ["Erased", html`<${Time} at=${receipt.erased_at} exact />`],
      ...countsOf(receipt),
      ["SHA-256 of the ids", html`<code class="break">${receipt.ids_sha256}</code>`],
    ]} />
    <h3>Not covered</h3>
    <ul class="plain">${receipt.not_covered.map((one) => html`<li key=${one}>${one}</li>`)}</ul>
    <p class="row"><button onClick=${save}>Save the receipt</button><button onClick=${onAgain}>Erase something else</button></p>
  </section>`;
}

function Erase({ route }) {
  const [way, setWay] = useState(route.params.run ? "run" : route.params.ids ? "ids" : "session");
  const [entered, setEntered] = useState({ session: route.params.session ?? "", run: route.params.run ?? "", ids: route.params.ids ?? "" });
  const [receipt, setReceipt] = useState(null);
  const [asked, setAsked] = useState(null);
  const enter = (change) => setEntered((former) => ({ ...former, ...change }));
  const selection = may("admin") && !receipt ? selectionOf(way, entered) : null;
  const [turn, setTurn] = useState(0);
  const preview = usePreview(selection, turn);
  const isReady = preview.receipt && !isNothing(preview.receipt);
  const carryOut = async () => {
    const now = await erase(asked.selection, true);
    if (now.ids_sha256 !== asked.receipt.ids_sha256) {
      setTurn(turn + 1);
      throw { code: "changed", detail: `Since the preview, other memories match (${now.memories} now). Close this, look at the new preview, and confirm again.` };
    }
    setReceipt(await erase(asked.selection, false));
    setEntered({});
  };
  return html`<div class="view">
    <div class="bar"><h1>Erase</h1><span class="muted">permanently, from every file</span></div>
    <div class="body narrow">
      ${!may("admin") && html`<${Problem} problem=${{ code: "scope_missing", detail: "The key lacks the scope admin, which an erasure needs." }} />`}
      ${receipt ? html`<${Receipt} receipt=${receipt} onAgain=${() => setReceipt(null)} />` : html`
        <${What} way=${way} setWay=${setWay} entered=${entered} enter=${enter} />
        <${Preview} ...${preview} isAsked=${Boolean(selection)} />
        ${selection && html`<p class="row wrap"><button class="danger" disabled=${!isReady} onClick=${() => setAsked({ selection, receipt: preview.receipt })}>Erase …</button>
          ${preview.receipt && !isReady && html`<span class="muted">Nothing matches.</span>`}</p>`}`}
    </div>
    ${asked && html`<${Confirm} title="Erase permanently?" action="Erase" danger typed=${asked.selection.everything ? session.user : String(asked.receipt.memories)} onConfirm=${carryOut} onClose=${() => setAsked(null)}>
      <p>${counted(asked.receipt.memories, "memory", "memories")} and ${counted(asked.receipt.events, "event")} of <b>${session.user}</b> are erased from every file. This cannot be undone.</p>
    </${Confirm}>`}
  </div>`;
}

export default { title: "Erase", key: "e", view: ({ route }) => html`<${Erase} key=${JSON.stringify(route.params)} route=${route} />` };
