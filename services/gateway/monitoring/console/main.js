// Puts the page together: views, theme, key, feed, and one drawing loop for the figures.

import { $ } from './dom.js';
import { Drawer } from './drawer.js';
import { Feed } from './feed.js';
import { History } from './history.js';
import * as panels from './panels.js';
import { Playground } from './playground.js';
import { Store } from './store.js';
import { Wheel } from './wheel.js';

const VIEWS = ['live', 'requests', 'playground'];
const store = new Store();
let apiKey = sessionStorage.getItem('noria-key') ?? '';
const key = () => apiKey;
const wheel = new Wheel(store, (name) => drawer.open(name));
const drawer = new Drawer(key, (name) => wheel.select(name));
const history = new History(store, (name) => drawer.open(name));
const playground = new Playground(key, (name) => drawer.open(name));

// Theme: the system's until somebody chooses.
const system = matchMedia('(prefers-color-scheme: dark)');
function theme(chosen) {
  document.documentElement.dataset.theme = chosen ?? (system.matches ? 'dark' : 'light');
  wheel.redraw();
}
const toggle = () => { const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'; localStorage.setItem('noria-theme', next); theme(next); };
system.addEventListener('change', () => theme(localStorage.getItem('noria-theme')));
$('theme').addEventListener('click', toggle);

// Views.
function show(name, focus = false) {
  for (const view of VIEWS) {
    const tab = $(`tab-${view}`); const on = view === name;
    $(`view-${view}`).hidden = !on; tab.setAttribute('aria-selected', on); tab.tabIndex = on ? 0 : -1;
    if (on && focus) tab.focus();
  }
  history.draw();
}
const current = () => VIEWS.find((view) => location.hash === `#${view}`) ?? 'live';
for (const view of VIEWS) $(`tab-${view}`).addEventListener('click', () => { location.hash = view; });
document.querySelector('.tabs').addEventListener('keydown', (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = VIEWS[(VIEWS.indexOf(current()) + step + VIEWS.length) % VIEWS.length];
  location.hash = next; show(next, true);
});
addEventListener('hashchange', () => show(current()));

// Key.
function askKey(message = '') {
  $('key-error').hidden = !message; $('key-error').textContent = message; $('key').value = apiKey;
  if (!$('key-dialog').open) $('key-dialog').showModal();
}
$('key-open').addEventListener('click', () => askKey());
$('key-cancel').addEventListener('click', () => $('key-dialog').close());
$('key-form').addEventListener('submit', () => { apiKey = $('key').value.trim(); sessionStorage.setItem('noria-key', apiKey); connect(); });

// Shortcuts.
function pause() { wheel.paused = !wheel.paused; $('pause').setAttribute('aria-pressed', wheel.paused); $('pause').textContent = wheel.paused ? 'Go on' : 'Pause'; if (!wheel.paused) wheel.redraw(); }
$('pause').addEventListener('click', pause);
addEventListener('keydown', (event) => {
  if (event.target.matches('input, textarea, select') || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.key === 't') toggle();
  else if (event.key === 'p') pause();
  else if (event.key === '/') { event.preventDefault(); location.hash = 'requests'; show('requests'); $('find').focus(); }
  else if (['1', '2', '3'].includes(event.key)) location.hash = VIEWS[event.key - 1];
});
$('find').addEventListener('keydown', (event) => { if (event.key === 'Enter' && $('find').value.trim()) drawer.open($('find').value.trim().split('.')[0]); });

// Feed.
let feed = null;
function status(state, error) {
  const words = { live: 'live', lost: 'connecting', refused: 'no access' };
  $('status').textContent = words[state]; $('status').dataset.state = state === 'live' ? 'live' : 'lost';
  if (state === 'live') model();
  if (state === 'refused') askKey(apiKey ? error.message : '');
}
function connect() {
  feed?.stop(); store.clear();
  feed = new Feed({ key, onStatus: status, onEvent: (name, data) => { if (name === 'live') store.takeLive(data); else if (name === 'state') { store.state = data; surveyed = true; } fresh = true; } });
  feed.run();
}
let named = false;
async function model() {
  if (named) return;
  try { $('model').textContent = (await (await fetch('/v1/models')).json()).data[0].id; named = true; } catch { /* it is asked again with the next connection */ }
}

// One loop for the figures, four times a second; the wheel has its own.
let fresh = false; let surveyed = false; let turned = 0;
const mark = $('mark-wheel'); const still = matchMedia('(prefers-reduced-motion: reduce)');
setInterval(() => {
  if (document.hidden || !fresh) return;
  fresh = false;
  $('wheel-empty').hidden = store.steps.length > 0;
  if (!$('view-live').hidden) { panels.tiles(store); panels.queues(store); panels.cache(store); panels.legend(store); if (surveyed) { panels.latency(store); panels.services(store); surveyed = false; } }
  history.draw();
}, 250);
setInterval(() => {
  if (document.hidden) return;
  const before = wheel.total; wheel.update();
  if (wheel.total > before && !still.matches) { turned += Math.min(12, (wheel.total - before) * 1.5); mark.style.transform = `rotate(${turned}deg)`; }
  if (store.live && store.steps.length) $('wheel-note').textContent = `${store.live.slots.count} slots × the last steps, the newest at the right`;
}, 50);
addEventListener('visibilitychange', () => { if (!document.hidden) wheel.redraw(); });

theme(localStorage.getItem('noria-theme'));
show(current());
connect();
window.noria = { store, wheel, history, playground };  // for whoever looks at the page with developer tools, and for its tests
