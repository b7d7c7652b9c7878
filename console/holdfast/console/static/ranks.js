/**
 * What is known of every rank now, as columns: `node` (its place in `names.nodes`), `step`, `phase` (its place in
 * `names.phases`), `health`, `stepS` (seconds), `loss`. A number that is not known is NaN, a step that is not UNKNOWN_STEP.
 */

const VERSION = 1;
export const UNKNOWN_STEP = 0xffffffff;
export const HEALTH = ["unknown", "fine", "suspect", "faulty"];
export const GLYPHS = ["?", "·", "!", "×"];
const SAMPLED = 5000; // values that say where almost all lie
const WORST_FIRST = [1, 0, 2, 3]; // by health: what is unknown comes after what is suspect, before what is fine

/** The columns in `buffer`. Throws an Error that says what to do when they are of another version. */
export function decode(buffer) {
  const head = new DataView(buffer);
  const version = head.getUint32(0, true);
  if (version !== VERSION) throw new Error(`The console sends ranks in version ${version}, this page reads ${VERSION}: reload it.`);
  const n = head.getUint32(4, true);
  const floats = 8 + 10 * n + ((4 - ((8 + 10 * n) % 4)) % 4);
  if (buffer.byteLength < floats + 8 * n) throw new Error("The console's answer about ranks broke off.");
  return {
    n,
    node: new Uint32Array(buffer, 8, n),
    step: new Uint32Array(buffer, 8 + 4 * n, n),
    phase: new Uint8Array(buffer, 8 + 8 * n, n),
    health: new Uint8Array(buffer, 8 + 9 * n, n),
    stepS: new Float32Array(buffer, floats, n),
    loss: new Float32Array(buffer, floats + 4 * n, n),
  };
}

/** No rank at all. */
export function none() {
  return decode(new Uint32Array([VERSION, 0]).buffer);
}

/** How many ranks have each health, in the order of HEALTH. */
export function healthCounts({ health }) {
  const counts = [0, 0, 0, 0];
  for (const each of health) counts[Math.min(each, 3)] += 1;
  return counts;
}

/** The highest step that any rank has completed; null when none is known. */
export function newestStep({ step }) {
  let newest = -1;
  for (const each of step) if (each !== UNKNOWN_STEP && each > newest) newest = each;
  return newest < 0 ? null : newest;
}

/** `[lowest, highest]` of the values that are finite, without the outermost hundredth; null when there are none. */
export function extent(values) {
  const stride = Math.max(1, Math.floor(values.length / SAMPLED));
  const known = values.filter((each, i) => i % stride === 0 && Number.isFinite(each)).sort();
  if (known.length === 0) return null;
  const cut = known.length > 200 ? Math.floor(known.length / 100) : 0;
  return [known[cut], known[known.length - 1 - cut]];
}

/** The `most` ranks that a person should look at first: by health, then steps behind, then step time. */
export function worst(ranks, most) {
  const newest = newestStep(ranks) ?? 0;
  const found = []; // [score, rank], the worst first
  for (let rank = 0; rank < ranks.n; rank += 1) {
    const score = badness(ranks, rank, newest);
    if (found.length === most && score <= found[most - 1][0]) continue;
    let at = found.length;
    while (at > 0 && score > found[at - 1][0]) at -= 1;
    found.splice(at, 0, [score, rank]);
    if (found.length > most) found.pop();
  }
  return found.map(([, rank]) => rank);
}

function badness({ health, step, stepS }, rank, newest) {
  const behind = step[rank] === UNKNOWN_STEP ? 0 : Math.min(newest - step[rank], 9999);
  const slow = Number.isFinite(stepS[rank]) ? Math.min(stepS[rank], 9999) / 10000 : 0;
  return WORST_FIRST[Math.min(health[rank], 3)] * 10000 + behind + slow;
}
