/* What the views say of states and reasons, and long texts folded to a few lines. */

import { html, useState } from "./vendor/preact.js";
import { Text, counted, narrow } from "./parts.js";

/** A duration in its two largest units: "3 h 20 min". */
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[at];
  const whole = Math.floor(seconds / size);
  const next = units[at + 1];
  const rest = next ? Math.floor((seconds - whole * size) / next[1]) : 0;
  return rest ? `${whole} ${name} ${rest} ${next[0]}` : `${whole} ${name}`;
}

export const KINDS = ["episode", "finding", "strategy", "pattern"];
/** The colour of each kind, as a number of the data colours (`--d1` to `--d8`). */
export const KIND_SERIES = { episode: 3, finding: 1, strategy: 2, pattern: 4 };

export const signed = (value, digits = 3) => (value == null ? "–" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`);

const REASONS = {
  completed: "it completed",
  failed: "it failed",
  approved: "it was approved",
  rejected: "it was rejected",
  rated: "it was rated",
  retried: "its request was asked again",
  later_success: "a related later run succeeded",
};
export const reason = (name) => REASONS[name] ?? name;

const ATTRIBUTIONS = {
  feedback: "named in feedback",
  event: "named in its events",
  overlap: "repeated in its output",
};
export const attribution = (name) => ATTRIBUTIONS[name] ?? name;

/** The state of a run, or how it ended, in one word. */
export function standing(run) {
  if (run.state === "open") return "open";
  if (run.is_cancelled) return "cancelled";
  if (run.outcome) return run.outcome;
  return run.state === "expired" ? "expired" : "ended";
}

/** Constants of the gate (sona/gate.py; a test compares them). */
const SHADOW_LESSONS = 2;
const COOL_DOWN_LESSONS = 100;
export const HARM_THRESHOLD = 20;

/** The gate's state and its evidence, as `memory-agent sona status` words it. */
export function gateSentence(status) {
  const { gate, mode, credited } = status;
  if (mode === "off") return "Learning is switched off (setting learning.mode). Answers are ranked without it.";
  if (mode === "on") return "The learned ranking is always in effect (setting learning.mode), whatever the evidence.";
  const decided = gate.won + gate.lost;
  const won = `The learned ranking won ${gate.won} of ${counted(decided, "decided comparison")}`;
  return {
    shadow: `Learning, but not changing answers yet: a trial requires ${SHADOW_LESSONS} lessons with credit (${Math.min(credited, SHADOW_LESSONS)} so far).`,
    trial: `On trial: answers keep the usual ranking, and the learned one is compared with it. ${won}.`,
    on: `In effect: most answers use the learned ranking, and a tenth are interleaved to check it. ${won} since then.`,
    off: `Withdrawn: the learned ranking lost. ${won}. It is tried again after ${COOL_DOWN_LESSONS} lessons with credit.`,
  }[gate.state];
}

const MOST_CLOSED = 1000;
/** About how many lines a text takes. */
const linesOf = (text) => text.slice(0, MOST_CLOSED).split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / (narrow.matches ? 42 : 72))), 0);

/** A text in at most `most` lines, with a button for the rest. */
export function Lines({ text, most = 3 }) {
  const [isOpen, setOpen] = useState(false);
  const isLong = linesOf(text) > most;
  const more = text.length > MOST_CLOSED ? `show all (${counted(text.length - MOST_CLOSED, "more character")})` : "show all";
  return html`<div class="lines">
    <div class=${isOpen ? "" : `lines-${most}`}><${Text} text=${isOpen ? text : text.slice(0, MOST_CLOSED)} /></div>
    ${isLong && html`<button class="link small" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "show less" : more}</button>`}
  </div>`;
}
