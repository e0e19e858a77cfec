// What the next picture begins with, as a chip: a picture, and what is made anew of it.

import { attempt } from "./actions.js";
import { Option, written } from "./fields.js";
import { dropGiven, takeEdited, takeFile } from "./init_picture.js";
import { askFile } from "./picture_file.js";
import { asked, given, reads, value } from "./state.js";
import { Dropdown, html, Icon } from "./ui.js";

/** The chip of the given picture, or the one that takes one. */
export function GivenChips() {
  const found = given.value;
  if (!found) {
    return html`<button type="button" class="chip"
      onClick=${async () => begin(await askFile())}><${Icon} name="add" />Picture</button>`;
  }
  const share = written("strength", value("strength"));
  return html`<${Dropdown} className="chip changed with-picture" title="The picture to begin with"
    label=${html`<img src=${shown(found.image)} alt="" /><span class="chip-name">${found.mask
      ? "Anew where painted" : reads() ? "Reads" : "Change"}</span> ${share}`}>
    <div class="given">
      <img class="given-picture" src=${shown(found.image)} alt="The picture to begin with" />
      ${found.mask && html`<div class="given-mask" aria-hidden="true"
        style=${{ maskImage: `url(${shown(found.mask)})` }}></div>`}</div>
    <div class="row">
      <button type="button" class="secondary" onClick=${paint}>Paint or extend</button>
      <button type="button" class="secondary" onClick=${dropGiven}>Remove
      </button></div>
    ${reads() && html`<p class="help">This model reads the picture. Say in the prompt what is to
      be different; what is not named stays much as it is.</p>`}
    <${Option} name="strength" />
    ${found.mask && ["mask_blur", "only_masked", ...(value("only_masked") ? ["padding"] : [])]
      .map((name) => html`<${Option} key=${name} name=${name} />`)}<//>`;
}

/** A picture in base64 as an address. */
const shown = (picture) => `data:image/png;base64,${picture}`;

/** Begin the next picture with a file. */
export const begin = (file) => file && attempt(() => takeFile(file));

/** Paint a mask on the given picture, or extend it. */
const paint = () => attempt(async () => {
  const { openEditor } = await import("./editor.js");
  const { image, mask } = given.value;
  const made = await openEditor({ picture: shown(image), mask: mask && shown(mask),
    mask_blur: asked.value.mask_blur, width: value("width"), height: value("height") });
  if (made) takeEdited(made);
});
