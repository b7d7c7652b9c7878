/** The page: one job at a time, fed by the console. Everything that is shown has a module of its own. */

import * as address from "./address.js";
import { announce, title } from "./announcer.js";
import { Commands } from "./commands.js";
import { ask, pathOf, token } from "./console.js";
import { named, say } from "./element.js";
import { Feed } from "./feed.js";
import { Incidents } from "./incidents.js";
import { showJobLine } from "./jobline.js";
import { Jobs } from "./jobs.js";
import { Nodes } from "./nodes.js";
import { forget } from "./palette.js";
import { plots } from "./plots.js";
import { RankPanel } from "./rankpanel.js";
import { Runbook, symptomOf } from "./runbook.js";
import { signIn } from "./signin.js";
import { Staleness } from "./staleness.js";
import { themeSwitch } from "./theme.js";

const POINTS = 1500;
const QUIET_MS = 5000; // without news of the job for so long, it is asked for

class Page {
  constructor() {
    this.job = "";
    this.commands = new Commands();
    this.runbook = new Runbook();
    this.ranks = new RankPanel();
    const act = {
      node: (name) => this.commands.forNode(name),
      check: (kind) => this.check(kind),
    };
    this.incidents = new Incidents({ act, chosen: (id) => address.write({ job: this.job, incident: id }) });
    this.nodes = new Nodes(act);
    this.plots = plots((id) => this.openIncident(id));
    this.staleness = new Staleness(() => (this.feed ? this.feed.now() : this.start()));
    this.jobs = new Jobs({
      chosen: (job) => this.follow(job),
      listed: (jobs) => this.job === "" && jobs.length && this.follow(jobs[0]),
      failed: (error) => this.refused(error),
    });
    this.signIn = signIn(() => this.start());
    themeSwitch(() => this.recolour());
    window.addEventListener("hashchange", () => this.navigate());
    document.addEventListener("visibilitychange", () => this.seen());
    window.setInterval(() => this.askWhenQuiet(), 1000);
  }

  /** Takes the token from the address, lists the jobs, and follows the one that is named, or the most pressing. */
  async start() {
    const { token: given, ...wanted } = address.read();
    if (given) {
      token.set(given);
      address.write(wanted);
    }
    this.signIn.hide();
    if (wanted.job || this.job) this.follow(wanted.job || this.job, wanted.incident);
    else await this.jobs.refresh();
  }

  navigate() {
    const { token: given, job, incident } = address.read();
    if (given || (job && job !== this.job)) this.start();
    else this.incidents.select(incident);
  }

  /** The jobs cannot be listed. Of a job that is followed, the feed says what is wrong. */
  refused(error) {
    if (error.status === 401) this.signIn.show(error.message);
    else if (!this.feed) this.staleness.feed({ is: "lost", why: error.message, status: error.status });
  }

  // One job.

  /** Shows another job, or the same one from the beginning. */
  follow(job, incident = "") {
    this.feed?.end();
    this.job = job;
    this.document = null;
    named("job").hidden = false;
    const parts = [this.commands, this.runbook, this.ranks, this.incidents, this.plots, this.staleness];
    for (const part of parts) part.clear(job);
    this.nodes.show([]);
    this.incidents.select(incident);
    address.write({ job, incident });
    this.jobs.refresh(job);
    say(named("job-trouble"), "");
    this.feed = new Feed(job, {
      tell: (name, value) => this.hear(name, value),
      begin: () => this.begin(job),
      state: (line) => this.line(line),
    });
  }

  line(line) {
    this.staleness.feed(line);
    if (line.is === "refused") this.signIn.show(line.why);
    say(named("job-trouble"), line.is === "lost" && this.document === null ? line.why : "");
  }

  /** The stream is open: what it does not send is read, and what may have been missed. */
  begin(job) {
    const read = (path, show) => ask(path).then((said) => job === this.job && show(said)).catch((error) => this.missed(error));
    read(pathOf(job), (said) => this.show(said));
    read(pathOf(job, `series?points=${POINTS}`), (said) => this.plots.show(said));
    read(`api/v1/whoami?job=${encodeURIComponent(job)}`, (said) => this.know(said));
    this.ranks.news();
  }

  missed(error) {
    if (error.status === 401) this.signIn.show(error.message);
    else say(named("job-trouble"), error.message);
  }

  know(said) {
    say(named("whoami"), said.name);
    this.commands.allow(said);
  }

  hear(name, value) {
    if (name === "job") this.show(value);
    else if (name === "series") this.plots.add(value);
    else if (name === "ranks") this.ranks.news();
    else if (name === "gone") this.staleness.gone();
    else if (name === "incident") {
      this.incidents.add(value);
      this.plots.incidents([value]);
      this.retitle();
    }
  }

  show(told) {
    this.document = told;
    this.documentAt = performance.now();
    say(named("job-trouble"), "");
    this.staleness.heard(told);
    showJobLine(told);
    this.ranks.of(told.round);
    this.incidents.until(told.heard_at);
    // What is as it was is null in an event.
    if (told.incidents) {
      this.incidents.show(told.incidents);
      this.plots.incidents(told.incidents);
    }
    if (told.nodes) {
      this.nodes.show(told.nodes);
      this.commands.suggest(this.nodes.names);
    }
    this.plots.until(told.status?.ended_at == null ? told.heard_at : null);
    this.jobs.know(this.job, told.line.phase, this.incidents.open);
    this.retitle();
  }

  retitle() {
    title(this.job, this.document?.line.phase, this.incidents.open, this.staleness.isStale);
  }

  /** Whether nothing is new, or nothing is heard: the job's document says which. */
  async askWhenQuiet() {
    this.retitle();
    const isQuiet = this.document && performance.now() - this.documentAt > QUIET_MS;
    if (!isQuiet || this.asking || document.hidden || this.staleness.line.is !== "live") return;
    this.asking = true;
    const { job } = this;
    try {
      const told = await ask(pathOf(job));
      if (job === this.job) this.show(told);
    } catch {
      // The feed says what is wrong with the line.
    } finally {
      this.asking = false;
    }
  }

  // What leads from one part to another.

  openIncident(id) {
    this.incidents.select(id);
    address.write({ job: this.job, incident: id });
    named("story").scrollIntoView({ block: "nearest" });
    named("story-title").focus();
  }

  check(kind) {
    named("checks").scrollIntoView({ block: "nearest" });
    this.runbook.run(symptomOf(kind));
    announce("The runbook's checks are asked for.");
  }

  recolour() {
    forget();
    this.plots.recolour();
    this.ranks.paint();
  }

  seen() {
    if (document.hidden) return;
    this.feed?.now();
    this.ranks.load();
  }
}

new Page().start();
