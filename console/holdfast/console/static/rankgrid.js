/**
 * The map for keyboard and screen reader: a grid of which only the block around the current rank is in the document.
 * One cell at a time can be reached by Tab; arrow keys go on, also into the next block.
 */

import { keep, make, mark, say } from "./element.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** `describe(rank)` is what a cell says, `focus(rank | null)` is told where the keyboard is, `zoom(key)` of + - 0. */
export class RankGrid {
  constructor(container, { describe, focus, zoom }) {
    Object.assign(this, { container, describe, focus, zoom });
    this.current = 0;
    container.addEventListener("keydown", (event) => this.key(event));
    container.addEventListener("focusin", () => this.focus(this.current));
    container.addEventListener("focusout", () => this.focus(null));
  }

  /** Other places or other ranks. */
  show(layout, ranks) {
    this.layout = layout;
    this.current = Math.min(this.current, Math.max(0, ranks.n - 1));
    this.draw();
  }

  draw() {
    const { layout } = this;
    const block = layout.blocks[layout.blockOf[this.current]];
    mark(this.container, "aria-rowcount", layout.height);
    mark(this.container, "aria-colcount", layout.width);
    keep(this.container, block?.hosts ?? [], (host) => host.node, () => make("div", { role: "row" }), (row, host) => {
      mark(row, "aria-rowindex", block.y + host.y + 1);
      keep(row, host.ranks, (rank) => rank, () => make("span", { role: "gridcell" }), (cell, rank) => {
        mark(cell, "tabindex", rank === this.current ? "0" : "-1");
        mark(cell, "aria-colindex", layout.x[rank] + 1);
        if (rank === this.current) say(cell, this.describe(rank));
        else say(cell, `rank ${rank}`);
      });
    });
  }

  /** Goes to a rank and takes the focus there. */
  go(rank) {
    this.current = rank;
    this.draw();
    this.container.querySelector(`[data-key="${rank}"][role=gridcell]`)?.focus();
    this.focus(rank);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = this.target(event.key);
    if (to !== null) this.go(to);
    else if ("+=-0".includes(event.key)) this.zoom(event.key);
    else return;
    event.preventDefault();
  }

  target(key) {
    const { layout } = this;
    const block = layout.blocks[layout.blockOf[this.current]];
    if (key === "Home") return block.hosts[0].ranks[0];
    if (key === "End") return block.hosts.at(-1).ranks.at(-1);
    if (!(key in STEPS)) return null;
    const [dx, dy] = STEPS[key];
    let [x, y] = [layout.x[this.current] + dx, layout.y[this.current] + dy];
    for (; x >= 0 && y >= 0 && x < layout.width && y < layout.height; x += dx, y += dy) {
      const rank = layout.at[y * layout.width + x];
      if (rank >= 0) return rank;
    }
    return this.current;
  }
}
