// One request: its stages as a timeline, and in words what it waited for.

import { variable } from './colours.js';
import { $, count, el, ms, svg } from './dom.js';
import { bearer, reason } from './feed.js';

const NAMES = { queued: 'waiting', prefilling: 'prompt', decoding: 'tokens', ended: 'ended' };

export class Drawer {
  constructor(key, onSelect) {
    this.key = key; this.onSelect = onSelect; this.box = $('drawer'); this.name = '';
    $('drawer-close').addEventListener('click', () => this.box.close());
    this.box.addEventListener('close', () => { this.name = ''; clearTimeout(this.again); onSelect(''); });
    this.box.addEventListener('click', (event) => { if (event.target === this.box) this.box.close(); });
  }

  async open(name) {
    this.name = name; this.onSelect(`${name}.0`);
    $('drawer-title').textContent = `Request ${name}`;
    $('drawer-body').replaceChildren(el('p', { class: 'note' }, 'asking …'));
    if (!this.box.open) this.box.showModal();
    await this.load(name);
  }

  async load(name) {
    let told;
    try {
      const response = await fetch(`/console/requests/${encodeURIComponent(name)}`, { headers: bearer(this.key()) });
      if (!response.ok) throw new Error(await reason(response));
      told = await response.json();
    } catch (error) {
      if (this.name === name) $('drawer-body').replaceChildren(el('p', { class: 'failed' }, error.message));
      return;
    }
    if (this.name !== name) return;
    $('drawer-body').replaceChildren(...told.streams.flatMap((stream) => this.stream(stream, told.streams.length > 1)),
      el('h3', {}, 'Why'), el('pre', { class: 'why' }, told.why.join('\n') || 'nothing to tell'));
    const going = told.streams.some((stream) => stream.moves[stream.moves.length - 1].stage !== 'ended');
    if (going) this.again = setTimeout(() => this.name === name && this.load(name), 1000);
  }

  stream(stream, several) {
    const { moves } = stream; const last = moves[moves.length - 1]; const over = last.stage === 'ended';
    const end = over ? last.at_ms : Math.max(stream.age_ms, last.at_ms);
    const facts = [
      ['class', stream.class || '–'], ['tenant', stream.tenant || '–'],
      ['prompt', `${count(stream.prompt_tokens)} tokens, ${count(stream.cached_tokens)} of them from the cache`],
      ['generated', `${count(last.output_tokens)} ${last.output_tokens === 1 ? 'token' : 'tokens'}${over ? '' : ' so far, when last told'}`], ['took', ms(end) + (over ? '' : ' so far')], ['end', over ? last.why : 'under way'],
    ];
    const list = el('dl', { class: 'facts' }, ...facts.flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
    return [...(several ? [el('h3', {}, `Choice ${stream.choice}`)] : []), list, el('h3', {}, 'Life'), this.timeline(stream, end)];
  }

  timeline(stream, end) {
    const wide = 500; const moves = stream.moves.filter((each) => each.stage !== 'ended'); const rows = ['queued', 'prefilling', 'decoding'];
    const left = 62; const x = (at) => left + ((wide - left - 4) * at) / Math.max(end, 1);
    const picture = svg('svg', { class: 'timeline', viewBox: `0 0 ${wide} 108`, role: 'img', 'aria-label': moves.map((each) => `${NAMES[each.stage]} from ${ms(each.at_ms)}`).join(', ') });
    rows.forEach((row, place) => { const name = svg('text', { x: 0, y: 20 + place * 26 }); name.textContent = NAMES[row]; picture.append(name); });
    stream.moves.forEach((move, place) => {
      const row = rows.indexOf(move.stage);
      if (row < 0) return;
      const until = stream.moves[place + 1]?.at_ms ?? end; const from = x(move.at_ms);
      const bar = svg('rect', { x: from, y: 10 + row * 26, width: Math.max(1.5, x(until) - from), height: 14, rx: 3, fill: row === 0 ? 'var(--line-strong)' : variable(stream.class), opacity: row === 2 ? 0.55 : 1 });
      const title = svg('title'); title.textContent = `${NAMES[move.stage]}: ${ms(until - move.at_ms)}${move.why ? ` (${move.why})` : ''}`;
      bar.append(title); picture.append(bar);
      if (row === 0 && move.why) picture.append(svg('line', { class: 'cut', x1: from, x2: from, y1: 6, y2: 84 }));
    });
    picture.append(svg('line', { class: 'axis', x1: left, x2: wide - 4, y1: 88, y2: 88 }));
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const label = svg('text', { x: x(part * end), y: 103, 'text-anchor': part === 0 ? 'start' : part === 1 ? 'end' : 'middle' });
      label.textContent = ms(part * end); picture.append(label);
    }
    return picture;
  }
}
