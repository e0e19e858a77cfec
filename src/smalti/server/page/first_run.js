// What is seen before there is a picture: what the model draws, and how to add a better one.

import { create } from "./actions.js";
import { about, model, say } from "./state.js";
import { html, Icon } from "./ui.js";

const OFFERED = 10; // of the things that the model is known to draw

/** Two sentences of the model, and some things to begin with. */
export function FirstRun() {
  const draws = about.value?.draws ?? [];
  const step = Math.max(1, Math.floor(draws.length / OFFERED));
  const offered = draws.filter((_, at) => at % step === 0).slice(0, OFFERED);
  const begin = (thing) => {
    say("prompt", thing);
    create();
  };
  return html`<div class="welcome">
    <span class="welcome-picture" aria-hidden="true"><${Icon} name="picture" /></span>
    <h2>Your first picture is one click away</h2>
    <p>${about.value?.about ?? `${model.value ? `This is ${model.value.title}.` : ""} Write what
      the picture shows, and press Create.`}</p>
    ${offered.length > 0 && html`<div class="words">${offered.map((thing) => html`<button
      type="button" class="chip" onClick=${() => begin(thing)}>${thing}</button>`)}</div>`}
    <p class="quiet-text">Folders of A1111, Forge and ComfyUI are understood as they
      are: <code>smalti serve --models FOLDER</code></p>
  </div>`;
}
