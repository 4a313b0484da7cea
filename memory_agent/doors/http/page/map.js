/* All memories as points; those of similar meaning are near each other. Beside the map, the nearest ones as a list. */

import { html, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { Empty, Loading, Problem, Select, Text, VirtualList, ageOf, colour, counted, dayOf, outcomeOf, useCall, useKeys } from "./parts.js";
import { Cloud } from "./cloud.js";
import { MemoryPane } from "./record.js";
import { KIND_SERIES } from "./words.js";

const LIMIT = 5000;
const NEAREST = 100;
const SERIES = 7; // further sessions share one colour
const STEP_PX = 60;
const PARAMS = { limit: LIMIT };
const OTHERS = "others";

const BY = {
  kind: ({ kinds }) => kinds,
  session: ({ session_ids }) => session_ids.map((session) => session ?? "no session"),
  outcome: ({ qualities }) => qualities.map(outcomeOf),
};
const COLOURS = {
  kind: Object.fromEntries(Object.entries(KIND_SERIES).map(([kind, series]) => [kind, `--d${series}`])),
  outcome: { good: "--d1", failed: "--bad", mixed: "--warn", unknown: "--line-strong" },
};

/** The largest groups of the points, as { name, size, variable } (of the colour), and for each point the index of its group. */
function grouped(map, by) {
  const values = BY[by](map);
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const largest = [...counts].sort((one, other) => other[1] - one[1]);
  const others = largest.splice(largest.length === SERIES + 1 ? SERIES + 1 : SERIES);
  const groups = largest.map(([name, size], index) => ({ name, size, variable: COLOURS[by]?.[name] ?? `--d${index + 1}` }));
  if (others.length) groups.push({ name: OTHERS, size: others.reduce((sum, [, count]) => sum + count, 0), variable: "--line-strong" });
  const places = new Map(largest.map(([name], index) => [name, index]));
  return { groups, groupOf: values.map((value) => places.get(value) ?? largest.length) };
}

function Groups({ groups, hidden, onToggle }) {
  return html`<div class="chips groups" role="group" aria-label="Groups">${groups.map(({ name, size, variable }, place) => html`<button key=${name} class="chip" aria-pressed=${!hidden.has(place)} title="Show or hide" onClick=${() => onToggle(place)}>
    <i style=${{ background: `var(${variable})` }}></i><${Text} one text=${name} /> ${size}</button>`)}</div>`;
}

function MapView({ route, navigate }) {
  const { params } = route;
  const by = Object.hasOwn(BY, params.by) ? params.by : "kind";
  const { result: map, problem, isLoading, reload } = useCall("map", PARAMS);
  const { theme } = document.documentElement.dataset;
  const place = useRef(null);
  const cloud = useRef(null);
  const [hover, setHover] = useState({ index: -1 });
  const [hidden, setHidden] = useState(new Set());
  const [middle, setMiddle] = useState(0);
  const [chosen, setChosen] = useState(-1);
  const latest = useRef({});
  const grouping = useMemo(() => (map ? grouped(map, by) : null), [map, by]);
  const go = (change) => navigate("map", { ...params, ...change }, { replace: true });
  const opened = map && params.id ? map.ids.indexOf(params.id) : -1;
  latest.current = { pick: (index) => { if (index >= 0) { setChosen(-1); go({ id: map.ids[index] }); } } };

  const attach = useCallback((canvas) => {
    cloud.current?.close();
    place.current = canvas;
    let timer = 0;
    cloud.current = canvas && new Cloud(canvas, {
      onHover: (index, left, top) => setHover({ index, left, top }),
      onPick: (index) => latest.current.pick(index),
      onMove: () => { clearTimeout(timer); timer = setTimeout(() => setMiddle((now) => now + 1), 150); },
    });
  }, []);
  useEffect(() => { setHidden(new Set()); }, [by, map]);
  useEffect(() => { if (map) cloud.current?.setPoints(map.x, map.y); }, [map]);
  useEffect(() => {
    if (!grouping || !cloud.current) return;
    cloud.current.ink = colour("--text");
    cloud.current.setColours(grouping.groupOf, grouping.groups.map(({ variable }) => colour(variable)), hidden);
  }, [grouping, hidden, theme]);
  const nearest = useMemo(() => (map && cloud.current ? cloud.current.nearest(opened, NEAREST) : []), [map, opened, middle, hidden, grouping]);
  useEffect(() => cloud.current?.mark(chosen >= 0 ? nearest[chosen] : opened), [chosen, opened, nearest]);
  useEffect(() => { if (opened >= 0) cloud.current?.reveal(opened); }, [opened]);

  const isMap = (act) => (event) => (event.target === place.current ? act(cloud.current) : false);
  const zoomIn = () => cloud.current?.zoomBy(1.4);
  const zoomOut = () => cloud.current?.zoomBy(1 / 1.4);
  const showAll = () => cloud.current?.look({ x: 0, y: 0, zoom: 1 });
  useKeys({
    "+": zoomIn, "=": zoomIn, "-": zoomOut, 0: showAll,
    ArrowLeft: isMap((it) => it.panBy(-STEP_PX, 0)), ArrowRight: isMap((it) => it.panBy(STEP_PX, 0)), ArrowUp: isMap((it) => it.panBy(0, STEP_PX)), ArrowDown: isMap((it) => it.panBy(0, -STEP_PX)),
  });
  const toggle = (group) => setHidden((former) => { const next = new Set(former); if (!next.delete(group)) next.add(group); return next; });
  const choose = (index) => { setChosen(index); cloud.current.reveal(nearest[index]); };
  const isEmpty = map && map.ids.length === 0;

  return html`<div class="view map">
    <div class="bar slides">
      <h1>Map</h1>
      <label class="row"><span class="muted">Colour by</span><${Select} value=${by} options=${Object.keys(BY)} onChange=${(value) => go({ by: value })} /></label>
      ${grouping && !isEmpty && html`<${Groups} groups=${grouping.groups} hidden=${hidden} onToggle=${toggle} />`}
      <span class="grow"></span>
      ${map && html`<span class="muted" role="status" title=${`The two axes explain ${Math.round(map.explained * 100)} % of the variance of the vectors`}>${map.ids.length < map.total ? `${map.ids.length.toLocaleString("en")} of ${counted(map.total, "memory", "memories")}` : counted(map.total, "memory", "memories")}</span>`}
    </div>
    <div class="split">
      ${isEmpty ? html`<div class="body">${map.total
        ? html`<${Empty} title="No memory has a vector yet" command="memory-agent model status" isOfUser=${false}><p>The map places memories by their vectors, which are computed in the background once a model is available:</p></${Empty}>`
        : html`<${Empty} title="Nothing is remembered yet" command="memory-agent import-sessions"><p>The map shows memories of similar meaning near each other. To start, import the past sessions of coding agents:</p></${Empty}>`}</div>`
      : html`<div class="field-of-points">
        <${Problem} problem=${problem} retry=${reload} />
        ${isLoading && !map && html`<${Loading} what="Placing the memories" />`}
        <canvas ref=${attach} tabindex="0" role="application" aria-label="Map of memories. Arrow keys move, plus and minus zoom, 0 shows all. The list beside it has the nearest memories."></canvas>
        ${map && hover.index >= 0 && html`<div class="tip" style=${{ left: `${hover.left}px`, top: `${hover.top}px` }}><${Text} one text=${map.titles[hover.index]} />
          <span class="muted">${map.kinds[hover.index]}, ${dayOf(map.timestamps[hover.index])}</span></div>`}
        <div class="zoom row"><button aria-label="Zoom in" title="+" onClick=${zoomIn}>+</button><button aria-label="Zoom out" title="-" onClick=${zoomOut}>−</button><button title="0" onClick=${showAll}>All</button></div>
      </div>
      ${map && html`<section class="near" aria-label="Nearest memories"><header><h2>${opened >= 0 ? "Nearest to the open memory" : "Nearest to the middle"}</h2></header>
        <${VirtualList} label="Nearest memories" count=${nearest.length} rowHeight=${32} selected=${chosen} onSelect=${choose} onOpen=${(index) => go({ id: map.ids[nearest[index]] })}
          render=${(index) => html`<i class="point" style=${{ background: `var(${grouping.groups[grouping.groupOf[nearest[index]]].variable})` }}></i><span class="grow"><${Text} one text=${map.titles[nearest[index]]} /></span><span class="muted">${ageOf(map.timestamps[nearest[index]])}</span>`} />
      </section>`}`}
      ${params.id && html`<${MemoryPane} key=${params.id} id=${params.id} navigate=${navigate} onClose=${() => go({ id: "" })} onForgotten=${reload} />`}
    </div>
  </div>`;
}

export default { title: "Map", key: "m", keys: [["+ -", "Zoom"], ["0", "Show all"]], view: MapView };
