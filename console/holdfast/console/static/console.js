/** The line to the console's service: who asks, what is asked, and why it was refused. */

const TOKEN = "holdfast-token";
const WITHIN_MS = 10000;

/** An answer that is no: `status` of HTTP, and one sentence. `status` 0: there was no answer. */
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The token of this tab; it ends with the tab. */
export const token = {
  get: () => window.sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => window.sessionStorage.setItem(TOKEN, value.trim()),
  forget: () => window.sessionStorage.removeItem(TOKEN),
};

/** `api/v1/jobs/NAMESPACE/NAME/more`, whatever characters the job's name has. */
export function pathOf(job, more = "") {
  const [namespace, ...name] = job.split("/");
  const path = `api/v1/jobs/${encodeURIComponent(namespace)}/${encodeURIComponent(name.join("/"))}`;
  return more ? `${path}/${more}` : path;
}

function headers(more = {}) {
  const own = token.get();
  return own ? { ...more, Authorization: `Bearer ${own}` } : more;
}

/** The raw response. Throws Refused; an abort by the caller's `signal` is thrown as it is. */
export async function open(path, { method = "GET", body, signal } = {}) {
  const asked = { method, signal, headers: headers(body ? { "Content-Type": "application/json" } : {}), cache: "no-store" };
  if (body) asked.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, asked);
  } catch (error) {
    if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw error;
    throw new Refused(0, "The console does not answer.");
  }
  if (!response.ok) throw new Refused(response.status, await sentenceOf(response));
  return response;
}

async function sentenceOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const told = JSON.parse(text);
    const said = told.error ?? told.detail;
    if (typeof said === "string" && said) return said;
  } catch {
    // No JSON: a proxy between us and the console answered.
  }
  return `The console answered ${response.status}${response.statusText ? ` (${response.statusText})` : ""}.`;
}

/** JSON of `path`, within ten seconds unless said otherwise. Throws Refused. */
export async function ask(path, { signal, withinMs = WITHIN_MS, ...more } = {}) {
  const limit = AbortSignal.timeout(withinMs);
  const response = await open(path, { ...more, signal: signal ? AbortSignal.any([signal, limit]) : limit });
  return read(() => response.json());
}

/** The bytes of `path`. Throws Refused. */
export async function bytes(path, { signal } = {}) {
  const response = await open(path, { signal });
  return read(() => response.arrayBuffer());
}

async function read(content) {
  try {
    return await content();
  } catch {
    throw new Refused(0, "The console's answer broke off or is not understood.");
  }
}
