// The feed of server-sent events, read by fetch so that it can carry an API key; connects again whenever it ends.

export class Feed {
  constructor({ onEvent, onStatus, key }) {
    this.onEvent = onEvent; this.onStatus = onStatus; this.key = key; this.wait = 500; this.stopped = false;
  }

  async run() {
    while (!this.stopped) {
      try {
        await this.read();
      } catch (error) {
        if (error instanceof Refused) { this.onStatus('refused', error); return; }
      }
      if (this.stopped) return;
      this.onStatus('lost');
      await new Promise((done) => setTimeout(done, this.wait));
      this.wait = Math.min(this.wait * 2, 5000);
    }
  }

  stop() { this.stopped = true; this.abort?.abort(); }

  async read() {
    this.abort = new AbortController();
    const response = await fetch('/console/feed', { headers: bearer(this.key()), signal: this.abort.signal, cache: 'no-store' });
    if (response.status === 401 || response.status === 403) throw new Refused(response.status, await reason(response));
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    this.onStatus('live');
    this.wait = 500;
    for await (const event of events(response.body)) this.onEvent(event.name, JSON.parse(event.data));
  }
}

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export const bearer = (key) => (key ? { authorization: `Bearer ${key}` } : {});

export async function reason(response) {
  try { return (await response.json()).error.message; } catch { return `HTTP ${response.status}`; }
}

// Yields {name, data} for each event of a body.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      let name = 'message'; let data = '';
      for (const line of block.split('\n')) {
        if (line.startsWith('event: ')) name = line.slice(7);
        else if (line.startsWith('data: ')) data += line.slice(6);
      }
      if (data) yield { name, data };
    }
  }
}
