// What is seen before there is a picture.

import { about, model } from "./state.js";
import { html, Icon } from "./ui.js";

/** What the model can draw, and how to add a better one. */
export function FirstRun() {
  const told = about.value?.about;
  return html`<div class="welcome">
    <span class="welcome-picture" aria-hidden="true"><${Icon} name="picture" /></span>
    <h2>Your first picture is one click away</h2>
    <p>${told ?? `${model.value?.title ?? "The model"} is ready.`}</p>
    <p class="quiet-text">To add a better model, start Smalti with <code>smalti serve --models
      FOLDER</code>; folders of A1111, Forge and ComfyUI are understood as they are.</p>
  </div>`;
}
