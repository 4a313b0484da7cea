/* A list of any length: only the rows in view are in the document. All rows have the same height. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

const SPARE = 8;
const MOST_PIXELS = 15_000_000; // browsers limit the height of an element; beyond it, scrolling is scaled

export const narrow = matchMedia("(max-width: 640px)");
/** Whether the page is as narrow as a phone. */
export function useNarrow() {
  const [isNarrow, setNarrow] = useState(narrow.matches);
  useEffect(() => {
    const follow = () => setNarrow(narrow.matches);
    narrow.addEventListener("change", follow);
    return () => narrow.removeEventListener("change", follow);
  }, []);
  return isNarrow;
}

/** Whether keys go to a control that takes text. */
const isTyping = ({ target }) => target.matches?.("input:not([type=checkbox],[type=radio],[type=range]), textarea, select, [contenteditable]");

/** Call `keys[name](event)` for keys that no control takes, while no dialog is open. */
export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event) || document.querySelector("dialog[open]")) return;
      const act = latest.current[event.key];
      if (act && act(event) !== false) event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

/**
 * `count` rows of `rowHeight` pixels; `render(index)` returns the content of one. `selected` is the selected index (-1: none);
 * `onSelect(index)` moves it (`j`, `k`, arrows, a click), `onOpen(index)` opens it (Enter, a click). `onRange(first, last)`
 * reports the rows in view, for loading. `keyOf(index)` identifies rows. `scrollTo` is { index } to bring into view at the
 * top: pass a new object to scroll again.
 */
export function VirtualList({ count, rowHeight, render, selected = -1, onSelect, onOpen, onRange, keyOf = String, label, scrollTo }) {
  const place = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const scale = Math.max(1, (count * rowHeight) / MOST_PIXELS);
  const first = Math.max(0, Math.floor((view.top * scale) / rowHeight));
  const inView = Math.ceil(view.height / rowHeight);
  const begin = Math.max(0, first - SPARE);
  const end = Math.min(count, first + inView + SPARE);

  useLayoutEffect(() => {
    const list = place.current;
    const read = () => setView((former) => (former.top === list.scrollTop && former.height === list.clientHeight ? former : { top: list.scrollTop, height: list.clientHeight }));
    const resized = new ResizeObserver(read);
    resized.observe(list);
    list.addEventListener("scroll", read, { passive: true });
    return () => {
      resized.disconnect();
      list.removeEventListener("scroll", read);
    };
  }, []);
  useEffect(() => onRange?.(first, Math.min(count, first + inView)), [first, inView, count]);
  useLayoutEffect(() => {
    if (scrollTo) place.current.scrollTop = (scrollTo.index * rowHeight) / scale;
  }, [scrollTo]);

  const move = (index) => {
    const next = Math.max(0, Math.min(count - 1, index));
    const list = place.current;
    const top = (next * rowHeight) / scale;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + rowHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + rowHeight - list.clientHeight;
    list.focus({ preventScroll: true }); // so that Enter opens the row, not a button that was clicked before
    onSelect?.(next);
  };
  const from = selected < 0 ? first - 1 : selected;
  const down = () => move(from + 1);
  const up = () => move(selected < 0 ? first : selected - 1);
  const isHere = (event) => place.current.contains(event.target);
  const ifHere = (act) => (event) => isHere(event) && act();
  useKeys({
    j: down,
    k: up,
    ArrowDown: ifHere(down),
    ArrowUp: ifHere(up),
    Home: ifHere(() => move(0)),
    End: ifHere(() => move(count - 1)),
    PageDown: ifHere(() => move(from + inView)),
    PageUp: ifHere(() => move(from - inView)),
    Enter: (event) => (isHere(event) || event.target === document.body) && selected >= 0 ? onOpen?.(selected) : false,
  });

  const rows = [];
  for (let index = begin; index < end; index += 1) {
    // Placed relative to the first row in view, so that scaling does not tear rows apart.
    const offset = view.top + index * rowHeight - view.top * scale;
    rows.push(html`<div key=${keyOf(index)} id=${`row-${index}`} class="item" role="option" aria-selected=${index === selected} aria-setsize=${count} aria-posinset=${index + 1}
      style=${{ height: `${rowHeight}px`, transform: `translateY(${offset}px)` }} onClick=${() => { onSelect?.(index); onOpen?.(index); }}>${render(index)}</div>`);
  }
  return html`<div class="list" ref=${place} role="listbox" tabindex="0" aria-label=${label} aria-activedescendant=${selected >= begin && selected < end ? `row-${selected}` : undefined}>
    <div class="space" role="presentation" style=${{ height: `${(count * rowHeight) / scale}px` }}>${rows}</div>
  </div>`;
}

/**
 * Selection in a short list: `[selected, setSelected]`, moved with `j` and `k`; Enter calls `onOpen(index)`. The element of a row
 * has the id `PREFIX-INDEX`, and is brought into view.
 */
export function useRows(count, prefix, onOpen) {
  const [selected, setSelected] = useState(-1);
  const move = (by) => {
    const next = Math.max(0, Math.min(count - 1, selected + by));
    setSelected(next);
    document.activeElement.blur(); // so that Enter opens the row
    document.getElementById(`${prefix}-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys({
    j: () => count > 0 && move(1),
    k: () => count > 0 && move(-1),
    Enter: (event) => (event.target === document.body && selected >= 0 ? onOpen(selected) : false),
  });
  return [selected, setSelected];
}
