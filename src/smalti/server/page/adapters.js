// LoRAs: a chip for each with a slider, and the list to choose from.

import { useState } from "./vendor/hooks.js";
import { stem } from "./actions.js";
import { query } from "./api.js";
import { asked, ofKind, say } from "./state.js";
import { Dropdown, html, Icon, size } from "./ui.js";

const WEIGHTS = [-1, 2, 0.05]; // of the slider: from, to, step; more is written in the prompt

/** A chip for each LoRA that is used, and one to add another, where there is one. */
export function AdapterChips() {
  const used = asked.value.loras ?? [];
  const files = ofKind("lora");
  return html`${used.map((each) => html`<${AdapterChip} key=${each.name} used=${each} />`)}
    ${(files.length > 0 || used.length > 0) && html`<${Dropdown} title="Add a LoRA" wide
      label=${html`<${Icon} name="add" />LoRA`}>${(close) =>
        html`<${Choose} files=${files} close=${close} />`}<//>`}`;
}

function AdapterChip({ used }) {
  const file = ofKind("lora").find((each) => each.name === used.name);
  const words = file?.words ?? [];
  return html`<${Dropdown} className="chip changed" title=${`LoRA ${stem(used.name)}:
    ${used.weight ?? 1}`} label=${html`<span class="chip-name">${stem(used.name)}</span>
    ${(used.weight ?? 1).toFixed(2)}`}>
    <div class="option">
      <div class="option-head"><label for="adapter-weight">${stem(used.name)}</label>
        <button type="button" class="quiet small" onClick=${() => drop(used.name)}>Remove</button>
      </div>
      <span class="number">
        <input type="range" id="adapter-weight" min=${WEIGHTS[0]} max=${WEIGHTS[1]}
          step=${WEIGHTS[2]} value=${used.weight ?? 1}
          onInput=${(event) => weigh(used.name, Number(event.target.value))} />
        <input type="number" step=${WEIGHTS[2]} value=${used.weight ?? 1} aria-label="Weight"
          onChange=${(event) => weigh(used.name, Number(event.target.value) || 0)} /></span>
      <p class="help">How strongly it counts: 0 is not at all, 1 as it was trained.</p>
      ${words.length > 0 && html`<p class="help">Words that it was trained with; a click adds one
        to the prompt:</p><div class="words">${words.map((word) => html`<button type="button"
          class="chip" onClick=${() => addWord(word)}>${word}</button>`)}</div>`}
    </div><//>`;
}

/** The list of LoRAs, with what is near what is written first. */
function Choose({ files, close }) {
  const [search, setSearch] = useState("");
  const used = new Set((asked.value.loras ?? []).map((each) => each.name));
  const found = files.filter((each) => each.name.toLowerCase().includes(search.toLowerCase()));
  return html`<input type="search" placeholder="Find a LoRA" aria-label="Find a LoRA" data-first
      value=${search} onInput=${(event) => setSearch(event.target.value)} />
    <ul class="files">${found.map((each) => html`<li><button type="button" class="file"
      aria-pressed=${used.has(each.name)} disabled=${!each.usable} onClick=${() => {
        if (used.has(each.name)) drop(each.name);
        else say("loras", [...asked.value.loras ?? [], { name: each.name, weight: 1 }]);
        close();
      }}><${FilePicture} file=${each} /><span class="file-text">
        <span class="file-name">${stem(each.name)}</span>
        <span class="quiet-text">${each.usable ? `${each.title}, ${size(each.bytes)}`
          : each.problem}</span></span></button></li>`)}</ul>
    ${found.length === 0 && html`<p class="quiet-text">No LoRA is called so.</p>`}`;
}

/** The picture that lies beside a file of weights, or an icon. */
export function FilePicture({ file, icon = "model" }) {
  if (!file.preview) return html`<span class="file-picture"><${Icon} name=${icon} /></span>`;
  return html`<img class="file-picture" alt="" loading="lazy"
    src=${query("/api/models/preview", { kind: file.kind, name: file.name })} />`;
}

function weigh(name, weight) {
  say("loras", asked.value.loras.map((each) => each.name === name ? { ...each, weight } : each));
}

function drop(name) {
  const left = asked.value.loras.filter((each) => each.name !== name);
  say("loras", left.length ? left : null);
}

function addWord(word) {
  const text = asked.value.prompt ?? "";
  if (!text.includes(word)) say("prompt", text.trim() ? `${text.trim()}, ${word}` : word);
}
