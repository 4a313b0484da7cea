/* The daemon and this user's memory: what is wrong, figures, and plots sampled while the view is open. */

import { html, useEffect, useMemo, useState } from "./vendor/preact.js";
import { Bars, Facts, Legend, Loading, Plot, Problem, Text, Time, bytes, counted, number, useCall } from "./parts.js";
import { NOT_MANAGING, mayManage } from "./quarantine.js";
import { KINDS, KIND_SERIES, duration } from "./words.js";

const STATUS_MS = 3_000;
const STATS_MS = 15_000;
const MOST_SAMPLES = 400;
const SHOWN_S = 300;
const LAGGING = 500;

/* Samples of the status, kept while the page is open, so that coming back shows them again. */
const samples = [];

function addSample(status, now) {
  const last = samples.at(-1);
  if (last && (now <= last.at || status.uptime_s < last.uptime_s)) samples.length = 0; // the clock was set back, or the daemon restarted
  const { count = 0, p50_ms: p50, p99_ms: p99 } = status.recalls;
  const former = samples.at(-1);
  const perSecond = (value, was) => (former ? Math.max(0, (value - was) / (now - former.at)) : null);
  const ingested = status.dispatched.read ?? 0;
  samples.push({
    at: now, uptime_s: status.uptime_s, count, ingested, p50, p99, lag: status.dispatched.lag ?? 0,
    recalls: perSecond(count, former?.count), events: perSecond(ingested, former?.ingested),
    resident: status.parts.reduce((sum, part) => sum + (part.resident_bytes ?? 0), 0) / 1e6,
  });
  samples.splice(0, samples.length - MOST_SAMPLES);
}

/** A line needs two points: fewer are drawn as points. */
const isShort = (plot) => plot.data[0].length < 3;

const PLOTS = [
  { title: "Recalls/s", series: [["recalls/s", 1, "recalls"]], now: ({ recalls }) => (recalls === null ? "" : number(recalls, 1)) },
  { title: "Recall, ms (p50, p99)", series: [["median", 1, "p50"], ["p99", 2, "p99"]], now: ({ p50, p99 }) => (p50 == null ? "none yet" : `${number(p50, 0)}, ${number(p99, 0)}`) },
  { title: "Events/s", series: [["events/s", 3, "events"]], now: ({ events }) => (events === null ? "" : number(events, 1)) },
  { title: "Events waiting", series: [["waiting", 5, "lag"]], now: ({ lag }) => String(lag) },
  { title: "Resident memory, MB", series: [["MB", 4, "resident"]], now: ({ resident }) => number(resident, 0) },
].map((plot) => ({ ...plot, series: plot.series.map(([label, series, field]) => ({ label, series, field, points: { show: isShort, size: 4 } })) }));

/** The last five minutes, or more if there are older samples. */
function shownSpan(_plot, first, last) {
  const end = last ?? Date.now() / 1000;
  return [Math.min(first ?? end, end - SHOWN_S), end];
}
const PLOT = { cursor: { show: false }, scales: { x: { range: shownSpan }, y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] } } };

function Sampled({ plot, at }) {
  const data = useMemo(() => [samples.map((one) => one.at), ...plot.series.map(({ field }) => samples.map((one) => one[field] ?? null))], [at]);
  const last = samples.at(-1);
  return html`<figure class="sampled">
    <figcaption class="row"><span class="grow muted cut">${plot.title}</span><span class="figure">${last && plot.now(last)}</span></figcaption>
    <${Plot} data=${data} series=${plot.series} height=${120} label=${plot.title} options=${PLOT} />
  </figure>`;
}

/** What is wrong, and what it means: `[severity, words, link]`. */
function troubles(status, stats) {
  const found = [];
  const add = (severity, words, link) => found.push([severity, words, link]);
  for (const { name, state, restarts } of status?.parts ?? []) {
    if (state !== "running") add("bad", `${name} is ${state}${restarts ? `, after ${counted(restarts, "restart")}` : ""}.`);
  }
  if (status && !status.model) add("warn", "No model is loaded: memories are stored without vectors, and recalls search by words only.");
  if (status && !Object.keys(status.journal).length) add("bad", "The relay does not answer: no event is accepted. Publishers keep their events.");
  const { quarantined = 0, quarantine_refused: refused = 0 } = status?.journal ?? {};
  if (quarantined) add("warn", `${counted(quarantined, "event")} could not be handled.`, ["#/quarantine", "Quarantine"]);
  if (refused) add("bad", `The quarantine is full: ${counted(refused, "further event")} did not fit.`, ["#/quarantine", "Quarantine"]);
  const lag = status?.dispatched.lag ?? 0;
  if (lag > LAGGING) add("warn", `${counted(lag, "event")} wait to be ingested: recalls do not find the newest yet, and no blocks are published.`);
  for (const node of status?.nodes ?? []) {
    if (node.is_full) add("warn", `The disk of machine ${node.name} is full: it receives no users.`);
    if (node.state && node.state !== "up") add("warn", `Machine ${node.name} is ${node.state}.`);
  }
  if (stats?.waiting) add("warn", `${counted(stats.waiting, "memory", "memories")} of this user wait for vectors; until then, recalls find them by words only.`);
  if (stats?.provider?.problem) add("bad", `The model's server: ${stats.provider.problem}`);
  if (stats?.judge?.failed) add("warn", `The judge failed for ${counted(stats.judge.failed, "recall")}; these were ranked by score.`);
  return found;
}

const DEGRADED = {
  no_model: "no model is loaded, so recalls search by words",
  embedder_timeout: "the model did not answer in time, so the recall searched by words",
  model_changed: "the model was changed, and its vectors are being computed",
  index_unavailable: "the index of another engine does not answer",
  deadline: "the deadline passed",
  waking: "the memory was not loaded",
};
const PROBE_MS = 60_000;
const PROBE = { query: "test of recall", top_k: 1, unlogged: true };

/** What the last test recall lacked. */
const degradedOf = (result) => (result?.degraded ?? []).filter((name) => name !== "waking").map((name) => ["warn", `A test recall was degraded: ${DEGRADED[name] ?? name.replaceAll("_", " ")}.`]);

function Troubles({ status, stats, probe }) {
  const found = [...troubles(status, stats), ...degradedOf(probe)];
  if (!found.length) return html`<p class="verdict"><span class="dot"></span>${status ? "Everything works." : "This memory works."}${probe && html` <span class="muted">A test recall took ${number(probe.took_ms, 0)} ms.</span>`}</p>`;
  return html`<ul class="troubles">${found.map(([severity, words, link]) => html`<li key=${words} class="row"><span class=${`dot ${severity}`}></span><span><${Text} text=${words} /> ${link && html`<a href=${link[0]}>${link[1]}</a>`}</span></li>`)}</ul>`;
}

const listed = (counts) => Object.entries(counts ?? {}).filter(([, count]) => count).map(([name, count]) => `${name.replaceAll("_", " ")} ${number(count, 0)}`).join(", ");

function Parts({ parts }) {
  return html`<section class="section"><header><h2>Processes</h2></header><div class="scroll-x processes"><table>
    <thead><tr><th>Part</th><th>State</th><th class="number">PID</th><th class="number">Restarts</th><th class="number">Memory</th></tr></thead>
    <tbody>${parts.map((part) => html`<tr key=${part.name}>
      <td><${Text} one text=${part.name} /></td><td class=${part.state === "running" ? "" : "bad"}>${part.state}</td>
      <td class="number">${part.pid ?? "–"}</td><td class="number">${part.restarts ?? 0}</td><td class="number">${part.resident_bytes ? bytes(part.resident_bytes) : html`<span class="muted">shared</span>`}</td>
    </tr>`)}</tbody>
  </table></div></section>`;
}

function Daemon({ status }) {
  const { journal, recalls, triggers = {}, dispatched } = status;
  const { published = 0, silent = 0, waiting = 0, ...dropped } = Object.fromEntries(Object.entries(triggers).filter(([name]) => !name.endsWith("_ms")));
  return html`<section class="section"><header><h2>Daemon</h2></header><${Facts} rows=${[
    ["Version", `${status.version}, ${status.form === "light" ? "one process (light)" : "processes with Ray"}`],
    ["Up for", duration(status.uptime_s)],
    ["Address", html`<code>${[status.endpoints.http].flat().join(", ")}</code>`],
    ["Model", status.model && html`<code class="break">${status.model}</code>`],
    ["Loaded users", status.active_users.length ? html`<${Text} text=${status.active_users.join(", ")} />` : "none"],
    ["Recalls", `${counted(recalls.count, "recall")} since the start${recalls.p50_ms == null ? "" : `; p50 ${number(recalls.p50_ms, 0)} ms, p99 ${number(recalls.p99_ms, 0)} ms (last thousand)`}`],
    ["Events read", listed(Object.fromEntries(Object.entries(dispatched).filter(([name]) => name !== "lag")))],
    ["Blocks", `${counted(published, "block")} published; nothing relevant for ${counted(silent, "event")}${waiting ? `; ${waiting} waiting` : ""}${listed(dropped) ? `; not answered: ${listed(dropped)}` : ""}`],
    ["Journal", journal.entries === undefined ? "unknown" : `${counted(journal.entries, "event")}, ${bytes(journal.file_bytes ?? 0)} on disk`],
    ["Limits", listed(status.limits)],
  ]} /></section>`;
}

function Memory({ stats }) {
  const parts = KINDS.map((name) => ({ name, series: KIND_SERIES[name], value: stats.by_kind[name] ?? 0 }));
  return html`<section class="section"><header><h2>Memory of <${Text} text=${stats.user_id} /></h2></header>
    ${stats.memories > 0 && html`<${Bars} parts=${parts} most=${stats.memories} /><${Legend} names=${parts.filter(({ value }) => value).map(({ name, series, value }) => [`${name} ${value}`, series])} />`}
    <${Facts} rows=${[
      ["Memories", `${counted(stats.memories, "memory", "memories")}${stats.without_vector ? `, ${stats.without_vector} without a vector` : ""}`],
      ["From", listed(stats.by_source)],
      ["Oldest", stats.oldest && html`<${Time} at=${stats.oldest} exact />`],
      ["Newest", stats.newest && html`<${Time} at=${stats.newest} exact />`],
      ["On disk", bytes(stats.disk_bytes)],
      ["Events kept", counted(stats.events_kept, "event")],
      ["Without a memory", listed(stats.events_dropped)],
      ["Repeated", stats.events_duplicate || null],
      ["Masked secrets", listed(stats.masked)],
      ["Expired", listed(stats.expired)],
      ["Index", stats.index],
      ["Judge", listed(stats.judge)],
    ]} /></section>`;
}

function Health() {
  const status = useCall("status", mayManage() ? {} : null, { everyMs: STATUS_MS });
  const stats = useCall("stats", {}, { everyMs: STATS_MS });
  const probe = useCall("recall", stats.result?.memories ? PROBE : null, { everyMs: PROBE_MS });
  const [at, setAt] = useState(samples.at(-1)?.at ?? 0);
  useEffect(() => {
    if (!status.result) return;
    const now = Date.now() / 1000;
    addSample(status.result, now);
    setAt(now);
  }, [status.result]);
  const isKnown = stats.result && (status.result || !mayManage());
  return html`<div class="view">
    <div class="bar"><h1>Health</h1><span class="grow"></span>${samples.length > 1 && html`<span class="muted">sampled every ${STATUS_MS / 1000} s, for ${duration(samples.at(-1).at - samples[0].at)}</span>`}</div>
    <div class="body">
      <${Problem} problem=${status.problem ?? stats.problem} retry=${() => { status.reload(); stats.reload(); }} />
      ${!isKnown && !status.problem && !stats.problem && html`<${Loading} />`}
      ${isKnown && html`<${Troubles} status=${status.result} stats=${stats.result} probe=${probe.result} />`}
      ${!mayManage() && html`<p class="muted">The state of the daemon is not shown. ${NOT_MANAGING}.</p>`}
      ${status.result && html`<div class="plots">${PLOTS.map((plot) => html`<${Sampled} key=${plot.title} plot=${plot} at=${at} />`)}</div>`}
      <div class="two">
        ${status.result && html`<${Daemon} status=${status.result} />`}
        ${stats.result && html`<${Memory} stats=${stats.result} />`}
      </div>
      ${status.result && html`<${Parts} parts=${status.result.parts} />`}
    </div>
  </div>`;
}

export default { title: "Health", key: "h", view: Health };
