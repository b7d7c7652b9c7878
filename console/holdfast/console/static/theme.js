/** Dark or light: as the system has it, unless whoever looks chose otherwise. */

import { named, say } from "./element.js";

const KEY = "holdfast-theme";
const CHOICES = ["auto", "light", "dark"];
const root = document.documentElement;

function chosen() {
  const kept = window.localStorage.getItem(KEY);
  return CHOICES.includes(kept) ? kept : "auto";
}

function apply(choice) {
  if (choice === "auto") delete root.dataset.theme;
  else root.dataset.theme = choice;
}

apply(chosen()); // before anything is drawn: index.html holds the first picture back until this module has run

/** The button that goes from one choice to the next; `changed()` is called when colours are other ones. */
export function themeSwitch(changed) {
  const button = named("theme");
  const show = () => say(button, `Theme: ${chosen()}`);
  button.addEventListener("click", () => {
    const next = CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length];
    window.localStorage.setItem(KEY, next);
    apply(next);
    show();
    changed();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  show();
}
