// The list of requests: only the rows that can be seen exist, so that a thousand cost as much as twenty.

import { variable } from './colours.js';
import { $, count, el, ms } from './dom.js';

const ROW = 30;

export class History {
  constructor(store, onOpen) {
    this.store = store; this.onOpen = onOpen; this.box = $('rows'); this.rows = new Map(); this.chosen = 0;
    this.inner = el('div'); this.box.append(this.inner);
    this.box.addEventListener('scroll', () => this.draw());
    this.box.addEventListener('keydown', (event) => this.press(event));
  }

  list() { return [...this.store.requests.values()].reverse(); }

  draw() {
    if (!this.box.offsetParent) return;
    const all = this.list();
    $('history-note').textContent = `the last ${count(all.length)} since this page was opened`;
    this.inner.style.height = `${all.length * ROW}px`;
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4); const last = Math.min(all.length, first + Math.ceil(this.box.clientHeight / ROW) + 8);
    const kept = new Map();
    for (let place = first; place < last; place += 1) {
      const life = all[place]; const name = `${life.request}.${life.choice}`;
      const row = this.rows.get(name) ?? this.make(life);
      this.fill(row, life, place); kept.set(name, row); this.rows.delete(name);
    }
    for (const row of this.rows.values()) row.remove();
    this.rows = kept;
  }

  make(life) {
    const row = el('div', { class: 'row', role: 'option', onclick: () => this.onOpen(String(life.request)) }, ...Array.from({ length: 8 }, () => el('span')));
    this.inner.append(row);
    return row;
  }

  fill(row, life, place) {
    row.style.top = `${place * ROW}px`;
    row.setAttribute('aria-selected', place === this.chosen && document.activeElement === this.box);
    const [id, traffic, tenant, stage, prompt, output, age, bar] = row.children;
    const end = life.ended ?? this.store.clock();
    const told = [life.class, life.stage, life.output, life.parts.length, life.ended ?? Math.round(end / 250)].join();
    if (row.dataset.told === told) return;
    row.dataset.told = told;
    id.textContent = `${life.request}.${life.choice}`; id.className = 'mono';
    traffic.replaceChildren(el('span', { class: 'class-chip', chip: variable(life.class) }, life.class || '–'));
    tenant.textContent = life.tenant || '–';
    const bad = life.stage === 'ended' && !['stop', 'length'].includes(life.why);
    stage.replaceChildren(life.stage === 'ended' ? life.why : life.stage, ...(life.preempted ? [el('span', { class: 'back', title: `gave way ${life.preempted}×` }, `↩ ${life.preempted}`)] : []));
    stage.className = bad ? 'stage-bad' : life.stage === 'ended' ? 'stage-ended' : '';
    prompt.textContent = count(life.prompt); output.textContent = count(life.output); age.textContent = ms(end - life.received);
    for (const each of [prompt, output, age]) each.className = 'num';
    const whole = Math.max(1, end - life.received);
    bar.replaceChildren(el('div', { class: 'life', chip: variable(life.class) }, ...life.parts.map((part) => el('b', { 'data-s': part.stage, width: `${(100 * ((part.to ?? end) - part.from)) / whole}%` }))));
  }

  press(event) {
    const all = this.list(); const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -all.length, End: all.length };
    if (event.key === 'Enter' && all[this.chosen]) { this.onOpen(String(all[this.chosen].request)); return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.chosen = Math.min(Math.max(0, all.length - 1), Math.max(0, this.chosen + moves[event.key]));
    const top = this.chosen * ROW;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
    this.draw();
  }
}
