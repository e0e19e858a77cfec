// What the next picture begins with, as a chip: a picture, and what is made anew of it.

import { useRef } from "./vendor/hooks.js";
import { attempt } from "./actions.js";
import { Option, written } from "./fields.js";
import { addFile, dropGiven, dropOther, takeEdited, takeFile } from "./init_picture.js";
import { askFile, receiving } from "./picture_file.js";
import { asked, besides, given, picturesMax, reads, value } from "./state.js";
import { Dropdown, html, Icon, IconButton } from "./ui.js";

/** The chip of the given picture, or the one that takes one. */
export function GivenChips() {
  const found = given.value;
  if (!found) {
    return html`<button type="button" class="chip"
      onClick=${async () => begin(await askFile())}><${Icon} name="add" />Picture</button>`;
  }
  const share = written("strength", value("strength")), count = 1 + besides().length;
  return html`<${Dropdown} className="chip changed with-picture"
    title=${count > 1 ? `The ${count} pictures that are read` : "The picture to begin with"}
    label=${html`<img src=${shown(found.image)} alt="" /><span class="chip-name">${found.mask
      ? "Anew where painted" : reads() ? "Reads" : "Change"}</span> ${
      count > 1 ? `${count} pictures` : share}`}>
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
    ${picturesMax() > 1 && html`<${Besides} />`}
    <${Option} name="strength" />
    ${found.mask && ["mask_blur", "only_masked", ...(value("only_masked") ? ["padding"] : [])]
      .map((name) => html`<${Option} key=${name} name=${name} />`)}<//>`;
}

/** The pictures that a model reads besides the first one, and a place for one more. */
function Besides() {
  const group = useRef(null), found = besides(), most = picturesMax();
  const add = (file) => file && attempt(() => addFile(file));
  const remove = (at) => {
    dropOther(at);
    group.current.focus(); // the button that had it goes
  };
  return html`<div class="besides" role="group" aria-label="Pictures that are read besides"
    tabindex="-1" ref=${group} ...${receiving(add)}>
    ${found.length > 0 && html`<ul>${found.map((each, at) => html`<li key=${at}>
      <img src=${shown(each.image)} alt=${`Picture ${at + 2}`} />
      <${IconButton} icon="trash" label=${`Remove picture ${at + 2}`}
        onClick=${() => remove(at)} /></li>`)}</ul>`}
    ${1 + found.length < most && html`<button type="button" class="secondary"
      onClick=${async () => add(await askFile())}>Add a picture</button>`}
    <p class="help">It reads up to ${most} pictures, and changes the first. Others may be dropped or
      pasted here.</p></div>`;
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
  if (made) takeEdited({ ...made, others: given.value?.others });
});
