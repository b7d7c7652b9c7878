/**
 * What the address of the page names: the job, the incident that is open, and, once, a token.
 *
 * All of it is in the fragment, which no server sees: `#job=ml/llm-70b&incident=inc-12`.
 */

/** The fragment as {job, incident, token}; empty strings for what it does not name. */
export function read(fragment = window.location.hash) {
  const words = new URLSearchParams(fragment.replace(/^#/, ""));
  const get = (name) => words.get(name) ?? "";
  return { job: get("job"), incident: get("incident"), token: get("token") };
}

/** Names job and incident, in place of what the address named; a token is never written. */
export function write({ job, incident }) {
  const words = new URLSearchParams();
  if (job) words.set("job", job);
  if (incident) words.set("incident", incident);
  const fragment = words.toString().replaceAll("%2F", "/");
  window.history.replaceState(null, "", fragment ? `#${fragment}` : window.location.pathname);
}
