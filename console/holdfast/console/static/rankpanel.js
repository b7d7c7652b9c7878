/** The section of ranks: the map, how it is coloured, what a rank's cell says, and the worst ranks as a table. */

import { bytes, ask, pathOf } from "./console.js";
import { keep, make, mark, named, say } from "./element.js";
import { colouring } from "./rankcolours.js";
import { RankGrid } from "./rankgrid.js";
import { layout } from "./ranklayout.js";
import { CELL_MOST, RankMap } from "./rankmap.js";
import { decode, GLYPHS, HEALTH, healthCounts, newestStep, none, UNKNOWN_STEP, worst } from "./ranks.js";
import { count, number, seconds, whole } from "./wording.js";

const WORST = 10;
const EVERY_MS = 1000; // columns are fetched no more often, however often they change

export class RankPanel {
  constructor() {
    this.canvas = named("rank-canvas");
    this.map = new RankMap(this.canvas);
    this.grid = new RankGrid(named("rank-grid"), {
      describe: (rank) => this.describe(rank),
      focus: (rank) => this.point(rank),
      zoom: (key) => this.zoomKey(key),
    });
    this.by = named("rank-by");
    this.by.addEventListener("change", () => this.paint());
    for (const key of ["+", "-", "0"]) named(`rank-zoom${key}`).addEventListener("click", () => this.zoomKey(key));
    this.pointers = new Map();
    for (const type of ["pointerdown", "pointermove", "pointerup", "pointercancel", "pointerleave"]) {
      this.canvas.addEventListener(type, (event) => this[type](event));
    }
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.clear();
  }

  /** Another job, or none. */
  clear(job = null) {
    this.abort?.abort();
    window.clearTimeout(this.timer);
    this.timer = 0;
    this.abort = new AbortController();
    this.job = job;
    this.asked = this.fetched = 0;
    this.shape = this.seen = "";
    this.round = undefined;
    this.ranks = none();
    this.names = { nodes: [], racks: [], phases: [] };
    this.show();
  }

  // Columns are fetched when somebody looks, one after the other.

  /** The round that runs: ranks of another one are on other nodes, whatever these are counted as. */
  of(round) {
    if (round === this.round) return;
    this.round = round;
    this.news();
  }

  /** There are newer ones. */
  news() {
    this.asked += 1;
    this.load();
  }

  load() {
    if (this.timer || !this.job || this.asked === this.fetched || document.hidden) return;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      this.load();
    }, EVERY_MS);
    this.fetch(this.asked, this.abort.signal).catch((error) => this.fail(error));
  }

  async fetch(asked, signal) {
    const { round } = this;
    this.fetched = asked;
    const ranks = decode(await bytes(pathOf(this.job, "ranks"), { signal }));
    const shape = `${round}/${shapeOf(ranks)}`;
    if (shape !== this.seen) this.names = await ask(pathOf(this.job, "ranks/names"), { signal });
    if (signal.aborted) return;
    this.seen = shape;
    this.ranks = ranks;
    say(named("rank-trouble"), "");
    this.show();
  }

  fail(error) {
    if (error.name === "AbortError") return;
    say(named("rank-trouble"), error.message);
  }

  // What is shown.

  show() {
    named("ranks-empty").hidden = this.ranks.n > 0;
    named("rank-view").hidden = this.ranks.n === 0;
    if (this.seen !== this.shape || !this.layout) this.place();
    this.paint();
    this.grid.show(this.layout, this.ranks);
    this.tip(this.map.focused);
    this.tableSoon();
  }

  /** Other ranks, or on other nodes. What few ranks do not need of the map's height is left to others. */
  place() {
    this.shape = this.seen;
    const frame = this.canvas.parentElement;
    frame.style.height = "";
    const [width, height] = [frame.clientWidth || 600, frame.clientHeight || 300];
    this.layout = layout(this.ranks, this.names.racks, { width: width / CELL_MOST, height: height / CELL_MOST });
    for (const block of this.layout.blocks) block.label = this.label(block);
    frame.style.height = `${Math.min(height, (this.layout.height + 1.5) * CELL_MOST)}px`;
    this.map.place(this.layout);
  }

  label(block) {
    const rack = block.rack ? `rack ${block.rack}` : "";
    return block.hosts.length === 1 ? this.nodeName(block.hosts[0].node) : rack;
  }

  nodeName(node) {
    return this.names.nodes[node] ?? `node ${node}`;
  }

  paint() {
    const way = colouring(this.by.value, this.ranks, this.names);
    this.map.paint(this.ranks, way);
    this.legend(way.legend);
    const counts = healthCounts(this.ranks);
    const told = [3, 2, 0, 1].filter((i) => counts[i]).map((i) => `${whole(counts[i])} ${HEALTH[i]}`);
    say(named("rank-summary"), this.ranks.n ? `${count(this.ranks.n, "rank")}: ${told.join(", ")}` : "");
  }

  legend(entries) {
    const one = ({ colour, glyph, says, count: many, ramp, from, to }) => (ramp
      ? [from, make("i", { class: "ramp" }), to]
      : [make("i", { class: `swatch ${colour}`, "aria-hidden": "true" }, glyph), `${says} ${whole(many)}`]);
    named("rank-legend").replaceChildren(...entries.map((entry) => make("li", {}, one(entry))));
  }

  /** One rank in a sentence. */
  describe(rank) {
    const { ranks, names } = this;
    const rack = names.racks[ranks.node[rank]];
    const where = `${this.nodeName(ranks.node[rank])}${rack ? `, rack ${rack}` : ""}`;
    const phase = names.phases[ranks.phase[rank]] ?? "phase unknown";
    const step = ranks.step[rank] === UNKNOWN_STEP ? "step unknown" : `step ${whole(ranks.step[rank])}`;
    const figures = `step time ${seconds(known(ranks.stepS[rank]))}, loss ${number(known(ranks.loss[rank]))}`;
    return `rank ${rank} on ${where}: ${HEALTH[Math.min(ranks.health[rank], 3)]}, ${phase}, ${step}, ${figures}`;
  }

  /** The keyboard, or the pointer, is on a rank. */
  point(rank) {
    this.map.focus(rank);
    this.tip(rank);
  }

  tip(rank) {
    const tip = named("rank-tip");
    say(tip, rank === null || rank >= this.ranks.n ? "Point at a rank, or go there with Tab and the arrow keys. + and − zoom, 0 shows all." : this.describe(rank));
  }

  /** Once nothing else is to be done: of a hundred thousand ranks it takes longer than a frame may. */
  tableSoon() {
    const idle = window.requestIdleCallback ?? ((then) => window.setTimeout(then, 50));
    this.tableWaits ??= idle(() => {
      this.tableWaits = null;
      this.table();
    }, { timeout: 500 });
  }

  table() {
    const { ranks, names } = this;
    const newest = newestStep(ranks);
    const cells = (rank) => {
      const behind = ranks.step[rank] === UNKNOWN_STEP || newest === null ? null : newest - ranks.step[rank];
      const health = Math.min(ranks.health[rank], 3);
      return [
        String(rank), this.nodeName(ranks.node[rank]), `${GLYPHS[health]} ${HEALTH[health]}`, names.phases[ranks.phase[rank]] ?? "?",
        behind === null ? "?" : whole(behind), seconds(known(ranks.stepS[rank])), number(known(ranks.loss[rank])),
      ];
    };
    keep(named("worst-ranks"), worst(ranks, WORST), (rank) => rank, (rank) => this.row(rank), (row, rank) => {
      mark(row, "class", `health ${HEALTH[Math.min(ranks.health[rank], 3)]}`);
      const [first, ...rest] = cells(rank);
      say(row.firstChild.firstChild, first);
      mark(row.firstChild.firstChild, "aria-label", `Show rank ${first} on the map`);
      rest.forEach((text, i) => say(row.children[i + 1], text));
    });
  }

  row(rank) {
    const show = make("button", { type: "button", class: "link", onclick: () => this.grid.go(rank) });
    return make("tr", {}, make("th", { scope: "row" }, show), Array.from({ length: 6 }, () => make("td")));
  }

  // By pointer: drag moves, two fingers and the wheel with Ctrl zoom; the wheel alone once the map has been clicked.

  zoomKey(key) {
    if (key === "0") this.map.fit();
    else this.map.zoom(key === "-" ? 1 / 1.5 : 1.5);
  }

  pointerdown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event);
    this.holds = true;
  }

  pointermove(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.point(this.map.rankAt(event.offsetX, event.offsetY));
      return;
    }
    if (this.pointers.size === 2) this.pinch(before, event);
    else if (event.pointerType !== "touch") this.map.pan(event.clientX - before.clientX, event.clientY - before.clientY);
    this.pointers.set(event.pointerId, event);
  }

  pinch(before, event) {
    const [other] = [...this.pointers.values()].filter((each) => each.pointerId !== event.pointerId);
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
    this.map.pan((event.clientX - before.clientX) / 2, (event.clientY - before.clientY) / 2);
    const box = this.canvas.getBoundingClientRect();
    const middle = { x: (event.clientX + other.clientX) / 2 - box.left, y: (event.clientY + other.clientY) / 2 - box.top };
    this.map.zoom(apart(event) / apart(before), middle);
  }

  pointerup(event) {
    this.pointers.delete(event.pointerId);
    if (event.pointerType === "touch") this.point(this.map.rankAt(event.offsetX, event.offsetY));
  }

  pointercancel(event) {
    this.pointers.delete(event.pointerId);
  }

  pointerleave(event) {
    this.pointers.delete(event.pointerId);
    this.holds = false;
    if (event.pointerType !== "touch") this.point(null);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !this.holds) return;
    event.preventDefault();
    this.map.zoom(Math.exp(-event.deltaY / 300), { x: event.offsetX, y: event.offsetY });
  }
}

function known(value) {
  return Number.isFinite(value) ? value : null;
}

/** The same for the same ranks on the same nodes: only then are names and places the same. */
function shapeOf({ n, node }) {
  return `${n}/${node.reduce((a, b) => (Math.imul(a, 31) + b) | 0, 7)}`;
}
