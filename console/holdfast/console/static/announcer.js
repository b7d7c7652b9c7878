/** What a screen reader is told of, beside what has focus; and the title, which shows in another tab. */

import { named, say } from "./element.js";
import { count } from "./wording.js";

/** Says a sentence once. The same one again is heard again. */
export function announce(sentence) {
  const place = named("announcer");
  place.textContent = "";
  window.setTimeout(() => say(place, sentence), 50);
}

/** `2 open · Recovering · ml/llm`: what is wrong stands first, for a tab is narrow. */
export function title(job, phase, open, isStale) {
  const parts = [isStale && "stale", open > 0 && count(open, "open incident"), phase, job, "Holdfast"];
  const told = parts.filter(Boolean).join(" · ");
  if (document.title !== told) document.title = told;
}
