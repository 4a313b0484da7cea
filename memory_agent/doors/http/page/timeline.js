/* Every memory by time: a list to scroll through, how many there were when, and filters. */

import { html, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { Chips, Empty, Field, Kind, Loading, Menu, Problem, Quality, Text, VirtualList, clockOf, counted, dayOf, ofUser, splitCommas, useNarrow, useStore } from "./parts.js";
import { Placed } from "./placed.js";
import { MemoryPane, headOf, projectOf } from "./record.js";
import { KINDS } from "./words.js";

const SOURCES = ["user_input", "conductor_plan", "worker_result", "writer_revision", "trajectory_outcome"];
/** Filters of one value: the parameter of the route, the field of the filter, and its name. */
const NAMED = [["session", "session_id", "Session"], ["run", "run_id", "Run"], ["channel", "channel_id", "Channel (project)"], ["agent", "agent_id", "Agent"], ["type", "type", "Event type"], ["tag", "tags", "Tag"]];
const CHECK_MS = 10_000;
const DAY_MS = 86_400_000;

function filterOf(params) {
  const filter = {};
  if (params.kind) filter.kinds = splitCommas(params.kind);
  if (params.source) filter.sources = splitCommas(params.source);
  for (const [name, field] of NAMED) if (params[name]) filter[field] = field === "tags" ? [params[name]] : params[name];
  return filter;
}

/** The placed memories of a filter. Loads again after the daemon restarted, and counts new ones meanwhile. */
function usePlaced(filter, connection) {
  const asked = JSON.stringify(filter);
  const { restarts } = useStore(connection);
  const [turn, setTurn] = useState(0);
  const [, setChange] = useState(0);
  const [fresh, setFresh] = useState(0);
  const placed = useMemo(() => new Placed(JSON.parse(asked), () => setChange((now) => now + 1)), [asked, turn]);
  useEffect(() => {
    setFresh(0);
    placed.begin();
    const timer = setInterval(async () => {
      if (document.hidden || placed.total === null) return;
      const page = await placed.list({}, { limit: 1 }).catch(() => null);
      if (page) setFresh(page.total - placed.total);
    }, CHECK_MS);
    return () => { clearInterval(timer); placed.close(); };
  }, [placed]);
  useEffect(() => { if (restarts && placed.problem) setTurn((now) => now + 1); }, [restarts]);
  return { placed, fresh, reload: () => setTurn((now) => now + 1) };
}

/** The numbers of memories over time, as square roots so that one busy day does not flatten the others. A click goes there; with the keyboard, the date field does. */
function Density({ placed, shown, onJump }) {
  const [spans, setSpans] = useState([]);
  useEffect(() => { placed.density(setSpans); }, [placed, placed.total]);
  const isOneDay = dayOf(placed.oldest) === dayOf(placed.newest);
  const nameOf = (ms) => (isOneDay ? `${dayOf(ms)}, ${clockOf(ms)}` : dayOf(ms));
  const most = Math.max(1, ...spans.map(([, count]) => count));
  const here = spans.findLastIndex(([ms]) => shown && ms <= shown);
  return html`<div class="density" aria-hidden="true">
    ${spans.length > 0 && html`<span class="edge">${nameOf(placed.oldest)}</span><span class="edge last">${nameOf(placed.newest)}</span>`}
    ${spans.map(([ms, count], place) => html`<i key=${ms} class=${place === here ? "here" : ""} title=${`${nameOf(ms)}: ${counted(count, "memory", "memories")}`}
      onClick=${() => onJump(spans[place + 1]?.[0] ?? Date.now())}><b style=${{ height: `${count ? Math.max(6, Math.sqrt(count / most) * 100) : 0}%` }}></b></i>`)}
  </div>`;
}

function More({ params, onChange }) {
  const [values, setValues] = useState(params);
  useEffect(() => setValues(params), [params]);
  const apply = (event) => { event.preventDefault(); onChange(values); };
  return html`<${Menu} label="Filter"><form class="stack" onSubmit=${apply}>
    <${Chips} label="Source" options=${SOURCES.map((source) => [source, source.replace("_", " ")])} value=${splitCommas(params.source)} onChange=${(all) => onChange({ source: all.join(",") })} />
    <div class="fields">${NAMED.map(([name, , label]) => html`<${Field} key=${name} label=${label}>
      <input value=${values[name] ?? ""} spellcheck=${false} onInput=${(event) => setValues({ ...values, [name]: event.target.value })} />
    </${Field}>`)}</div>
    <div class="actions"><button class="primary">Apply</button></div>
  </form></${Menu}>`;
}

const Row = ({ record, day, isFirst, isTop }) => !record ? html`<span class="day"></span><span class="clock"></span><span class="wait"></span>` : html`
  <span class=${`day ${isFirst ? "begins" : ""}`}>${isFirst || isTop ? day : ""}</span>
  <span class="clock muted">${clockOf(record.timestamp)}</span>
  <${Kind} kind=${record.kind} />
  <span class="what grow"><${Text} one text=${headOf(record)} /></span>
  <span class="from muted"><${Text} one text=${projectOf(record.channel_id) ?? record.session_id} /></span>
  <span class="ended"><${Quality} value=${record.quality_score} /></span>`;

function Timeline({ route, navigate, api }) {
  const { params } = route;
  const filter = filterOf(params);
  const { placed, fresh, reload } = usePlaced(filter, api.connection);
  const [first, setFirst] = useState(0);
  const [selected, setSelected] = useState(-1);
  const [scrollTo, setScrollTo] = useState(null);
  const isNarrow = useNarrow();
  const latest = useRef(params);
  latest.current = params;
  useEffect(() => { setSelected(-1); setScrollTo({ index: 0 }); }, [placed]);

  const go = (change) => navigate("timeline", { ...latest.current, id: "", ...change }, { replace: true });
  const inView = useCallback((from, to) => { setFirst(from); if (placed.total) placed.need(from, to); }, [placed]);
  useEffect(() => { if (placed.total) placed.need(first, first + 40); }, [placed, placed.total]);
  const jump = async (ms) => setScrollTo({ index: await placed.indexAt(ms) });
  const open = (index) => { const record = placed.get(index); if (record) go({ id: record.id }); };
  const select = (index) => { setSelected(index); if (params.id) open(index); };
  const dayAt = (index) => { const record = placed.get(index); return record && dayOf(record.timestamp); };
  const shown = placed.get(first) && Date.parse(placed.get(first).timestamp);
  const set = NAMED.filter(([name]) => params[name]);
  const isFiltered = Object.keys(filter).length > 0;
  const selectedRecord = placed.get(selected);

  return html`<div class="view timeline">
    <div class="bar slides">
      <h1>Timeline</h1>
      <${Chips} label="Kind" options=${KINDS} value=${splitCommas(params.kind)} onChange=${(all) => go({ kind: all.join(",") })} />
      ${splitCommas(params.source).map((source) => html`<button class="chip set" onClick=${() => go({ source: splitCommas(params.source).filter((one) => one !== source).join(",") })}><${Text} one text=${source.replace("_", " ")} /> ✕</button>`)}
      ${set.map(([name]) => html`<button key=${name} class="chip set cut" title="Remove this filter" onClick=${() => go({ [name]: "" })}>${name}: <${Text} one text=${params[name]} /> ✕</button>`)}
      <${More} params=${params} onChange=${go} />
      <span class="grow"></span>
      ${fresh > 0 && html`<button class="primary" onClick=${reload}>${counted(fresh, "new memory", "new memories")}</button>`}
      <span class="muted count" role="status">${placed.total === null ? "" : counted(placed.total, "memory", "memories")}</span>
      <label class="row"><span class="hidden">Go to a day</span><input type="date" title="Go to a day" onChange=${(event) => event.target.valueAsDate && jump(new Date(`${event.target.value}T00:00`).getTime() + DAY_MS)} /></label>
    </div>
    ${placed.total > 1 && html`<${Density} placed=${placed} shown=${shown} onJump=${jump} />`}
    <${Problem} problem=${placed.problem} retry=${reload} />
    <div class="split">
      ${placed.total === null && !placed.problem && html`<div class="body"><${Loading} /></div>`}
      ${placed.total === 0 && html`<div class="body">${isFiltered
        ? html`<${Empty} title="No memory matches"><p>Remove a filter above, or choose another kind.</p></${Empty}>`
        : html`<${Empty} title="Nothing is remembered yet" command='memory-agent remember "The deploy needs the VPN"'>
          <p>Memories come from the events of agents: connect one with <code>memory-agent connect</code>, or import its past sessions with <code>${ofUser("memory-agent import-sessions")}</code>. To store one by hand:</p></${Empty}>`}</div>`}
      ${placed.total > 0 && html`<${VirtualList} label="Memories, newest first" count=${placed.total} rowHeight=${isNarrow ? 60 : 32} selected=${selected} onSelect=${select}
        onOpen=${open} onRange=${inView} scrollTo=${scrollTo}
        render=${(index) => html`<${Row} record=${placed.get(index)} day=${dayAt(index)} isFirst=${index > 0 && dayAt(index) !== dayAt(index - 1)} isTop=${index === first} />`} />`}
      ${params.id && html`<${MemoryPane} key=${params.id} id=${params.id} record=${selectedRecord} navigate=${navigate} onClose=${() => go({ id: "" })} onForgotten=${reload} />`}
    </div>
  </div>`;
}

export default { title: "Timeline", key: "t", view: Timeline };
