// What the page knows: steps, requests with their lives, and the last state. Everything is bounded.

const STEPS_MAX = 900;
const REQUESTS_MAX = 1000;
const PARTS_MAX = 64;
const WINDOW_MS = 10_000;

export class Store {
  constructor() { this.clear(); }

  clear() {
    this.steps = [];            // {serial, number, at, cells, cuts}, oldest first
    this.requests = new Map();  // key -> life, in the order of arrival
    this.live = null; this.state = null; this.serial = 0; this.epoch = 0; this.now = 0; this.heardAt = 0;
    this.served = []; this.tokens = []; this.cut = [];
    this.generation = (this.generation ?? 0) + 1;
  }

  // Milliseconds on the scheduler's clock, now.
  clock() { return this.now + (performance.now() - this.heardAt); }

  takeLive(live) {
    // Serial numbers that go back belong to a scheduler that began a new life.
    if (live.serial < this.serial || live.now_ms < this.now - 1000) this.clear();
    this.now = live.now_ms; this.heardAt = performance.now();
    for (const each of live.requests ?? []) this.known(each);
    // Steps and moves are numbered together, in the order in which they happened.
    const news = [...live.moves, ...live.steps].filter((each) => each.serial > this.serial).sort((a, b) => a.serial - b.serial);
    this.cut = [];
    for (const each of news) if (each.cells) this.step(each); else this.move(each);
    this.serial = Math.max(this.serial, live.serial);
    this.live = live;
    this.serve(live);
  }

  known(each) {
    const name = key(each.request, each.choice);
    if (this.requests.has(name)) return;
    this.add(name, { ...life(each), received: each.received_ms, stage: each.stage, output: each.output_tokens, parts: [{ stage: each.stage, from: each.received_ms }] });
  }

  move(move) {
    const name = key(move.request, move.choice);
    let found = this.requests.get(name);
    if (!found) { found = { ...life(move), received: move.at_ms, parts: [] }; this.add(name, found); }
    if (move.class) Object.assign(found, { class: move.class, tenant: move.tenant, prompt: move.prompt_tokens });
    const open = found.parts[found.parts.length - 1];
    if (open && open.to === undefined) open.to = move.at_ms;
    found.output = Math.max(found.output, move.output_tokens);
    found.stage = move.stage; found.why = move.why;
    if (move.stage === 'ended') { found.ended = move.at_ms; found.last = null; return; }
    found.parts.push({ stage: move.stage, from: move.at_ms, why: move.why });
    // Of one that gives way all the time the oldest parts become one.
    if (found.parts.length > PARTS_MAX) { const [first, second] = found.parts; found.parts.splice(0, 2, { ...second, from: first.from }); }
    if (move.stage !== 'waiting' || !move.why) return;
    found.preempted += 1;
    // It is heard of a step or two later: the mark belongs to the last step that the request was in.
    if (found.last) { found.last.cuts.push(found.slot); this.cut.push(found.last); found.last = null; }
  }

  step(step) {
    const { cells } = step;
    const kept = { serial: step.serial, number: step.number, at: step.at_ms, cells, cuts: [], prompt: 0, decode: 0 };
    for (let at = 0; at < cells.length; at += 5) {
      const found = this.requests.get(key(cells[at + 1], cells[at + 2]));
      if (found) { found.slot = cells[at]; found.last = kept; if (!cells[at + 4]) found.output += 1; }
      if (cells[at + 4]) kept.prompt += cells[at + 3]; else kept.decode += cells[at + 3];
    }
    this.steps.push(kept);
    if (this.steps.length > STEPS_MAX) this.steps.splice(0, this.steps.length - STEPS_MAX);
  }

  add(name, found) {
    this.requests.set(name, found);
    if (this.requests.size <= REQUESTS_MAX) return;
    for (const [each, life] of this.requests) {
      if (life.stage === 'ended') { this.requests.delete(each); return; }
    }
    this.requests.delete(this.requests.keys().next().value);
  }

  // Remembers ten seconds of what was served to whom, and of tokens.
  serve(live) {
    const at = performance.now();
    this.tokens.push({ at, output: live.counters.output_tokens, all: live.counters.tokens });
    while (this.tokens.length > 2 && at - this.tokens[0].at > WINDOW_MS / 2) this.tokens.shift();
    if (!live.queues) return;
    const last = this.served[this.served.length - 1];
    if (last && at - last.at < 450) return;
    this.served.push({ at, by: new Map(live.queues.map((each) => [`${each.class} ${each.tenant}`, each.tokens])) });
    while (this.served.length > 2 && at - this.served[0].at > WINDOW_MS) this.served.shift();
  }

  rates() {
    const first = this.tokens[0]; const last = this.tokens[this.tokens.length - 1];
    if (!first || last.at - first.at < 200) return { output: 0, all: 0 };
    const seconds = (last.at - first.at) / 1000;
    return { output: Math.max(0, (last.output - first.output) / seconds), all: Math.max(0, (last.all - first.all) / seconds) };
  }

  // Rows of queues with the share of the last ten seconds and what each is entitled to among those who want something.
  shares() {
    const rows = (this.live?.queues ?? []).map((each) => {
      const name = `${each.class} ${each.tenant}`;
      const before = this.served[0]?.by.get(name) ?? 0; const now = this.served[this.served.length - 1]?.by.get(name) ?? each.tokens;
      return { ...each, got: Math.max(0, now - before), busy: each.running + each.waiting + each.preempted > 0 };
    });
    const total = rows.reduce((sum, each) => sum + each.got, 0);
    const busy = rows.filter((each) => each.busy);
    const classes = new Map(busy.map((each) => [each.class, each.class_weight]));
    const weights = [...classes.values()].reduce((sum, each) => sum + each, 0);
    for (const row of rows) {
      row.share = total ? row.got / total : 0;
      const mates = busy.filter((each) => each.class === row.class).reduce((sum, each) => sum + each.tenant_weight, 0);
      row.entitled = row.busy && weights ? (row.class_weight / weights) * (row.tenant_weight / mates) : null;
    }
    return rows.filter((each) => each.busy || each.got).sort((a, b) => b.rank - a.rank || (a.class + a.tenant).localeCompare(b.class + b.tenant));
  }
}

export const key = (request, choice) => `${request}.${choice}`;

const life = (each) => ({
  request: each.request, choice: each.choice, class: each.class, tenant: each.tenant, prompt: each.prompt_tokens,
  output: each.output_tokens ?? 0, stage: 'waiting', why: '', slot: -1, last: null, preempted: 0, parts: [],
});
