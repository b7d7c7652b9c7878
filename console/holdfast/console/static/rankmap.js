/**
 * The map of ranks: a picture with one pixel for each cell, made anew when the ranks or their colours change, and
 * drawn larger or smaller in each frame. So a frame costs the same for a hundred ranks and for a hundred thousand.
 */

import { colour } from "./palette.js";

export const CELL_MOST = 30; // pixels of the page
const CELL_LINED = 5; // from here on cells stand apart
const CELL_LABELLED = 17; // and from here on they carry their glyph
const LABEL_HEIGHT = 12;
const LABEL_ROWS = 2; // what the layout leaves free above a block
const RINGS_MOST = 400; // around ranks that are not fine, so that one pixel of them is seen
const RING_LEAST = 9;
const MARGIN = 6;

/** A map in `canvas`. `frames` counts what was drawn. */
export class RankMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.picture = document.createElement("canvas");
    this.view = { scale: 1, x: 0, y: 0 }; // pixels of the page for a cell; the cell in the upper left corner
    this.fitted = true;
    this.focused = null;
    this.frames = 0;
    new ResizeObserver(() => this.size()).observe(canvas);
  }

  /** Other places: `layout` of ranklayout.js. */
  place(layout) {
    this.layout = layout;
    this.picture.width = layout.width;
    this.picture.height = layout.height;
    this.image = new ImageData(layout.width, layout.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    if (this.fitted) this.fit();
  }

  /** Other ranks or colours: `of(rank)` is a pixel, `glyph(rank)` its sign. Needs a place for each rank. */
  paint(ranks, { of, glyph }) {
    const { x, y, width } = this.layout;
    this.ranks = ranks;
    this.glyph = glyph;
    this.rings = [];
    for (let rank = 0; rank < ranks.n; rank += 1) {
      this.pixels[y[rank] * width + x[rank]] = of(rank);
      if (ranks.health[rank] > 1) this.addRing(x[rank], y[rank], ranks.health[rank]);
    }
    this.picture.getContext("2d").putImageData(this.image, 0, 0);
    this.drawSoon();
  }

  /** One ring for neighbours that are alike. */
  addRing(x, y, health) {
    const last = this.rings.at(-1);
    if (last && last.health === health && last.y === y && last.x + last.count === x) last.count += 1;
    else if (this.rings.length < RINGS_MOST) this.rings.push({ x, y, count: 1, health });
  }

  // What part is shown.

  get size_() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  size() {
    const { width, height } = this.size_;
    const dense = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * dense);
    this.canvas.height = Math.round(height * dense);
    if (this.fitted) this.fit();
    this.drawSoon();
  }

  /** All of it. */
  fit() {
    if (!this.layout) return;
    const { width, height } = this.size_;
    const scale = Math.min(CELL_MOST, (width - 2 * MARGIN) / this.layout.width, (height - 2 * MARGIN) / (this.layout.height + 1));
    this.view = { scale, x: -(width / scale - this.layout.width) / 2, y: -(height / scale - this.layout.height) / 2 };
    this.fitted = true;
    this.drawSoon();
  }

  /** `factor` larger around a point of the canvas, in pixels of the page; its middle when none is given. */
  zoom(factor, at = { x: this.size_.width / 2, y: this.size_.height / 2 }) {
    const least = Math.min(this.size_.width / this.layout.width, this.size_.height / this.layout.height, 1) / 2;
    const scale = Math.min(CELL_MOST * 1.5, Math.max(least, this.view.scale * factor));
    const { x, y } = this.view;
    this.view = { scale, x: x + at.x / this.view.scale - at.x / scale, y: y + at.y / this.view.scale - at.y / scale };
    this.fitted = false;
    this.drawSoon();
  }

  /** Moves the map by so many pixels of the page. */
  pan(dx, dy) {
    const { width, height } = this.size_;
    const { scale } = this.view;
    const within = (value, shown, all) => Math.min(all - shown * 0.2, Math.max(-shown * 0.8, value));
    this.view.x = within(this.view.x - dx / scale, width / scale, this.layout.width);
    this.view.y = within(this.view.y - dy / scale, height / scale, this.layout.height);
    this.fitted = false;
    this.drawSoon();
  }

  /** Rings one rank, and moves the map when it is not in sight; null rings none. */
  focus(rank) {
    this.focused = rank;
    if (rank !== null && !this.isInSight(rank)) {
      const { width, height } = this.size_;
      this.view.x = this.layout.x[rank] - width / this.view.scale / 2;
      this.view.y = this.layout.y[rank] - height / this.view.scale / 2;
      this.fitted = false;
    }
    this.drawSoon();
  }

  isInSight(rank) {
    const { width, height } = this.size_;
    const { left, top } = this.placeOf(rank);
    return left >= 0 && top >= 0 && left <= width - this.view.scale && top <= height - this.view.scale;
  }

  /** Where a rank's cell is on the canvas, in pixels of the page. */
  placeOf(rank) {
    const { scale, x, y } = this.view;
    return { left: (this.layout.x[rank] - x) * scale, top: (this.layout.y[rank] - y) * scale, size: scale };
  }

  /** The rank at a point of the canvas; null where none is. */
  rankAt(left, top) {
    if (!this.layout) return null;
    const x = Math.floor(left / this.view.scale + this.view.x);
    const y = Math.floor(top / this.view.scale + this.view.y);
    if (x < 0 || y < 0 || x >= this.layout.width || y >= this.layout.height) return null;
    const rank = this.layout.at[y * this.layout.width + x];
    return rank < 0 ? null : rank;
  }

  // One frame.

  drawSoon() {
    this.waiting ??= window.requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
    });
  }

  draw() {
    const { context, canvas, view } = this;
    const dense = canvas.width / Math.max(1, this.size_.width);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colour("ground");
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (!this.layout || !this.ranks) return;
    context.setTransform(dense, 0, 0, dense, 0, 0);
    this.drawPicture();
    if (view.scale >= CELL_LINED) this.drawLines();
    if (view.scale >= CELL_LABELLED) this.drawGlyphs();
    this.drawRacks();
    for (const each of this.rings) this.ring(each, colour(each.health === 3 ? "bad" : "warn"), 1.5);
    if (this.focused !== null && this.focused < this.ranks.n) {
      const [x, y] = [this.layout.x[this.focused], this.layout.y[this.focused]];
      this.ring({ x, y, count: 1 }, colour("focus"), 3);
    }
    this.frames += 1;
  }

  /** The cells in sight: first column and row, and those behind the last. */
  inSight() {
    const { width, height } = this.size_;
    const { scale, x, y } = this.view;
    return {
      left: Math.max(0, Math.floor(x)),
      top: Math.max(0, Math.floor(y)),
      right: Math.min(this.layout.width, Math.ceil(x + width / scale)),
      bottom: Math.min(this.layout.height, Math.ceil(y + height / scale)),
    };
  }

  drawPicture() {
    const { left, top, right, bottom } = this.inSight();
    const { scale, x, y } = this.view;
    if (right <= left || bottom <= top) return;
    this.context.imageSmoothingEnabled = scale < 1;
    const [width, height] = [right - left, bottom - top];
    this.context.drawImage(this.picture, left, top, width, height, (left - x) * scale, (top - y) * scale, width * scale, height * scale);
  }

  drawLines() {
    const { left, top, right, bottom } = this.inSight();
    const { scale, x, y } = this.view;
    const { context } = this;
    context.fillStyle = colour("ground");
    const [from, to] = [(left - x) * scale, (top - y) * scale];
    const thick = scale > 12 ? 2 : 1;
    for (let column = left; column <= right; column += 1) context.fillRect((column - x) * scale - thick / 2, to, thick, (bottom - top) * scale);
    for (let row = top; row <= bottom; row += 1) context.fillRect(from, (row - y) * scale - thick / 2, (right - left) * scale, thick);
  }

  drawGlyphs() {
    const { left, top, right, bottom } = this.inSight();
    const { scale } = this.view;
    const { context } = this;
    context.font = `600 ${Math.round(scale * 0.5)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = top; row < bottom; row += 1) {
      for (let column = left; column < right; column += 1) {
        const rank = this.layout.at[row * this.layout.width + column];
        if (rank < 0) continue;
        context.fillStyle = this.inkOn(row * this.layout.width + column);
        context.fillText(this.glyph(rank), (column + 0.5 - this.view.x) * scale, (row + 0.55 - this.view.y) * scale);
      }
    }
  }

  /** Black or white, whichever is read better on a cell's colour. */
  inkOn(place) {
    const value = this.pixels[place];
    const light = 0.299 * (value & 255) + 0.587 * ((value >> 8) & 255) + 0.114 * ((value >> 16) & 255);
    return light > 140 ? "#111" : "#fff";
  }

  drawRacks() {
    const { scale, x, y } = this.view;
    const { context } = this;
    const { width, height } = this.size_;
    if (scale * LABEL_ROWS < LABEL_HEIGHT) return;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillStyle = colour("soft");
    for (const block of this.layout.blocks) {
      const [left, top] = [(block.x - x) * scale, (block.y - y) * scale];
      if (!block.label || left > width || top > height + 12 || left + block.width * scale < 0 || top < 0) continue;
      context.fillText(this.fitting(block.label, (block.width + 0.6) * scale), left, top - 1);
    }
  }

  /** The end of a name, as much as has room: names differ at their ends. */
  fitting(label, room) {
    const { context } = this;
    if (context.measureText(label).width <= room) return label;
    for (let from = 1; from < label.length; from += 1) {
      const told = `…${label.slice(from)}`;
      if (context.measureText(told).width <= room) return told;
    }
    return "";
  }

  ring({ x, y, count }, css, thick) {
    const { scale } = this.view;
    const { context } = this;
    const [left, top] = [(x - this.view.x) * scale, (y - this.view.y) * scale];
    const [width, height] = [Math.max(RING_LEAST, count * scale + thick), Math.max(RING_LEAST, scale + thick)];
    const box = [left + (count * scale - width) / 2, top + (scale - height) / 2, width, height];
    context.lineWidth = thick + 2;
    context.strokeStyle = colour("ground");
    context.strokeRect(...box);
    context.lineWidth = thick;
    context.strokeStyle = css;
    context.strokeRect(...box);
  }
}
