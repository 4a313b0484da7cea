/* Publishing: write, preview exactly what leaves, confirm. Nothing is sent before the confirmation. */

import { html, useState } from "./vendor/preact.js";
import { call } from "./api.js";
import { Confirm, Facts, Field, Loading, Problem, Select, Text, anyOf, bytes, counted, needs, plain, toast, useCall } from "./parts.js";

const TYPES = ["document", "pattern", "agent", "app"];
const MOST_BYTES = 1 << 20;

/** Who can find an item. */
export const readersOf = (policy) => (policy === "public" ? "every user of this deployment" : policy.startsWith("org:") ? `organisation ${policy.slice(4)}` : `tier ${policy.slice(5)}`);

/** The bytes of a file as base64. */
async function base64Of(file) {
  const address = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return address.slice(address.indexOf(",") + 1);
}

/** The parameters of `publish_preview` for what was entered. Empty fields take the memory's, or the defaults. */
function paramsOf(entered, item) {
  const { title, summary, body, content_type, reference, version, tags, access_policy, memory_id, offer } = entered;
  const set = { title, summary, body, content_type, reference, access_policy, memory_id, version };
  return {
    ...Object.fromEntries(Object.entries(set).filter(([, value]) => value?.trim())),
    ...(tags.trim() && { tags: tags.split(",").map((tag) => tag.trim()).filter(Boolean) }),
    ...(item && { item_id: item.id }),
    ...(offer && { offer: true }),
  };
}

function Form({ entered, enter, item, problem, isBusy, onPreview }) {
  const input = (name, label, { hint, ...more } = {}) => html`<${Field} label=${label} hint=${hint}><input value=${entered[name]} onInput=${(event) => enter({ [name]: event.target.value })} ...${more} /></${Field}>`;
  const area = (name, label, rows, hint) => html`<${Field} label=${label} hint=${hint}><textarea rows=${rows} value=${entered[name]} onInput=${(event) => enter({ [name]: event.target.value })}></textarea></${Field}>`;
  const pick = (event) => {
    const file = event.target.files[0] ?? null;
    if (file && file.size > MOST_BYTES) {
      event.target.value = "";
      toast(`A file may have at most ${bytes(MOST_BYTES)}; this one has ${bytes(file.size)}.`, "bad");
      return;
    }
    enter({ file });
  };
  return html`<form class="stack" onSubmit=${onPreview}>
    ${item ? html`<p>A new version of <b><${Text} text=${item.title} /></b>. It replaces version ${item.version} in every answer, and its figures start at zero.</p>`
      : input("memory_id", "Memory", { hint: "Optional: the id of a memory whose title, summary, tags and type are taken.", spellcheck: false })}
    ${input("title", "Title", { hint: entered.memory_id ? "Empty: the memory's" : "" })}
    ${area("summary", "Summary", 3, "The text that is searched and shown, at most 4,000 characters.")}
    ${area("body", "Body", 6, "Optional: the whole document, at most 16,000 characters.")}
    <div class="fields">
      <${Field} label="Type"><${Select} value=${entered.content_type} options=${[["", entered.memory_id ? "the memory's" : "document"], ...TYPES]} onChange=${(type) => enter({ content_type: type })} /></${Field}>
      ${input("version", "Version", { required: true })}
      ${input("tags", "Tags", { hint: "Separated by commas." })}
      ${input("access_policy", "Found by", { placeholder: item ? "required: public, org:NAME, tier:NAME" : "public", hint: "public, or org:NAME or tier:NAME of your key." })}
    </div>
    ${!entered.offer && input("reference", "Reference", { hint: "Optional: where the original is. Others see it." })}
    ${!entered.offer && html`<${Field} label="File" hint="Optional, at most 1 MB. Secrets in a file are not masked."><input type="file" onChange=${pick} /></${Field}>`}
    ${!item && html`<label class="row"><input type="checkbox" checked=${entered.offer} onChange=${(event) => enter({ offer: event.target.checked, file: null, reference: "" })} /> Offer as a pattern, which is published without an author once enough users offer the same words</label>`}
    <${Problem} problem=${problem} />
    <p><button class="primary" disabled=${isBusy} ...${needs("share")}>${isBusy ? "Preparing …" : "Preview"}</button> <span class="muted">sends nothing</span></p>
  </form>`;
}

/** A regular expression that finds the mentions of one field, for `Text`. */
function marksOf(mentions, field) {
  const words = [...new Set(mentions.filter((one) => one.field === field).map((one) => one.text))];
  return words.length ? new RegExp(anyOf(words.sort((one, other) => other.length - one.length)), "gu") : null;
}

function Preview({ preview }) {
  const { content, masked, mentions } = preview;
  const text = (field) => content[field] && html`<${Text} text=${content[field]} marks=${marksOf(mentions, field)} />`;
  const secrets = Object.entries(masked);
  return html`<section class="section">
    <header><h2>What leaves your memory</h2><span class="muted">this and nothing else</span></header>
    ${secrets.length > 0 && html`<p class="warn">Masked: ${secrets.map(([kind, count]) => counted(count, kind.replaceAll("_", " "))).join(", ")}.</p>`}
    ${mentions.length > 0 && html`<p class="warn">Check the marked text: ${counted(mentions.length, "mention")} of people, accounts, paths or addresses.</p>`}
    <div class="leaves"><${Facts} rows=${[
      ["Title", text("title")], ["Summary", text("summary")], ["Body", text("body")],
      ["Tags", content.tags.length ? html`<${Text} text=${content.tags.join(", ")} marks=${marksOf(mentions, "tags")} />` : null],
      ["Reference", text("reference")],
      ["File", content.attachment && html`<${Text} text=${`${content.attachment.name}, ${bytes(content.attachment.size_bytes)}`} /> <span class="muted">(its content is not checked)</span>`],
      ["Type", content.content_type], ["Version", preview.replaces ? `${content.version}, replaces ${preview.replaces.version}` : content.version],
      ["Found by", readersOf(content.access_policy)],
    ]} /></div>
    <p class="muted">SHA-256 of the content and its user <code class="break">${preview.digest}</code></p>
  </section>`;
}

export function Publish({ route, navigate }) {
  const { item: itemId, memory = "" } = route.params;
  const known = useCall("published", itemId ? {} : null);
  const item = known.result?.find((one) => one.id === itemId);
  const [entered, setEntered] = useState({
    memory_id: memory, title: "", summary: "", body: "", content_type: "", reference: "", version: itemId ? "" : "1", tags: "", access_policy: "", offer: false, file: null,
  });
  const [state, setState] = useState({ preview: null, attachment: null, problem: null, isBusy: false });
  const [isAsking, setAsking] = useState(false);
  const enter = (change) => setEntered((former) => ({ ...former, ...change }));
  const preview = async (event) => {
    event.preventDefault();
    setState({ ...state, isBusy: true, problem: null });
    try {
      const attachment = entered.file && (await base64Of(entered.file));
      const params = { ...paramsOf(entered, item), ...(attachment && { attachment, attachment_name: entered.file.name }) };
      setState({ preview: await call("publish_preview", params), attachment, problem: null, isBusy: false });
    } catch (problem) {
      setState({ preview: null, attachment: null, problem, isBusy: false });
    }
  };
  const confirm = async () => {
    const { preview: shown, attachment } = state;
    if (shown.is_offer) await call("offer", { preview: shown });
    else await call("publish_confirm", { preview: shown, ...(attachment && { attachment }) });
    toast(shown.is_offer ? "Offered." : "Published.");
    navigate("shared", { tab: "own" });
  };
  if (itemId && !item) return known.problem ? html`<${Problem} problem=${known.problem} retry=${known.reload} />` : known.result ? html`<${Problem} problem=${{ code: "not_found", detail: "You have no item with this id." }} />` : html`<${Loading} />`;
  if (!state.preview) return html`<${Form} entered=${entered} enter=${enter} item=${item} problem=${state.problem} isBusy=${state.isBusy} onPreview=${preview} />`;
  const { content, is_offer: isOffer } = state.preview;
  const action = isOffer ? "Offer" : "Publish";
  return html`<${Preview} preview=${state.preview} />
    <p class="row"><button class="primary" onClick=${() => setAsking(true)}>${action} …</button><button onClick=${() => setState({ ...state, preview: null })}>Edit</button></p>
    ${isAsking && html`<${Confirm} title=${`${action} “${plain(content.title)}”?`} action=${action} onConfirm=${confirm} onClose=${() => setAsking(false)}>
      <p>${isOffer ? "It stays hidden until enough users offer the same words." : `It will be found by ${readersOf(content.access_policy)}. You can withdraw it at any time, but not what others have read by then.`}</p>
    </${Confirm}>`}`;
}
