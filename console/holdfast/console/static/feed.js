/**
 * Events of one job as the console sends them, for as long as the page shows it. When the stream breaks it is opened
 * again: at first at once, then later and later.
 *
 * Source of the format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
 */

import { open, pathOf } from "./console.js";

const FIRST_MS = 500;
const MOST_MS = 15000;
/** A stream that says nothing for so long is taken for broken; the console sends a comment now and then. */
const SILENCE_MS = 20000;

/** How long to wait before try number `failures` (from 1), spread so that many pages do not come at once. */
export function backoff(failures, random = Math.random) {
  return Math.min(MOST_MS, FIRST_MS * 2 ** (failures - 1)) * (0.75 + random() / 2);
}

/** Feeds text of a stream in pieces; calls `tell(name, data)` for each whole event. */
export function parser(tell) {
  let rest = "";
  let name = "";
  let data = [];
  const line = (text) => {
    if (text === "") {
      if (data.length) tell(name || "message", data.join("\n"));
      name = "";
      data = [];
      return;
    }
    const [field, value] = split(text);
    if (field === "event") name = value;
    if (field === "data") data.push(value);
  };
  return (piece) => {
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    lines.forEach(line);
  };
}

function split(text) {
  const at = text.indexOf(":");
  if (at < 0) return [text, ""];
  const value = text.slice(at + 1);
  return [text.slice(0, at), value.startsWith(" ") ? value.slice(1) : value];
}

/**
 * `tell(name, value)` is called for each event, `begin()` each time the stream is open (what was missed is to be
 * read anew), `state({is, since, retryAt, why, status})` whenever it changes: `is` is live, lost or refused.
 */
export class Feed {
  constructor(job, { tell, begin, state }) {
    Object.assign(this, { job, tell, begin, state });
    this.failures = 0;
    this.heardAt = 0;
    this.retryTimer = 0;
    this.ended = false;
    this.online = () => this.now();
    window.addEventListener("online", this.online);
    this.run();
  }

  /** Nothing more is told. */
  end() {
    this.ended = true;
    window.clearTimeout(this.retryTimer);
    window.removeEventListener("online", this.online);
    this.abort?.abort();
  }

  /** Tries at once, where it waits for the next try. */
  now() {
    if (this.ended || !this.retryTimer) return;
    window.clearTimeout(this.retryTimer);
    this.retryTimer = 0;
    this.run();
  }

  async run() {
    let why = "The console ended the stream.";
    let status = 0;
    try {
      await this.follow();
    } catch (error) {
      why = error.message;
      status = error.status ?? 0;
    }
    if (this.ended) return;
    if (status === 401) {
      this.state({ is: "refused", why, status });
      return;
    }
    this.failures += 1;
    const waits = backoff(this.failures);
    this.retryTimer = window.setTimeout(() => {
      this.retryTimer = 0;
      this.run();
    }, waits);
    this.state({ is: "lost", why, status, retryAt: performance.now() + waits });
  }

  async follow() {
    this.abort = new AbortController();
    this.heardAt = performance.now();
    const watch = window.setInterval(() => {
      if (performance.now() - this.heardAt > SILENCE_MS) this.abort.abort();
    }, 1000);
    try {
      const response = await open(pathOf(this.job, "events"), { signal: this.abort.signal });
      this.state({ is: "live" });
      this.begin();
      await this.read(response.body.getReader());
    } finally {
      window.clearInterval(watch);
      this.abort.abort();
    }
  }

  async read(reader) {
    const decoder = new TextDecoder();
    const feed = parser((name, data) => {
      this.failures = 0;
      this.tell(name, JSON.parse(data));
    });
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.ended) return;
      this.heardAt = performance.now();
      feed(decoder.decode(value, { stream: true }));
    }
  }
}
