/** Whether what is shown is true now; where it is not, since when, why, and when the page tries again. */

import { announce } from "./announcer.js";
import { mark, named, say } from "./element.js";
import { clock, long } from "./wording.js";

const STALE_S = 6; // the watchdog is heard once a second

export class Staleness {
  /** `retry()` tries at once. */
  constructor(retry) {
    this.line = { is: "idle" };
    this.silentSince = null; // when the watchdog was last heard, on this page's clock; null before
    this.heardAt = null;
    this.isStale = false;
    named("stale-retry").addEventListener("click", retry);
    window.setInterval(() => this.draw(), 500);
  }

  /** Another job. */
  clear() {
    this.line = { is: "idle" };
    this.silentSince = this.heardAt = null;
    this.draw();
  }

  /** What the feed said of itself. */
  feed(line) {
    this.line = line;
    this.draw();
  }

  /** A job's document: how long ago the console heard the watchdog, and when. */
  heard({ heard_at: heardAt, stale_s: staleS }) {
    this.heardAt = heardAt;
    this.silentSince = performance.now() - (staleS ?? 0) * 1000;
    this.draw();
  }

  /** The watchdog knows the job no more. */
  gone() {
    this.line = { is: "gone", why: "The watchdog does not know this job any more." };
    this.draw();
  }

  get age_s() {
    return this.silentSince === null ? null : (performance.now() - this.silentSince) / 1000;
  }

  draw() {
    const trouble = this.trouble();
    const isStale = trouble !== "";
    named("stale").hidden = !isStale;
    mark(document.documentElement, "data-stale", isStale ? "true" : null);
    named("stale-retry").hidden = this.line.is !== "lost";
    if (isStale) this.tell(trouble);
    const live = { idle: "not connected", live: "live", lost: "reconnecting", refused: "signed out", gone: "gone" }[this.line.is];
    say(named("connection"), isStale && this.line.is === "live" ? "stale" : live);
    mark(named("connection"), "data-is", isStale ? "stale" : this.line.is);
    if (isStale !== this.isStale) announce(isStale ? trouble : "What is shown is live again.");
    this.isStale = isStale;
  }

  tell(trouble) {
    const since = this.heardAt === null ? "" : ` What is shown is from ${clock(this.heardAt)}, ${long(this.age_s)} ago.`;
    say(named("stale-why"), `${trouble}${since}`);
    const waits = this.line.retryAt === undefined ? null : Math.max(0, Math.ceil((this.line.retryAt - performance.now()) / 1000));
    say(named("stale-next"), this.line.is === "lost" && waits !== null ? (waits > 0 ? `Next try in ${waits} s.` : "Trying now.") : "");
  }

  /** In words; empty while all is well. */
  trouble() {
    if (this.line.is === "gone") return this.line.why;
    if (this.line.is === "lost") return this.line.status ? this.line.why : `No connection to the console. ${this.line.why}`;
    const age = this.age_s;
    if (this.line.is === "live" && age !== null && age > STALE_S) {
      return "The console hears nothing from the watchdog. Training goes on meanwhile; nothing new is known.";
    }
    return "";
  }
}
