// Pictures that the prompt takes on, as FLUX.1 Redux reads them, as a chip.

import { useRef } from "./vendor/hooks.js";
import { base64 } from "./api.js";
import { PictureField, shown } from "./controls.js";
import { Option } from "./fields.js";
import { readPicture } from "./picture_file.js";
import { announced, options, redux, taken } from "./state.js";
import { Dropdown, html, Icon, IconButton } from "./ui.js";

/** Options of these pictures, which their chip has. */
export const OF_REDUX = ["redux_strength", "redux_bias", "redux_pooled", "redux_sum"];
/** The most that a request may give. */
const PICTURES_MAX = 10;

/** The chip; none where the model reads no pictures so, or Redux is not beside it. */
export function ReduxChip() {
  const used = redux.value;
  if (!options.value.redux || !taken("redux")) return null;
  const label = used.length === 0 ? html`<${Icon} name="add" />Redux` :
    html`<img src=${shown(used[0])} alt="" /><span class="chip-name">Redux</span> ${used.length}`;
  return html`<${Dropdown} className=${used.length ? "chip changed with-picture" : "chip"}
    title="Pictures that the prompt takes on" label=${label} wide><${Pictures} /><//>`;
}

/** Each picture, a place for one more, and how strongly they count. */
function Pictures() {
  const group = useRef(null);
  const add = async (file) => {
    redux.value = [...redux.value, await base64((await readPicture(file)).blob)];
    announced.value = `Picture ${redux.value.length} is added`;
  };
  const remove = (at) => {
    redux.value = redux.value.filter((_, each) => each !== at);
    announced.value = `Picture ${at + 1} is removed`;
    group.current.focus(); // the button that had it goes
  };
  return html`<div class="besides" role="group" tabindex="-1" ref=${group}
    aria-label="Pictures that the prompt takes on">
    <p class="help">${options.value.redux.description}</p>
    ${redux.value.length > 0 && html`<ul>${redux.value.map((each, at) => html`<li key=${at}>
      <img src=${shown(each)} alt=${`Picture ${at + 1}`} />
      <${IconButton} icon="trash" label=${`Remove picture ${at + 1}`}
        onClick=${() => remove(at)} /></li>`)}</ul>`}
    ${redux.value.length < PICTURES_MAX && html`<${PictureField} take=${add} label="" />`}
    ${redux.value.length > 0 && OF_REDUX.map((name) =>
      html`<${Option} key=${name} name=${name} />`)}</div>`;
}
