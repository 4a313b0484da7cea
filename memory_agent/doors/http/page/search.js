/* Recall with its reasons: the answer with the parts of each score, and what was left out. */

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { Bars, Chips, Empty, Field, Kind, Legend, Loading, Menu, Problem, Select, Text, Time, anyOf, counted, dayOf, number, splitCommas, useCall, useRows } from "./parts.js";
import { Explanation, fullBar, leftOut, legendOf, partsOf, sentencesOf } from "./explanation.js";
import { MemoryPane } from "./record.js";
import { KINDS } from "./words.js";

const MODES = [["", "default"], ["hybrid", "meaning and words"], ["vector", "meaning"], ["lexical", "words"]];
const DATES = [["", "default"], ["boost", "boost that time"], ["filter", "only that time"], ["ignore", "ignore"]];
const PLACES = [5, 10, 20, 50];
const FURTHER = 60;
const DEADLINE_MS = 20_000;
const EXAMPLES = ["why did the deploy fail", "what did we decide last week", "which test was flaky"];

/** The parameters of the recall that a route asks for, or null without a query. */
function recallOf(params) {
  if (!params.q) return null;
  const filter = { ...(params.kind && { kinds: splitCommas(params.kind) }), ...(params.session && { session_id: params.session }), ...(params.channel && { in_channel: params.channel }) };
  return {
    query: params.q, top_k: Number(params.k || PLACES[1]), deadline_ms: DEADLINE_MS, unlogged: true,
    ...(Object.keys(filter).length && { filter }),
    ...(params.mode && { mode: params.mode }), ...(params.dates && { dates: params.dates }),
    ...(params.least && { min_relevance: Number(params.least) }),
    ...(params.by && { by_session: params.by }), ...(params.shared && { tiers: ["local", "global"] }),
  };
}

const spanOf = ({ since, until }) => [since && dayOf(since), until && dayOf(Date.parse(until) - 1)].map((day) => day ?? "…").filter((day, place, all) => all.indexOf(day) === place).join(" to ");

/** The words that recall marked in its passages, as a regular expression. */
function marksOf(memories) {
  const found = new Set(memories.flatMap(({ highlights }) => highlights.flatMap((passage) => [...passage.matchAll(/\*\*([^*\n]{1,60})\*\*/g)].map(([, word]) => word))));
  return found.size ? new RegExp(`(?<![\\p{L}\\p{N}])${anyOf([...found].slice(0, 200))}(?![\\p{L}\\p{N}])`, "giu") : null;
}

const Item = ({ memory, place, full, marks, isSelected, onOpen }) => html`<li id=${`result-${place}`} class="result" aria-current=${isSelected ? "true" : undefined}>
  <button class="open" onClick=${onOpen}>
    <span class="place number muted">${memory.reason ? "" : place + 1}</span>
    <span class="score"><span class="row"><span class="number">${number(memory.sona_score, 3)}</span><span class="muted grow number" title="Relevance: the probability that it is relevant">${memory.relevance === null ? "?" : `${Math.round(memory.relevance * 100)} %`}</span></span>
      <${Bars} parts=${partsOf(memory)} most=${full} /></span>
    <span class="grow what">
      ${memory.reason && html`<span class="reason">${memory.reason}</span>`}
      <span class="clamp"><${Text} text=${memory.record.text.slice(Math.max(0, memory.passage_at - 80), memory.passage_at + 400)} marks=${marks} /></span>
      <span class="row muted meta"><${Kind} kind=${memory.record.kind} /><${Time} at=${memory.record.timestamp} />${memory.record.session_id && html`<span class="cut"><${Text} one text=${memory.record.session_id} /></span>`}
        ${memory.count > 1 && html`<span>${memory.count} times</span>`}${memory.tier === "global" && html`<span>shared</span>`}${memory.learned > 0 && html`<span>learned</span>`}</span>
    </span>
  </button></li>`;

function Options({ params, onChange }) {
  const choose = (name, label, options) => html`<${Field} label=${label}><${Select} value=${params[name] ?? ""} options=${options} onChange=${(value) => onChange({ [name]: value })} /></${Field}>`;
  const write = (name, label, more = {}) => html`<${Field} label=${label}><input ...${more} value=${params[name] ?? ""} spellcheck=${false} onChange=${(event) => onChange({ [name]: event.target.value })} /></${Field}>`;
  return html`<${Menu} label="Options">
    <div class="fields">
      ${choose("mode", "Search by", MODES)}${choose("dates", "A time in the query", DATES)}
      ${choose("k", "Results", PLACES.map((count) => [count === PLACES[1] ? "" : String(count), String(count)]))}
      ${write("least", "Minimum relevance", { type: "number", min: 0, max: 1, step: 0.05, placeholder: "default" })}
      ${write("session", "Only session")}${write("channel", "Only channel")}${write("by", "Asked by session")}
    </div>
    <label class="row"><input type="checkbox" checked=${Boolean(params.shared)} onChange=${(event) => onChange({ shared: event.target.checked ? "1" : "" })} /> Also shared items</label>
  </${Menu}>`;
}

/** What was understood, and how long it took. */
function Summary({ answer, params }) {
  const { memories, total, took_ms, dates, degraded } = answer;
  return html`<div class="summary row wrap muted" role="status">
    <span>${memories.length} of ${counted(total, "memory", "memories")}, ${number(took_ms, 0)} ms</span>
    ${dates.map((date) => html`<span key=${date.phrase}>“<${Text} text=${date.phrase} />” is ${spanOf(date)}${params.dates ? `: ${params.dates}` : ""}</span>`)}
    ${degraded.map((reason) => html`<span key=${reason} class="warn">${reason.replaceAll("_", " ")}</span>`)}
    <span class="grow"></span><${Legend} names=${legendOf(memories)} />
  </div>`;
}

function Search({ route, navigate, api }) {
  const { params } = route;
  const [text, setText] = useState(params.q ?? "");
  const input = useRef(null);
  useEffect(() => { setText(params.q ?? ""); }, [params.q]);
  useEffect(() => input.current.focus(), []);
  const asked = recallOf(params);
  const { result: answer, problem, isLoading, reload } = useCall("recall", asked);
  const isFull = answer && asked && answer.memories.length >= asked.top_k;
  const { result: beyond } = useCall("recall", answer && isFull ? { ...asked, top_k: FURTHER } : null);
  const { result: all } = useCall("recall", answer && asked ? { ...asked, top_k: FURTHER, min_relevance: 0 } : null);
  const { result: stats } = useCall("stats");
  const others = useMemo(() => (answer && all && (!isFull || beyond) ? leftOut(answer, isFull ? beyond : null, all, params.least ?? "") : []), [answer, beyond, all]);
  const rows = asked && answer ? [...answer.memories, ...others] : [];
  const marks = useMemo(() => marksOf(answer?.memories ?? []), [answer]);
  const full = fullBar(rows);
  const go = (change, replace = true) => navigate("search", { ...params, id: "", ...change }, { replace });
  const submit = (event) => { event.preventDefault(); if (text.trim() !== params.q) go({ q: text.trim() }, false); else reload(); };
  const open = (index) => go({ id: rows[index].record.id });
  const [selected, setSelected] = useRows(rows.length, "result", open);
  useEffect(() => setSelected(-1), [answer]);
  useEffect(() => { if (selected >= 0 && params.id && rows[selected]) open(selected); }, [selected]);
  const opened = rows.find(({ record }) => record.id === params.id);
  const item = (memory, place) => html`<${Item} key=${memory.record.id} memory=${memory} place=${place} full=${full} marks=${marks} isSelected=${place === selected || memory.record.id === params.id}
    onOpen=${() => { setSelected(place); open(place); }} />`;

  return html`<div class="view search">
    <form class="bar" role="search" onSubmit=${submit}>
      <h1 class="hidden">Search</h1>
      <input id="query" ref=${input} class="grow" type="search" value=${text} aria-label="What to recall" placeholder="What an agent would ask, in words" enterkeyhint="search"
        onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => { if (event.key === "Escape") event.target.blur(); }} />
      <button class="primary">Recall</button>
      <${Options} params=${params} onChange=${go} />
      <${Chips} label="Kind" options=${KINDS} value=${splitCommas(params.kind)} onChange=${(kinds) => go({ kind: kinds.join(",") })} />
    </form>
    <div class="split">
      <div class="body results" tabindex="-1">
        <${Problem} problem=${problem} retry=${reload} />
        ${!asked && html`<${Empty} title="Ask as an agent would" command='memory-agent recall "why does the deploy hang?" --explain'>
          <p>Recall compares the meaning and the words of a request with every memory. Here, each result shows the parts of its score, and what was left out and why.</p>
          <p class="row wrap">${EXAMPLES.map((example) => html`<button key=${example} class="link" onClick=${() => go({ q: example }, false)}>${example}</button>`)}</p>
          <p>From a terminal:</p></${Empty}>`}
        ${asked && isLoading && !answer && html`<${Loading} what="Recalling" />`}
        ${asked && answer && html`<${Summary} answer=${answer} params=${params} />
          <ol class=${isLoading ? "late" : ""}>${answer.memories.map(item)}</ol>
          ${!answer.memories.length && html`<${Empty} title="Nothing relevant found"><p>${others.length ? "The nearest memories are below, each with the reason why it was left out." : "No memory passes the filter, or nothing is stored yet."}</p></${Empty}>`}
          <section class="others"><header class="row"><h2>Left out</h2><span class="muted">${all ? counted(others.length, "near memory", "near memories") : "…"}</span></header>
            ${stats && sentencesOf(answer, stats.memories).map((sentence) => html`<p key=${sentence} class="muted">${sentence}</p>`)}
            <ol start=${answer.memories.length + 1}>${others.map((memory, place) => item(memory, answer.memories.length + place))}</ol>
          </section>`}
      </div>
      ${params.id && html`<${MemoryPane} key=${params.id} id=${params.id} record=${opened?.record} marks=${marks} navigate=${navigate} onClose=${() => go({ id: "" })} onForgotten=${reload}>
        ${opened?.reason && html`<p class="warn">Left out: ${opened.reason}.</p>`}
        ${opened && html`<${Explanation} memory=${opened} answer=${answer.memories} navigate=${navigate} />`}
      </${MemoryPane}>`}
    </div>
  </div>`;
}

export default { title: "Search", key: "s", view: Search };
