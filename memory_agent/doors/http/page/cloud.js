/* Points on a canvas, to pan and zoom. Draws only when something changed. */

const RADIUS = 3;
const REACH_PX = 16;
const MOST_ZOOM = 200;
const CELLS = 64;
/** The cell of a grid in which a coordinate is, and the key of a cell from its column and row. */
const cellOf = (coordinate) => Math.floor(((coordinate + 1) / 2) * CELLS);
const keyOf = (column, row) => column * 1000 + row;

export class Cloud {
  /** `onHover(index, left, top)` and `onPick(index)` report the nearest point, or -1; `onMove()` a new view. */
  constructor(canvas, { onHover, onPick, onMove }) {
    Object.assign(this, { canvas, onHover, onPick, onMove, xs: [], ys: [], groups: [], colours: [], hidden: new Set(), marked: -1, hovered: -1 });
    this.pen = canvas.getContext("2d");
    this.view = { x: 0, y: 0, zoom: 1 };
    this.pointers = new Map();
    this.moved = 0;
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(canvas);
    const on = (name, act, options) => canvas.addEventListener(name, act, options);
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.drag(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", (event) => this.pointers.delete(event.pointerId));
    on("pointerleave", () => this.hover(-1));
    on("wheel", (event) => { event.preventDefault(); this.zoomAt(event.offsetX, event.offsetY, Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015))); }, { passive: false });
  }

  close() {
    this.resized.disconnect();
    cancelAnimationFrame(this.frame);
  }

  /** Show points (two columns of coordinates in -1..1). */
  setPoints(xs, ys) {
    Object.assign(this, { xs, ys, cells: new Map() });
    xs.forEach((x, index) => {
      const cell = keyOf(cellOf(x), cellOf(ys[index]));
      if (!this.cells.has(cell)) this.cells.set(cell, []);
      this.cells.get(cell).push(index);
    });
    this.draw();
  }

  /** Colour each point: `groups` are indexes into `colours`; groups in `hidden` are faint and not found. */
  setColours(groups, colours, hidden) {
    Object.assign(this, { groups, colours, hidden });
    this.draw();
  }

  mark(index) { this.marked = index; this.draw(); }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    this.ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: clientWidth * this.ratio, height: clientHeight * this.ratio });
    this.draw();
    this.onMove();
  }

  get scale() { return (Math.min(this.canvas.clientWidth, this.canvas.clientHeight) / 2 - 16) * this.view.zoom; }
  toScreen(index) {
    return [this.canvas.clientWidth / 2 + (this.xs[index] - this.view.x) * this.scale, this.canvas.clientHeight / 2 - (this.ys[index] - this.view.y) * this.scale];
  }
  toWorld(left, top) {
    return [this.view.x + (left - this.canvas.clientWidth / 2) / this.scale, this.view.y - (top - this.canvas.clientHeight / 2) / this.scale];
  }

  look(change) {
    Object.assign(this.view, change);
    this.draw();
    this.onMove();
  }
  zoomAt(left, top, by) {
    const [x, y] = this.toWorld(left, top);
    this.view.zoom = Math.max(0.5, Math.min(MOST_ZOOM, this.view.zoom * by));
    const [nowX, nowY] = this.toWorld(left, top);
    this.look({ x: this.view.x + x - nowX, y: this.view.y + y - nowY });
  }
  zoomBy(by) { this.zoomAt(this.canvas.clientWidth / 2, this.canvas.clientHeight / 2, by); }
  panBy(right, up) { this.look({ x: this.view.x + right / this.scale, y: this.view.y + up / this.scale }); }
  /** Move the view so that a point is in it. */
  reveal(index) {
    const [left, top] = this.toScreen(index);
    if (left < 0 || top < 0 || left > this.canvas.clientWidth || top > this.canvas.clientHeight) this.look({ x: this.xs[index], y: this.ys[index] });
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (this.pointers.size === 1) this.moved = 0;
  }
  drag(event) {
    const former = this.pointers.get(event.pointerId);
    if (!former) return this.hover(this.nearestTo(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
    const [right, down] = [event.offsetX - former[0], event.offsetY - former[1]];
    this.moved += Math.hypot(right, down);
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const span = (place) => Math.hypot(place[0] - other[0], place[1] - other[1]) || 1;
      this.zoomAt((event.offsetX + other[0]) / 2, (event.offsetY + other[1]) / 2, span([event.offsetX, event.offsetY]) / span(former));
    } else this.panBy(-right, down);
    return this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
  }
  release(event) {
    this.pointers.delete(event.pointerId);
    if (this.moved < 5) this.onPick(this.nearestTo(event.offsetX, event.offsetY));
  }
  hover(index, left = 0, top = 0) {
    if (index < 0 && this.hovered < 0) return;
    if (index !== this.hovered) { this.hovered = index; this.draw(); }
    this.onHover(index, left, top);
  }

  /** The point nearest to a place on the screen, or -1 if none is within reach. */
  nearestTo(left, top) {
    const [x, y] = this.toWorld(left, top);
    const reach = Math.max(1, Math.ceil((REACH_PX / this.scale) * (CELLS / 2)));
    const [column, row] = [cellOf(x), cellOf(y)];
    let best = [-1, REACH_PX];
    for (let across = column - reach; across <= column + reach; across += 1) {
      for (let up = row - reach; up <= row + reach; up += 1) {
        for (const index of this.cells?.get(keyOf(across, up)) ?? []) {
          const [atLeft, atTop] = this.toScreen(index);
          const distance = Math.hypot(atLeft - left, atTop - top);
          if (distance < best[1] && !this.hidden.has(this.groups[index])) best = [index, distance];
        }
      }
    }
    return best[0];
  }

  /** The indexes of the `count` visible points nearest to a point, or to the middle of the view (-1), nearest first. */
  nearest(index, count) {
    const [x, y] = index < 0 ? [this.view.x, this.view.y] : [this.xs[index], this.ys[index]];
    const shown = [...this.xs.keys()].filter((one) => !this.hidden.has(this.groups[one]));
    const distance = shown.map((one) => (this.xs[one] - x) ** 2 + (this.ys[one] - y) ** 2);
    return [...shown.keys()].sort((one, other) => distance[one] - distance[other]).slice(0, count).map((place) => shown[place]);
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const { pen, canvas, ratio = 1 } = this;
    const radius = RADIUS * Math.min(2, Math.max(0.7, Math.sqrt(this.view.zoom) * (this.xs.length > 2000 ? 0.7 : this.xs.length < 500 ? 1.4 : 1)));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    const paths = this.colours.map(() => new Path2D());
    for (let index = 0; index < this.xs.length; index += 1) {
      const [left, top] = this.toScreen(index);
      if (left < -9 || top < -9 || left > canvas.clientWidth + 9 || top > canvas.clientHeight + 9) continue;
      const path = paths[this.groups[index]];
      path?.moveTo(left + radius, top);
      path?.arc(left, top, radius, 0, 7);
    }
    paths.forEach((path, group) => {
      pen.globalAlpha = this.hidden.has(group) ? 0.06 : 0.75;
      pen.fillStyle = this.colours[group];
      pen.fill(path);
    });
    pen.globalAlpha = 1;
    for (const [index, size] of [[this.hovered, radius + 3], [this.marked, radius + 5]]) {
      if (index < 0 || index >= this.xs.length) continue;
      const [left, top] = this.toScreen(index);
      pen.strokeStyle = this.ink;
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(left, top, size, 0, 7);
      pen.stroke();
    }
  }
}
