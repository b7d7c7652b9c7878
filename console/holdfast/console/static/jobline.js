/** The job in one line: what an on-call engineer asks first. */

import { keep, make, mark, named, say } from "./element.js";
import { count, long, money, number, percent, short, UNKNOWN, whole } from "./wording.js";

const CALM = new Set(["Running", "Succeeded", "Suspended"]);
const LATE_S = 10; // a newest step of so long ago is said to be
const ALARMING = new Set(["Failed", "Invalid", "Stalled"]);

/** Facts of a job's document as [name, value, note]; a note is what a second look wants. */
export function facts({ line, status, round, world }) {
  const steps = line.target_steps == null ? whole(line.step) : `${whole(line.step)} of ${whole(line.target_steps)}`;
  const share = line.target_steps ? percent((line.step ?? 0) / line.target_steps) : "";
  const late = status?.step_age_s >= LATE_S ? `${long(status.step_age_s)} ago` : "";
  const members = status?.members;
  const ready = members ? `${whole(members.ready)} of ${count(members.wanted, "node")}, ${members.spares} spare` : "";
  return [
    ["Step", steps, [share, late].filter(Boolean).join(", ")],
    ["Tokens/s", short(line.tokens_s), ""],
    ["MFU", percent(line.mfu), ""],
    ["ETTR", percent(line.ettr), ""],
    ["Time left", long(line.left_s), ""],
    ["Money", money(line.money_h, line.currency), ""],
    ["Loss", number(status?.loss), ""],
    ["Ranks", whole(world), ready],
    ["Round", round == null ? UNKNOWN : whole(round), restarts(status)],
    ["Checkpoint", saved(status), verified(status)],
  ];
}

function restarts(status) {
  return status?.restarts ? count(status.restarts, "restart") : "";
}

function saved(status) {
  const last = status?.last_checkpoint;
  if (!last) return "none";
  return `step ${whole(last.step)}`;
}

function verified(status) {
  const last = status?.last_checkpoint;
  if (!last) return "";
  const age = status.now == null ? "" : `${long(Math.max(0, status.now - last.at))} ago`;
  return status.verified_step != null && last.step <= status.verified_step ? `${age}, verified` : age;
}

/** How a phase is to be taken: calm, alarming, or in between. */
export function mood(phase) {
  return CALM.has(phase) ? "calm" : ALARMING.has(phase) ? "bad" : "warn";
}

export function showJobLine(told) {
  const { line, status } = told;
  const phase = named("job-phase");
  say(phase, line.phase ?? UNKNOWN);
  mark(phase, "data-mood", mood(line.phase));
  say(named("job-reason"), [status?.reason, status?.observed && "only observed: nothing is done about faults"].filter(Boolean).join("; "));
  const create = ([name]) => make("div", { class: "fact" }, make("dt", {}, name), make("dd", {}, make("b"), make("small")));
  keep(named("job-facts"), facts(told), ([name]) => name, create, (fact, [, value, note]) => {
    const [figure, small] = fact.lastChild.children;
    say(figure, value);
    say(small, note);
    mark(fact, "data-unknown", value === UNKNOWN);
  });
}
