/* One memory: its row in a list, and the pane with every field and the actions on it. */

import { html, useState } from "./vendor/preact.js";
import { call } from "./api.js";
import { Confirm, Facts, Kind, Loading, Pane, Problem, Quality, Text, Time, counted, needs, number, toast, useCall } from "./parts.js";

/** The title of a memory, or the beginning of its text. */
export const headOf = (record) => record.title || record.text;

/** The project of a channel: `project:atlas` is atlas. */
export const projectOf = (channel) => channel?.replace(/^project:/, "");

/** Metadata that the record has as fields of its own. */
const REPEATED = new Set(["run_id", "event_type", "session_id", "channel_id"]);

function valueOf(value) {
  if (value === null || typeof value !== "object") return html`<${Text} text=${String(value)} />`;
  return html`<code><${Text} text=${JSON.stringify(value, null, 1)} /></code>`;
}

/** The pane of a memory. `record` shows at once what is known; the daemon's answer replaces it. */
export function MemoryPane({ id, record: known, navigate, onClose, onForgotten, marks, children }) {
  const { result, problem, isLoading, reload } = useCall("get", { ids: [id] });
  const [isAsking, setAsking] = useState(false);
  const record = result?.find((one) => one.id === id) ?? (known?.id === id ? known : null);
  const link = (view, params, text) => html`<a href=${navigate.href(view, params)}><${Text} one text=${text} /></a>`;
  const forget = async () => {
    await call("forget", { ids: [id] });
    toast("Forgotten.");
    onForgotten?.(id);
    onClose();
  };
  const footer = record && html`
    <a class="button" href=${navigate.href("search", { q: record.text.slice(0, 500) })}>Find similar</a>
    ${record.run_id && html`<a class="button" href=${navigate.href("runs", { id: record.run_id })}>Open run</a>`}
    ${record.session_id && html`<a class="button" href=${navigate.href("sessions", { id: record.session_id })}>Open session</a>`}
    <button class="danger" ...${needs("admin")} onClick=${() => setAsking(true)}>Forget …</button>`;
  return html`<${Pane} title=${record ? html`<${Kind} kind=${record.kind} />` : "Memory"} onClose=${onClose} footer=${footer}>
    <${Problem} problem=${problem} retry=${reload} />
    ${!record && isLoading && html`<${Loading} />`}
    ${!record && result && html`<p class="muted">This memory is gone: it was forgotten, or it belongs to another user.</p>`}
    ${record && html`
      ${record.title && html`<h2><${Text} text=${record.title} /></h2>`}
      <div><${Text} key=${id} text=${record.text} marks=${marks} /></div>
      ${children}
      <${Facts} rows=${[
        ["Happened", html`<${Time} at=${record.timestamp} exact />`],
        ["Outcome", record.quality_score === null ? null : html`<${Quality} value=${record.quality_score} />`],
        ["Source", record.source],
        ["Type", record.type && html`<code><${Text} text=${record.type} /></code>`],
        ["Phase", record.phase && html`<${Text} text=${record.phase} />`],
        ["Session", record.session_id && link("timeline", { session: record.session_id }, record.session_id)],
        ["Run", record.run_id && link("timeline", { run: record.run_id }, record.run_id)],
        ["Channel", record.channel_id && link("timeline", { channel: record.channel_id }, record.channel_id)],
        ["Agent", record.agent_id && html`<${Text} text=${record.agent_id} />`],
        ["Tags", record.tags?.length ? html`<${Text} text=${record.tags.join(", ")} />` : null],
        ["Provenance", record.cached_from ? `${record.provenance}, from ${record.cached_from}` : record.provenance],
        ["Recalled", record.times_recalled ? html`${counted(record.times_recalled, "time")}, last <${Time} at=${record.last_recalled_at} />` : "never"],
        ["Used", record.utility?.used ? `${counted(record.utility.used, "time")}, mean quality ${number(record.utility.reward_sum / record.utility.used)}` : "never"],
        ["Replaced", record.updated_at && html`<${Time} at=${record.updated_at} exact />`],
        ...Object.entries(record.metadata ?? {}).filter(([name]) => !REPEATED.has(name)).map(([name, value]) => [html`<${Text} text=${name} />`, valueOf(value)]),
        ["Event", record.event_id && html`<code><${Text} text=${record.event_id} /></code>`],
        ["Id", html`<code><${Text} text=${record.id} /></code>`],
      ]} />`}
    ${isAsking && html`<${Confirm} title="Forget this memory?" action="Forget" danger onConfirm=${forget} onClose=${() => setAsking(false)}>
      <p>The memory is removed with its vector and words, and no recall finds it again. Its event remains in the journal until it is erased.</p>
    </${Confirm}>`}
  </${Pane}>`;
}
