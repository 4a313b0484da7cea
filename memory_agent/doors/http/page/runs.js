/* Runs: the list, and one run as a story: its request, what was recalled for it, its steps, its end, and what followed. */

import { html, useEffect, useMemo, useState } from "./vendor/preact.js";
import { call } from "./api.js";
import { Empty, Loading, Problem, Quality, Text, Time, clockOf, counted, number, useCall, useKeys, useRows } from "./parts.js";
import { headOf } from "./record.js";
import { Lines, attribution, duration, reason, standing } from "./words.js";

const STATES = [[null, "All"], ["open", "Open"], ["ended", "Ended"], ["expired", "Expired"]];
const PAGE = 100;
export const MOST_LISTED = 1000;
const tookS = (run) => (run.began_at && run.ended_at ? (new Date(run.ended_at) - new Date(run.began_at)) / 1000 : null);

export function RunTable({ runs, navigate, inSession = false }) {
  const [selected] = useRows(runs.length, "run", (place) => navigate("runs", { id: runs[place].id }));
  return html`<div class="scroll-x"><table class="runs">
    <thead><tr>
      <th>State</th><th>Request</th>${!inSession && html`<th class="session">Session</th>`}<th class="number">Quality</th><th class="number optional">Steps</th><th class="number optional">Used</th><th class="number optional">Took</th><th>Began</th>
    </tr></thead>
    <tbody>${runs.map((run, place) => html`<tr key=${run.id} id=${`run-${place}`} class=${place === selected ? "current" : ""}>
      <td class="state"><${Standing} run=${run} /></td>
      <td class="request"><a href=${navigate.href("runs", { id: run.id })}><${Text} one text=${run.objective ?? run.id} /></a></td>
      ${!inSession && html`<td class="session muted"><${Text} one text=${run.session_id} /></td>`}
      <td class="number">${run.state === "open" ? html`<span class="muted">–</span>` : html`<${Quality} value=${run.quality} isBare />`}</td>
      <td class="number optional">${run.steps.length}</td>
      <td class="number optional">${run.used.length}</td>
      <td class="number optional">${duration(tookS(run))}</td>
      <td class="began">${run.began_at ? html`<${Time} at=${run.began_at} />` : html`<span class="muted">–</span>`}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

function Standing({ run }) {
  const word = standing(run);
  return html`<span class=${`standing ${word}`}>${word}</span>`;
}

function RunList({ navigate }) {
  const [state, setState] = useState(null);
  const [limit, setLimit] = useState(PAGE);
  const { result, problem, isLoading, reload } = useCall("run_list", { state, limit });
  const runs = result ?? [];
  return html`<div class="view">
    <div class="bar">
      <h1>Runs</h1>
      <div class="chips" role="group" aria-label="State">
        ${STATES.map(([name, label]) => html`<button class="chip" aria-pressed=${state === name} onClick=${() => setState(name)}>${label}</button>`)}
      </div>
      <span class="grow"></span>
      <span class="muted">${result && `${runs.length < limit ? "" : "newest "}${counted(runs.length, "run")}`}</span>
    </div>
    <div class="body">
      <${Problem} problem=${problem} retry=${reload} />
      ${!result && !problem && html`<${Loading} />`}
      ${runs.length > 0 && html`<${RunTable} runs=${runs} navigate=${navigate} />`}
      ${runs.length === limit && limit < MOST_LISTED && html`<p class="more"><button disabled=${isLoading} onClick=${() => setLimit(Math.min(limit * 3, MOST_LISTED))}>Show more</button></p>`}
      ${result && runs.length === 0 && html`<${NoRuns} state=${state} />`}
    </div>
  </div>`;
}

function NoRuns({ state }) {
  if (state) return html`<${Empty} title=${`No run is ${state}`}><p>An open run has begun and not ended. A run without events for a long time expires.</p></${Empty}>`;
  return html`<${Empty} title="No runs yet" command='memory-agent trajectory begin "Find out why checkout logs customers out"'>
    <p>A run is an agent's work on one request. Events of a conductor begin and end runs. An agent without one begins a run with a call, or from the command line:</p>
  </${Empty}>`;
}

/* Everything that one run's story shows. Reads the run first, then in parallel what it names. */
function useStory(id) {
  const run = useCall("run_get", { run_id: id });
  const found = run.result;
  const ids = useMemo(() => (found ? [...new Set([...found.steps, ...found.conclusions].map((step) => step.record_id).filter(Boolean))] : []), [found]);
  const similar = useCall("run_similar", found?.objective && found.state !== "open" ? { query: found.objective.slice(0, 4000), top_k: 12 } : null);
  const own = similar.result?.find((one) => one.id === id);
  const shown = useMemo(() => [...new Set([...(own?.recalled ?? []), ...(found?.used ?? []).map((use) => use.record_id)])], [own, found]);
  const texts = useRecords(ids);
  const recalled = useRecords(shown);
  const others = useCall("run_list", found ? { limit: MOST_LISTED } : null);
  return { run, found, shown, texts, recalled, similar: similar.result ?? [], others: others.result ?? [], isReading: similar.isLoading };
}

/* The memories with these ids, by id. Forgotten ones are missing. */
export function useRecords(ids) {
  const [records, setRecords] = useState(new Map());
  const wanted = ids.join(" ");
  useEffect(() => {
    const stop = new AbortController();
    if (ids.length === 0) setRecords(new Map());
    else {
      call("get", { ids }, { signal: stop.signal })
        .then((found) => setRecords(new Map(found.map((record) => [record.id, record]))))
        .catch(() => null); // the run's own call reports the problem
    }
    return () => stop.abort();
  }, [wanted]);
  return records;
}

function Story({ id, navigate }) {
  const story = { ...useStory(id), navigate };
  const { run, found } = story;
  useKeys({ Escape: () => navigate("runs") });
  return html`<div class="view">
    <div class="bar">
      <a href="#/runs">Runs</a><span class="muted">/</span><h1 class="cut mono grow keep"><${Text} one text=${id} /></h1>
      ${found && html`<${Standing} run=${found} />`}
    </div>
    <div class="body">
      <${Problem} problem=${run.problem} retry=${run.reload} />
      ${run.isLoading && !found && html`<${Loading} />`}
      ${!run.isLoading && !run.problem && !found && html`<${Empty} title="There is no such run"><p>It may belong to another user, or have been erased. <a href="#/runs">All runs</a></p></${Empty}>`}
      ${found && html`<div class="story">
        <${Part} name="Request" at=${found.began_at}>
          <p class="request-text"><${Text} text=${found.objective ?? "Unknown: the event that began the run made no memory, or the memory was forgotten."} /></p>
          ${found.session_id && html`<p class="row muted">Session <a class="cut" href=${navigate.href("sessions", { id: found.session_id })}><${Text} one text=${found.session_id} /></a></p>`}
        </${Part}>
        <${Recalled} ...${story} />
        <${Steps} ...${story} />
        <${End} ...${story} />
        <${Followed} ...${story} />
      </div>`}
    </div>
  </div>`;
}

function Part({ name, at, note, children }) {
  return html`<section class="part">
    <header><h2>${name}</h2>${note && html`<span class="muted">${note}</span>`}<span class="grow"></span>${at && html`<span class="muted"><${Time} at=${at} /></span>`}</header>
    ${children}
  </section>`;
}

function Recalled({ found, shown, recalled, isReading, navigate }) {
  const uses = new Map(found.used.map((use) => [use.record_id, use]));
  const used = shown.filter((id) => uses.has(id));
  const others = shown.filter((id) => !uses.has(id));
  const [isOpen, setOpen] = useState(false);
  const note = found.recall_ids.length ? `${counted(found.recall_ids.length, "recall")}, ${used.length} of ${counted(shown.length, "memory", "memories")} used` : "";
  if (!shown.length) {
    const why = found.recall_ids.length === 0
      ? "No recall belongs to this run. One does if the run names its recall_id, or if it asked for the run's request at most ten minutes before the run began."
      : found.state === "open" ? "The memories that its recalls returned are listed once the run has ended." : "Nothing that its recalls returned is still stored.";
    return html`<${Part} name="Recalled memories" note=${note}><p class="muted">${isReading ? "Reading …" : why}</p></${Part}>`;
  }
  const visible = isOpen ? others : others.slice(0, 3);
  return html`<${Part} name="Recalled memories" note=${note}>
    <ul class="told stacked">
      ${[...used, ...visible].map((id) => html`<${RecalledMemory} key=${id} id=${id} record=${recalled.get(id)} use=${uses.get(id)} navigate=${navigate} />`)}
    </ul>
    ${others.length > 3 && html`<p><button class="link" onClick=${() => setOpen(!isOpen)}>${isOpen ? "Show fewer" : `Show ${others.length - 3} more that were not used`}</button></p>`}
  </${Part}>`;
}

function RecalledMemory({ id, record, use, navigate }) {
  return html`<li class=${use ? "used" : ""}>
    <span class="what">${use ? html`<b class="good">used</b> <span class="muted">${use.credit < 1 ? "half credit" : "full credit"}, ${attribution(use.how)}</span>` : html`<span class="muted">not used</span>`}</span>
    <a href=${navigate.href("timeline", { id })}><${Text} one text=${record ? headOf(record) : "forgotten"} /></a>
  </li>`;
}

function Steps({ found, texts }) {
  if (!found.steps.length) return html`<${Part} name="Steps"><p class="muted">The run reported no steps.</p></${Part}>`;
  return html`<${Part} name="Steps" note=${counted(found.steps.length, "step")}>
    <ol class="told">${found.steps.map((step) => html`<${StepLine} key=${step.event_id} step=${step} record=${texts.get(step.record_id)} />`)}</ol>
  </${Part}>`;
}

function StepLine({ step, record }) {
  return html`<li>
    <span class="what"><span class="muted"><time datetime=${step.timestamp} title=${step.timestamp}>${clockOf(step.timestamp)}</time></span> <span class="mono muted cut"><${Text} one text=${step.event_type} /></span></span>
    ${record ? html`<${Lines} text=${record.text} />` : html`<span class="muted">${step.record_id ? "…" : "made no memory"}</span>`}
  </li>`;
}

function End({ found, texts, others, navigate }) {
  const isRun = (cause) => others.some((run) => run.id === cause);
  if (found.state === "open") return html`<${Part} name="Outcome"><p class="muted">The run has not ended.</p></${Part}>`;
  const word = standing(found);
  return html`<${Part} name="Outcome" at=${found.ended_at} note=${tookS(found) == null ? "" : `after ${duration(tookS(found))}`}>
    <p class="row wrap"><${Standing} run=${found} />${word === "cancelled" && found.quality == null ? html`<span class="muted">neither a success nor a failure, so it has no quality</span>` : found.quality != null && html`<span class="muted">quality</span><${Quality} value=${found.quality} isBare />`}</p>
    <ul class="told">${found.conclusions.map((step) => html`<${StepLine} key=${step.event_id} step=${step} record=${texts.get(step.record_id)} />`)}</ul>
    ${found.revisions.length > 0 && html`<table class="revisions"><caption class="hidden">Changes of the quality</caption>
      <thead><tr><th>Quality</th><th>Reason</th><th>Caused by</th><th>When</th></tr></thead>
      <tbody>${found.revisions.map((one) => html`<tr>
        <td class="figure">${number(one.quality)}</td><td>${reason(one.reason)}</td>
        <td>${isRun(one.cause) ? html`<a href=${navigate.href("runs", { id: one.cause })}><${Text} one text=${one.cause} /></a>` : html`<span class="mono muted"><${Text} one text=${one.cause ?? ""} /></span>`}</td>
        <td><${Time} at=${one.at} /></td>
      </tr>`)}</tbody>
    </table>`}
  </${Part}>`;
}

function Followed({ found, others, similar, navigate }) {
  const causes = new Set(found.revisions.filter((one) => ["retried", "later_success"].includes(one.reason)).map((one) => one.cause));
  const later = others.filter((one) => one.id !== found.id && one.began_at > (found.began_at ?? ""));
  const inSession = found.session_id ? later.filter((one) => one.session_id === found.session_id).reverse() : [];
  const related = later.filter((one) => causes.has(one.id) && !inSession.includes(one));
  const alike = similar.filter((one) => one.id !== found.id && ![...inSession, ...related].some((run) => run.id === one.id)).slice(0, 5);
  return html`<${Part} name="What followed">
    ${inSession.length + related.length === 0 ? html`<p class="muted">No later run in its session, and no retry.</p>` : html`<ul class="told">${[...related, ...inSession].map((one) => html`<${OtherRun} key=${one.id} navigate=${navigate} run=${one} objective=${one.objective} why=${causes.has(one.id) ? "changed its quality" : "same session"} />`)}</ul>`}
    ${alike.length > 0 && html`<h3>Runs with a similar request</h3><ul class="told">${alike.map((one) => html`<${OtherRun} key=${one.id} navigate=${navigate} run=${{ ...one, outcome: one.end }} objective=${one.request.text} why=${one.relevance == null ? "" : `relevance ${number(one.relevance)}`} />`)}</ul>`}
  </${Part}>`;
}

function OtherRun({ run, objective, why, navigate }) {
  return html`<li>
    <span class="what"><${Standing} run=${run} /> <span class="muted">${why}</span></span>
    <a href=${navigate.href("runs", { id: run.id })}><${Text} one text=${objective ?? run.id} /></a>
  </li>`;
}

export default { title: "Runs", key: "r", view: ({ route, navigate }) => (route.params.id ? html`<${Story} key=${route.params.id} id=${route.params.id} navigate=${navigate} />` : html`<${RunList} navigate=${navigate} />`) };
