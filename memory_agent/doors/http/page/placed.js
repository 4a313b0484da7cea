/*
 * The memories of a filter by their index, newest first, loaded where they are looked at.
 *
 * The verb `list` has cursors, not offsets. But the total of a page with `until` says how many memories are older, and so
 * which index the page begins at: any place can be reached with one or a few guesses of its time. Among memories of the same
 * time, it is reached with cursors.
 */

import { call } from "./api.js";

const PAGE = 100;
const MOST_GUESSES = 12;
const WALK = 500;
const AROUND = 20;
const BUCKETS = 60;
const AT_ONCE = 4;
const MOST_KEPT = 4000;
const ANCHOR = 500; // every 500th memory is kept, to guess times by

const msOf = (record) => Date.parse(record.timestamp);
const timeOf = (ms) => new Date(ms).toISOString();
/** The earlier of two times, of which one may be missing. */
const earlier = (one, other) => (!one || (other && other < one) ? other : one);

export class Placed {
  /** `filter` as for the verb `list`; `changed()` is called after each change. */
  constructor(filter, changed) {
    Object.assign(this, { filter, changed, total: null, problem: null, newest: 0, oldest: 0 });
    this.records = new Map();
    this.cursors = new Map(); // the cursor of the page that begins at an index
    this.stop = new AbortController();
    this.wanted = null;
    this.isLoading = false;
  }

  close() { this.stop.abort(); }
  get(index) { return this.records.get(index); }

  list(filter, options) {
    return call("list", { limit: PAGE, ...options, filter: { ...this.filter, ...filter } }, { signal: this.stop.signal });
  }

  /** Load the first page and the time of the last memory. */
  async begin() {
    await this.guarded(async () => {
      const [page, last] = await Promise.all([this.list({}), this.list({}, { order: "oldest", limit: 1 })]);
      this.total = page.total;
      this.put(page.records, 0, page.next_cursor);
      if (page.total) Object.assign(this, { newest: msOf(page.records[0]), oldest: msOf(last.records[0]) });
      last.records.forEach((record) => this.records.set(page.total - 1, record));
    });
  }

  /** Load the rows in view, and some around them. Of several calls while one is under way, only the last counts. */
  async need(first, last) {
    this.wanted = [Math.max(0, first - AROUND), last + AROUND];
    if (this.isLoading) return;
    this.isLoading = true;
    await this.guarded(async () => {
      let former = -1;
      for (let missing = this.missing(...this.wanted); missing >= 0 && missing !== former; missing = this.missing(...this.wanted)) {
        await this.load(missing, this.wanted[1]);
        this.changed();
        former = missing;
      }
    });
    this.isLoading = false;
    this.forgetFar((this.wanted[0] + this.wanted[1]) / 2);
  }

  /** Keep the memories near an index, so that scrolling for hours takes no more room. */
  forgetFar(middle) {
    if (this.records.size <= MOST_KEPT) return;
    for (const index of this.records.keys()) if (Math.abs(index - middle) > MOST_KEPT / 4 && index % ANCHOR) this.records.delete(index);
  }

  /** The index of the newest memory before a time (ms), or of the last one. */
  async indexAt(ms) {
    let index = 0;
    await this.guarded(async () => { index = await this.loadUntil(timeOf(ms)); });
    return Math.max(0, Math.min(index, this.total - 1));
  }

  /** Call `each` with the number of memories in each of `BUCKETS` equal spans, oldest first, as [ms, count]. */
  async density(each) {
    const step = Math.max(1, (this.newest - this.oldest) / BUCKETS);
    const edges = Array.from({ length: BUCKETS + 1 }, (_, place) => Math.floor(this.oldest + place * step));
    const older = new Array(BUCKETS + 1).fill(null);
    older[0] = 0;
    older[BUCKETS] = this.total;
    const waiting = edges.map((_, place) => place).slice(1, -1);
    const count = async () => {
      for (let place = waiting.shift(); place !== undefined; place = waiting.shift()) {
        older[place] = await this.countBefore(edges[place]);
      }
    };
    await this.guarded(async () => {
      await Promise.all(Array.from({ length: AT_ONCE }, count));
      each(edges.slice(0, -1).map((ms, place) => [ms, Math.max(0, older[place + 1] - older[place])]));
    });
  }

  /** The number of memories before a time (ms). Sends no request if the loaded memories reach that time. */
  async countBefore(ms) {
    for (let index = 0; this.records.has(index); index += 1) if (msOf(this.records.get(index)) < ms) return this.total - index;
    return (await this.list({ until: earlier(timeOf(ms), this.filter.until) }, { limit: 1 })).total;
  }

  async guarded(work) {
    try {
      await work();
      this.problem = null;
    } catch (problem) {
      if (this.stop.signal.aborted) return;
      this.problem = problem;
    }
    this.changed();
  }

  put(records, begin, cursor) {
    records.forEach((record, place) => this.records.set(begin + place, record));
    if (cursor) this.cursors.set(begin + records.length, cursor);
  }

  missing(first, last) {
    for (let index = first; index < Math.min(last, this.total); index += 1) if (!this.records.has(index)) return index;
    return -1;
  }

  async load(missing, last) {
    if (this.cursors.has(missing)) return this.loadAt(missing);
    let below = missing;
    while (below < last + PAGE && below < this.total && !this.records.has(below)) below += 1;
    if (this.records.has(below) && below - missing <= PAGE) await this.loadBefore(below);
    if (!this.records.has(missing)) await this.guess(missing);
    if (!this.records.has(missing)) await this.walk(missing);
    return undefined;
  }

  /** Load the page that begins at an index whose cursor is known. Returns the index of the next page. */
  async loadAt(begin, limit = PAGE) {
    const page = await this.list({}, { after: this.cursors.get(begin), limit });
    // The page is empty if memories were forgotten meanwhile.
    if (!page.records.length) this.total = begin;
    this.put(page.records, begin, page.next_cursor);
    return begin + page.records.length;
  }

  /** Load the page that ends just before the loaded index `below`, or a part of it if many memories have the same time. */
  async loadBefore(below) {
    const known = this.records.get(below);
    const page = await this.list({ since: known.timestamp }, { order: "oldest", limit: PAGE + 1 });
    const place = page.records.findIndex(({ id }) => id === known.id);
    if (place < 0) return;
    page.records.forEach((record, at) => below - (at - place) >= 0 && this.records.set(below - (at - place), record));
  }

  /** Load the page that contains an index, by guessing its time between known neighbours. */
  async guess(index) {
    const aim = Math.max(0, index - PAGE / 4);
    for (let tries = 0, former = -1; tries < MOST_GUESSES; tries += 1) {
      const begin = await this.loadUntil(timeOf(this.timeNear(aim)));
      if (begin === former || (begin <= index && index < begin + PAGE)) return;
      former = begin;
    }
  }

  /** Load page after page, from the nearest known one before an index, until the index is loaded or no longer in view. */
  async walk(index) {
    const known = [...this.cursors.keys()].filter((begin) => begin <= index);
    let begin = known.length ? Math.max(...known) : await this.loadUntil(timeOf(this.newest + 1));
    while (this.cursors.has(begin) && this.missing(...this.wanted) === index) {
      begin = await this.loadAt(begin, WALK);
      this.forgetFar(index);
    }
  }

  /** Load the page of the memories before a time. Returns its first index. */
  async loadUntil(until) {
    const page = await this.list({ until: earlier(until, this.filter.until) });
    const begin = this.total - page.total;
    this.put(page.records, begin, page.next_cursor);
    return begin;
  }

  timeNear(index) {
    let [above, below] = [[-1, this.newest + 1], [this.total, this.oldest]];
    for (const [at, record] of this.records) {
      if (at <= index && at > above[0]) above = [at, msOf(record)];
      if (at >= index && at < below[0]) below = [at, msOf(record)];
    }
    const share = below[0] === above[0] ? 0 : (index - above[0]) / (below[0] - above[0]);
    return above[1] + (below[1] - above[1]) * share;
  }
}
