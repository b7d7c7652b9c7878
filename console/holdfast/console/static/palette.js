/** The colours of the style sheet, for what is drawn on a canvas: a name there is a custom property. */

const probe = document.createElement("span");
probe.hidden = true;

const known = new Map();

/** The colours are other ones now. */
export function forget() {
  known.clear();
}

/** `--name` of the style sheet as the browser resolves it, `rgb(…)`. */
export function colour(name) {
  if (!known.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

const canvas = document.createElement("canvas");
canvas.width = canvas.height = 1;
const context = canvas.getContext("2d", { willReadFrequently: true });

/** `[red, green, blue]` of a colour as CSS writes it. */
export function channels(css) {
  context.fillStyle = css;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

/** `colour(name)` as a pixel of an ImageData that is seen as Uint32Array on a little-endian machine. */
export function pixel([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** `steps` pixels from the first of `names` to the last, evenly over all of them. */
export function ramp(names, steps) {
  const stops = names.map((name) => channels(colour(name)));
  return Uint32Array.from({ length: steps }, (_, at) => {
    const place = (at / (steps - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const share = place - low;
    return pixel(stops[low].map((from, i) => Math.round(from + share * (stops[low + 1][i] - from))));
  });
}
