// How a picture was made: every setting that it carries, each to be used again.

import { useEffect, useState } from "./vendor/hooks.js";
import { carried, requestOf, shortOf, useAll, useOne } from "./actions.js";
import { title, written } from "./fields.js";
import { options } from "./state.js";
import { html, IconButton } from "./ui.js";

/** Beside the picture: its prompt and settings; "use" takes over all of them, or one. */
export function SettingsOf({ picture, close }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let current = true;
    Promise.all([carried(picture), requestOf(picture)]).then(
      ([{ told }, wanted]) => current && setFound({ told, wanted: { ...told.options, ...wanted } }),
      (error) => current && setProblem(error.message));
    return () => { current = false; };
  }, [picture.id]);
  return html`<aside class="settings" aria-label="Settings of this picture">
    <header class="row"><h2>Settings</h2><span class="spring"></span>
      ${found && html`<button type="button" class="secondary"
        onClick=${() => useAll(found.wanted)}>Use all</button>`}
      <${IconButton} icon="close" label="Close settings" onClick=${close} /></header>
    ${problem && html`<p class="problem">${problem}</p>`}
    ${found && html`<${Lines} picture=${picture} wanted=${found.wanted} told=${found.told} />`}
  </aside>`;
}

/** Settings that lie elsewhere in the list, or say nothing. */
const NOT_LISTED = ["prompt", "negative_prompt", "height", "image", "mask", "controls", "redux",
  "loras"];

/** Whether a setting is what it is where nothing is said, so that it says nothing. */
const isUsual = (name, value) => value === null || value === ""
  || JSON.stringify(value) === JSON.stringify(options.value[name]?.default);

function Lines({ picture, wanted, told }) {
  const names = Object.keys(wanted).filter((name) => !NOT_LISTED.includes(name)
    && !isUsual(name, wanted[name]));
  const line = (name, text) => html`<div class="setting"><dt>${name === "width" ? "Size"
    : title(name)}</dt><dd>${text}</dd><button type="button" class="quiet small"
    aria-label=${`Use ${title(name)}`} onClick=${() => useOne(wanted, name)}>Use</button></div>`;
  return html`<dl>
    ${line("prompt", wanted.prompt)}
    ${wanted.negative_prompt && line("negative_prompt", wanted.negative_prompt)}
    ${wanted.loras?.length > 0 && line("loras", wanted.loras.map((each) =>
      `${each.name} ${each.weight ?? 1}`).join(", "))}
    ${names.map((name) => line(name, name === "width"
      ? `${wanted.width} × ${wanted.height}` : written(name, wanted[name])))}
    <div class="setting"><dt>Made</dt><dd>${new Date(picture.created * 1000).toLocaleString()}</dd>
    </div>
    ${told.precision && html`<div class="setting"><dt>Precision</dt><dd>${told.precision}</dd>
    </div>`}
  </dl>
  ${shortOf(told).map((text) => html`<p class="help">${text}</p>`)}
  <details><summary>As text</summary><pre>${told.text}</pre></details>`;
}
