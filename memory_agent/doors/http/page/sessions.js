/* Sessions by project (channel), newest first; one session with its runs and its memories in order. */

import { html, useCallback, useEffect, useRef, useState } from "./vendor/preact.js";
import { call } from "./api.js";
import { Empty, Kind, Loading, Problem, Select, Text, Time, VirtualList, clockOf, counted, dayOf, plain, useCall, useKeys, useNarrow } from "./parts.js";
import { projectOf } from "./record.js";
import { MOST_LISTED, RunTable } from "./runs.js";
import { KINDS, Lines, duration } from "./words.js";

const PAGE = 500;
const AHEAD = 40;

/** The pages of a verb's answer read so far, and a function that reads the next one. `field` holds a page's rows. */
function usePages(verb, field, params) {
  const asked = JSON.stringify(params);
  const [read, setRead] = useState({ asked: null, rows: [], total: null, cursor: null, problem: null });
  const busy = useRef(null);
  const next = useCallback((former) => {
    if (busy.current === asked) return;
    busy.current = asked;
    call(verb, { ...JSON.parse(asked), ...(former && { after: former.cursor }) }).then(
      (page) => ({ asked, rows: [...(former?.rows ?? []), ...page[field]], total: page.total, cursor: page.next_cursor, problem: null }),
      (problem) => ({ asked, rows: former?.rows ?? [], total: former?.total ?? null, cursor: null, problem }),
    ).then((state) => {
      if (busy.current !== asked) return; // another list is read now
      busy.current = null;
      setRead(state);
    });
  }, [verb, field, asked]);
  useEffect(() => next(null), [next]);
  const current = read.asked === asked ? read : { rows: [], total: null, cursor: null, problem: null };
  return { ...current, more: () => current.cursor && next(current), reload: () => next(null) };
}

function SessionRow({ session }) {
  return html`<span class="title"><${Text} one text=${session.title || session.session_id} /></span>
    <span class="project muted"><${Text} one text=${projectOf(session.channel_id)} /></span>
    <span class="id muted mono"><${Text} one text=${session.session_id} /></span>
    <span class="figures muted">${counted(session.memories, "memory", "memories")}</span>
    <span class="figures runs-of muted">${session.runs ? counted(session.runs, "run") : ""}</span>
    <span class="last muted"><${Time} at=${session.last} /></span>`;
}

function SessionList({ route, navigate }) {
  const project = route.params.project ?? "";
  const { rows, total, problem, more, reload } = usePages("sessions", "sessions", { limit: PAGE, ...(project && { filter: { channel_id: project } }) });
  const projects = useProjects(project ? null : rows);
  const [selected, setSelected] = useState(-1);
  useEffect(() => setSelected(-1), [project]);
  const isNarrow = useNarrow();
  return html`<div class="view sessions">
    <div class="bar">
      <h1>Sessions</h1>
      <${Projects} projects=${projects} chosen=${project} onChoose=${(name) => navigate("sessions", { project: name })} />
      <span class="grow"></span>
      ${total !== null && html`<span class="muted">${counted(total, "session")}</span>`}
    </div>
    ${problem && html`<div class="body"><${Problem} problem=${problem} retry=${reload} /></div>`}
    ${!problem && total === null && html`<div class="body"><${Loading} /></div>`}
    ${total === 0 && html`<div class="body"><${Empty} title=${project ? `No session in ${plain(projectOf(project))}` : "No sessions yet"} command="memory-agent import-sessions">
      <p>A session is one sitting of a user and an agent. An event that names a session creates it; the sessions that coding agents left on this machine can be imported:</p>
    </${Empty}></div>`}
    ${rows.length > 0 && html`<div class="split"><${VirtualList} label="Sessions" count=${rows.length} rowHeight=${isNarrow ? 60 : 32} selected=${selected} onSelect=${setSelected}
      keyOf=${(place) => rows[place].session_id} onOpen=${(place) => navigate("sessions", { id: rows[place].session_id })}
      onRange=${(_first, last) => last > rows.length - AHEAD && more()} render=${(place) => html`<${SessionRow} session=${rows[place]} />`} /></div>`}
  </div>`;
}

/** The projects of the sessions read so far, largest first. While one project is shown, those found before it was selected. */
function useProjects(rows) {
  const known = useRef([]);
  if (rows?.length) {
    const counts = new Map();
    for (const { channel_id: name } of rows) if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
    known.current = [...counts].sort((one, other) => other[1] - one[1]);
  }
  return known.current;
}

function Projects({ projects, chosen, onChoose }) {
  if (!projects.length && !chosen) return null;
  const names = projects.some(([name]) => name === chosen) || !chosen ? projects : [[chosen, ""], ...projects];
  return html`<label class="row project-choice"><span class="muted">Project</span>
    <${Select} value=${chosen} options=${[["", "all"], ...names.map(([name, count]) => [name, `${plain(projectOf(name))}${count ? ` (${count})` : ""}`])]} onChange=${onChoose} />
  </label>`;
}

function Session({ id, navigate }) {
  const memories = usePages("list", "records", { filter: { session_id: id }, order: "oldest", limit: 100 });
  const all = useCall("run_list", { limit: MOST_LISTED });
  const runs = (all.result ?? []).filter((run) => run.session_id === id).reverse();
  const records = memories.rows;
  const channel = records.find((record) => record.channel_id)?.channel_id;
  const kinds = KINDS.map((kind) => [kind, records.filter((record) => record.kind === kind).length]).filter(([, count]) => count);
  useKeys({ Escape: () => navigate("sessions") });
  return html`<div class="view">
    <div class="bar">
      <a href="#/sessions">Sessions</a><span class="muted">/</span><h1 class="cut mono grow keep"><${Text} one text=${id} /></h1>
      <a class="button" href=${navigate.href("timeline", { session: id })}>In the timeline</a>
    </div>
    <div class="body narrow">
      <${Problem} problem=${memories.problem ?? all.problem} retry=${memories.reload} />
      ${memories.total === 0 && html`<${Empty} title="No memory of this session"><p>Its memories were erased, or it belongs to another user. <a href="#/sessions">All sessions</a></p></${Empty}>`}
      ${memories.total > 0 && html`<p class="muted row wrap about facts-line">
        ${channel && html`<a href=${navigate.href("sessions", { project: channel })}><${Text} one text=${projectOf(channel)} /></a>`}
        <span>${dayOf(records[0].timestamp)}, ${duration((new Date(records.at(-1).timestamp) - new Date(records[0].timestamp)) / 1000)}</span>
        <span>${counted(memories.total, "memory", "memories")}</span>
        ${kinds.map(([kind, count]) => html`<span key=${kind} class=${`kind ${kind}`}>${counted(count, kind, kind === "strategy" ? "strategies" : `${kind}s`)}</span>`)}
      </p>`}
      ${runs.length > 0 && html`<section class="section"><header><h2>Runs</h2><span class="muted">${runs.length}</span></header><${RunTable} runs=${runs} navigate=${navigate} inSession /></section>`}
      ${records.length > 0 && html`<section class="section"><header><h2>Memories in order</h2></header>
        <ol class="told brief">${records.map((record, place) => html`<${Line} key=${record.id} record=${record} former=${records[place - 1]} navigate=${navigate} />`)}</ol>
        ${memories.cursor && html`<p><button onClick=${memories.more}>Show more (${memories.total - records.length} left)</button></p>`}
      </section>`}
    </div>
  </div>`;
}

function Line({ record, former, navigate }) {
  const day = dayOf(record.timestamp);
  return html`${(!former || dayOf(former.timestamp) !== day) && html`<li class="day">${day}</li>`}
    <li>
      <span class="what"><a href=${navigate.href("timeline", { session: record.session_id, id: record.id })}>${clockOf(record.timestamp)}</a> <${Kind} kind=${record.kind} /></span>
      <${Lines} text=${record.text} />
    </li>`;
}

export default {
  title: "Sessions",
  key: "n",
  view: ({ route, navigate }) => (route.params.id ? html`<${Session} key=${route.params.id} id=${route.params.id} navigate=${navigate} />` : html`<${SessionList} route=${route} navigate=${navigate} />`),
};
