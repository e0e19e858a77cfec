// Fields that are made of the JSON Schema of an option: its type, range, default and help.

import { useState } from "./vendor/hooks.js";
import { html, sentence } from "./ui.js";
import { about, asked, differs, given, options, redux, say, taken, usual } from "./state.js";

/** What options are called; others are called by their name. */
const TITLES = {
  apg: "Projected guidance", batch_size: "Pictures", cache: "Step cache", clip_skip: "CLIP skip",
  distilled_guidance: "Distilled guidance", guidance_rescale: "Guidance rescale",
  guidance_scale: "Guidance", guidance_time: "Guidance from, to", hires: "Larger in a second pass",
  eta: "Noise put back (eta)",
  hires_steps: "Second pass: steps", hires_strength: "Second pass: strength",
  hires_upscaler: "Second pass: upscaler", image_guidance: "Picture guidance",
  image: "Picture", negative_prompt: "Negative prompt", noise: "Scheduler",
  only_masked: "Only what is masked",
  refiner_switch: "Refiner from", rng: "Random numbers", skip_guidance: "Skip-layer guidance",
  skip_layers: "Skipped layers", tiling: "Seamless", text_encoders: "Text encoders", vae: "VAE",
  variation_seed: "Variation seed", variation_strength: "Variation",
};
export const title = (name) => TITLES[name] ?? sentence(name).replaceAll("_", " ");

/** Where the slider of a number ends, which is nearer than what is allowed: [from, to, step]. */
const SLIDERS = {
  batch_size: [1, 16, 1], cache: [0, 0.5, 0.01], clip_skip: [1, 4, 1],
  distilled_guidance: [1, 40, 0.5], eta: [0, 1, 0.05],
  guidance_rescale: [0, 1, 0.05], guidance_scale: [1, 20, 0.5],
  height: [64, 2048, 64], hires: [1, 4, 0.25], hires_steps: [1, 60, 1],
  hires_strength: [0.05, 1, 0.05], image_guidance: [0, 5, 0.1], mask_blur: [0, 64, 1],
  padding: [0, 256, 8], redux_pooled: [0, 2, 0.05], refiner_switch: [0, 1, 0.05],
  steps: [1, 60, 1], strength: [0.05, 1, 0.05], token_downsampling: [1, 4, 1],
  variation_strength: [0, 1, 0.05], width: [64, 2048, 64],
};

const SHORT = 12; // letters that a field of a number has room for

/** What an option is where nothing is said, in a few words. */
function usually(name) {
  return (options.value[name]?.usual ?? "").split(";")[0].replaceAll("--", "");
}

/** A value as it stands on a chip. */
export function written(name, value) {
  if (value === null || value === undefined || value === "") {
    return usually(name) || "model's own";
  }
  if (name === "seed") return value === -1 ? "random" : String(value);
  if (value === true) return "on";
  if (value === false) return "off";
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/** An option with its name, its control, what it is for, and the way back to the model's own. */
export function Option({ name, help = true }) {
  const schema = options.value[name];
  if (!schema || !taken(name)) return null;
  const id = `option-${name}`;
  return html`<div class="option">
    <div class="option-head"><label for=${id}>${title(name)}</label>
      ${differs(name) && html`<button type="button" class="quiet small"
        onClick=${() => say(name, null)}>${usual(name) === null ? "Reset"
          : `Reset to ${written(name, usual(name))}`}</button>`}</div>
    <${Control} id=${id} name=${name} schema=${schema} />
    ${help && html`<p class="help" id=${`${id}-help`}>${schema.description} ${beside(schema)}</p>`}
  </div>`;
}

/** That an option counts together with another one only, where that is not said yet. */
export function beside({ needs = [] }) {
  if (!needs.length || needs.some((each) => asked.value[each]
    || (each === "image" && given.value) || (each === "redux" && redux.value.length)
    || (each === "mask" && given.value?.mask))) return "";
  return `It counts together with “${title(needs[0])}” only.`;
}

/** A box to write in. What is being written stays as it is, whatever becomes known meanwhile. */
function Box({ value, onChange, ...more }) {
  const [written, write] = useState(null);
  return html`<input ...${more} value=${written ?? value ?? ""}
    onInput=${(event) => write(event.target.value)} onBlur=${() => write(null)}
    onChange=${(event) => {
      write(null);
      onChange(event);
    }} />`;
}

/** The control for what a schema allows. */
function Control({ id, name, schema }) {
  const value = asked.value[name] ?? usual(name);
  const given = { id, name, schema, value, change: (next) => say(name, next) };
  if (schema.enum) return html`<${Choice} ...${given} names=${schema.enum} />`;
  if (schema.examples) return html`<${Choice} ...${given} names=${schema.examples} open />`;
  if (schema.type === "boolean") return html`<${Switch} ...${given} />`;
  if (schema.type === "integer" || schema.type === "number") {
    return html`<${NumberField} ...${given} />`;
  }
  if (schema.type === "array") return html`<${NumbersField} ...${given} />`;
  if (schema.anyOf) return html`<${SwitchOrNumbers} ...${given} />`;
  return html`<${Box} type="text" id=${id} value=${value} aria-describedby=${`${id}-help`}
    onChange=${(event) => given.change(event.target.value || null)} />`;
}

/** One of some names; where `open`, also what is written: "other" asks for it. */
function Choice({ id, schema, names, value, change, open = false }) {
  const given = value !== null && value !== undefined;
  const [writing, write] = useState(open && given && !names.includes(value));
  const own = schema.default === undefined || schema.default === null;
  if (writing) {
    return html`<span class="row"><${Box} type="text" id=${id} value=${value}
      aria-describedby=${`${id}-help`} onChange=${(event) => change(event.target.value || null)} />
      <button type="button" class="quiet small" onClick=${() => {
        write(false);
        change(null);
      }}>Choose</button></span>`;
  }
  const take = ({ target }) => target.value === OTHER ? write(true) : change(target.value || null);
  return html`<select id=${id} value=${value ?? ""} aria-describedby=${`${id}-help`}
    onChange=${take}>
    ${own && html`<option value="">${schema.usual ?? "the model's own"}</option>`}
    ${schema.default === "" && !names.includes("") && html`<option value="">off</option>`}
    ${names.map((each) => html`<option value=${each}>${each || "off"}</option>`)}
    ${open && html`<option value=${OTHER}>other…</option>`}</select>`;
}

/** The value of a line in a list that is no name. */
const OTHER = "other…";

function Switch({ id, value, change, label }) {
  return html`<span class="switch"><input type="checkbox" role="switch" id=${id}
    checked=${Boolean(value)} aria-label=${label}
    onChange=${(event) => change(event.target.checked)} />
    <span aria-hidden="true">${value ? "on" : "off"}</span></span>`;
}

/** A number that is written, with a slider for what is usual. */
export function NumberField({ id, name, schema, value, change, label }) {
  const least = schema.minimum ?? schema.exclusiveMinimum ?? 0;
  const most = schema.maximum;
  const slider = SLIDERS[name];
  const whole = schema.type === "integer";
  const grid = name === "width" || name === "height" ? about.value?.multiple ?? 1 : 1;
  const take = (event) => {
    const text = event.target.value.trim();
    const number = Number(text);
    const near = whole ? Math.round(number / grid) * grid : number;
    if (text === "") change(null);
    else if (Number.isFinite(number) && near >= least && near <= most) {
      event.target.value = near;
      change(near);
    } else event.target.value = value ?? "";
  };
  return html`<span class="number">
    ${slider && html`<input type="range" min=${slider[0]} max=${slider[1]}
      step=${grid > 1 ? grid : slider[2]}
      value=${value ?? (Number.parseFloat(schema.usual) || slider[0])}
      aria-label=${`${label ?? title(name)}, slider`}
      onInput=${(event) => change(Number(event.target.value))} />`}
    <${Box} type="number" id=${id} min=${least} max=${most} step=${whole ? 1 : "any"}
      inputmode=${whole ? "numeric" : "decimal"} value=${value} aria-label=${label}
      placeholder=${usually(name).length <= SHORT ? usually(name) : ""} onChange=${take} /></span>`;
}

/** Numbers with commas between them. */
function NumbersField({ id, schema, value, change }) {
  const take = (event) => {
    const numbers = event.target.value.split(/[\s,;]+/).filter(Boolean).map(Number);
    change(numbers.length && numbers.every(Number.isFinite) ? numbers : null);
  };
  return html`<${Box} type="text" id=${id} inputmode="decimal" value=${(value ?? []).join(", ")}
    placeholder=${schema.usual ?? "none"} aria-describedby=${`${id}-help`} onChange=${take} />`;
}

/** Off, on, or on with numbers of one's own. */
function SwitchOrNumbers({ id, schema, value, change }) {
  const numbers = Array.isArray(value) ? value : null;
  return html`<span class="switch-or-numbers">
    <${Switch} id=${id} value=${Boolean(value)} change=${(yes) => change(yes ? true : null)} />
    ${value && html`<${NumbersField} id=${`${id}-numbers`} schema=${{ usual: "as is usual" }}
      value=${numbers} change=${(next) => change(next ?? true)} />`}</span>`;
}
