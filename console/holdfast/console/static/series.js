/** The run's figures over time: columns by name, one entry a point, null where unknown; times rise. */

const NAMES = ["at", "step", "tokens_s", "mfu", "loss_min", "loss_median", "loss_max", "grad_norm", "step_s", "wait_share"];
const MOST = 4000;

/** Points at hand, at most MOST: past those, every second one of the older half goes. */
export class Series {
  /** `told` are columns as the console sends them; `marks` are known already. */
  constructor(told = {}, marks = []) {
    const length = (told.at ?? []).length;
    this.columns = Object.fromEntries(NAMES.map((name) => [name, padded(told[name], length)]));
    this.marks = marks;
    for (const { at, incident, kind, state } of told.marks ?? []) {
      if (!marks.some((each) => each.incident === incident)) this.markIncident({ id: incident, kind, state, began_at: at });
    }
  }

  get length() {
    return this.columns.at.length;
  }

  get newestAt() {
    return this.columns.at[this.length - 1] ?? null;
  }

  /** One more point; an older one than the newest, or the same again, changes nothing. Returns whether it did. */
  add(point) {
    if (typeof point.at !== "number" || (this.length && point.at <= this.newestAt)) return false;
    for (const name of NAMES) this.columns[name].push(finite(point[name]));
    if (this.length > MOST) this.thin();
    return true;
  }

  thin() {
    const half = MOST / 2;
    for (const name of NAMES) {
      this.columns[name] = this.columns[name].filter((_, i) => i >= half || i % 2 === 0);
    }
  }

  /** An incident's mark, in place of what was known of it. */
  markIncident({ id, kind, state, began_at: at }) {
    const others = this.marks.filter((each) => each.incident !== id);
    this.marks = [...others, { at, incident: id, kind, state }].sort((a, b) => a.at - b.at);
  }
}

function padded(values, length) {
  return Array.from({ length }, (_, i) => finite(values?.[i]));
}

/** Not finite has no place on an axis: it is a gap there, and an incident's mark says why. */
function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
