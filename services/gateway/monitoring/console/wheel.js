// The wheel: slots down, steps across, the newest at the right. Columns are drawn once onto a strip that goes round, and the
// picture is that strip shifted; so a frame costs the same however many requests there are.

import { colour } from './colours.js';
import { $, count, el, ms } from './dom.js';
import { key } from './store.js';

const COLUMN = 6;
const BARS = 44;
const LEFT = 30;

export class Wheel {
  constructor(store, onOpen) {
    this.store = store; this.onOpen = onOpen; this.canvas = $('wheel'); this.tip = $('tip'); this.strip = document.createElement('canvas');
    this.shown = 0; this.total = 0; this.paused = false; this.cursor = null; this.selected = ''; this.generation = -1; this.peak = 64;
    this.still = matchMedia('(prefers-reduced-motion: reduce)');
    this.frames = []; this.dirty = true;
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    this.canvas.addEventListener('pointermove', (event) => this.point(event));
    this.canvas.addEventListener('pointerleave', () => { this.cursor = null; this.tip.hidden = true; this.dirty = true; });
    this.canvas.addEventListener('click', () => this.open());
    this.canvas.addEventListener('keydown', (event) => this.press(event));
    requestAnimationFrame((at) => this.frame(at));
  }

  get slots() { return Math.max(1, this.store.live?.slots.count || 16); }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width) return;
    this.ratio = Math.min(devicePixelRatio || 1, 2);
    this.width = box.width; this.height = box.height;
    this.canvas.width = Math.round(box.width * this.ratio); this.canvas.height = Math.round(box.height * this.ratio);
    this.columns = Math.ceil((this.width - LEFT) / COLUMN) + 1;
    this.strip.width = this.columns * COLUMN * this.ratio; this.strip.height = this.canvas.height;
    this.redraw();
  }

  // Everything anew: after a change of size, theme or scheduler.
  redraw() {
    if (!this.columns) return;
    const style = getComputedStyle(document.documentElement);
    const token = (name) => style.getPropertyValue(name).trim();
    this.ink = { ink: token('--ink'), soft: token('--ink-3'), line: token('--line'), track: token('--track'), red: token('--red'), card: token('--card'), accent: token('--accent') };
    this.colours = new Map();
    this.generation = this.store.generation; this.drawnSlots = this.slots;
    this.area = this.height - BARS - 8; this.row = this.area / this.slots;
    const pen = this.pen = this.strip.getContext('2d');
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.columns * COLUMN, this.height);
    const { steps } = this.store;
    this.view = steps.slice(-this.columns);
    this.peak = Math.max(64, ...this.view.map((each) => each.prompt + each.decode));
    this.view.forEach((step, place) => this.column(step, place));
    this.total = this.view.length; this.last = this.view.length ? this.view[this.view.length - 1].serial : 0;
    this.shown = this.total; this.dirty = true;
  }

  // Draw what has come since.
  update() {
    if (this.paused || !this.columns) return;
    if (this.generation !== this.store.generation || this.drawnSlots !== this.slots) { this.redraw(); return; }
    const { steps } = this.store;
    let from = steps.length;
    while (from > 0 && steps[from - 1].serial > this.last) from -= 1;
    for (const step of steps.slice(from)) {
      const tokens = step.prompt + step.decode;
      if (tokens > this.peak) { this.redraw(); return; }
      this.column(step, this.total % this.columns);
      this.view.push(step); this.total += 1; this.last = step.serial; this.dirty = true;
    }
    if (this.view.length > this.columns) this.view.splice(0, this.view.length - this.columns);
    // Steps of which more is known now: somebody gave way after them.
    for (const step of this.store.cut) this.cuts(step);
    this.store.cut = [];
    // A fast stack is followed closely: no more than an eighth of the picture is ever kept back.
    this.shown = Math.max(this.shown, this.total - this.columns / 8);
  }

  column(step, place) {
    const pen = this.pen; const x = (place % this.columns) * COLUMN; const { cells } = step;
    pen.clearRect(x, 0, COLUMN, this.height);
    const thin = Math.max(1.2, this.row * 0.42); const full = Math.max(1.6, this.row - (this.row > 4 ? 1 : 0.4));
    for (let at = 0; at < cells.length; at += 5) {
      const y = cells[at] * this.row;
      pen.fillStyle = this.colourOf(cells[at + 1], cells[at + 2]);
      if (cells[at + 4]) { pen.globalAlpha = 1; pen.fillRect(x, y, COLUMN - 0.5, full); } else { pen.globalAlpha = 0.62; pen.fillRect(x, y + (full - thin) / 2, COLUMN + 0.2, thin); }
    }
    pen.globalAlpha = 1;
    this.cuts(step, x);
    const floor = this.height; const scale = (BARS - 4) / this.peak;
    pen.fillStyle = this.ink.soft; pen.globalAlpha = 0.75; pen.fillRect(x, floor - step.prompt * scale, COLUMN - 1, step.prompt * scale);
    pen.globalAlpha = 0.38; pen.fillRect(x, floor - (step.prompt + step.decode) * scale, COLUMN - 1, step.decode * scale); pen.globalAlpha = 1;
  }

  cuts(step, given) {
    if (!step.cuts.length || !this.view) return;
    let x = given;
    if (x === undefined) {
      const place = this.view.lastIndexOf(step);
      if (place < 0) return;
      const back = this.view.length - 1 - place;
      x = ((this.total - 1 - back + this.columns * 4) % this.columns) * COLUMN;
    }
    this.pen.fillStyle = this.ink.red;
    for (const slot of step.cuts) this.pen.fillRect(x + COLUMN - 2.5, slot * this.row - 0.5, 2.5, Math.max(3, this.row));
    this.dirty = true;
  }

  colourOf(request, choice) {
    const traffic = this.store.requests.get(key(request, choice))?.class ?? '';
    let found = this.colours.get(traffic);
    if (!found) { found = colour(traffic); this.colours.set(traffic, found); }
    return found;
  }

  frame(at) {
    requestAnimationFrame((next) => this.frame(next));
    if (document.hidden || !this.columns || !this.pen) return;
    const behind = this.total - this.shown;
    if (behind > 0.001) {
      const pace = this.still.matches ? 1 : 1 - Math.exp(-(at - (this.before ?? at)) / 120);
      this.shown = behind < 0.02 ? this.total : this.shown + behind * pace;
      this.dirty = true;
    }
    this.before = at;
    if (!this.dirty) return;
    this.dirty = false;
    const begun = performance.now();
    this.paint();
    this.frames.push(performance.now() - begun);
    if (this.frames.length > 240) this.frames.shift();
  }

  paint() {
    const pen = this.canvas.getContext('2d'); const { ratio, width, height, columns } = this;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = this.ink.track; pen.globalAlpha = 0.55; pen.fillRect(LEFT, 0, width - LEFT, this.area); pen.globalAlpha = 1;
    pen.save(); pen.beginPath(); pen.rect(LEFT, 0, width - LEFT, height); pen.clip();
    // The strip goes round: its newest column stands at the right, pushed out by what is not shown yet.
    const right = width + (this.total - this.shown) * COLUMN; const kept = Math.min(this.total, columns); const cut = this.total % columns;
    const pieces = this.total <= columns ? [[0, kept]] : [[cut, columns - cut], [0, cut]];
    let x = right - kept * COLUMN;
    for (const [from, many] of pieces) {
      if (many) pen.drawImage(this.strip, from * COLUMN * ratio, 0, many * COLUMN * ratio, this.strip.height, x, 0, many * COLUMN, height);
      x += many * COLUMN;
    }
    this.right = right;
    this.mark(pen, right);
    pen.restore();
    this.axes(pen);
  }

  // The request that is pointed at or selected: everything of it is outlined.
  mark(pen, right) {
    const at = this.at(); const name = at?.name || this.selected;
    if (this.cursor) {
      pen.fillStyle = this.ink.ink; pen.globalAlpha = 0.08;
      pen.fillRect(LEFT, this.cursor.slot * this.row, this.width, Math.max(2, this.row));
      pen.fillRect(right - (this.view.length - this.cursor.column) * COLUMN, 0, COLUMN, this.height); pen.globalAlpha = 1;
    }
    if (!name) return;
    pen.fillStyle = this.ink.ink; pen.globalAlpha = 0.85;
    this.view.forEach((step, place) => {
      const { cells } = step;
      for (let each = 0; each < cells.length; each += 5) {
        if (key(cells[each + 1], cells[each + 2]) !== name) continue;
        const x = right - (this.view.length - place) * COLUMN; const y = cells[each] * this.row;
        pen.fillRect(x, y - 1, COLUMN, 1.2); pen.fillRect(x, y + this.row - 0.4, COLUMN, 1.2);
        break;
      }
    });
    pen.globalAlpha = 1;
  }

  axes(pen) {
    pen.fillStyle = this.ink.soft; pen.font = '11px system-ui, sans-serif'; pen.textBaseline = 'middle'; pen.textAlign = 'right';
    const every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((each) => each * this.row >= 22) ?? 1024;
    for (let slot = 0; slot < this.slots; slot += every) pen.fillText(String(slot), LEFT - 6, Math.max(6, (slot + 0.5) * this.row));
    pen.fillText('tok', LEFT - 6, this.height - BARS / 2 + 4);
    if (!this.view?.length) return;
    const span = this.view[this.view.length - 1].at - this.view[0].at;
    pen.textAlign = 'left';
    if (span > 0) this.plate(pen, `${ms(span)} · ${this.view.length} steps`, LEFT + 6, this.height - BARS + 6, 'left');
    this.plate(pen, `${count(this.peak)} tokens`, this.width - 6, this.height - BARS + 6, 'right');
  }

  plate(pen, text, x, y, align) {
    pen.textAlign = align; const wide = pen.measureText(text).width;
    pen.globalAlpha = 0.8; pen.fillStyle = this.ink.card; pen.fillRect(align === 'left' ? x - 3 : x - wide - 3, y - 7, wide + 6, 14);
    pen.globalAlpha = 1; pen.fillStyle = this.ink.soft; pen.fillText(text, x, y);
  }

  // What the cursor stands on.
  at() {
    if (!this.cursor || !this.view) return null;
    const step = this.view[this.cursor.column];
    if (!step) return null;
    const { cells } = step;
    for (let each = 0; each < cells.length; each += 5) {
      if (cells[each] === this.cursor.slot) return { step, name: key(cells[each + 1], cells[each + 2]), tokens: cells[each + 3], prompt: cells[each + 4] };
    }
    return { step, name: '' };
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(); const x = event.clientX - box.left; const y = event.clientY - box.top;
    if (!this.view || x < LEFT) return;
    const column = this.view.length - 1 - Math.floor(((this.right ?? this.width) - x) / COLUMN - 1e-9); const slot = Math.floor(y / this.row);
    this.cursor = slot < this.slots ? { column, slot } : null;
    this.tell(x, y); this.dirty = true;
  }

  tell(x, y) {
    const at = this.at();
    this.tip.hidden = !at;
    if (!at) return;
    const found = this.store.requests.get(at.name);
    const lines = [el('b', {}, at.name ? `request ${at.name}` : `slot ${this.cursor.slot} is free`)];
    if (found) lines.push(el('span', {}, `${found.class || 'class unknown'}${found.tenant ? `, ${found.tenant}` : ''}`), el('span', {}, `${count(found.prompt)} prompt tokens, ${count(found.output)} generated`));
    if (at.name) lines.push(el('span', {}, at.prompt ? `${at.tokens} tokens of its prompt` : 'one token more'));
    lines.push(el('span', {}, `step ${at.step.number}: ${at.step.prompt} prompt + ${at.step.decode} decode tokens`));
    this.tip.replaceChildren(...lines);
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${x + wide + 24 > this.width ? x - wide - 14 : x + 14}px`;
    this.tip.style.top = `${Math.max(0, Math.min(y + 12, this.height - this.tip.offsetHeight))}px`;
  }

  press(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === 'Enter' || event.key === ' ') { this.open(); event.preventDefault(); return; }
    if (event.key === 'Escape') { this.cursor = null; this.tip.hidden = true; this.dirty = true; return; }
    const move = moves[event.key];
    if (!move || !this.view?.length) return;
    event.preventDefault();
    const last = this.view.length - 1;
    this.cursor ??= { column: last, slot: 0 };
    this.cursor = { column: Math.min(last, Math.max(0, this.cursor.column + move[0])), slot: Math.min(this.slots - 1, Math.max(0, this.cursor.slot + move[1])) };
    this.tell(this.width - (last - this.cursor.column) * COLUMN, this.cursor.slot * this.row); this.dirty = true;
  }

  open() { const at = this.at(); if (at?.name) this.onOpen(at.name.split('.')[0]); }

  select(name) { this.selected = name; this.dirty = true; }
}
