/** What colour each rank has on the map, and what the colours mean. */

import { channels, colour, pixel, ramp } from "./palette.js";
import { extent, GLYPHS, HEALTH, healthCounts, newestStep, UNKNOWN_STEP } from "./ranks.js";
import { number, seconds, whole } from "./wording.js";

const LEVELS = 64;
const RAMP = ["ramp-1", "ramp-2", "ramp-3"];
const PHASES = 9; // as many colours as the style sheet has, phase-0 and on

const solid = (name) => pixel(channels(colour(name)));

/** `{of(rank), glyph(rank), legend}` for a way to colour: `of` is a pixel, a legend entry `{colour, glyph, says, count}` or `{ramp, from, to}`. */
export function colouring(by, ranks, names) {
  return { glyph: (rank) => sign(ranks, rank), ...WAYS[by](ranks, names) };
}

const WAYS = {
  health(ranks) {
    const pixels = HEALTH.map((name) => solid(`health-${name}`));
    const counts = healthCounts(ranks);
    return {
      of: (rank) => pixels[Math.min(ranks.health[rank], 3)],
      legend: [3, 2, 0, 1].map((i) => ({ colour: `health-${HEALTH[i]}`, glyph: GLYPHS[i], says: HEALTH[i], count: counts[i] })),
    };
  },

  phase(ranks, names) {
    const pixels = Array.from({ length: PHASES }, (_, i) => solid(`phase-${i}`));
    const counts = new Map();
    for (const each of ranks.phase) counts.set(each, (counts.get(each) ?? 0) + 1);
    return {
      of: (rank) => pixels[ranks.phase[rank] % PHASES],
      glyph: (rank) => initial(names, ranks.phase[rank]),
      legend: [...counts].sort((a, b) => a[0] - b[0]).map(([phase, count]) => ({
        colour: `phase-${phase % PHASES}`, glyph: initial(names, phase), says: names.phases[phase] ?? "unknown", count,
      })),
    };
  },

  step(ranks) {
    const newest = newestStep(ranks);
    const behind = Float32Array.from(ranks.step, (each) => (each === UNKNOWN_STEP || newest === null ? NaN : newest - each));
    const most = Math.max(1, behind.reduce((a, b) => (b > a ? b : a), 0));
    return scaled(behind, [0, most], (value) => (value === 0 ? `step ${whole(newest)}` : `${whole(value)} behind`));
  },

  time: (ranks) => scaled(ranks.stepS, extent(ranks.stepS), seconds),

  loss: (ranks) => scaled(ranks.loss, extent(ranks.loss), number),
};

/** Of what is fine the rank's number where it has room, of anything else a sign. */
function sign({ n, health }, rank) {
  const state = Math.min(health[rank], 3);
  return state === 1 && n <= 1000 ? String(rank) : GLYPHS[state];
}

/** The first letter of its name that none before it has. */
function initial(names, phase) {
  const taken = new Set();
  for (const name of names.phases) {
    const letter = [...name].find((each) => !taken.has(each)) ?? "?";
    taken.add(letter);
    if (name === names.phases[phase]) return letter.toUpperCase();
  }
  return "?";
}

/** By a number between the lowest and the highest; not finite has a colour of its own. */
function scaled(values, range, say) {
  const unknown = solid("health-unknown");
  const count = values.reduce((n, each) => n + !Number.isFinite(each), 0);
  const none = { colour: "health-unknown", glyph: "?", says: "unknown or not finite", count };
  if (range === null) return { of: () => unknown, legend: [none] };
  const [low, high] = range;
  const levels = ramp(RAMP, LEVELS);
  const size = high - low || 1;
  const level = (value) => Math.min(LEVELS - 1, Math.max(0, Math.floor(((value - low) / size) * (LEVELS - 1))));
  return {
    of: (rank) => (Number.isFinite(values[rank]) ? levels[level(values[rank])] : unknown),
    legend: [{ ramp: RAMP, from: say(low), to: say(high) }, ...(count ? [none] : [])],
  };
}
