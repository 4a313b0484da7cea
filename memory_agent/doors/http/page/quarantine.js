/* Events that could not be handled, with the reason; they are retried or dropped. */

import { html, useState } from "./vendor/preact.js";
import { call, may, session } from "./api.js";
import { Confirm, Empty, Loading, Problem, Text, Time, bytes, counted, toast, useCall, useKeys, useRows } from "./parts.js";

const MOST = 1000;
const EVERY_MS = 10_000;
/** Whether the key may manage the daemon itself, and the reason if not. */
export const mayManage = () => may("admin") && session.bound === null;
export const NOT_MANAGING = "Needs a key with the scope admin for all users";

function Entry({ entry, place, isChosen, onChoose, isCurrent }) {
  return html`<tr id=${`entry-${place}`} class=${isCurrent ? "current" : ""}>
    <td><input type="checkbox" aria-label=${`Select entry ${entry.id}`} checked=${isChosen} onChange=${onChoose} /></td>
    <td class="number">${entry.id}</td>
    <td><code>${entry.code}</code> <${Text} text=${entry.reason} /></td>
    <td class="optional">${entry.event_type ? html`<code><${Text} one text=${entry.event_type} /></code>` : html`<span class="muted">not an event</span>`}</td>
    <td class="optional"><${Text} one text=${entry.user_id ?? "–"} /></td>
    <td class="optional"><${Text} one text=${entry.source} /></td>
    <td class="number optional">${bytes(entry.size_bytes ?? 0)}</td>
    <td class="when"><${Time} at=${entry.quarantined_at} /></td>
  </tr>`;
}

function Quarantine() {
  const { result, problem, reload } = useCall("quarantine_list", mayManage() ? { limit: MOST } : null, { everyMs: EVERY_MS });
  const [chosen, setChosen] = useState(new Set());
  const [isBusy, setBusy] = useState(false);
  const [isAsking, setAsking] = useState(false);
  const [failure, setFailure] = useState(null);
  const entries = result ?? [];
  const ids = entries.map((entry) => entry.id).filter((id) => chosen.has(id));
  const choose = (id) => setChosen((former) => (former.has(id) ? new Set([...former].filter((one) => one !== id)) : new Set([...former, id])));
  const [current] = useRows(entries.length, "entry", (place) => choose(entries[place].id));
  useKeys({ x: () => entries[current] && choose(entries[current].id) });
  const after = (words) => {
    toast(words);
    setChosen(new Set());
    reload();
  };
  const retry = async () => {
    setBusy(true);
    setFailure(null);
    try {
      const { handled = 0, still_failing: failing = 0 } = await call("quarantine_retry", { ids });
      after(`${counted(handled, "event")} handled, ${failing} still failing.`);
    } catch (error) {
      setFailure(error);
    }
    setBusy(false);
  };
  const drop = async () => after(`${counted(await call("quarantine_drop", { ids }), "event")} dropped.`);
  const disabled = !mayManage() || !ids.length || isBusy;
  const title = mayManage() ? "" : NOT_MANAGING;
  return html`<div class="view">
    <div class="bar">
      <h1>Quarantine</h1>
      ${entries.length > 0 && html`<span class="muted">${counted(entries.length, "event")}${entries.length === MOST ? " or more" : ""}</span>`}
      <span class="grow"></span>
      ${entries.length > 0 && html`
        <button onClick=${() => setChosen(new Set(ids.length === entries.length ? [] : entries.map((entry) => entry.id)))}>${ids.length === entries.length ? "Select none" : "Select all"}</button>
        <button class="primary" disabled=${disabled} title=${title} onClick=${retry}>${isBusy ? "Retrying …" : `Retry ${ids.length || ""}`}</button>
        <button class="danger" disabled=${disabled} title=${title} onClick=${() => setAsking(true)}>Drop ${ids.length || ""} …</button>`}
    </div>
    <div class="body">
      <${Problem} problem=${failure ?? problem} retry=${failure ? null : reload} />
      ${!mayManage() && html`<${Empty} title="This key cannot see the quarantine"><p>${NOT_MANAGING}: the quarantine holds events of every user.</p></${Empty}>`}
      ${mayManage() && !result && !problem && html`<${Loading} />`}
      ${result && !entries.length && html`<${Empty} title="Nothing is in quarantine" command="memory-agent quarantine list" isOfUser=${false}>
        <p>An event that cannot be decoded or ingested is kept here with the reason, and does not hold up others. Retry it once the cause is fixed. The same list in a terminal:</p>
      </${Empty}>`}
      ${entries.length > 0 && html`<div class="scroll-x"><table>
        <thead><tr><th><span class="hidden">Select</span></th><th class="number">Id</th><th>Reason</th><th class="optional">Type</th><th class="optional">User</th><th class="optional">From</th><th class="number optional">Size</th><th>When</th></tr></thead>
        <tbody>${entries.map((entry, place) => html`<${Entry} key=${entry.id} entry=${entry} place=${place} isChosen=${chosen.has(entry.id)} isCurrent=${place === current} onChoose=${() => choose(entry.id)} />`)}</tbody>
      </table></div>
      <p class="muted note">The content of events is not shown.</p>`}
    </div>
    ${isAsking && html`<${Confirm} title=${`Drop ${counted(ids.length, "event")}?`} action="Drop" danger onConfirm=${drop} onClose=${() => setAsking(false)}>
      <p>A dropped event is deleted and cannot be retried. It makes no memory.</p>
    </${Confirm}>`}
  </div>`;
}

export default { title: "Quarantine", key: "q", keys: [["x", "Select the event"]], view: Quarantine };
