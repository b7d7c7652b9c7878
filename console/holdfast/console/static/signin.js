/** Asks for a token where the console wants one. It is kept in this tab only. */

import { token } from "./console.js";
import { named, say } from "./element.js";

/** `entered()` is called once there is one. */
export function signIn(entered) {
  const panel = named("sign-in");
  const input = named("token");
  named("sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim() === "") return;
    token.set(input.value);
    input.value = "";
    entered();
  });
  named("sign-out").addEventListener("click", () => {
    token.forget();
    window.location.reload();
  });
  named("sign-out").hidden = token.get() === "";
  return {
    show(why) {
      const isFirst = panel.hidden;
      say(named("sign-in-why"), token.get() ? why : "");
      panel.hidden = false;
      if (isFirst) input.focus();
    },
    hide() {
      panel.hidden = true;
      named("sign-out").hidden = token.get() === "";
    },
  };
}
