/** Nodes with their GPUs: those in trouble first. */

import { keep, make, mark, named, say } from "./element.js";
import { count, number, ranges, whole } from "./wording.js";

const SHOWN = 8;
const TOLD = 1000; // as many as a console tells of
const FINE = new Set(["heard", "ended", "healthy"]);
const FAULTY = new Set(["silent", "avoided", "failed"]);

/** How a word for a state is to be taken: fine, faulty, or something to look at. */
export function standing(state) {
  const word = String(state ?? "").toLowerCase();
  if (FINE.has(word)) return "fine";
  return FAULTY.has(word) ? "faulty" : word === "" || word === "unknown" ? "unknown" : "suspect";
}

const SIGN = { fine: "·", suspect: "!", faulty: "×", unknown: "?" };
const ORDER = { faulty: 0, suspect: 1, unknown: 2, fine: 3 };

/** A node is as bad as the worst of its GPUs. */
function worst(node) {
  return [node.state, ...node.gpus.map((gpu) => gpu.state)].map(standing).sort((a, b) => ORDER[a] - ORDER[b])[0];
}

export class Nodes {
  constructor(act) {
    this.act = act;
    this.all = [];
    this.most = SHOWN;
    this.filter = named("node-filter");
    this.filter.addEventListener("input", () => this.draw());
    named("nodes-more").addEventListener("click", () => {
      this.most *= 5;
      this.draw();
    });
  }

  get names() {
    return this.all.map((each) => each.name);
  }

  show(nodes) {
    this.all = nodes;
    this.draw();
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.all.filter((each) => `${each.name} ${each.rack ?? ""} ${each.state}`.toLowerCase().includes(wanted));
    const ranked = found.map((node) => [node, ORDER[worst(node)]]).sort((a, b) => a[1] - b[1]).map(([node]) => node);
    const shown = ranked.slice(0, this.most);
    named("nodes-empty").hidden = this.all.length > 0;
    named("nodes-view").hidden = this.all.length === 0;
    named("node-filter-row").hidden = this.all.length <= 8;
    named("nodes-more").hidden = shown.length === ranked.length;
    say(named("nodes-more"), `Show more of ${whole(ranked.length)}`);
    const bad = this.all.filter((node) => worst(node) !== "fine").length;
    const most = this.all.length >= TOLD ? ", those with most to say" : "";
    say(named("nodes-count"), this.all.length ? `${count(this.all.length, "node")}${most}, ${whole(bad)} not fine` : "");
    keep(named("node-rows"), shown, (each) => each.name, (each) => this.row(each), (row, each) => this.update(row, each));
  }

  row({ name }) {
    const pick = make("button", { type: "button", class: "link", "aria-label": `Commands for node ${name}`, onclick: () => this.act.node(name) }, name);
    return make("tr", {}, make("th", { scope: "row" }, pick), make("td"), make("td"), make("td"), make("td", {}, make("ul", { class: "gpus", "aria-label": `GPUs of ${name}, °C` })));
  }

  update(row, node) {
    const [, rack, state, ranks, gpus] = row.children;
    const how = standing(node.state);
    mark(row, "class", `health ${how}`);
    say(rack, node.rack ?? "");
    say(state, `${SIGN[how]} ${node.state}${node.why ? `: ${node.why}` : ""}`);
    say(ranks, ranges(node.ranks));
    keep(gpus.firstChild, node.gpus, (gpu) => gpu.uuid, () => make("li"), (item, gpu) => {
      const health = standing(gpu.state);
      mark(item, "class", `gpu ${health}`);
      const heat = gpu.temperature_c == null ? "" : number(gpu.temperature_c, 3);
      say(item, health === "fine" ? heat || SIGN.fine : `${SIGN[health]} ${heat} ${gpu.why || gpu.state}`);
      mark(item, "title", [gpu.uuid, gpu.state, gpu.why].filter(Boolean).join(", "));
    });
  }
}
