/** One incident whole: who, on what evidence, what was done and why, and what it cost. As `holdfast why` tells it. */

import { keep, make, mark, named, say } from "./element.js";
import { clock, number, offset, seconds, whole } from "./wording.js";

export const GLYPH = { Open: "●", Recovered: "✓", Paged: "▲", Observed: "◇" };
const RUNGS = ["skip the step", "re-enter", "respawn", "swap in a spare", "shrink", "rewind", "page a human"];
const SHOWN = 3; // of those whom the evidence names alike
const NOBODY = { NothingToRestore: "the checkpoints", UserCode: "the script" };

function subject({ node, rank, gpu }) {
  const parts = [node && `node ${node}`, gpu && `GPU ${gpu.slice(0, 12)}`, rank != null && `rank ${rank}`].filter(Boolean);
  return parts.join(" ") || "unknown";
}

/** Who it was, with a question mark where nobody knows. */
export function culprit(incident) {
  const { node, member } = incident.culprit ?? {};
  if (incident.kind === "NothingToRestore") return NOBODY.NothingToRestore;
  if (incident.innocent) return `pod ${member}`;
  const named = [incident.culprit ?? {}, ...(incident.also ?? [])];
  const shown = [...named.slice(0, SHOWN).map(subject), ...(named.length > SHOWN ? ["others"] : [])];
  const last = shown.pop();
  const who = shown.length ? `${shown.join(", ")} ${incident.confidence === "Unknown" ? "or" : "and"} ${last}` : last;
  if (incident.kind === "UserCode") return `${NOBODY.UserCode}, ${who}`;
  return node && incident.confidence === "Unknown" ? `${who}?` : who;
}

/** The highest rung that was climbed, in words. */
export function rungWords(incident) {
  const rung = Math.max(-1, ...(incident.actions ?? []).map((each) => each.rung));
  if (rung < 0) return "no action";
  return `${incident.state === "Observed" ? "would " : ""}${RUNGS[rung]} (rung ${rung})`;
}

/**
 * Evidence, actions and what happened, as one list in the order of time: {at, is, says, why}. Of the incident's own
 * timeline those moments are left out that stand in the list already, with more to them.
 */
export function timeline(incident) {
  const does = new Set((incident.actions ?? []).map((each) => each.does));
  const moments = (incident.timeline ?? []).filter(({ what }) => !does.has(what) && !/^(began \(|detected: )/.test(what));
  const isTold = moments.some(({ what }) => what.startsWith("recovered"));
  const entries = [
    { at: incident.began_at, is: "began", says: "the fault began, by the evidence" },
    ...(incident.evidence ?? []).map((each) => ({ at: each.at, is: "evidence", says: `${each.source}: ${each.says}` })),
    { at: incident.detected_at, is: "detected", says: `judged as ${incident.kind}: ${incident.cause}`, why: confidence(incident) },
    ...(incident.actions ?? []).map((each) => ({
      at: each.at, is: "action", says: `rung ${each.rung}, ${RUNGS[each.rung] ?? "?"}: ${each.does}`, why: `because ${each.reason}`,
    })),
    ...moments.map(({ at, what }) => (what.startsWith("recovered")
      ? { at, is: "recovered", says: what.replace(/^recovered: /, "") }
      : { at, is: "then", says: what })),
  ];
  if (incident.recovered_at != null && !isTold) entries.push({ at: incident.recovered_at, is: "recovered", says: "every rank completed a new step" });
  return entries.map((each, i) => [each, i]).sort(([a, i], [b, j]) => a.at - b.at || i - j).map(([each]) => each);
}

function confidence(incident) {
  const who = culprit(incident);
  if (incident.innocent) return `${incident.confidence} that the pod was ended; its node is not to blame`;
  if (incident.kind in NOBODY) return `${incident.confidence}; no node is to blame`;
  if (incident.confidence !== "Unknown") return `${incident.confidence} that ${who} is the culprit`;
  return incident.culprit?.node ? `${who} is concerned, and nobody is proved to be the culprit` : "nobody can be named";
}

function costs(incident) {
  const { began_at: began, detected_at: detected, recovered_at: recovered, slowed } = incident;
  return [
    ["Began", clock(began)],
    ["Seen after", seconds(Math.max(0, detected - began))],
    ["New step after", recovered == null ? notRecovered(incident) : seconds(Math.max(0, recovered - began))],
    ["Steps lost", incident.lost_steps == null ? "?" : whole(incident.lost_steps)],
    ["Round", incident.round == null ? "?" : `${incident.round}${incident.recovered_round == null ? "" : ` → ${incident.recovered_round}`}`],
    slowed && ["Waited", `${seconds(slowed.excess_s)} in each of ${whole(slowed.steps)} steps, ${number(slowed.rank_s / 3600, 3)} rank-hours`],
  ].filter(Boolean);
}

function notRecovered({ state, recovered_round: round }) {
  if (state !== "Recovered") return "none yet";
  return round == null ? "no round had to be healed" : "workers run again; no step was seen";
}

/** Shows it; `act` has `node(name)` and `check(kind)`, the ways on from here. */
export function showStory(incident, act) {
  named("story").hidden = incident === undefined;
  if (incident === undefined) return;
  mark(named("story"), "data-state", incident.state);
  say(named("story-title"), `${incident.id}: ${incident.kind} of ${culprit(incident)}`);
  say(named("story-state"), `${GLYPH[incident.state] ?? "◇"} ${incident.state}`);
  keep(named("story-costs"), costs(incident), ([name]) => name, ([name]) => make("div", { class: "fact" }, make("dt", {}, name), make("dd")), (fact, [, value]) => say(fact.lastChild, value));
  list(incident);
  texts(incident);
  ways(incident, act);
}

function list(incident) {
  const entries = timeline(incident).map((each, i) => ({ ...each, key: `${incident.id}/${i}` }));
  const create = () => make("li", {}, make("time"), make("span", { class: "story-is" }), make("span", { class: "story-says" }), make("span", { class: "story-why" }));
  keep(named("story-list"), entries, (each) => each.key, create, (item, each) => {
    const [when, is, says, why] = item.children;
    mark(item, "data-is", each.is);
    say(when, offset(each.at - incident.began_at));
    mark(when, "title", clock(each.at));
    say(is, each.is);
    say(says, each.says);
    say(why, each.why ?? "");
  });
}

function texts(incident) {
  for (const name of ["error", "note"]) {
    const told = incident[name] ?? "";
    named(`story-${name}`).hidden = told === "";
    say(named(`story-${name}-text`), told);
  }
}

function ways(incident, act) {
  const node = incident.culprit?.node;
  const items = [
    node && { key: `node ${node}`, says: `Commands for node ${node}`, does: () => act.node(node) },
    { key: `check ${incident.kind}`, says: `Checks for ${incident.kind}`, does: () => act.check(incident.kind) },
  ].filter(Boolean);
  keep(named("story-ways"), items, (each) => each.key, (each) => make("button", { type: "button", onclick: each.does }, each.says));
}
