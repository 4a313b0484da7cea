/* The live feed: events in, blocks out. Rows and their texts are bounded, so that the tab's memory stays flat. */

import { html, useEffect, useMemo, useState } from "./vendor/preact.js";
import { session, stream } from "./api.js";
import { Empty, Legend, Plot, Problem, Text, clockOf, counted, useKeys, useNarrow } from "./parts.js";
import { Lines } from "./words.js";

const MOST_ROWS = 300;
const MOST_CHARS = 600;
const SECONDS = 120;
const FRAME_MS = 250;
/** The fixed lines around the memories of a block. */
const FRAME = /^<recalled_memories>\n.*\n|\n?<\/recalled_memories>\s*$/gm;
const RECALLED = "memory.recalled";

/** What the feed keeps: the newest rows, and events and blocks per second for two minutes. */
class Feed {
  constructor() {
    this.rows = [];
    this.events = 0;
    this.blocks = 0;
    this.unseen = 0;
    this.frozen = null;
    this.rates = { at: [], events: [], blocks: [] };
    this.changed = true;
  }

  take({ type, data }) {
    this.changed = true;
    if (type === "gap") {
      this.#add({ key: `gap-${data.first}`, gap: data });
    } else if (type === "event") {
      const row = rowOf(data);
      this.#count(row.block ? "blocks" : "events");
      this.#add(row);
    }
  }

  /** Whether there is something to draw: new rows, or another second of the plot. */
  isChanged() {
    const moved = this.#toNow();
    const changed = this.changed || moved;
    this.changed = false;
    return changed;
  }

  /** Keep showing the present rows; later ones are counted, and kept as far as they fit. */
  pause() {
    this.frozen = [...this.rows];
    this.unseen = 0;
  }

  resume() {
    this.frozen = null;
  }

  get shown() {
    return this.frozen ?? this.rows;
  }

  #count(what) {
    this[what] += 1;
    this.#toNow();
    const column = this.rates[what];
    column[column.length - 1] += 1;
  }

  /** Add the seconds since the last event to the rates; return whether there were any. */
  #toNow() {
    const now = Math.floor(Date.now() / 1000);
    const { at, events, blocks } = this.rates;
    const last = at.at(-1);
    if (last === now) return false;
    if (last > now) at.length = events.length = blocks.length = 0; // the clock was set back
    for (let second = Math.max((at.at(-1) ?? 0) + 1, now - SECONDS + 1); second <= now; second++) {
      at.push(second);
      events.push(0);
      blocks.push(0);
    }
    for (const column of [at, events, blocks]) column.splice(0, column.length - SECONDS);
    return true;
  }

  #add(row) {
    if (this.frozen) this.unseen += 1;
    this.rows.push(row);
    if (this.rows.length > MOST_ROWS * 1.2) this.rows.splice(0, this.rows.length - MOST_ROWS);
  }
}

/** The row of an event, or of a block, which is an event of the daemon. */
function rowOf({ seq, event }) {
  const { payload } = event;
  const row = { key: seq, clock: clockOf(event.timestamp, true), session: event.session_id, run: payload?.run_id };
  if (event.event_type !== RECALLED) {
    return { ...row, type: event.event_type, who: event.actor_id ?? event.agent_id ?? "", text: first(textOf(payload), MOST_CHARS) };
  }
  return {
    ...row,
    block: true,
    type: payload.trigger,
    who: `for ${payload.role}`,
    memories: payload.memories?.length ?? 0,
    text: first(payload.block?.replace(FRAME, "") ?? "", 4 * MOST_CHARS),
  };
}

/** The fields in which emitters put the words of an event, in the order of `signals.toml`. */
const TEXT_FIELDS = [
  "text", "message", "content", "block", "summary", "objective", "error", "claim", "insight", "comment", "report",
  "details", "description", "output", "result", "prompt", "query", "command",
];

function textOf(payload) {
  const places = [payload, payload?.report, payload?.data, payload?.payload];
  const values = places.flatMap((place) => TEXT_FIELDS.map((field) => place?.[field]));
  return values.find((value) => typeof value === "string" && value) ?? "";
}

/** The first characters of a text. They are copied, because a slice would keep the whole text in memory. */
const first = (text, most) => (text.length <= most ? text : JSON.parse(JSON.stringify(text.slice(0, most))) + " …");

const STATES = {
  connecting: "Connecting",
  open: "Following",
  away: "Connection lost; reconnecting where it ended",
  refused: "Not following",
};

function useFeed(user) {
  const feed = useMemo(() => new Feed(), [user]);
  const [, draw] = useState(0);
  const [state, setState] = useState({ name: "connecting", problem: null });
  useEffect(() => {
    const stop = new AbortController();
    setState({ name: "connecting", problem: null });
    stream(`/v1/events?user_id=${encodeURIComponent(user)}`, (event) => feed.take(event), {
      signal: stop.signal,
      onState: (name, problem) => setState({ name, problem }),
    });
    const timer = setInterval(() => {
      if (!document.hidden && feed.isChanged()) draw((frame) => frame + 1);
    }, FRAME_MS);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [feed]);
  return { feed, state, redraw: () => draw((frame) => frame + 1) };
}

function Row({ row, navigate }) {
  if (row.gap) {
    const { first, last } = row.gap;
    return html`<li class="feed-gap">Events ${first} to ${last} (${counted(last - first + 1, "event")}) are no longer in the journal.</li>`;
  }
  const open = row.run ? navigate.href("runs", { id: row.run }) : row.session && navigate.href("sessions", { id: row.session });
  return html`<li class=${row.block ? "feed-row block" : "feed-row"}>
    <div class="row">
      <span class="mono muted">${row.clock}</span>
      <b class="mono cut"><${Text} one text=${row.block ? "block" : row.type} /></b>
      <span class="muted cut"><${Text} one text=${row.block ? `${row.who}, by ${row.type}, ${blockSize(row)}` : row.who} /></span>
      ${open && html`<a class="open" href=${open}>${row.run ? "run" : "session"}</a>`}
    </div>
    ${row.text && html`<${Lines} text=${row.text} most=${row.block ? 6 : 3} />`}
  </li>`;
}

const blockSize = ({ memories, text }) => (memories ? counted(memories, "memory", "memories") : text ? "past runs" : "nothing relevant");

function Column({ title, rows, empty, navigate }) {
  return html`<section class="feed-column" aria-label=${title}>
    <h2>${title}</h2>
    ${rows.length ? html`<ol>${rows.map((row) => html`<${Row} key=${row.key} row=${row} navigate=${navigate} />`)}</ol>` : html`<p class="muted">${empty}</p>`}
  </section>`;
}

const PUBLISH = `echo '{"event_type": "chat.user_msg", "payload": {"text": "Checkout logs customers out"}}' | memory-agent publish`;

const PLOT = { cursor: { show: false }, scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high)] } } };
const SERIES = [{ label: "events/s", series: 1 }, { label: "blocks/s", series: 2 }];

function Live({ navigate }) {
  const { feed, state, redraw } = useFeed(session.user);
  const [wanted, setWanted] = useState("");
  const toggle = () => {
    if (feed.frozen) feed.resume();
    else feed.pause();
    redraw();
  };
  useKeys({ p: toggle });
  const isNarrow = useNarrow();
  const rows = feed.shown.filter((row) => row.gap || !wanted || row.type.includes(wanted) || row.text.includes(wanted)).reverse();
  const { at, events, blocks } = feed.rates;
  const data = useMemo(() => [at, events, blocks].map((column) => column.slice(0, -1)), [at.at(-1)]);
  return html`<div class="view">
    <div class="bar">
      <h1>Live</h1>
      <span class="row" role="status"><i class=${state.name === "open" ? "dot" : "dot away"}></i>${STATES[state.name]}</span>
      <span class="grow"></span>
      <input aria-label="Show only" placeholder="Only with this type or text" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <button onClick=${toggle} aria-pressed=${Boolean(feed.frozen)}>${feed.frozen ? `Resume (${feed.unseen} new)` : "Pause"} <kbd>p</kbd></button>
    </div>
    <div class="body">
      ${state.problem && html`<${Problem} problem=${state.problem} />`}
      <div class="feed-rate">
        <${Plot} data=${data} series=${SERIES} height=${96} options=${PLOT} label="Events and blocks per second, for two minutes" />
        <div class="row wrap"><${Legend} names=${[["events per second", 1], ["blocks per second", 2]]} /><span class="grow"></span>
          <span class="muted">${counted(feed.events, "event")} and ${counted(feed.blocks, "block")} since this view was opened; the newest ${MOST_ROWS} rows are kept</span></div>
      </div>
      ${feed.rows.length === 0
        ? html`<${Empty} title="Nothing has happened yet" command=${PUBLISH}>
            <p>Events appear here as agents publish them, and beside them the blocks of memories that the daemon publishes in answer. Publish one:</p>
          </${Empty}>`
        : isNarrow ? html`<${Column} navigate=${navigate} title="Events in, blocks out" rows=${rows} empty="No event matches." />`
        : html`<div class="feed">
            <${Column} navigate=${navigate} title="Events in" rows=${rows.filter((row) => !row.block)} empty="No event matches." />
            <${Column} navigate=${navigate} title="Blocks out" rows=${rows.filter((row) => row.block || row.gap)} empty="No block yet. A message, a started run, an assignment or a document causes one." />
          </div>`}
    </div>
  </div>`;
}

export default { title: "Live", key: "l", keys: [["p", "Pause, resume"]], view: Live };
