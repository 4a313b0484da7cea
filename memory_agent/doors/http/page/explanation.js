/* Why recall found a memory, and why not: the parts of a score, and the reasons for what was left out. */

import { html } from "./vendor/preact.js";
import { Facts, Text, Time, counted, number } from "./parts.js";

/** The parts that add up to the score: the key of an explanation, its name, its series, and what it means. */
const PARTS = [
  ["fused", "match", 1, "Meaning (vectors) and words, weighed by alpha"],
  ["context", "context", 3, "Its run or session also matches"],
  ["contiguity", "neighbours", 4, "From matching memories next to it"],
  ["date_boost", "date", 2, "It happened at a time that the query names"],
  ["kind", "kind", 7, "The query asks for memories of its kind, such as commands"],
  ["speaker", "speaker", 8, "The query asks about who said it"],
  ["learned", "learned", 6, "Runs that used it for similar requests ended well"],
  ["outcome", "outcome", 5, "How its run ended; may be negative"],
];

export const partsOf = ({ explanation }) => PARTS.map(([key, name, series]) => ({ name, series, value: explanation[key] ?? 0 }));

/** The value of a full bar: the largest sum of positive parts. */
export const fullBar = (memories) => Math.max(0.001, ...memories.map((memory) => partsOf(memory).reduce((sum, { value }) => sum + Math.max(0, value), 0)));

export const legendOf = (memories) => PARTS.filter(([key]) => memories.some(({ explanation }) => explanation[key])).map(([, name, series, meaning]) => [name, series, meaning]);

/** Names a memory by its place in the answer, or by its id. */
const namedIn = (answer) => (id) => {
  const place = answer.findIndex(({ record, origins }) => record.id === id || origins.some((origin) => origin.id === id));
  return place < 0 ? id : `#${place + 1}`;
};

/** The explanation of one memory, as rows of figures and sentences. */
export function Explanation({ memory, answer, navigate }) {
  const { explanation: why, origins } = memory;
  const name = namedIn(answer);
  const others = memory.count - 1 - origins.length;
  return html`
    <section class="section"><header><h2>Score</h2><span class="grow"></span><span class="number">${number(memory.sona_score, 3)}</span></header>
      <table class="parts"><tbody>${PARTS.filter(([key]) => why[key]).map(([key, part, series, meaning]) => html`<tr key=${key}>
        <td><i class=${`swatch s${series}`}></i>${part}</td><td class="muted">${meaning}</td><td class="number">${number(why[key], 3)}</td></tr>`)}</tbody></table>
      <${Facts} rows=${[
        ["Relevance", memory.relevance === null ? "unknown" : number(memory.relevance)],
        ["Found by", memory.retrieval === "hybrid" ? "meaning and words" : memory.retrieval === "vector" ? "meaning" : "words"],
        ["Cosine", memory.score === null ? null : number(memory.score, 3)],
        ["Words", why.lexical ? `${number(why.lexical, 3)} of the best match` : null],
        ["Alpha", why.alpha === undefined ? null : `${number(why.alpha)} (weight of meaning)`],
        ["Ranking", why.arm],
        ["Judge", why.by_score ? `selected; place ${why.by_score} by score` : null],
        ["Neighbours", why.lent_by?.length ? html`<${Text} text=${why.lent_by.map(name).join(", ")} />` : null],
        ["Learned", why.association || why.shift ? `used before ${number(why.association, 3)}, query moved ${number(why.shift, 3)}` : null],
        ["Stands for", why.repeats ? `${counted(why.repeats.count, "similar request")}` : null],
        ["Author", memory.shared && html`<${Text} text=${memory.shared.author ?? memory.shared.publisher ?? "another user"} />`],
      ]} />
    </section>
    ${why.caused_by?.length > 0 && html`<section class="section"><header><h2>Because of these runs</h2></header>
      <ul>${why.caused_by.map((run) => html`<li key=${run.trajectory_id}><a href=${navigate.href("runs", { id: run.trajectory_id })}><${Text} one text=${run.trajectory_id} /></a>
        <span class="muted"> request ${Math.round(run.similarity * 100)} % similar${run.quality === null ? "" : `, ended with ${number(run.quality, 1)}`}</span></li>`)}</ul></section>`}
    ${memory.count > 1 && html`<section class="section"><header><h2>${counted(memory.count, "time")} the same text</h2></header>
      <ul>${origins.map((origin) => html`<li key=${origin.id}><a href=${navigate.href("timeline", { id: origin.id })}><${Time} at=${origin.timestamp} /></a> <span class="muted"><${Text} one text=${origin.session_id ?? origin.source} /></span></li>`)}
      ${others > 0 && html`<li class="muted">and ${others} more</li>`}</ul></section>`}`;
}

const WORDS = { event: "of the calling event", run: "of the calling run", session: "of the calling session", echo: "said minutes ago in the calling session" };

/** What the whole answer left out, as sentences. `stored` is the number of all memories. */
export function sentencesOf({ memories, excluded, judgement, total, degraded }, stored) {
  const merged = memories.reduce((sum, { count }) => sum + count - 1, 0);
  const folded = memories.reduce((sum, { explanation }) => sum + (explanation.repeats?.count ?? 0), 0);
  const own = Object.entries(excluded).map(([reason, count]) => `${counted(count, "memory", "memories")} ${WORDS[reason] ?? reason}`);
  const outside = stored - total - Object.values(excluded).reduce((sum, count) => sum + count, 0);
  return [
    outside > 0 && `${counted(outside, "memory does", "memories do")} not pass the filter.`,
    own.length > 0 && `The caller's own words: ${own.join(", ")}.`,
    merged > 0 && `${counted(merged, "duplicate")} merged into the memories above.`,
    folded > 0 && `${counted(folded, "earlier request")} folded into the memory that asks the same.`,
    judgement?.left_out.length > 0 && `The judge left out ${counted(judgement.left_out.length, "memory", "memories")} that the score would have placed in the answer.`,
    degraded.length > 0 && `Recall was degraded (${degraded.join(", ").replaceAll("_", " ")}): memories may be missing.`,
  ].filter(Boolean);
}

/**
 * The memories that an answer left out, best first, each with the reason. `beyond` is the same recall with more places, and
 * `all` with more places and without a minimum relevance.
 */
export function leftOut(answer, beyond, all, least) {
  const shown = new Set(answer.memories.flatMap(({ record, origins }) => [record.id, ...origins.map(({ id }) => id)]));
  const judged = new Set(answer.judgement?.left_out ?? []);
  const placed = new Map((beyond?.memories ?? []).map(({ record }, place) => [record.id, place + 1]));
  const reason = ({ record, relevance }) => {
    if (judged.has(record.id)) return "left out by the judge";
    if (placed.has(record.id)) return `place ${placed.get(record.id)}: the answer has ${counted(answer.memories.length, "place")}`;
    if (relevance === null) return "its relevance is unknown";
    return `relevance ${number(relevance)}: below ${least === "" ? "the minimum" : number(least)}`;
  };
  return all.memories.filter(({ record }) => !shown.has(record.id)).map((memory) => ({ ...memory, reason: reason(memory) }));
}
