// What the next picture begins with, as a chip: a picture, and what is made anew of it.

import { useRef } from "./vendor/hooks.js";
import { attempt } from "./actions.js";
import { Option, written } from "./fields.js";
import { dropGiven, takeEdited, takeFile } from "./init_picture.js";
import { given, value } from "./state.js";
import { Dropdown, html, Icon } from "./ui.js";

/** The chip of the given picture, or the one that takes one. */
export function GivenChips() {
  const file = useRef(null);
  const found = given.value;
  if (!found) {
    return html`<button type="button" class="chip" onClick=${() => file.current.click()}>
      <${Icon} name="add" />Picture</button>
      <input type="file" accept="image/png,image/jpeg,image/webp,image/bmp,image/gif" hidden
        ref=${file} onChange=${(event) => begin(event.target.files[0])} />`;
  }
  const shown = `data:image/png;base64,${found.image}`;
  const share = written("strength", value("strength"));
  return html`<${Dropdown} className="chip changed with-picture" title="The picture to begin with"
    label=${html`<img src=${shown} alt="" /><span class="chip-name">${found.mask
      ? "Anew where painted" : "Change"}</span> ${share}`}>
    <img class="given-picture" src=${shown} alt="The picture to begin with" />
    <${Option} name="strength" />
    ${found.mask && ["mask_blur", "only_masked", "padding"].map((name) =>
      html`<${Option} name=${name} />`)}
    <div class="row">
      <button type="button" class="secondary" onClick=${paint}>Paint or extend</button>
      <button type="button" class="secondary" onClick=${dropGiven}>Remove
      </button></div><//>`;
}

/** Begin the next picture with a file. */
export const begin = (file) => file && attempt(() => takeFile(file));

/** Paint a mask on the given picture, or extend it. */
const paint = () => attempt(async () => {
  const { openEditor } = await import("./editor.js");
  const { image, width, height } = given.value;
  const made = await openEditor({ picture: `data:image/png;base64,${image}`, width, height });
  if (made) takeEdited(made);
});
