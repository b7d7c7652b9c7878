/** The stacked plots: one time axis, one cursor, incidents as marks. */

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { keep, make, mark, named, say } from "./element.js";
import { colour } from "./palette.js";
import { Series } from "./series.js";
import { clock, number, percent, seconds, short, whole } from "./wording.js";

const SPANS = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["1 d", 86400], ["all", 0]];
const MARKS_MOST = 60;
const AXIS_WIDTH = 52;

const line = (name, label, stroke, say_, more = {}) => ({ name, label, stroke, say: say_, ...more });

/** What is plotted, from top to bottom. `of` makes a column of others where it is none of its own. */
const PLOTS = [
  { title: "Tokens/s", lines: [line("tokens_s", "", "plot-1", short)] },
  { title: "MFU", lines: [line("mfu", "", "plot-1", (value) => percent(value))] },
  {
    title: "Loss over ranks",
    lines: [
      line("loss_max", "max", "plot-3", number, { width: 1 }),
      line("loss_median", "median", "plot-1", number),
      line("loss_min", "min", "plot-3", number, { width: 1 }),
    ],
    band: true,
  },
  { title: "Gradient norm", lines: [line("grad_norm", "", "plot-1", number)] },
  {
    title: "Step time",
    lines: [
      line("step_s", "", "plot-1", seconds),
      line("wait_s", "waiting", "plot-2", seconds, {
        fill: "plot-2-fill",
        of: ({ step_s, wait_share }) => step_s.map((s, i) => (s == null || wait_share[i] == null ? null : s * wait_share[i])),
        note: ({ wait_share }, i) => percent(wait_share[i], 0),
      }),
    ],
    fromZero: true,
  },
];

/** `open(incident)` is called when a mark is chosen. Returns what the page feeds. */
export function plots(open) {
  return new Plots(open);
}

class Plots {
  constructor(open) {
    this.open = open;
    this.series = new Series();
    this.span = 3600;
    this.follows = true;
    this.cursorAt = null;
    this.stack = named("plot-stack");
    this.marks = named("plot-marks");
    this.rows = PLOTS.map((plot, i) => this.row(plot, i === PLOTS.length - 1));
    this.buttons();
    this.stack.addEventListener("keydown", (event) => this.key(event));
    this.stack.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.size()).observe(this.stack);
  }

  /** Another job. */
  clear() {
    this.series = new Series();
    this.now = null;
    this.draw();
  }

  /** Other columns altogether. */
  show(told) {
    this.series = new Series(told, this.series.marks);
    this.draw();
  }

  /** One more point. */
  add(point) {
    if (this.series.add(point)) this.drawSoon();
  }

  /** Incidents that are new, or known better now. */
  incidents(incidents) {
    for (const each of incidents) this.series.markIncident(each);
    this.drawSoon();
  }

  /** How late it is where the job is; null once it has ended: the plots go on to there, also without a step. */
  until(now) {
    this.now = now;
    this.drawSoon();
  }

  /** Colours are other ones. */
  recolour() {
    for (const { plot } of this.rows) plot.redraw(false, true);
  }

  drawSoon() {
    this.waiting ??= window.requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
    });
  }

  draw() {
    const { columns } = this.series;
    for (const { plot, spec, row } of this.rows) {
      const lines = spec.lines.map((each) => each.of?.(columns) ?? columns[each.name]);
      row.classList.toggle("unknown", !isKnown(lines));
      plot.setData([columns.at, ...lines], false);
      const [from, to] = this.follows ? this.range() : [plot.scales.x.min, plot.scales.x.max];
      plot.setScale("x", { min: from, max: to });
    }
    named("plots-empty").hidden = this.series.length > 0;
    this.tell(this.cursorAt);
    this.placeMarks();
  }

  range() {
    const { at } = this.series.columns;
    const to = Math.max(this.series.newestAt ?? 0, this.series.marks.at(-1)?.at ?? 0, this.now ?? 0) || Date.now() / 1000;
    const from = this.span ? Math.max(to - this.span, at[0] ?? to - this.span) : at[0] ?? to - 60;
    return from < to ? [from, to] : [to - 60, to];
  }

  // One plot and the figures beside it.

  row(spec, isLast) {
    const values = spec.lines.map(() => make("span", { class: "plot-value" }));
    const figure = make("div", { class: "plot-figure" });
    const head = make(
      "div",
      { class: "plot-head" },
      make("span", { class: "plot-title" }, spec.title),
      spec.lines.map((each, i) => make("span", { class: `plot-line ${each.stroke}` }, each.label && `${each.label} `, values[i])),
    );
    const row = make("div", { class: isLast ? "plot-row last" : "plot-row" }, head, figure);
    this.stack.append(row);
    return { spec, row, figure, values, isLast, plot: new uPlot(this.options(spec, isLast), [[], ...spec.lines.map(() => [])], figure) };
  }

  options(spec, isLast) {
    const grid = () => colour("grid");
    const soft = () => colour("soft");
    const font = "11px system-ui, sans-serif";
    return {
      width: 300,
      height: 60,
      legend: { show: false },
      padding: [6, 8, 0, 0],
      cursor: {
        sync: { key: "time", scales: ["x", null] },
        points: { size: 5 },
        y: false,
        drag: { x: true, y: false, setScale: true },
        bind: { dblclick: () => () => this.follow(this.span) },
      },
      scales: { x: { time: true }, y: { range: (_, low, high) => bounds(low, high, spec.fromZero) } },
      series: [{}, ...spec.lines.map((each) => ({
        stroke: () => colour(each.stroke),
        width: each.width ?? 1.5,
        fill: each.fill && (() => colour(each.fill)),
        points: { show: false },
        spanGaps: false,
      }))],
      bands: spec.band ? [{ series: [1, 3], fill: () => colour("plot-3-fill") }] : [],
      axes: [
        { show: true, size: isLast ? 26 : 0, stroke: soft, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, values: isLast ? times : () => [] },
        { size: AXIS_WIDTH, stroke: soft, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, space: 24, values: ({ data }, ticks) => (isKnown(data.slice(1)) ? ticks.map((each) => spec.lines[0].say(each)) : []) },
      ],
      hooks: {
        setCursor: [(plot) => this.moved(plot)],
        setSelect: [(plot) => this.selected(plot)],
        draw: [(plot) => this.drawMarks(plot), (plot) => this.drawn(plot)],
      },
    };
  }

  size() {
    for (const { plot, figure, isLast } of this.rows) {
      const height = parseFloat(getComputedStyle(this.stack).getPropertyValue("--plot-height")) || 64;
      const width = figure.clientWidth;
      if (width > 0) plot.setSize({ width, height: isLast ? height + 26 : height });
    }
    this.placeMarks();
  }

  // The cursor, by pointer or by arrow keys, and the figures at its place.

  moved(plot) {
    if (plot !== this.rows[0].plot) return;
    this.cursorAt = plot.cursor.left >= 0 ? plot.cursor.idx : null;
    this.tell(this.cursorAt);
  }

  tell(at) {
    const { columns, length } = this.series;
    const i = at == null || at >= length ? length - 1 : at;
    for (const { plot, spec, values } of this.rows) {
      spec.lines.forEach((each, j) => {
        const value = plot.data[j + 1]?.[i];
        say(values[j], each.note && value != null ? `${each.say(value)} (${each.note(columns, i)})` : each.say(value));
      });
    }
    const where = length === 0 ? "" : `${clock(columns.at[i])}, step ${whole(columns.step[i])}`;
    say(named("plot-cursor"), at == null ? `newest: ${where || "nothing yet"}` : where);
    mark(named("plot-cursor"), "data-at", at == null ? null : "cursor");
  }

  key(event) {
    const last = this.series.length - 1;
    const from = this.cursorAt ?? last;
    const stride = event.shiftKey ? 20 : 1;
    const to = { ArrowLeft: from - stride, ArrowRight: from + stride, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.point(null);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.point(Math.min(last, Math.max(0, to)));
  }

  /** Puts the cursor on point `at`; null takes it away. */
  point(at) {
    this.cursorAt = at;
    for (const { plot } of this.rows) {
      const left = at == null ? -10 : plot.valToPos(this.series.columns.at[at], "x");
      plot.setCursor({ left, top: at == null ? -10 : 1 }, false);
    }
    this.cursorAt = at;
    this.tell(at);
  }

  // How much of the time is shown.

  buttons() {
    const place = named("plot-spans");
    for (const [label, span] of SPANS) {
      place.append(make("button", { type: "button", "data-span": span, onclick: () => this.follow(span) }, label));
    }
    this.showSpan();
  }

  /** Shows the newest `span` seconds, 0 for all, and goes on with the time. */
  follow(span) {
    this.span = span;
    this.follows = true;
    this.showSpan();
    this.draw();
  }

  showSpan() {
    for (const button of named("plot-spans").children) {
      mark(button, "aria-pressed", this.follows && Number(button.dataset.span) === this.span ? "true" : "false");
    }
  }

  /** Somebody dragged over a part of the time: it stays until they ask for the newest again. */
  selected(plot) {
    if (plot.select.width <= 0 || !this.follows) return;
    this.follows = false;
    this.showSpan();
    window.requestAnimationFrame(() => this.placeMarks());
  }

  // Incidents: a line through all plots, and a button above them.

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([3, 3]);
    for (const each of this.series.marks) {
      if (each.at < plot.scales.x.min || each.at > plot.scales.x.max) continue;
      const x = Math.round(plot.valToPos(each.at, "x", true)) + 0.5;
      ctx.strokeStyle = colour(each.state === "Open" || each.state === "Paged" ? "bad" : "soft");
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Only now its scales are those that were asked for. */
  drawn(plot) {
    if (plot === this.rows?.[0].plot) this.placeMarks();
  }

  placeMarks() {
    const { plot } = this.rows[0];
    const { min, max } = plot.scales.x;
    const from = plot.over.getBoundingClientRect().left - this.marks.getBoundingClientRect().left;
    const shown = this.series.marks.filter((each) => each.at >= min && each.at <= max).slice(-MARKS_MOST);
    const place = (button, each) => {
      button.style.left = `${from + plot.valToPos(each.at, "x")}px`;
      say(button, GLYPH[each.state] ?? "◇");
      mark(button, "class", `plot-mark ${each.state === "Open" || each.state === "Paged" ? "bad" : ""}`);
      mark(button, "aria-label", `Incident ${each.incident}, ${each.kind}, ${each.state}, ${clock(each.at)}`);
      mark(button, "title", `${each.incident}: ${each.kind}, ${each.state}, ${clock(each.at)}`);
    };
    keep(this.marks, shown, (each) => each.incident, (each) => make("button", { type: "button", onclick: () => this.open(each.incident) }), place);
  }
}

const GLYPH = { Open: "●", Recovered: "✓", Paged: "▲", Observed: "◇" };

/** Times of day under the plots; days, where more than one is seen. */
function times(_, ticks, __, ___, apart) {
  const two = (value) => String(value).padStart(2, "0");
  return ticks.map((at) => {
    const when = new Date(at * 1000);
    if (apart >= 43200) return `${two(when.getMonth() + 1)}-${two(when.getDate())}`;
    const told = `${two(when.getHours())}:${two(when.getMinutes())}`;
    return apart < 60 ? `${told}:${two(when.getSeconds())}` : told;
  });
}

/** Whether anything of a plot is known. */
function isKnown(lines) {
  return lines.some((values) => values.some((each) => each != null));
}

/** The y axis: all of the values and a little air; a flat line stands in the middle. */
function bounds(low, high, fromZero) {
  if (low == null || high == null) return [0, 1];
  const from = fromZero ? 0 : low;
  const air = (high - from) * 0.08 || Math.abs(high) * 0.05 || 1;
  return [fromZero ? 0 : from - air, high + air];
}
