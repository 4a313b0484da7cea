/* What users share: their own items and offers with their figures, and the search of others' items. Publishing is in publish.js. */

import { html, useState } from "./vendor/preact.js";
import { call, may } from "./api.js";
import { Confirm, Empty, Facts, Loading, Pane, Problem, Text, Time, bytes, counted, download, needs, number, plain, toast, useCall, useRows } from "./parts.js";
import { Publish, readersOf } from "./publish.js";
import { Lines } from "./words.js";

const TABS = [["own", "Yours"], ["search", "Search"], ["publish", "Publish"]];
const RATINGS = [0, 0.25, 0.5, 0.75, 1];

/** The released figures in words: counts are rounded down to fives, and no figures are released for fewer than five users. */
function figuresOf(metrics) {
  const { avg_trajectory_score: mean, distinct_users: users, used_count: used, usage_count: shown, user_rating: rating, raters } = metrics;
  const words = [
    users && `used by ${users}+ people`, mean != null && `mean quality ${number(mean)}`, shown && `shown ${shown}+ times, used ${used}+`,
    rating != null && `rated ${number(rating)} by ${raters}+`,
  ].filter(Boolean);
  return words.length ? words.join("; ") : "no figures before five users";
}

function Item({ item, place, children, onOpen, isSelected }) {
  return html`<li id=${place === undefined ? undefined : `shared-${place}`} class=${`item-row ${isSelected ? "current" : ""}`}>
    <div class="row wrap">
      <b class="grow">${onOpen ? html`<button class="link" onClick=${onOpen}><${Text} one text=${item.title} /></button>` : html`<${Text} one text=${item.title} />`}</b>
      <span class="muted">${item.content_type}, version ${item.version}</span>
    </div>
    <${Lines} text=${item.summary} />
    ${children}
  </li>`;
}

/* Yours */

function Own({ navigate }) {
  const items = useCall("published");
  const offers = useCall("offered");
  const [gone, setGone] = useState(null);
  const unpublish = async () => {
    const { found } = await call("unpublish", { item_id: gone.id });
    toast(found ? "Withdrawn. No answer contains it any more." : "There was no such item.");
    items.reload();
    offers.reload();
  };
  const remove = (one, verb) => html`<button class="danger" ...${needs("share")} onClick=${() => setGone(one)}>${verb} …</button>`;
  return html`
    <${Problem} problem=${items.problem ?? offers.problem} retry=${() => { items.reload(); offers.reload(); }} />
    ${!items.result && !items.problem && html`<${Loading} />`}
    <${Name} />
    ${items.result && !items.result.length && html`<${Empty} title="You share nothing" command="memory-agent shared preview runbook.md --out preview.json">
      <p>Nothing leaves this memory unless you publish it. Other users of this deployment find a published item under your pseudonym, and you see how much it helps them. <a href=${navigate.href("shared", { tab: "publish" })}>Publish something</a>, or in a terminal:</p>
    </${Empty}>`}
    ${items.result?.length > 0 && html`<section class="section"><header><h2>Published</h2><span class="muted">${items.result.length}</span></header>
      <ul class="items">${items.result.map((item) => html`<${Item} key=${item.id} item=${item}>
        <p class="muted">${figuresOf(item.quality_metrics)}</p>
        <div class="row wrap">
          <span class="muted grow">found by ${readersOf(item.access_policy)}; published <${Time} at=${item.published_at} />${item.size_bytes ? `; ${bytes(item.size_bytes)}` : ""}</span>
          <a class="button" href=${navigate.href("shared", { tab: "publish", item: item.id })}>New version</a>${remove(item, "Unpublish")}
        </div>
      </${Item}>`)}</ul></section>`}
    ${offers.result?.length > 0 && html`<section class="section"><header><h2>Offered patterns</h2><span class="muted">hidden until enough users offer the same words</span></header>
      <ul class="items">${offers.result.map(({ content, offered_at: at, proposed_as: item }) => html`<${Item} key=${content.item_id} item=${content}>
        <div class="row wrap"><span class="muted grow">offered <${Time} at=${at} />${item ? html`; published together as <code>${item}</code>` : ""}</span>${remove({ ...content, id: content.item_id }, "Withdraw")}</div>
      </${Item}>`)}</ul></section>`}
    ${gone && html`<${Confirm} title=${`Withdraw “${plain(gone.title)}”?`} action="Withdraw" danger onConfirm=${unpublish} onClose=${() => setGone(null)}>
      <p>No answer contains it from now on, nor its earlier versions and figures. Its bytes are removed from the files during the next upkeep. Your own memory is not changed.</p>
    </${Confirm}>`}`;
}

function Name() {
  const { result, reload } = useCall("own_name");
  const [text, setText] = useState(null);
  const [problem, setProblem] = useState(null);
  const save = async (event) => {
    event.preventDefault();
    try {
      const name = await call("shared_name", { name: text.trim() || null });
      toast(`Others see ${name}.`);
      setText(null);
      setProblem(null);
      reload();
    } catch (error) {
      setProblem(error);
    }
  };
  if (!may("share")) return null;
  if (text === null) return html`<p class="row wrap about"><span class="muted">Others see you as</span> <b><${Text} one text=${result ?? "a pseudonym"} /></b> <button class="link" onClick=${() => setText("")}>Change</button></p>`;
  return html`<form class="row wrap about" onSubmit=${save}>
    <input aria-label="Name that others see" placeholder="A name; empty: the pseudonym" value=${text} onInput=${(event) => setText(event.target.value)} />
    <button class="primary">Save</button><button type="button" onClick=${() => setText(null)}>Cancel</button><${Problem} problem=${problem} />
  </form>`;
}

/* Search */

function Search({ route, navigate }) {
  const query = route.params.q ?? "";
  const [text, setText] = useState(query);
  const { result, problem, isLoading, reload } = useCall("search_shared", query ? { query, top_k: 20 } : null);
  const [open, setOpen] = useState(null);
  const [selected] = useRows(result?.length ?? 0, "shared", (place) => setOpen(result[place]));
  const submit = (event) => { event.preventDefault(); navigate("shared", { tab: "search", q: text.trim() }); };
  return html`<div class="split"><div class="body">
    <form class="row about" onSubmit=${submit} role="search">
      <input class="grow" aria-label="Search what others share" placeholder="What others may have solved" value=${text} onInput=${(event) => setText(event.target.value)} />
      <button class="primary" disabled=${!text.trim()}>Search</button>
    </form>
    <${Problem} problem=${problem} retry=${reload} />
    ${query && isLoading && !result && html`<${Loading} what="Searching" />`}
    ${!query && html`<${Empty} title="Search what users of this deployment share" command='memory-agent recall "the deploy hangs" --tier local --tier global'>
      <p>Items that helped others' runs come first. A recall can also search them, together with your own memories:</p></${Empty}>`}
    ${result && query && !result.length && html`<p class="muted">Nothing shared matches this query.</p>`}
    ${result?.length > 0 && html`<ul class="items">${result.map((found, place) => html`<${Item} key=${found.item.id} item=${found.item} place=${place} isSelected=${open === found || place === selected} onOpen=${() => setOpen(found)}>
      <p class="muted">by <${Text} text=${found.item.author} />; ${figuresOf(found.item.quality_metrics)}${found.is_proven ? html`; <span class="good">proven</span>` : ""}${found.is_worse ? html`; <span class="warn">worse than usual</span>` : ""}${found.relevance == null ? "" : `; relevance ${number(found.relevance)}`}</p>
    </${Item}>`)}</ul>`}
  </div>${open && html`<${ItemPane} key=${open.item.id} found=${open} onClose=${() => setOpen(null)} />`}</div>`;
}

function ItemPane({ found, onClose }) {
  const { item } = found;
  const save = async () => {
    try {
      const { attachment, data } = await call("shared_attachment", { item_id: item.id });
      download(attachment.name, Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), "application/octet-stream");
    } catch (problem) {
      toast(problem.detail, "bad");
    }
  };
  return html`<${Pane} title=${html`<${Text} one text=${item.title} />`} onClose=${onClose} footer=${html`<${Rate} item=${item} />`}>
    <div><${Text} text=${item.summary} /></div>
    ${item.body && html`<div><${Text} text=${item.body} /></div>`}
    <${Facts} rows=${[
      ["Author", html`<${Text} text=${item.author} />`],
      ["Figures", figuresOf(item.quality_metrics)],
      ["Offered by", item.offered_by ? `at least ${counted(item.offered_by, "user")}` : null],
      ["Found by", readersOf(item.access_policy)],
      ["Type", item.content_type],
      ["Version", item.version],
      ["Published", html`<${Time} at=${item.published_at} exact />`],
      ["Tags", item.tags.length ? html`<${Text} text=${item.tags.join(", ")} />` : null],
      ["Reference", item.reference && html`<${Text} text=${item.reference} />`],
      ["File", item.attachment && html`<button class="link" onClick=${save}><${Text} one text=${`${item.attachment.name} (${bytes(item.attachment.size_bytes)})`} /></button>`],
      ["Id", html`<code class="break">${item.id}</code>`],
    ]} />
  </${Pane}>`;
}

function Rate({ item }) {
  const [rating, setRating] = useState(null);
  const rate = async (value) => {
    try {
      await call("rate", { item_id: item.id, rating: value, version: item.version });
      setRating(value);
      toast(value === null ? "Rating withdrawn." : "Rated. Figures change once five users have rated.");
    } catch (problem) {
      toast(problem.detail, "bad");
    }
  };
  return html`<div class="row wrap" role="group" aria-label="Rate this version"><span class="muted">Rate</span>
    ${RATINGS.map((value) => html`<button key=${value} class="chip" ...${needs("share")} aria-pressed=${rating === value} onClick=${() => rate(value)}>${value}</button>`)}
    <button class="link" ...${needs("share")} onClick=${() => rate(null)}>Withdraw</button>
  </div>`;
}

function Shared({ route, navigate }) {
  const tab = route.params.tab ?? "own";
  return html`<div class="view">
    <div class="bar"><h1>Shared</h1>
      <nav class="chips" aria-label="Shared">${TABS.map(([name, label]) => html`<a key=${name} class="chip link-chip" aria-current=${tab === name ? "page" : undefined} href=${navigate.href("shared", { tab: name })}>${label}</a>`)}</nav>
    </div>
    ${tab === "search" ? html`<${Search} route=${route} navigate=${navigate} />` : html`<div class="body narrow">
      ${tab === "publish" ? html`<${Publish} key=${JSON.stringify(route.params)} route=${route} navigate=${navigate} />` : html`<${Own} navigate=${navigate} />`}
    </div>`}
  </div>`;
}

export default { title: "Shared", key: "a", view: Shared };
