// A prompt, every parameter, and the tokens as they come, each with how likely it was.

import { $, el, ms, percent } from './dom.js';
import { bearer, events, reason } from './feed.js';

// name, label, kind, default, what it may be
const FIRST = [['max_tokens', 'max tokens', 'int', 128], ['temperature', 'temperature', 'float', 0.7], ['top_p', 'top p', 'float', ''], ['top_k', 'top k', 'int', ''], ['min_p', 'min p', 'float', ''], ['seed', 'seed', 'int', '']];
const MORE = [['n', 'choices', 'int', ''], ['min_tokens', 'min tokens', 'int', ''], ['presence_penalty', 'presence penalty', 'float', ''], ['frequency_penalty', 'frequency penalty', 'float', ''], ['repetition_penalty', 'repetition penalty', 'float', ''], ['top_logprobs', 'alternatives', 'int', 5], ['ttl_first_ms', 'first token within ms', 'int', ''], ['ttl_ms', 'end within ms', 'int', '']];
// name, what it is sent as when it is ticked, label
const CHECKS = [['ignore_eos', true, 'ignore the end of sequence'], ['include_stop_str_in_output', true, 'show the stop string'], ['skip_special_tokens', false, 'show special tokens']];

export class Playground {
  constructor(key, onOpen) {
    this.key = key; this.onOpen = onOpen; this.form = $('ask'); this.build();
    this.form.addEventListener('submit', (event) => { event.preventDefault(); this.running ? this.running.abort() : this.ask(); });
    this.form.addEventListener('keydown', (event) => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); if (!this.running) this.ask(); } });
    $('answer-life').addEventListener('click', () => this.onOpen(this.id));
    this.clear();
  }

  build() {
    const field = (label, input) => el('div', { class: 'field' }, el('label', { for: input.id }, label), input);
    const number = ([name, label, kind, value]) => field(label, el('input', { id: `p-${name}`, name, type: 'number', step: kind === 'int' ? 1 : 'any', value, placeholder: 'default' }));
    const choice = (name, ...values) => el('select', { id: `p-${name}`, name }, ...values.map(([value, text]) => el('option', { value }, text)));
    const text = (name, rows, value, placeholder) => el('textarea', { id: `p-${name}`, name, rows, placeholder }, value);
    this.form.append(
      field('how', choice('how', ['chat', 'chat'], ['completion', 'plain completion'])),
      field('system message', text('system', 2, '', 'none')),
      field('prompt', text('prompt', 5, 'What is a water wheel? Answer in one sentence.')),
      el('div', { class: 'pair' }, ...FIRST.map(number)),
      el('details', {}, el('summary', {}, 'More parameters'),
        el('div', { class: 'pair' }, ...MORE.map(number)),
        field('class', el('input', { id: 'p-class', name: 'class', placeholder: 'the tenant’s own', list: 'classes', autocomplete: 'off' })),
        el('datalist', { id: 'classes' }, ...['interactive', 'standard', 'batch', 'admin'].map((value) => el('option', { value }))),
        field('stop strings, one a line', text('stop', 2, '', 'none')),
        field('stop token ids, with commas', el('input', { id: 'p-stop_token_ids', name: 'stop_token_ids', placeholder: 'none', autocomplete: 'off' })),
        field('logit bias, as {"token id": bias}', el('input', { id: 'p-logit_bias', name: 'logit_bias', placeholder: 'none', autocomplete: 'off' })),
        ...CHECKS.map(([name, , label]) => el('label', { class: 'check' }, el('input', { type: 'checkbox', name }), label))),
      el('div', { class: 'go' }, el('button', { class: 'primary', id: 'go' }, 'Send'), el('span', { class: 'note' }, 'Ctrl + Enter')));
  }

  body() {
    const given = new FormData(this.form); const body = { stream: true, stream_options: { include_usage: true } };
    for (const [name, , kind] of [...FIRST, ...MORE]) {
      const value = given.get(name);
      if (value !== '' && name !== 'top_logprobs') body[name] = kind === 'int' ? parseInt(value, 10) : parseFloat(value);
    }
    const stop = given.get('stop').split('\n').filter(Boolean);
    if (stop.length) body.stop = stop;
    if (given.get('logit_bias').trim()) body.logit_bias = JSON.parse(given.get('logit_bias'));
    const ids = given.get('stop_token_ids').split(',').map((each) => each.trim()).filter(Boolean);
    if (ids.length) body.stop_token_ids = ids.map(Number);
    for (const [name, value] of CHECKS) if (given.get(name)) body[name] = value;
    const top = parseInt(given.get('top_logprobs') || '0', 10);
    if (given.get('how') === 'chat') {
      const system = given.get('system');
      body.messages = [...(system ? [{ role: 'system', content: system }] : []), { role: 'user', content: given.get('prompt') }];
      body.logprobs = true; body.top_logprobs = top;
      return ['/v1/chat/completions', body];
    }
    body.prompt = given.get('prompt'); body.logprobs = top;
    return ['/v1/completions', body];
  }

  clear() {
    $('answer').replaceChildren(el('p', { class: 'placeholder' }, 'Tokens appear here as they are generated. The darker a token’s ground, the less likely it was; point at one to see what else there might have been.'));
    $('alternatives').hidden = true; $('answer-note').textContent = ''; $('answer-life').hidden = true;
  }

  async ask() {
    let path; let body;
    try { [path, body] = this.body(); } catch (error) { this.fail(`logit bias is not JSON: ${error.message}`); return; }
    this.running = new AbortController(); $('go').textContent = 'Stop';
    $('answer').replaceChildren(); $('alternatives').hidden = true; $('answer-life').hidden = true; $('answer-note').textContent = 'sent';
    const begun = performance.now(); let first = 0; let tokens = 0; const choices = [];
    this.id = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
    try {
      const headers = { 'content-type': 'application/json', 'x-request-id': this.id, ...bearer(this.key()) };
      const traffic = new FormData(this.form).get('class').trim();
      if (traffic) headers['x-noria-class'] = traffic;
      const response = await fetch(path, { method: 'POST', headers, body: JSON.stringify(body), signal: this.running.signal });
      if (!response.ok) throw new Error(await reason(response));
      for await (const event of events(response.body)) {
        if (event.data === '[DONE]') break;
        const told = JSON.parse(event.data);
        if (told.error) throw new Error(told.error.message);
        for (const choice of told.choices) {
          const place = choices[choice.index] ??= this.choice();
          for (const token of likely(choice)) {
            first ||= performance.now(); tokens += 1;
            place.append(this.token(token));
          }
          if (choice.finish_reason) place.dataset.end = choice.finish_reason;
        }
        if (first) $('answer-note').textContent = `first token ${ms(first - begun)} · ${tokens} tokens · ${((1000 * tokens) / Math.max(1, performance.now() - first)).toFixed(1)} / s`;
        if (told.usage) $('answer-note').textContent += ` · ${told.usage.prompt_tokens} prompt tokens`;
      }
      const ends = choices.map((each) => each.dataset.end).filter(Boolean);
      $('answer-note').textContent += ` · ended: ${[...new Set(ends)].join(', ')}`;
    } catch (error) {
      if (error.name === 'AbortError') $('answer-note').textContent += ' · stopped'; else this.fail(error.message);
    } finally {
      this.running = null; $('go').textContent = 'Send'; $('answer-life').hidden = false;
    }
  }

  fail(message) { $('answer').append(el('p', { class: 'failed' }, message)); $('answer-note').textContent = ''; }

  choice() { const place = el('div', { class: 'choice' }); $('answer').append(place); return place; }

  token(token) {
    const part = Math.exp(token.logprob); const doubt = Math.min(0.42, Math.max(0, -token.logprob) * 0.11);
    const node = el('span', { class: 'token', tabindex: -1 }, token.text);
    node.style.background = `color-mix(in srgb, var(--amber) ${Math.round(100 * doubt)}%, transparent)`;
    node.title = percent(part);
    const show = () => this.alternatives(node, token);
    node.addEventListener('pointerenter', show); node.addEventListener('click', show);
    return node;
  }

  alternatives(node, token) {
    for (const each of document.querySelectorAll('.token[data-on]')) delete each.dataset.on;
    node.dataset.on = '';
    const rows = [...token.top];
    if (!rows.some((each) => each.text === token.text)) rows.push({ text: token.text, logprob: token.logprob });
    $('alternatives').hidden = false;
    $('alternatives').replaceChildren(el('div', { class: 'bars' }, ...rows.flatMap((each) => {
      const part = Math.exp(each.logprob); const chosen = each.text === token.text ? 'chosen' : '';
      return [el('span', { class: `mono ${chosen}` }, JSON.stringify(each.text)), el('div', { class: 'share' }, el('b', { width: `${100 * part}%` })), el('span', { class: `num ${chosen}` }, percent(part))];
    })));
  }
}

// The tokens of a chunk in one form: text, its log-probability and the likeliest others.
function likely(choice) {
  if (choice.logprobs?.content) return choice.logprobs.content.map((each) => ({ text: each.token, logprob: each.logprob, top: each.top_logprobs.map((other) => ({ text: other.token, logprob: other.logprob })) }));
  if (choice.logprobs?.tokens) {
    const { tokens, token_logprobs: given, top_logprobs: top } = choice.logprobs;
    return tokens.map((text, place) => ({ text, logprob: given[place] ?? 0, top: Object.entries(top?.[place] ?? {}).map(([other, logprob]) => ({ text: other, logprob })) }));
  }
  const text = choice.delta?.content ?? choice.text ?? '';
  return text ? [{ text, logprob: 0, top: [] }] : [];
}
