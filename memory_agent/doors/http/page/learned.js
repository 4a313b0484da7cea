/* What was learned: whether it changes answers, the evidence, the gain, and which memories earned credit and why. */

import { html, useMemo, useState } from "./vendor/preact.js";
import { call } from "./api.js";
import { Bars, Confirm, Empty, Facts, Legend, Loading, Plot, Problem, Quality, Text, Time, bytes, colour, counted, needs, number, toast, useCall } from "./parts.js";
import { MOST_LISTED, useRecords } from "./runs.js";
import { HARM_THRESHOLD, attribution, gateSentence, reason, signed } from "./words.js";

const EVERY_MS = 10_000;
const GATES = [["shadow", "learns, changes nothing"], ["trial", "compared with the usual"], ["on", "ranks answers"], ["off", "withdrawn, tried again later"]];
const SERVED = [["baseline", "usual ranking", 7], ["learned", "learned ranking", 1], ["interleaved", "both, interleaved", 2]];
const MEAN_OF = 20;

function Gate({ status }) {
  const { gate, mode } = status;
  return html`<section class="section">
    <header><h2>Gate</h2><span class="muted">learning changes answers only once it is shown to help this user</span></header>
    ${mode === "auto" && html`<ol class="gate">${GATES.map(([name, what]) => html`<li key=${name} aria-current=${gate.state === name ? "step" : undefined}><b>${name}</b><span class="muted">${what}</span></li>`)}</ol>`}
    <p class="lead">${gateSentence(status)}</p>
    ${mode === "auto" && gate.state !== "shadow" && html`<${Evidence} gate=${gate} />`}
  </section>`;
}

/** Evidence (the wealth of a bet) against its threshold, on a logarithmic scale from 1/10 of what it starts with. */
function Evidence({ gate }) {
  const rows = [
    gate.state === "trial" && ["Evidence for it", gate.evidence, gate.threshold, "turns it on", "s1"],
    ["Evidence against it", gate.harm, HARM_THRESHOLD, gate.state === "off" ? "turned it off" : "turns it off", "s5"],
  ].filter(Boolean);
  return html`<ul class="evidence">${rows.map(([name, wealth, threshold, what, colour]) => html`<li key=${name}>
    <span class="name">${name}</span>
    <span class="track" aria-hidden="true"><i class=${colour} style=${{ width: `${shareOf(wealth, threshold)}%` }}></i><i class="start" style=${{ left: `${shareOf(1, threshold)}%` }}></i></span>
    <span class="figure">${wealth >= 1000 ? wealth.toExponential(1) : number(wealth)}</span>
    <span class="muted what">${what} at ${threshold}</span>
  </li>`)}</ul>
  <p class="muted">Evidence starts at 1 (the mark), and each comparison multiplies it. ${gate.state === "trial" ? `If learning did not help, it would reach ${gate.threshold} in at most one of ${gate.threshold} trials. ` : ""}Won ${gate.won}, lost ${gate.lost}, tied ${gate.tied}.</p>`;
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

/* The gate over time, from the history that `sona_status` replays. Times never go back, even if events are dated out of order. */

const STATE_SERIES = { shadow: 7, trial: 2, on: 3, off: 5 };
const GAIN = [{ label: "gain", series: 1, width: 2 }, { label: "low", series: 1, width: 0.5 }, { label: "high", series: 1, width: 0.5 }];
const GAIN_OPTIONS = { bands: [{ series: [3, 2], fill: () => `${colour("--d1")}33` }], scales: { y: { range: [-0.5, 0.5] } } };
const EVIDENCE = [{ label: "evidence", series: 2, width: 2 }, { label: "needed", series: 7, dash: [4, 4] }];
const EVIDENCE_OPTIONS = { scales: { y: { distr: 3 } } };

function timesOf(history) {
  let last = 0;
  return history.map(({ at }) => (last = Math.max(last + 0.001, new Date(at) / 1000)));
}

/** The states of the gate in order: `[state, from, to, won, lost]`. */
function statesOf(history) {
  const found = [];
  for (const { state, at, won, lost } of history) {
    const last = found.at(-1);
    if (last?.state === state) Object.assign(last, { to: at, won, lost });
    else found.push({ state, from: at, to: at, won, lost });
  }
  return found;
}

function History({ history }) {
  const at = useMemo(() => timesOf(history), [history]);
  const gains = useMemo(() => [at, ...["gain", "gain_low", "gain_high"].map((field) => history.map((one) => one[field]))], [at]);
  const bets = useMemo(() => [at, history.map((one) => Math.max(one.evidence, 0.01)), history.map((one) => (one.state === "trial" ? one.threshold : null))], [at]);
  if (history.length < 2) return null;
  return html`<section class="section">
    <header><h2>Over time</h2><span class="muted">after each lesson, by when its run ended</span></header>
    <ol class="states">${statesOf(history).map(({ state, from, won, lost }) => html`<li key=${from}><i class=${`swatch s${STATE_SERIES[state]}`}></i>${state} <span class="muted">from <${Time} at=${from} />${won + lost ? `, won ${won}, lost ${lost}` : ""}</span></li>`)}</ol>
    <div class="plots two-plots">
      ${gains[1].some((gain) => gain !== null) && html`<figure><figcaption class="muted">Gain, with its 95 % interval</figcaption><${Plot} data=${gains} series=${GAIN} options=${GAIN_OPTIONS} label="Gain over time, with its 95 % interval" /></figure>`}
      <figure><figcaption class="muted">Evidence for the learned ranking; dashed: what turns it on</figcaption><${Plot} data=${bets} series=${EVIDENCE} options=${EVIDENCE_OPTIONS} label="Evidence over time" /></figure>
    </div>
  </section>`;
}

/** The quality of finished runs over time, with the mean of the last twenty. */
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
    <${Plot} data=${data} series=${OUTCOMES} height=${180} label="Quality of finished runs over time" />
    <${Legend} names=${[["used a memory", 1], ["used none", 7], [`mean of the last ${MEAN_OF}`, 2]]} />
  </section>`;
}

const dots = { width: 0, paths: () => null, points: { show: true, size: 5, fill: (plot, place) => plot.series[place].stroke(plot, place) } };
const OUTCOMES = [{ label: "used a memory", series: 1, ...dots }, { label: "used none", series: 7, ...dots }, { label: "mean", series: 2 }];

function Credited({ credited, runs, navigate }) {
  const records = useRecords(useMemo(() => credited.map(({ id }) => id), [credited]));
  const known = useMemo(() => new Map(runs.map((run) => [run.id, run])), [runs]);
  if (!credited.length) return null;
  const most = Math.max(...credited.map(({ credit }) => credit));
  return html`<section class="section">
    <header><h2>Memories with the most credit</h2><span class="muted">a run gives credit to the memories it uses</span></header>
    <ol class="risen">${credited.map(({ id, credit, quality, lift, runs: count, run_ids: ids }) => html`<li key=${id}>
      <div class="row wrap">
        <span class="track short"><i class="s1" style=${{ width: `${(100 * credit * quality) / most}%` }}></i><i class="s7" style=${{ width: `${(100 * credit * (1 - quality)) / most}%` }}></i></span>
        <span class="figure">${number(credit, 1)}</span>
        <span class="muted">used by ${counted(count, "run")}, mean quality ${number(quality)}${Math.abs(lift) < 0.02 ? ", as usual" : html`, <span class=${lift < 0 ? "bad" : "good"}>${signed(lift, 2)}</span> against the usual`}</span>
      </div>
      <a class="plain-link" href=${navigate.href("timeline", { id })}><${Text} one text=${records.get(id)?.text ?? id} /></a>
      <ul class="why">${ids.map((run) => html`<${Why} key=${run} id=${run} navigate=${navigate} run=${known.get(run)} memory=${id} />`)}${count > ids.length && html`<li class="muted">and ${counted(count - ids.length, "earlier run")}</li>`}</ul>
    </li>`)}</ol>
    <${Legend} names=${[["credit × quality", 1], ["credit that failed runs did not earn", 7]]} />
  </section>`;
}

/** A run that used a memory, and why that counts. */
function Why({ id, run, memory, navigate }) {
  const use = run?.used.find((one) => one.record_id === memory);
  const why = [use && attribution(use.how), run && reason(run.revisions.at(-1)?.reason)].filter(Boolean).join("; ");
  return html`<li>${run && html`<${Quality} value=${run.quality} />`} <a href=${navigate.href("runs", { id })}><${Text} one text=${run?.objective ?? id} /></a> <span class="muted">${why}</span></li>`;
}

function Figures({ status, onReset }) {
  const parts = SERVED.map(([name, words, series]) => ({ name: words, series, value: status.served[name] ?? 0 }));
  const all = parts.reduce((sum, { value }) => sum + value, 0);
  return html`<section class="section">
    <header><h2>Figures</h2></header>
    ${all > 0 && html`<${Bars} parts=${parts} most=${all} /><${Legend} names=${parts.map(({ name, series, value }) => [`${name} ${value}`, series])} />`}
    <${Facts} rows=${[
      ["Recalls ranked", counted(all, "recall")],
      ["Finished runs", status.trajectories],
      ["Lessons with credit", status.credited],
      ["Memories with credit", status.memories_with_credit],
      ["Examples kept", status.exemplars],
      ["Engine", status.engine],
      ["Saved state", bytes(status.state_bytes)],
      ["Last consolidation", status.consolidated_at ? html`<${Time} at=${status.consolidated_at} exact />` : "not yet"],
    ]} />
    <p><button class="danger" ...${needs("admin")} onClick=${onReset}>Forget what was learned …</button></p>
  </section>`;
}

function Learned({ navigate }) {
  const { result: status, problem, reload } = useCall("sona_status", {}, { everyMs: EVERY_MS });
  const ended = useCall("run_list", { state: "ended", limit: MOST_LISTED });
  const [isAsking, setAsking] = useState(false);
  const runs = ended.result ?? [];
  const reset = async () => {
    toast(`Forgotten. ${counted(await call("sona_reset"), "run")} will not be learned from again.`);
    reload();
  };
  const isEmpty = status && ended.result && !runs.length && !status.trajectories;
  return html`<div class="view">
    <div class="bar"><h1>Learned</h1><span class="muted">${status && (status.mode === "auto" ? `gate ${status.gate.state}` : `learning ${status.mode}`)}</span></div>
    <div class="body narrow">
      <${Problem} problem=${problem ?? ended.problem} retry=${() => { reload(); ended.reload(); }} />
      ${!status && !problem && html`<${Loading} />`}
      ${isEmpty && html`<${Empty} title="Nothing learned yet" command="memory-agent trajectory begin --help" isOfUser=${false}>
        <p>Learning needs runs that end and use recalled memories. A run names them in its events (<code>memory_ids</code>) or with <code>feedback</code>, or repeats them in its output. After two such runs, the learned ranking is compared with the usual one.</p>
      </${Empty}>`}
      ${status && !isEmpty && html`<${Gate} status=${status} /><${Gain} status=${status} /><${History} history=${status.history} />
        <${Credited} credited=${status.most_credited} runs=${runs} navigate=${navigate} />`}
      <${Outcomes} runs=${runs} />
      ${status && !isEmpty && html`<${Figures} status=${status} onReset=${() => setAsking(true)} />`}
    </div>
    ${isAsking && html`<${Confirm} title="Forget what was learned?" action="Forget" danger typed="forget" onConfirm=${reset} onClose=${() => setAsking(false)}>
      <p>Runs and memories are kept, but all existing runs are excluded from learning for good. This cannot be undone.</p>
    </${Confirm}>`}
  </div>`;
}

export default { title: "Learned", key: "d", view: Learned };
