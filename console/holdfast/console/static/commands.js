/**
 * Commands: what an on-call engineer may ask of the watchdog. What would happen is shown before anything is done, and
 * goes on being asked for while the form is filled in; a command needs a reason.
 */

import { ask, pathOf } from "./console.js";
import { announce } from "./announcer.js";
import { keep, make, mark, named, say } from "./element.js";
import { clock } from "./wording.js";

const FORECAST_AFTER_MS = 250; // after the last key
const FORECAST_EVERY_MS = 5000;
const READ_MS = 1000; // a forecast that changed under somebody's hand is to be read first
const POLL_MS = 1000;

const node = { name: "node", label: "Node", type: "text", list: "node-names", required: true };
const steps = (name, label, more = {}) => ({ name, label, type: "number", min: 0, step: 1, ...more });

/** Every command: the action as the watchdog has it, its words, and the fields it needs beside a reason. */
export const COMMANDS = [
  { action: "Checkpoint", label: "Checkpoint", says: "Take a checkpoint soon.", fields: [] },
  { action: "Pause", label: "Pause", says: "Stop training; members stay and wait.", fields: [] },
  { action: "Resume", label: "Resume", says: "Go on training after a pause.", fields: [] },
  { action: "Evict", label: "Evict node", says: "Take a node out of the job; a spare or fewer nodes go on.", fields: [node] },
  { action: "Return", label: "Return node", says: "Put a node that is avoided back into service.", fields: [node] },
  {
    action: "Test",
    label: "Test node",
    says: "Test the devices of a node.",
    fields: [node, { name: "level", label: "Level", type: "select", options: [["", "as suits"], ["light", "light"], ["full", "full"]] }],
  },
  {
    action: "Rewind",
    label: "Rewind",
    says: "Go back to the newest checkpoint at or before a step, and go on from there.",
    fields: [
      steps("to_step", "To step", { required: true }),
      steps("skip_batches", "Batches to skip", { value: 0 }),
      { name: "learning_rate_scale", label: "Learning rate times", type: "number", min: 0, max: 1, step: "any", value: 1 },
    ],
  },
  { action: "Resize", label: "Resize", says: "Let the job have so many nodes at most.", fields: [steps("nodes", "Nodes", { required: true, min: 1 })] },
  {
    action: "SkipBatches",
    label: "Skip batches",
    says: "Restore the newest checkpoint and pass over batches from there.",
    fields: [steps("skip_batches", "Batches", { required: true, min: 1 })],
  },
  {
    action: "Restart",
    label: "Restart",
    says: "Start every worker again, from the newest checkpoint.",
    fields: [{ name: "fresh", label: "From step 0, whatever checkpoints there are", type: "checkbox" }],
  },
];

/** A name for a request: the same one again is the same request. Also where the page came without TLS. */
function requestName() {
  const words = crypto.getRandomValues(new Uint32Array(4));
  return `console-${[...words].map((each) => each.toString(16).padStart(8, "0")).join("")}`;
}

export class Commands {
  constructor() {
    this.job = null;
    this.may = null; // what the caller may do; null while unknown
    this.command = null;
    this.forecast = null;
    this.form = named("command-form");
    this.fields = named("command-fields");
    this.choices = named("command-choices");
    this.choices.append(...COMMANDS.map((each) => this.choice(each)));
    this.form.addEventListener("input", () => this.changed());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.do();
    });
    named("command-cancel").addEventListener("click", () => this.close());
    window.setInterval(() => this.command && !this.busy && !document.hidden && this.foretell(), FORECAST_EVERY_MS);
    this.choose(null);
  }

  choice(command) {
    return make("button", { type: "button", "data-action": command.action, onclick: () => this.choose(command) }, command.label);
  }

  /** Another job. */
  clear(job = null) {
    this.job = job;
    this.may = null;
    this.choose(null);
    say(named("command-outcome"), "");
    this.draw();
  }

  /** What the caller may do, and who it is. */
  allow({ name, may }) {
    this.may = may;
    this.who = name;
    this.draw();
  }

  /** The nodes that a command may name. */
  suggest(names) {
    keep(named("node-names"), names.slice(0, 2000), (each) => each, (each) => make("option", { value: each }));
  }

  /** Opens the commands with a node filled in. */
  forNode(name) {
    this.choose(COMMANDS.find((each) => each.action === "Evict"), { node: name });
  }

  /** Opens the form of a command; null closes it. */
  choose(command, given = {}) {
    this.form.reset();
    this.fields.replaceChildren(...(command?.fields ?? []).map((each) => this.field(each, given[each.name])));
    this.command = command;
    this.request = null;
    this.setForecast(null);
    this.form.hidden = command === null;
    for (const button of this.choices.children) {
      mark(button, "aria-expanded", String(button.dataset.action === command?.action));
    }
    if (command === null) return;
    say(named("command-says"), command.says);
    (this.fields.querySelector("input, select") ?? named("command-reason")).focus();
    this.changed();
  }

  field({ name, label, type, options, required, ...more }, given) {
    const id = `command-${name}`;
    const attributes = { id, name, required, ...more, value: given ?? more.value };
    const input = type === "select"
      ? make("select", { id, name }, options.map(([value, says]) => make("option", { value }, says)))
      : make("input", { ...attributes, type, autocomplete: "off" });
    return make("div", { class: `field ${type}` }, make("label", { for: id }, label), input);
  }

  // The request, and what it would do.

  /** As the watchdog takes it; null while a field is missing or wrong. */
  read() {
    if (!this.command || !this.job) return null;
    const asked = { action: this.command.action, job: this.job };
    for (const { name, type } of this.command.fields) {
      const input = this.fields.querySelector(`[name="${name}"]`);
      if (!input.checkValidity()) return null;
      if (type === "checkbox") asked[name] = input.checked;
      else if (type === "number" && input.value !== "") asked[name] = Number(input.value);
      else if (input.value.trim() !== "") asked[name] = input.value.trim();
    }
    return asked;
  }

  changed() {
    const asked = JSON.stringify(this.read());
    if (asked !== this.foretold) this.setForecast(null);
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.foretell(), this.forecast ? FORECAST_EVERY_MS : FORECAST_AFTER_MS);
    this.draw();
  }

  async foretell() {
    const asked = this.read();
    if (asked === null || this.busy) return;
    const shape = JSON.stringify(asked);
    const words = encodeURIComponent(JSON.stringify({ ...asked, id: "forecast", reason: "asked what it would do" }));
    let told;
    try {
      told = await ask(pathOf(this.job, `forecast?request=${words}`));
    } catch (error) {
      told = { failed: error.message };
    }
    if (shape === JSON.stringify(this.read())) this.setForecast(told, shape);
  }

  setForecast(told, shape = "") {
    const before = this.forecast;
    const isSame = before && told && JSON.stringify(before) === JSON.stringify(told);
    this.forecast = told;
    this.foretold = shape;
    if (before && told && !isSame) this.hold();
    if (told) this.foretoldAt = Date.now() / 1000;
    this.draw();
  }

  /** What would happen changed: nothing is done until it can have been read. */
  hold() {
    this.held = true;
    announce("What would happen has changed.");
    window.setTimeout(() => {
      this.held = false;
      this.draw();
    }, READ_MS);
  }

  // What is shown.

  get mayOperate() {
    return this.may?.includes("operate") ?? false;
  }

  draw() {
    named("command-may").hidden = this.may === null || this.mayOperate;
    say(named("command-may"), `You may look at this job and ask what a command would do, but not give one. ${this.who ?? ""} needs the role "operate": ask whoever runs this installation (watchdog.grants in the chart).`);
    this.drawForecast();
    const why = this.whyNot();
    mark(named("command-do"), "disabled", why !== "");
    say(named("command-why-not"), why);
    if (this.command) say(named("command-do"), this.sentence());
  }

  sentence() {
    const asked = this.read();
    return [this.command.label, asked?.node, asked?.nodes && `to ${asked.nodes}`, asked?.to_step != null && `to step ${asked.to_step}`].filter(Boolean).join(" ");
  }

  drawForecast() {
    const told = this.forecast;
    const effects = told?.effects ?? [];
    let says = "Fill in the fields to see what would happen.";
    if (told?.failed) says = `What would happen is not known: ${told.failed}`;
    else if (told) says = `It would be ${told.state}${told.outcome ? `: ${told.outcome}` : ""}`;
    else if (this.read()) says = "Asking what would happen…";
    say(named("forecast-says"), says);
    mark(named("forecast"), "data-state", told?.failed ? "unknown" : told?.state ?? null);
    say(named("forecast-at"), told && !told.failed ? `as of ${clock(this.foretoldAt)}` : "");
    const items = told?.state === "Refused" ? [] : effects.map((says_, i) => ({ key: `${i} ${says_}`, says: says_ }));
    keep(named("forecast-effects"), items, (each) => each.key, (each) => make("li", {}, each.says));
  }

  /** Why it cannot be done now, in words; empty when it can. */
  whyNot() {
    if (!this.command) return "";
    if (this.busy) return "Waiting for the watchdog…";
    if (this.may === null) return "Who you are is not known yet.";
    if (!this.mayOperate) return "You may not give commands to this job.";
    if (this.read() === null) return "A field is missing or not valid.";
    if (!this.forecast) return "What would happen comes first.";
    if (this.forecast.failed) return "Nothing is done while nobody can say what would happen.";
    if (this.forecast.state === "Refused") return "The watchdog would refuse it.";
    if (named("command-reason").value.trim() === "") return "Write why: it stays in the record.";
    return this.held ? "What would happen has changed: read it." : "";
  }

  // Doing it.

  async do() {
    if (this.whyNot() !== "") return;
    const reason = `${named("command-reason").value.trim()} (by ${this.who}, console)`;
    const { job, command } = this;
    const request = (this.request ??= { ...this.read(), id: requestName(), reason });
    this.busy = true;
    this.outcome("Asked; waiting for the watchdog…", "Pending");
    this.draw();
    await this.follow(job, request, command);
    this.busy = false;
    this.draw();
  }

  /**
   * Asks until the outcome is known; from the first answer on others may be given meanwhile. The same request again
   * is the same one, so an answer that was lost costs nothing. Whoever cancels before an answer ends the asking.
   */
  async follow(job, request, { label }) {
    let isTaken = false;
    for (let tries = 0; job === this.job; tries += 1) {
      const said = await this.hand(job, request);
      if (job !== this.job) return;
      if (!isTaken && this.request !== request) {
        this.outcome(`${label}: not asked for any more; whether it arrived is not known`, "Pending");
        return;
      }
      this.outcome(`${label}: ${said.state}${said.outcome ? `: ${said.outcome}` : ""}`, said.state);
      if (said.state === "Refused") this.request = null;
      if (said.isAnswer && !isTaken) this.close();
      isTaken ||= said.isAnswer === true;
      if (said.state !== "Pending") return;
      await new Promise((go) => window.setTimeout(go, Math.min(POLL_MS * 2 ** tries, 15000)));
    }
  }

  /** One try, as the watchdog's answer; `isAnswer` says that the request has arrived. */
  async hand(job, request) {
    try {
      return { ...(await ask(pathOf(job, "interventions"), { method: "POST", body: request })), isAnswer: true };
    } catch (error) {
      const isRefusal = error.status !== 0 && error.status < 500;
      if (isRefusal) return { state: "Refused", outcome: error.message };
      return { state: "Pending", outcome: `${error.message} Asking again: it is the same request, done once.` };
    }
  }

  /** The request was taken: the form goes, and the focus back to where it came from. */
  close() {
    const from = this.choices.querySelector(`[data-action="${this.command?.action}"]`);
    this.busy = false;
    this.choose(null);
    from?.focus();
  }

  outcome(sentence, state) {
    say(named("command-outcome"), sentence);
    mark(named("command-outcome"), "data-state", state);
  }
}
