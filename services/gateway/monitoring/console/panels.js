// The figures around the wheel.

import { variable } from './colours.js';
import { $, bytes, count, el, ms, percent, seconds } from './dom.js';

const CELLS = 200;
const STATES = ['used', 'shared', 'cached', 'reserved', 'blank'];
const LATENCIES = { queue: 'in the queue', first_token: 'first token', interval: 'between tokens', total: 'to the end' };

const chip = (name) => el('span', { class: 'class-chip', chip: variable(name) }, name || 'all');
const number = (value) => el('td', { class: value ? 'num' : 'num zero' }, count(value));

export function tiles(store) {
  const { live, state } = store;
  if (!live) return;
  const latency = (of) => state?.latency.find((each) => each.of === of && each.class === '');
  const first = latency('first_token'); const between = latency('interval'); const rates = store.rates();
  const blocks = sum(live.blocks); const held = blocks.used + blocks.shared; const hits = live.counters.prompt_tokens ? live.counters.hit_tokens / live.counters.prompt_tokens : 0;
  const rows = [
    ['Running', count(live.running), ` / ${live.slots.count} slots`, live.slots.count ? `${count(live.slots.used)} slots in use` : 'no executor'],
    ['Waiting', count(live.waiting), '', `${count(live.counters.resets + live.counters.swaps_out)} preemptions so far`],
    ['Tokens generated', count(rates.output), ' / s', `${count(rates.all)} computed / s`],
    ['First token', first ? ms(first.p50) : '–', '', first ? `p95 ${ms(first.p95)}` : 'nobody yet'],
    ['Between tokens', between ? ms(between.p50) : '–', '', between ? `p95 ${ms(between.p95)}` : 'nobody yet'],
    ['Cache held', blocks.total ? percent(held / blocks.total) : '–', '', `${percent(hits)} of prompts were there`],
  ];
  $('tiles').replaceChildren(...rows.map(([name, value, unit, sub]) => el('div', { class: 'tile' }, el('dt', {}, name), el('dd', {}, value, el('small', {}, unit)), el('dd', { class: 'sub' }, sub))));
}

export function queues(store) {
  if (!store.live) return;
  const names = { fair: 'fair: the mark is what each is entitled to', fifo: 'fifo: first come, first served', prefill_first: 'prefill first' };
  $('policy').textContent = names[store.live.policy] ?? store.live.policy;
  const rows = store.shares(); const fair = store.live.policy === 'fair';
  if (!rows.length) { $('queues').replaceChildren(el('p', { class: 'hint' }, 'Nobody has asked for anything while this page was open.')); return; }
  const body = rows.map((each) => el('tr', {},
    el('td', {}, chip(each.class)), el('td', {}, each.tenant || '–'), number(each.running), number(each.waiting), number(each.preempted),
    el('td', { class: 'stretch' }, el('div', { class: 'share', chip: variable(each.class), title: `${percent(each.share)} of the tokens of the last ten seconds` },
      el('b', { width: `${100 * each.share}%` }), fair && each.entitled !== null ? el('i', { left: `${100 * each.entitled}%` }) : null)),
    el('td', { class: 'num' }, percent(each.share)), fair ? el('td', { class: 'num' }, each.entitled === null ? '–' : percent(each.entitled)) : null));
  const head = ['class', 'tenant', '#running', '#waiting', '#preempted', 'share of tokens, 10 s', '#share', ...(fair ? ['#entitled'] : [])];
  $('queues').replaceChildren(table(head, body));
}

export function latency(store) {
  const rows = store.state?.latency ?? [];
  if (!rows.length) { $('latency').replaceChildren(el('p', { class: 'hint' }, 'Nothing has been measured yet.')); return; }
  const classes = [...new Set(rows.map((each) => each.class))].filter(Boolean).sort();
  const measures = Object.entries(LATENCIES);
  const body = ['', ...(classes.length > 1 ? classes : [])].map((traffic) => el('tr', {}, el('td', {}, traffic ? chip(traffic) : 'all'), ...measures.flatMap(([of]) => {
    const row = rows.find((each) => each.of === of && each.class === traffic);
    return [el('td', { class: 'num first' }, ms(row?.p50)), el('td', { class: 'num soft' }, ms(row?.p95))];
  })));
  const top = el('tr', {}, el('th', {}), ...measures.map(([, name]) => el('th', { class: 'num', colspan: 2, scope: 'colgroup' }, name)));
  const under = el('tr', {}, el('th', {}), ...measures.flatMap(() => [el('th', { class: 'num first', scope: 'col' }, 'p50'), el('th', { class: 'num', scope: 'col' }, 'p95')]));
  $('latency').replaceChildren(el('table', {}, el('thead', {}, top, under), el('tbody', {}, ...body)));
}

export function cache(store) {
  const { live } = store;
  if (!live) return;
  if (!live.blocks.length) { $('cache').replaceChildren(el('p', { class: 'hint' }, 'There is no executor.')); return; }
  const groups = live.blocks.map((each, place) => {
    const all = { ...each, reserved: Math.min(live.reserved, each.blank) }; all.blank -= all.reserved;
    const total = all.used + all.shared + all.cached + all.reserved + all.blank;
    const cells = []; const squares = Math.min(CELLS, total);
    let before = 0; let drawn = 0;
    for (const state of STATES) {
      before += all[state];
      const until = Math.max(Math.round((squares * before) / total), drawn + (all[state] && drawn < squares ? 1 : 0));
      for (; drawn < until; drawn += 1) cells.push(el('i', { 'data-s': state }));
    }
    const keys = [...STATES, ...(all.host ? ['host'] : [])].map((state) => el('span', {}, el('i', { 'data-s': state }), state === 'cached' ? 'kept' : state, el('b', {}, count(all[state]))));
    const name = live.blocks.length > 1 ? el('p', { class: 'group-name' }, `attention group ${place}`) : null;
    return el('div', {}, name, el('div', { class: 'waffle', role: 'img', 'aria-label': STATES.map((state) => `${all[state]} ${state}`).join(', ') }, ...cells), el('div', { class: 'keys' }, ...keys));
  });
  const total = sum(live.blocks).total;
  $('cache-note').textContent = `${count(total)} blocks, one square is ${Math.max(1, Math.round(total / live.blocks.length / CELLS))}`;
  $('cache').replaceChildren(...groups);
}

export function services(store) {
  const { state } = store;
  if (!state) return;
  const body = state.services.map((each) => {
    const before = store.incarnations?.get(each.service); const changed = before && each.incarnation && before !== each.incarnation;
    if (each.incarnation) (store.incarnations ??= new Map()).set(each.service, each.incarnation);
    if (changed) (store.restarts ??= new Map()).set(each.service, (store.restarts.get(each.service) ?? 0) + 1);
    const restarts = store.restarts?.get(each.service) ?? 0;
    const last = store.processors?.get(each.service); const now = performance.now();
    const load = last && each.cpu_s >= last.cpu ? (each.cpu_s - last.cpu) / ((now - last.at) / 1000) : null;
    (store.processors ??= new Map()).set(each.service, { cpu: each.cpu_s, at: now });
    return el('tr', {}, el('td', {}, each.service, restarts ? el('span', { class: 'flag' }, `${restarts} new ${restarts > 1 ? 'lives' : 'life'}`) : null), el('td', {}, el('span', { class: 'state', 'data-state': each.state }, each.state)),
      el('td', { class: 'num' }, each.pid ?? '–'), el('td', { class: 'mono' }, each.incarnation ?? '–'), el('td', { class: 'num' }, each.uptime_s === undefined ? '–' : seconds(each.uptime_s)),
      el('td', { class: 'num' }, load === null ? '–' : percent(load)), el('td', { class: 'num' }, each.memory_bytes ? bytes(each.memory_bytes) : '–'));
  });
  $('services').replaceChildren(table(['service', 'state', '#pid', 'incarnation', '#up', '#processor', '#memory'], body));
  const ledger = state.ledger;
  if (ledger.accepted !== undefined) {
    const ended = Object.entries(ledger).filter(([name, value]) => value && !['accepted', 'in_flight'].includes(name)).map(([name, value]) => `${count(value)} ${name}`);
    $('ledger').textContent = `${count(ledger.accepted)} accepted = ${[...ended, `${count(ledger.in_flight)} in flight`].join(' + ')}`;
  }
}

export function legend(store) {
  const classes = [...new Set([...store.requests.values()].map((each) => each.class).filter(Boolean))].sort();
  const text = classes.join(' ');
  if ($('legend').dataset.of === text) return;
  $('legend').dataset.of = text;
  const item = (kind, name) => el('span', {}, el('i', { class: kind }), name);
  $('legend').replaceChildren(...classes.map((name) => chip(name)), classes.length ? el('span', { class: 'divide' }) : null, item('', 'prompt'), item('thin', 'decode'), item('cut', 'gave way'));
}

function table(head, body) {
  const cells = head.map((name) => el('th', { class: name.startsWith('#') ? 'num' : null, scope: 'col' }, name.replace('#', '')));
  return el('table', {}, el('thead', {}, el('tr', {}, ...cells)), el('tbody', {}, ...body));
}

function sum(blocks) {
  const all = { used: 0, shared: 0, cached: 0, blank: 0, total: 0 };
  for (const each of blocks) for (const name of ['used', 'shared', 'cached', 'blank']) { all[name] += each[name]; all.total += each[name]; }
  return all;
}
