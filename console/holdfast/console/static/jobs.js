/** The picker for jobs. */

import { ask } from "./console.js";
import { keep, make, mark, named, say } from "./element.js";
import { mood } from "./jobline.js";

const EVERY_MS = 10000;

/** How much a job presses: one that stands still with nobody at it, then open incidents, then what is in between. */
export function pressing({ phase, open_incidents: open }) {
  if (phase === "Stalled") return 3;
  return open > 0 ? 2 : mood(phase) === "calm" ? 0 : 1;
}

export class Jobs {
  /**
   * `chosen(job)` is called when somebody picks one, `listed(jobs)` with their names, the most
   * pressing first, `failed(error)` when they cannot be listed.
   */
  constructor({ chosen, listed, failed }) {
    Object.assign(this, { listed, failed });
    this.pick = named("job-pick");
    this.pick.addEventListener("change", () => chosen(this.pick.value));
    window.setInterval(() => !document.hidden && this.refresh(), EVERY_MS);
  }

  /** Lists them; `current` stays in the list, whether or not it is among them. */
  async refresh(current = this.pick.value) {
    let jobs;
    try {
      ({ jobs } = await ask("api/v1/jobs"));
    } catch (error) {
      this.failed(error);
      return;
    }
    const named_ = jobs.map((each) => ({ ...each, job: `${each.namespace}/${each.name}` }));
    if (current && !named_.some((each) => each.job === current)) named_.push({ job: current, phase: "not listed", open_incidents: 0 });
    this.draw(named_, current);
    named("jobs-empty").hidden = jobs.length > 0 || current !== "";
    this.listed(named_.sort((a, b) => pressing(b) - pressing(a) || b.open_incidents - a.open_incidents).map((each) => each.job));
  }

  /** What the job's own document says, which is newer than the list. */
  know(job, phase, open) {
    const option = [...this.pick.options].find((each) => each.value === job);
    if (option) say(option, words(job, phase, open));
  }

  draw(jobs, current) {
    keep(this.pick, jobs, (each) => each.job, ({ job }) => make("option", { value: job }), (option, each) => {
      say(option, words(each.job, each.phase, each.open_incidents));
    });
    mark(this.pick, "disabled", jobs.length === 0);
    if (current) this.pick.value = current;
  }
}

function words(job, phase, open) {
  return `${job} — ${phase}${open ? `, ${open} open` : ""}`;
}
