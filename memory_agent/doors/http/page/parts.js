/* Shared components. Text is only ever rendered as text nodes. See also list.js (VirtualList) and record.js (a memory). */

import { html, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { call, connection, isUserName, may, session, sessionState } from "./api.js";
import { useKeys } from "./list.js";

export { VirtualList, narrow, useKeys, useNarrow, useRows } from "./list.js";

/* Hooks */

/** The current value of an observable of api.js. */
export function useStore(store) {
  const [value, setValue] = useState(store.get());
  useEffect(() => {
    setValue(store.get());
    return store.subscribe(setValue);
  }, [store]);
  return value;
}

/**
 * The result of a verb: `{ result, problem, isLoading, reload }`. Asks again when the parameters or the user change, and
 * when the daemon has restarted; the former result stays until the next. `params` null asks nothing.
 */
export function useCall(verb, params = {}, { everyMs = 0 } = {}) {
  const { user, state } = useStore(sessionState);
  const { restarts } = useStore(connection);
  const [turn, setTurn] = useState(0);
  const [shown, setShown] = useState({ result: null, problem: null, isLoading: params !== null, user });
  const asked = params === null ? null : JSON.stringify(params);
  useEffect(() => {
    if (asked === null || state !== "signed-in") return undefined;
    const stop = new AbortController();
    setShown((former) => ({ ...(former.user === user ? former : { result: null, problem: null, user }), isLoading: true }));
    call(verb, JSON.parse(asked), { signal: stop.signal }).then(
      (result) => !stop.signal.aborted && setShown({ result, problem: null, isLoading: false, user }),
      (problem) => !stop.signal.aborted && setShown({ result: null, problem, isLoading: false, user }),
    );
    return () => stop.abort();
  }, [verb, asked, user, state, restarts, turn]);
  const reload = useCallback(() => setTurn((former) => former + 1), []);
  useEffect(() => {
    if (!everyMs) return undefined;
    const timer = setInterval(() => document.hidden || reload(), everyMs);
    return () => clearInterval(timer);
  }, [everyMs, reload]);
  return { ...shown, reload };
}

/* Messages */

const listeners = new Set();
/** Show a message for some seconds; `kind` is "" or "bad". */
export const toast = (text, kind = "") => listeners.forEach((listener) => listener({ text, kind, id: Math.random() }));

export function Toasts() {
  const [shown, setShown] = useState([]);
  useEffect(() => {
    const add = (one) => {
      setShown((former) => [...former.slice(-3), one]);
      setTimeout(() => setShown((former) => former.filter(({ id }) => id !== one.id)), one.kind ? 9000 : 4000);
    };
    listeners.add(add);
    return () => listeners.delete(add);
  }, []);
  return html`<div class="toasts" role="status">
    ${shown.map(({ id, kind, text }) => html`<div key=${id} class=${`toast ${kind}`}><${Text} text=${text} /></div>`)}
  </div>`;
}

/** An error: what happened and what to do. `retry` adds a button. */
export function Problem({ problem, retry }) {
  if (!problem) return null;
  return html`<div class="problem" role="alert">
    <b>${problem.code}</b><span class="grow"><${Text} text=${problem.detail || String(problem)} /></span>
    ${retry && html`<button onClick=${retry}>Try again</button>`}
  </div>`;
}

/** A command for the user shown; empty if the name of the user would need quotes. */
export const ofUser = (command) => (session.user === "default" ? command : isUserName(session.user) ? `${command} --user ${session.user}` : "");

/** A place without data: what would be here, and the command that provides it; `isOfUser`: for the user shown. */
export function Empty({ title, command = "", isOfUser = true, children }) {
  const text = isOfUser && command ? ofUser(command) : command;
  return html`<div class="empty"><h2>${title}</h2>${children}${text && html`<${Command} text=${text} />`}</div>`;
}

export function Command({ text }) {
  const copy = () => navigator.clipboard?.writeText(text).then(() => toast("Copied."), () => toast("The browser did not allow copying.", "bad"));
  return html`<div class="command"><code>${text.split(" ").map((word) => html`<span>${word}</span> `)}</code><button class="plain" aria-label="Copy the command" onClick=${copy}>Copy</button></div>`;
}

export const Loading = ({ what = "Loading" }) => html`<p class="muted" role="status">${what} …</p>`;

/* Values */

const DAY = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
const DAY_OF_YEAR = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const SECONDS = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DATE = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const STEPS = [["y", 31557600], ["mo", 2629800], ["d", 86400], ["h", 3600], ["min", 60]];

/** The day of a time, such as "Fri, Nov 27"; with the year if it is not the current year. */
export const dayOf = (at) => (new Date(at).getFullYear() === new Date().getFullYear() ? DAY : DAY_OF_YEAR).format(new Date(at));
export const clockOf = (at, exact = false) => (exact ? SECONDS : CLOCK).format(new Date(at));

/** The distance from now, such as "3 d ago". */
export function ageOf(at, now = Date.now()) {
  const seconds = (now - new Date(at)) / 1000;
  const step = STEPS.find(([, size]) => Math.abs(seconds) >= size);
  if (!step) return "now";
  const count = `${Math.floor(Math.abs(seconds) / step[1])} ${step[0]}`;
  return seconds > 0 ? `${count} ago` : `in ${count}`;
}

/** A time as its age, with the exact time as its title; `exact` shows both. */
export function Time({ at, exact = false }) {
  if (!at) return html`<span class="muted">never</span>`;
  const whole = WHOLE.format(new Date(at));
  return html`<time datetime=${at} title=${whole}>${exact ? `${whole} (${ageOf(at)})` : ageOf(at)}</time>`;
}

const COUNT = new Intl.NumberFormat("en");
/** A number with its unit: `counted(2, "memory", "memories")`. */
export const counted = (count, one, many = `${one}s`) => `${COUNT.format(count)} ${count === 1 ? one : many}`;
export const number = (value, digits = 2) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));

export function bytes(count) {
  const power = count < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
  return `${(count / 1000 ** power).toFixed(power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export const Kind = ({ kind }) => html`<span class=${`kind ${kind}`}>${kind}</span>`;

/** How something ended, from its quality (0 to 1). */
export const outcomeOf = (quality) => (quality == null ? "unknown" : quality >= 0.7 ? "good" : quality < 0.4 ? "failed" : "mixed");
const TONES = { good: "muted", mixed: "warn", failed: "bad" };

/** A quality. A quality that is not good is coloured, and is named unless `isBare`. */
export function Quality({ value, isBare = false }) {
  if (value == null) return null;
  const outcome = outcomeOf(value);
  return html`<span class=${TONES[outcome]} title="Quality, from 0 (failed) to 1 (approved)">${isBare || outcome === "good" ? "" : outcome} ${number(value, 1)}</span>`;
}

export const Facts = ({ rows }) => html`<dl class="facts">
  ${rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}
</dl>`;

/* Text */

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;
const codeOf = (unseen) => `U+${unseen.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
/** A string with the code points of its invisible characters, for places that take only strings, such as titles. */
export const plain = (text) => String(text ?? "").replace(UNSEEN, (unseen) => `[${codeOf(unseen)}]`);
const JOINED = /\p{Extended_Pictographic}\ufe0f?$/u;
const FOLDED_CHARS = 1200;
const FURTHER = 16;
const MOST_FURTHER_CHARS = 200_000;
const MOST_MARKERS = 200;
const BLOCK = /[^]{1,8000}(?![\udc00-\udfff])/g; // whole characters

/**
 * Split a text at characters that a reader cannot see; each becomes a marker with its code point. Only the first become elements, because
 * a text may consist of such characters.
 */
function visible(text) {
  const pieces = [];
  let seen = "";
  let end = 0;
  for (const { 0: unseen, index } of text.matchAll(UNSEEN)) {
    if (unseen === "\u200d" && JOINED.test(text.slice(Math.max(0, index - 3), index))) continue; // joins an emoji
    seen += text.slice(end, index);
    end = index + unseen.length;
    if (pieces.length < MOST_MARKERS) {
      pieces.push(seen, html`<span class="invisible" title="An invisible character">${codeOf(unseen)}</span>`);
      seen = "";
    } else seen += `[${codeOf(unseen)}]`;
  }
  pieces.push(seen + text.slice(end));
  return pieces;
}

/** The source of a regular expression with one group, which matches any of these words. */
export const anyOf = (words) => `(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`;

/** Split a text at words of `marks`, as `<mark>`. */
function marked(text, marks) {
  if (!marks) return visible(text);
  return text.split(marks).map((piece, place) => (place % 2 ? html`<mark>${visible(piece)}</mark>` : visible(piece)));
}

/** Parts of a long text, which the browser lays out one by one, when they come into view. */
const blocksOf = (text) => text.match(BLOCK) ?? [""];

/**
 * A text of unknown content. `one`: on one line, cut. `marks`: a regular expression with one group, for what to mark.
 * Long texts are folded.
 */
export function Text({ text, one = false, marks = null }) {
  const [limit, setLimit] = useState(FOLDED_CHARS);
  const whole = String(text ?? "").replaceAll("\r\n", "\n");
  if (one) return html`<span class="text one">${marked(whole.slice(0, 400).replace(/[ \t\n]+/g, " "), marks)}</span>`;
  const rest = whole.length - limit;
  const next = Math.min(limit * FURTHER, limit + MOST_FURTHER_CHARS);
  const shown = useMemo(() => blocksOf(whole.slice(0, limit)).map((block) => html`<span class="block">${marked(block, marks)}</span>`), [whole, limit, marks]);
  return html`<span class="text" dir="auto">${shown}${rest > 0 && "… "}${rest > 0 && html`<button class="link" onClick=${() => setLimit(next)}>
    show ${whole.length > next ? "more" : "all"} (${COUNT.format(rest)} more characters)</button>`}</span>`;
}

/* Controls */

/** The values of a parameter of an address that has several, separated by commas. */
export const splitCommas = (text) => (text ? text.split(",") : []);

/** A labelled control. `children` is one input, select or textarea. */
export const Field = ({ label, hint, children }) => html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;

/** The attributes of a button that needs a scope: disabled, with the reason, if the key lacks it. */
export const needs = (scope) => (may(scope) ? {} : { disabled: true, title: `The key lacks the scope ${scope}` });

/** Options as [value, name] pairs; an option that is only a name is its own value. */
const pairsOf = (options) => options.map((option) => (Array.isArray(option) ? option : [option, option]));

/** A select. `options` are names or [value, name] pairs. */
export const Select = ({ value, options, onChange }) => html`<select onChange=${(event) => onChange(event.target.value)}>
  ${pairsOf(options).map(([one, name]) => html`<option key=${one} value=${one} selected=${one === value}>${name}</option>`)}
</select>`;

/** Toggles, of which several may be on. `options` are names or [value, name] pairs; `value` is an array. */
export function Chips({ label, options, value, onChange }) {
  const toggled = (one) => (value.includes(one) ? value.filter((other) => other !== one) : [...value, one]);
  return html`<div class="chips" role="group" aria-label=${label}>
    ${pairsOf(options).map(([one, name]) => html`<button key=${one} class="chip" aria-pressed=${value.includes(one)} onClick=${() => onChange(toggled(one))}>${name}</button>`)}
  </div>`;
}

/** A button that opens a box with controls. Closes with Esc, with a click elsewhere, and when a form is submitted. */
export function Menu({ label, children }) {
  const place = useRef(null);
  useEffect(() => {
    const close = (event) => {
      if (!place.current.open || (event.type === "keydown" && event.key !== "Escape") || (event.type === "pointerdown" && place.current.contains(event.target))) return;
      place.current.open = false;
      if (event.type === "keydown") { event.preventDefault(); place.current.firstElementChild.focus(); }
    };
    addEventListener("pointerdown", close);
    addEventListener("keydown", close, true);
    addEventListener("submit", close);
    return () => { removeEventListener("pointerdown", close); removeEventListener("keydown", close, true); removeEventListener("submit", close); };
  }, []);
  return html`<details class="menu" ref=${place}><summary class="button">${label}</summary><div class="stack">${children}</div></details>`;
}

/** A modal dialog. Closes with Esc, and returns the focus. */
export function Dialog({ title, onClose, children }) {
  const place = useRef(null);
  useEffect(() => {
    place.current.showModal();
    return () => place.current?.close();
  }, []);
  return html`<dialog ref=${place} aria-label=${title} onCancel=${(event) => { event.preventDefault(); onClose?.(); }} onClose=${() => place.current?.isConnected && (onClose ? onClose() : place.current.showModal())}>
    <div class="stack"><h1>${title}</h1>${children}</div>
  </dialog>`;
}

/**
 * Ask before an action. `onConfirm` may return a promise; the dialog stays open and shows a `Problem` if it fails. With `typed`,
 * the button is disabled until that text is typed.
 */
export function Confirm({ title, action, danger = false, typed = "", onConfirm, onClose, children }) {
  const [state, setState] = useState({ isBusy: false, problem: null, text: "" });
  const confirm = async (event) => {
    event.preventDefault();
    setState({ ...state, isBusy: true, problem: null });
    try {
      await onConfirm();
      onClose();
    } catch (problem) {
      setState({ ...state, isBusy: false, problem });
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${confirm}>
    <div>${children}</div>
    ${typed && html`<${Field} label=${`Type ${typed} to confirm`}><input value=${state.text} autocomplete="off" onInput=${(event) => setState({ ...state, text: event.target.value })} /></${Field}>`}
    <${Problem} problem=${state.problem} />
    <div class="actions">
      <button type="button" onClick=${onClose}>Cancel</button>
      <button class=${danger ? "danger" : "primary"} disabled=${state.isBusy || (typed && state.text !== typed)}>${state.isBusy ? "Working …" : action}</button>
    </div>
  </form></${Dialog}>`;
}

/** The pane beside a list. Esc closes it. */
export function Pane({ title, onClose, footer, children }) {
  useKeys({ Escape: onClose });
  return html`<aside class="pane" aria-label=${typeof title === "string" ? title : "Details"}>
    <header><h2 class="grow cut">${title}</h2><button class="plain" aria-label="Close" title="Close (Esc)" onClick=${onClose}>✕</button></header>
    <div class="inside" tabindex="0" role="region" aria-label="Details">${children}</div>
    ${footer && html`<footer>${footer}</footer>`}
  </aside>`;
}

/** Save a file from the browser. `content` is a string or bytes. */
export function download(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/* Figures */

/** The value of a colour of the theme, such as `--d1`. */
export const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

/**
 * Parts that add up, as one bar: `parts` are { name, value, series } (series 1 to 8); `most` is the value of a full bar. Negative
 * parts are hatched, and cover the end of the others.
 */
export function Bars({ parts, most, label }) {
  const share = (value) => `${(Math.abs(value) / (most || 1)) * 100}%`;
  const shown = parts.filter(({ value }) => value).sort((one, other) => (one.value < 0) - (other.value < 0));
  const words = shown.map(({ name, value }) => `${name} ${number(value, 3)}`).join(", ");
  return html`<div class="bars" role="img" aria-label=${label ?? words} title=${words}>
    ${shown.map(({ name, value, series }) => html`<i key=${name} class=${value < 0 ? "minus" : `s${series}`} style=${{ width: share(value), marginLeft: value < 0 ? `-${share(value)}` : "0" }}></i>`)}
  </div>`;
}

export const Legend = ({ names }) => html`<div class="legend">
  ${names.map(([name, series, meaning]) => html`<span key=${name} title=${meaning}><i class=${`s${series}`}></i>${name}</span>`)}
</div>`;

/**
 * A plot over time. `data` is [x, y1, y2 …] (x in seconds); `series` are { label, series: 1..8, width? }. `label` describes it to
 * those who cannot see it. `options` are uPlot's.
 */
export function Plot({ data, series, height = 160, label, options = {} }) {
  const place = useRef(null);
  const drawn = useRef({ plot: null, data });
  const { theme } = document.documentElement.dataset;
  useEffect(() => {
    let isGone = false;
    const { current } = drawn;
    const resized = new ResizeObserver(() => current.plot?.setSize({ width: place.current.clientWidth, height }));
    import("./vendor/uplot.js").then(({ default: UPlot }) => {
      if (isGone) return;
      current.plot = new UPlot(plotOptions(place.current, series, height, options), current.data, place.current);
      resized.observe(place.current);
    });
    return () => {
      isGone = true;
      resized.disconnect();
      current.plot?.destroy();
      current.plot = null;
    };
  }, [series, height, theme]);
  useEffect(() => {
    drawn.current.data = data;
    drawn.current.plot?.setData(data);
  }, [data]);
  return html`<div class="plot" ref=${place} role="img" aria-label=${label}></div>`;
}

/** The times of an axis, as exact as their distance `step` (in seconds). */
const timesOf = (_plot, times, _axis, _space, step) => times.map((at) => (step >= 86400 ? DATE : step >= 60 ? CLOCK : SECONDS).format(new Date(at * 1000)));

function plotOptions(place, series, height, more) {
  const axis = { stroke: colour("--muted"), font: "12px system-ui", grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const x = { ...axis, size: 32, values: timesOf, space: 72 };
  const lines = series.map(({ label, series: place_, width = 1.5, ...rest }) => ({ label, stroke: colour(`--d${place_}`), width, points: { show: false }, ...rest }));
  return {
    width: place.clientWidth || 320, height, axes: [x, { ...axis, size: 48, space: 24 }], series: [{}, ...lines],
    cursor: { drag: { x: true, y: false } }, legend: { show: false }, padding: [8, 24, 0, 0], ...more,
  };
}
