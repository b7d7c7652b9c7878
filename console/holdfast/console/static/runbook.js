/** The runbook's checks for a symptom: what each found, and what to do next. */

import { ask, pathOf } from "./console.js";
import { make, mark, named, say } from "./element.js";

const WITHIN_MS = 60000; // a long journal is read for it
const SIGN = { fine: "✓", suspect: "!", unknown: "?" };
const ORDER = { suspect: 0, unknown: 1, fine: 2 };

/** What somebody is called about, as it is said at three in the morning, and the kinds of incidents it fits. */
const SYMPTOMS = [
  ["hung", "The job makes no steps", ["ProcessExit", "CollectiveFailed", "MemberLost", "Hang"]],
  ["slow", "Steps take longer than they should", ["Straggler"]],
  ["loss-spiked", "The loss rose", ["Divergence", "Data"]],
  ["nan", "A loss or gradient norm is not finite", ["NonFinite"]],
  ["node-suspect", "A machine may be broken", ["Xid", "GpuLost", "Condition", "Thermal", "SelfTest", "Corruption"]],
  ["out-of-memory", "A process ran out of memory", []],
  ["will-not-start", "The job does not come to its first step", ["UserCode", "NothingToRestore", "CrashLoop"]],
  ["checkpoint-stale", "The newest checkpoint is old", []],
  ["cost", "The job costs more than its steps are worth", []],
];

/** The symptom whose checks are about an incident of this kind. */
export function symptomOf(kind) {
  return SYMPTOMS.find(([, , kinds]) => kinds.includes(kind))?.[0] ?? SYMPTOMS[0][0];
}

export class Runbook {
  constructor() {
    this.job = null;
    this.symptom = named("symptom");
    this.symptom.append(...SYMPTOMS.map(([value, says]) => make("option", { value }, says)));
    named("runbook-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run(this.symptom.value);
    });
  }

  /** Another job. */
  clear(job = null) {
    this.job = job;
    this.tell("", []);
  }

  /** Asks for the checks of `symptom` and shows them. */
  async run(symptom) {
    if (!this.job || !symptom) return;
    this.symptom.value = symptom;
    const asked = (this.asked = {});
    this.tell("Checking…", []);
    let said;
    try {
      said = await ask(pathOf(this.job, `runbook/${encodeURIComponent(symptom)}`), { withinMs: WITHIN_MS });
    } catch (error) {
      if (asked === this.asked) this.tell(error.status === 404 ? `Not available: ${error.message}` : error.message, []);
      return;
    }
    if (asked !== this.asked) return;
    const suspects = said.checks.filter((each) => each.verdict === "suspect").length;
    this.tell(said.checks.length ? `${said.checks.length} checks for ${said.symptom}, ${suspects} suspect` : "There is no check for this.", said.checks);
  }

  tell(sentence, checks) {
    say(named("runbook-says"), sentence);
    const ordered = [...checks].sort((a, b) => (ORDER[a.verdict] ?? 1) - (ORDER[b.verdict] ?? 1));
    named("runbook-list").replaceChildren(...ordered.map((each) => {
      const item = make(
        "li",
        { "data-verdict": each.verdict },
        make("span", { class: "check-verdict" }, `${SIGN[each.verdict] ?? "?"} ${each.verdict}${each.proved ? ", proved" : ""}`),
        make("b", {}, each.title),
        make("p", {}, each.evidence),
        each.next && make("p", { class: "check-next" }, "Next: ", make("code", {}, each.next)),
      );
      mark(item, "data-check", each.id);
      return item;
    }));
  }
}
