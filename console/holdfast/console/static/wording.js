/** Figures and times in words, as the commands of `holdfast` have them. Unknown is a question mark. */

export const UNKNOWN = "?";

const digits = (value, most) => Number(value).toLocaleString("en", { maximumSignificantDigits: most });

/** A number to `most` digits; one that is not finite by its name. */
export function number(value, most = 5) {
  if (value == null) return UNKNOWN;
  if (typeof value === "string") return value;
  return Number.isFinite(value) ? digits(value, most) : Number.isNaN(value) ? "nan" : "inf";
}

/** A whole number with all of its digits. */
export function whole(value) {
  return value == null ? UNKNOWN : Number(value).toLocaleString("en", { maximumFractionDigits: 0 });
}

/** A large number in few characters: 12.4k, 3.1M. */
export function short(value) {
  if (value == null) return UNKNOWN;
  return Number(value).toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
}

/** A share in percent. */
export function percent(value, places = 1) {
  return value == null ? UNKNOWN : `${(100 * value).toFixed(places)}%`;
}

/** A length of time to three digits. */
export function seconds(value) {
  if (value == null) return UNKNOWN;
  if (value < 0.9995) return `${digits(value * 1000, 3)} ms`;
  if (value < 600) return `${digits(value, 3)} s`;
  return long(value);
}

/** A long time in its two largest units: 3 d 4 h. */
export function long(value) {
  if (value == null) return UNKNOWN;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.max(0, Math.round(value));
  const told = [];
  for (const [unit, length] of units) {
    const count = Math.floor(left / length);
    if (told.length === 1 || count > 0) told.push(count > 0 ? `${count} ${unit}` : "");
    left -= count * length;
    if (told.length === 2) break;
  }
  return told.filter(Boolean).join(" ") || "0 s";
}

/** How long ago, to the second. */
export function ago(value) {
  return value == null ? UNKNOWN : `${long(value)} ago`;
}

/** A moment (unix seconds) as local time of day; with its day when that is not today. */
export function clock(at, now = Date.now() / 1000) {
  if (at == null) return UNKNOWN;
  const when = new Date(at * 1000);
  const time = when.toLocaleTimeString("en-GB");
  const today = new Date(now * 1000).toDateString() === when.toDateString();
  return today ? time : `${when.toLocaleDateString("en-CA")} ${time}`;
}

/** Seconds since something began, signed: +1.250 s. Long ones lose their decimals. */
export function offset(value) {
  const size = Math.abs(value);
  const told = size < 100 ? `${size.toFixed(2)} s` : long(size);
  return `${value < 0 ? "−" : "+"}${told}`;
}

/** An amount of money an hour; without a known currency the bare number. */
export function money(value, currency) {
  if (value == null) return UNKNOWN;
  const amount = Number(value).toLocaleString("en", { maximumSignificantDigits: value < 10 ? 3 : 4 });
  return currency ? `${amount} ${currency}/h` : `${amount} an hour`;
}

/** `1 node`, `3 nodes`. */
export function count(many, one, more = `${one}s`) {
  return `${whole(many)} ${many === 1 ? one : more}`;
}

/** `0-3, 8, 10-11` for whole numbers in rising order. */
export function ranges(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length; i += 1) {
    const from = numbers[i];
    while (numbers[i + 1] === numbers[i] + 1) i += 1;
    parts.push(from === numbers[i] ? `${from}` : `${from}-${numbers[i]}`);
  }
  return parts.join(", ");
}
