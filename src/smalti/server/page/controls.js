// ControlNets as a chip: which, what picture each reads, how strongly it counts, from when to when.

import { useState } from "./vendor/hooks.js";
import { base64 } from "./api.js";
import { stem } from "./actions.js";
import { askFile, PictureError, readPicture, receiving } from "./picture_file.js";
import { controls, ofKind, steers } from "./state.js";
import { Dropdown, html, Icon, IconButton } from "./ui.js";

/** What a ControlNet is asked for at first. */
const CONTROL = { strength: 1, start: 0, end: 1, edges: false };
/** Beyond this strength a ControlNet leaves nothing to the prompt. */
const STRENGTH_MAX = 2;

/** A picture in base64 as the address of an `img`. */
export const shown = (picture) => `data:image/png;base64,${picture}`;

/**
 * A place for one picture: it is opened, dropped or pasted here. `take` gets the file, and what is
 * wrong with it is said beneath.
 */
export function PictureField({ picture, label, take }) {
  const [said, say] = useState("");
  const taken = async (file) => {
    try {
      await take(file);
      say("");
    } catch (error) {
      if (!(error instanceof PictureError)) throw error;
      say(error.message);
    }
  };
  const open = async () => {
    const file = await askFile();
    if (file) taken(file);
  };
  return html`<div class="picker-field" ...${receiving(taken)}>
    ${picture && html`<img class="picker-picture" src=${shown(picture)} alt=${label} />`}
    <div class="picker-actions">
      <button type="button" class="secondary" onClick=${open}>
        ${picture ? "Another…" : "Open a picture…"}</button>
    </div>
    ${!picture && html`<p class="help">Or drop or paste one here.</p>`}
    ${said && html`<p class="picker-said" role="alert">${said}</p>`}
  </div>`;
}

/** The chip of the ControlNets; none where no ControlNet in the folders fits the model. */
export function ControlsChip() {
  const models = ofKind("controlnet").filter((each) => each.usable && steers(each.name));
  const used = controls.value;
  if (models.length === 0 && used.length === 0) return null;
  const label = used.length === 0 ? html`<${Icon} name="add" />ControlNet` :
    html`<img src=${shown(used[0].picture)} alt="" /><span class="chip-name">ControlNet</span>
      ${used.length === 1 ? stem(used[0].model) : used.length}`;
  return html`<${Dropdown} className=${used.length ? "chip changed with-picture" : "chip"}
    title="ControlNets" label=${label} wide><${Controls} models=${models} /><//>`;
}

/** Each ControlNet, and a place for the picture of another one. */
function Controls({ models }) {
  const change = (at, values) => {
    controls.value = controls.value.map((each, number) =>
      number === at ? { ...each, ...values } : each);
  };
  const remove = (at) => {
    controls.value = controls.value.filter((_, number) => number !== at);
  };
  const add = async (file) => {
    const picture = await base64((await readPicture(file)).blob);
    controls.value = [...controls.value, { model: models[0].name, picture, ...CONTROL }];
  };
  const names = models.map((each) => each.name);
  return html`<div class="picker">
    ${controls.value.map((each, at) => html`<${ControlCard} key=${at} control=${each}
      models=${names} change=${(values) => change(at, values)} remove=${() => remove(at)} />`)}
    ${models.length > 0 && html`<${PictureField} take=${add} label="" />`}
  </div>`;
}

function ControlCard({ control, models, change, remove }) {
  const take = async (file) => change({ picture: await base64((await readPicture(file)).blob) });
  const fits = models.includes(control.model);
  return html`<section class="picker-control" aria-label=${`ControlNet ${control.model}`}>
    <div class="picker-row">
      <select aria-label="ControlNet" value=${control.model}
        onChange=${(event) => change({ model: event.target.value })}>
        ${(fits ? models : [control.model, ...models]).map((each) =>
          html`<option value=${each}>${each}</option>`)}</select>
      <${IconButton} icon="trash" label="Remove this ControlNet" onClick=${remove} />
    </div>
    ${!fits && html`<p class="picker-said" role="alert">
      It does not fit the model: choose another one, or remove it.</p>`}
    <${PictureField} picture=${control.picture} label="What the ControlNet reads" take=${take} />
    <${Slider} label="Strength" value=${control.strength} high=${STRENGTH_MAX}
      set=${(strength) => change({ strength })} />
    <${Slider} label="From" value=${control.start} high="1"
      set=${(start) => change({ start, end: Math.max(start, control.end) })} />
    <${Slider} label="To" value=${control.end} high="1"
      set=${(end) => change({ end, start: Math.min(end, control.start) })} />
    <label class="picker-row"><input type="checkbox" checked=${control.edges}
      onChange=${(event) => change({ edges: event.target.checked })} />
      Read the edges of the picture</label>
  </section>`;
}

function Slider({ label, value, high, set }) {
  return html`<label class="picker-row"><span class="picker-label">${label}</span>
    <input type="range" min="0" max=${high} step="0.05" value=${value}
      onInput=${(event) => set(Number(event.target.value))} />
    <output>${value.toFixed(2)}</output></label>`;
}
