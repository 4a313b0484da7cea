/* What was learned: whether it changes answers, the evidence, the gain, and which memories earned credit and why. */

import { html, useMemo, useState } from "./vendor/preact.js";
import { call, may } from "./api.js";
import { Bars, Confirm, Empty, Facts, Legend, Loading, Plot, Problem, Quality, Text, Time, bytes, counted, number, toast, useCall } from "./parts.js";
import { MOST_LISTED, runLink, useRecords } from "./runs.js";
import { HARM_THRESHOLD, attribution, gateSentence, reason, signed } from "./words.js";

const EVERY_MS = 10_000;
const GATES = [["shadow", "learns, changes nothing"], ["trial", "compared with the usual ranking"], ["on", "ranks answers"], ["off", "withdrawn, tried again later"]];
const SERVED = [["baseline", "usual ranking", 7], ["learned", "learned ranking", 1], ["interleaved", "both, interleaved", 2]];
const MOST_RISEN = 20;
const MOST_WHY = 3;
const MEAN_OF = 20;

function Gate({ status }) {
  const { gate, mode } = status;
  return html`<section class="section">
    <header><h2>Gate</h2><span class="muted">learning changes answers only after it has been shown to help this user</span></header>
    ${mode === "auto" && html`<ol class="gate">${GATES.map(([name, what]) => html`<li key=${name} aria-current=${gate.state === name ? "step" : undefined}><b>${name}</b><span class="muted">${what}</span></li>`)}</ol>`}
    <p class="lead">${gateSentence(status)}</p>
    ${mode === "auto" && gate.state !== "shadow" && html`<${Evidence} gate=${gate} />`}
  </section>`;
}

/** Wealth of a bet against its threshold, on a logarithmic scale from 1/10 of what it starts with. */
function Evidence({ gate }) {
  const rows = [
    gate.state === "trial" && ["For the learned ranking", gate.evidence, gate.threshold, "turns it on", "s1"],
    ["Against it", gate.harm, HARM_THRESHOLD, gate.state === "off" ? "turned it off" : "turns it off", "s5"],
  ].filter(Boolean);
  return html`<dl class="evidence">${rows.map(([name, wealth, threshold, what, colour]) => html`<div key=${name}>
    <dt>${name}</dt>
    <dd class="track" role="img" aria-label=${`${number(wealth)} of ${threshold}`}><i class=${colour} style=${{ width: `${shareOf(wealth, threshold)}%` }}></i><i class="start" style=${{ left: `${shareOf(1, threshold)}%` }}></i></dd>
    <dd class="figure">${wealth >= 1000 ? wealth.toExponential(1) : number(wealth)} <span class="muted">of ${threshold}</span></dd>
    <dd class="muted">${what}</dd>
  </div>`)}</dl>
  <p class="muted">Each comparison multiplies the wealth of a bet that starts at 1 (the mark). ${gate.state === "trial" ? `If learning did not help, the wealth would reach ${gate.threshold} at most once in ${gate.threshold} trials. ` : ""}Won ${gate.won}, lost ${gate.lost}, tied ${gate.tied}.</p>`;
}

const shareOf = (wealth, threshold) => {
  const low = Math.log(0.1);
  return Math.max(0, Math.min(100, ((Math.log(Math.max(wealth, 0.1)) - low) / (Math.log(threshold) - low)) * 100));
};

function Gain({ status }) {
  const { gain, gain_low: low, gain_high: high } = status;
  const place = (value) => `${Math.max(0, Math.min(100, (value + 0.5) * 100))}%`;
  return html`<section class="section">
    <header><h2>Gain</h2><span class="muted">share of decided interleaved recalls that the learned ranking won, minus one half</span></header>
    ${gain === null ? html`<p class="muted">Unknown: no interleaved recall has been decided. A tenth of the recalls are interleaved once the gate is on.</p>` : html`
      <div class="interval" role="img" aria-label=${`${signed(gain)}, between ${signed(low)} and ${signed(high)}`}>
        <i class="zero"></i><i class="range" style=${{ left: place(low), width: `calc(${place(high)} - ${place(low)})` }}></i><i class="point" style=${{ left: place(gain) }}></i>
        <span class="low">−0.5</span><span class="middle">0</span><span class="high">+0.5</span>
      </div>
      <p><b class="figure">${signed(gain)}</b> <span class="muted">95 % interval ${signed(low)} to ${signed(high)}${low > 0 ? "; above zero: it helps" : high < 0 ? "; below zero: it harms" : "; it includes zero, so more recalls are needed"}</span></p>`}
  </section>`;
}

/** The quality of ended runs over time, with the mean of the last twenty. */
function Outcomes({ runs }) {
  const rated = useMemo(() => runs.filter((run) => run.quality !== null && run.ended_at).map((run) => [new Date(run.ended_at) / 1000, run.quality, run.used.length > 0]).sort((one, other) => one[0] - other[0]), [runs]);
  const data = useMemo(() => {
    const mean = rated.map((_, place) => {
      const last = rated.slice(Math.max(0, place - MEAN_OF + 1), place + 1);
      return last.length < Math.min(5, rated.length) ? null : last.reduce((sum, [, quality]) => sum + quality, 0) / last.length;
    });
    return [rated.map(([at]) => at), rated.map(([, quality, hasUsed]) => (hasUsed ? quality : null)), rated.map(([, quality, hasUsed]) => (hasUsed ? null : quality)), mean];
  }, [rated]);
  if (rated.length < 3) return null;
  return html`<section class="section">
    <header><h2>Outcomes</h2><span class="muted">quality of ${counted(rated.length, "rated run")}</span></header>
    <${Plot} data=${data} series=${OUTCOMES} height=${180} label="Quality of ended runs over time" options=${{ legend: { show: false } }} />
    <${Legend} names=${[["used a memory", 1], ["used none", 7], [`mean of the last ${MEAN_OF}`, 2]]} />
  </section>`;
}

const dots = { width: 0, paths: () => null, points: { show: true, size: 5 } };
const OUTCOMES = [{ label: "used a memory", series: 1, ...dots }, { label: "used none", series: 7, ...dots }, { label: "mean", series: 2 }];

/** The memories that ended runs used, by their summed credit. */
function risenOf(runs) {
  const found = new Map();
  for (const run of runs) {
    if (run.quality === null) continue;
    for (const { record_id: id, credit, how } of run.used) {
      const one = found.get(id) ?? { id, credit: 0, weighted: 0, uses: [] };
      one.credit += credit;
      one.weighted += credit * run.quality;
      one.uses.push({ run, how });
      found.set(id, one);
    }
  }
  return [...found.values()].sort((one, other) => other.weighted - one.weighted || other.credit - one.credit).slice(0, MOST_RISEN);
}

function Risen({ runs, navigate }) {
  const risen = useMemo(() => risenOf(runs), [runs]);
  const records = useRecords(useMemo(() => risen.map(({ id }) => id), [risen]));
  const most = risen[0]?.credit ?? 1;
  if (!risen.length) return null;
  return html`<section class="section">
    <header><h2>Memories with the most credit</h2><span class="muted">a memory earns credit when a run uses it, and keeps it as far as the run succeeded</span></header>
    <ol class="risen">${risen.map(({ id, credit, weighted, uses }) => html`<li key=${id}>
      <div class="row wrap">
        <span class="track short"><i class="s1" style=${{ width: `${(100 * weighted) / most}%` }}></i><i class="s7" style=${{ width: `${(100 * (credit - weighted)) / most}%` }}></i></span>
        <span class="figure">${number(credit, 1)}</span>
        <span class="muted">used by ${counted(uses.length, "run")}, mean quality ${number(weighted / credit)}</span>
      </div>
      <a class="plain-link" href=${navigate.href("timeline", { id })}><${Text} one text=${records.get(id)?.text ?? id} /></a>
      <ul class="why">${uses.slice(0, MOST_WHY).map(({ run, how }) => html`<li key=${run.id}>
        <${Quality} value=${run.quality} /> <a href=${runLink(run.id)}><${Text} one text=${run.objective ?? run.id} /></a> <span class="muted">${attribution(how)}; ${reason(run.revisions.at(-1)?.reason)}</span>
      </li>`)}${uses.length > MOST_WHY && html`<li class="muted">and ${counted(uses.length - MOST_WHY, "more run")}</li>`}</ul>
    </li>`)}</ol>
    <${Legend} names=${[["credit of runs that succeeded", 1], ["credit of runs that did not", 7]]} />
  </section>`;
}

function Figures({ status, onReset }) {
  const parts = SERVED.map(([name, words, series]) => ({ name: words, series, value: status.served[name] ?? 0 }));
  const all = parts.reduce((sum, { value }) => sum + value, 0);
  return html`<section class="section">
    <header><h2>Figures</h2></header>
    ${all > 0 && html`<${Bars} parts=${parts} most=${all} /><${Legend} names=${parts.map(({ name, series, value }) => [`${name} ${value}`, series])} />`}
    <${Facts} rows=${[
      ["Recalls ranked", counted(all, "recall")],
      ["Ended runs", status.trajectories],
      ["Lessons with credit", status.credited],
      ["Memories with credit", status.memories_with_credit],
      ["Examples kept", status.exemplars],
      ["Engine", status.engine],
      ["Saved state", bytes(status.state_bytes)],
      ["Last consolidation", status.consolidated_at ? html`<${Time} at=${status.consolidated_at} exact />` : "not yet"],
    ]} />
    <p><button class="danger" disabled=${!may("admin")} title=${may("admin") ? "" : "The key lacks the scope admin"} onClick=${onReset}>Forget what was learned …</button></p>
  </section>`;
}

function Learned({ navigate }) {
  const { result: status, problem, reload } = useCall("sona_status", {}, { everyMs: EVERY_MS });
  const ended = useCall("run_list", { state: "ended", limit: MOST_LISTED });
  const [isAsking, setAsking] = useState(false);
  const runs = ended.result ?? [];
  const reset = async () => {
    toast(`Forgotten. ${counted(await call("sona_reset"), "run")} left out from now on.`);
    reload();
  };
  const isEmpty = status && ended.result && !runs.length && !status.trajectories;
  return html`<div class="view">
    <div class="bar"><h1>Learned</h1><span class="muted">${status && (status.mode === "auto" ? `gate ${status.gate.state}` : `learning ${status.mode}`)}</span></div>
    <div class="body narrow">
      <${Problem} problem=${problem ?? ended.problem} retry=${() => { reload(); ended.reload(); }} />
      ${!status && !problem && html`<${Loading} />`}
      ${isEmpty && html`<${Empty} title="Nothing was learned yet" command="memory-agent trajectory begin --help">
        <p>Learning needs runs that end, and that say which recalled memories they used: in their events (<code>memory_ids</code>), with <code>feedback</code>, or by repeating them in their output. From the second such run on, the learned ranking is compared with the usual one.</p>
      </${Empty}>`}
      ${status && !isEmpty && html`<${Gate} status=${status} /><${Gain} status=${status} />`}
      <${Risen} runs=${runs} navigate=${navigate} />
      <${Outcomes} runs=${runs} />
      ${status && !isEmpty && html`<${Figures} status=${status} onReset=${() => setAsking(true)} />`}
    </div>
    ${isAsking && html`<${Confirm} title="Forget what was learned?" action="Forget" danger typed="forget" onConfirm=${reset} onClose=${() => setAsking(false)}>
      <p>Runs and memories are kept, but all existing runs are excluded from learning for good. This cannot be undone.</p>
    </${Confirm}>`}
  </div>`;
}

export default { title: "Learned", key: "i", view: Learned };
