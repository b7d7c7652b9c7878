/** The picker for jobs. */

import { ask } from "./console.js";
import { keep, make, mark, named, say } from "./element.js";

const EVERY_MS = 10000;

export class Jobs {
  /**
   * `chosen(job)` is called when somebody picks one, `listed(jobs)` with their names, those with open incidents
   * first, `failed(error)` when they cannot be listed.
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
    this.listed(named_.sort((a, b) => b.open_incidents - a.open_incidents).map((each) => each.job));
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
