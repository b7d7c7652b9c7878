/** The incidents of a job, newest first, and which of them is open on the page. */

import { announce } from "./announcer.js";
import { keep, make, mark, named, say } from "./element.js";
import { culprit, rungWords, GLYPH, showStory } from "./story.js";
import { ago, long, seconds } from "./wording.js";

const SHOWN = 30;

export class Incidents {
  /** `chosen(id)` is called when another one is opened; `act` as in `showStory`. */
  constructor({ chosen, act }) {
    Object.assign(this, { chosen, act });
    this.clear();
    named("incidents-more").addEventListener("click", () => {
      this.all = true;
      this.draw();
    });
  }

  clear() {
    this.byId = new Map();
    this.known = null; // ids that were there when the job was first shown: nobody is told of those
    this.selected = "";
    this.all = false;
    this.draw();
  }

  /** How late it is where the job is: open incidents last longer. */
  until(now) {
    this.now = now;
    if (this.open > 0) this.draw();
  }

  /** All that there are, newest first. */
  show(incidents) {
    const isFirst = this.known === null;
    this.known ??= new Set();
    const before = this.byId;
    this.byId = new Map(incidents.map((each) => [each.id, each]));
    for (const each of before.values()) if (!this.byId.has(each.id)) this.byId.set(each.id, each);
    for (const each of incidents) this.note(each, isFirst);
    this.draw();
  }

  /** One that is new, or known better now. */
  add(incident) {
    if (this.known === null) return;
    this.byId.set(incident.id, incident);
    this.note(incident, false);
    this.draw();
  }

  note(incident, isFirst) {
    const said = `${incident.id}/${incident.state}`;
    if (this.known.has(said)) return;
    this.known.add(said);
    if (isFirst) return;
    const what = incident.state === "Open" ? "New incident" : `Incident is ${incident.state.toLowerCase()}:`;
    announce(`${what} ${incident.id}: ${incident.kind}, ${culprit(incident)}`);
  }

  get open() {
    return this.in("Open");
  }

  in(state) {
    return [...this.byId.values()].filter((each) => each.state === state).length;
  }

  /** Opens one; an empty id opens the newest that is open, or else the newest. */
  select(id) {
    this.selected = id;
    this.draw();
  }

  get sorted() {
    return [...this.byId.values()].sort((a, b) => b.detected_at - a.detected_at);
  }

  draw() {
    const all = this.sorted;
    const paged = this.in("Paged");
    const shown = this.all ? all : all.slice(0, SHOWN);
    const selected = this.byId.get(this.selected) ?? all.find((each) => each.state === "Open") ?? all[0];
    named("incidents-empty").hidden = all.length > 0;
    named("incidents-more").hidden = shown.length === all.length;
    say(named("incidents-more"), `Show all ${all.length}`);
    say(named("incidents-count"), all.length ? [`${this.open} open`, paged && `${paged} paged`, `${all.length} in all`].filter(Boolean).join(", ") : "");
    keep(named("incident-list"), shown, (each) => each.id, (each) => this.row(each), (row, each) => {
      this.update(row.firstChild, each, each === selected);
    });
    showStory(selected, this.act);
  }

  row({ id }) {
    const choose = () => {
      this.select(id);
      this.chosen(id);
    };
    const parts = ["state", "kind", "who", "rung", "when"].map((name) => make("span", { class: `incident-${name}` }));
    return make("li", {}, make("button", { type: "button", class: "incident", onclick: choose }, parts));
  }

  update(button, incident, isSelected) {
    const [state, kind, who, rung, when] = button.children;
    mark(button, "data-state", incident.state);
    mark(button, "aria-current", isSelected ? "true" : null);
    say(state, `${GLYPH[incident.state] ?? "◇"} ${incident.state}`);
    say(kind, incident.kind);
    say(who, culprit(incident));
    say(rung, rungWords(incident));
    say(when, took(incident, this.now));
  }
}

/** How long it took until training went on, or since when it is open. */
function took(incident, now) {
  if (incident.recovered_at != null) return `in ${seconds(Math.max(0, incident.recovered_at - incident.began_at))}`;
  const since = Math.max(0, now - incident.detected_at);
  return incident.state === "Open" ? `for ${long(since)}` : ago(since);
}
