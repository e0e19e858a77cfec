// The row under the prompt: what differs from the model's own, the rest behind "more".

import { useState } from "./vendor/hooks.js";
import { fixSeed, stem } from "./actions.js";
import { AdapterChips } from "./adapters.js";
import { ControlsChip } from "./controls.js";
import { beside, NumberField, Option, title, written } from "./fields.js";
import { GivenChips } from "./given.js";
import { OF_REDUX, ReduxChip } from "./redux.js";
import { about, asked, differs, model, ofKind, options, say, sayAll, taken, usual, value }
  from "./state.js";
import { Dialog, Dropdown, html, Icon, IconButton } from "./ui.js";

/** Chips that are always there; others come when they differ from the model's own. */
const FIRST = ["size", "steps", "guidance_scale", "seed", "batch_size"];
/** Options with controls elsewhere: boxes, pictures, and what another chip has. */
const ELSEWHERE = ["prompt", "negative_prompt", "width", "height", "image", "mask", "controls",
  "redux", "loras", "model", "device", "extend"];
/** Options of the picture that is given, which the chip of that picture has. */
const OF_PICTURE = ["strength", "mask_blur", "only_masked", "padding", ...OF_REDUX];
/** Options that one chip has together, under the first of them. */
const TOGETHER = {
  refiner: ["refiner", "refiner_switch"],
  sampler: ["sampler", "noise"],
  hires: ["hires", "hires_upscaler", "hires_strength", "hires_steps"],
  variation_strength: ["variation_strength", "variation_seed"],
  skip_layers: ["skip_layers", "skip_guidance"],
};

/** Titles of the groups that the schema has. */
const GROUPS = { picture: "Picture", steps: "Steps", guidance: "Guidance", text: "Text",
  image: "Given picture", variation: "Variation", larger: "Larger", parts: "Parts of the model" };

/** The row of chips. */
export function Chips() {
  const [more, setMore] = useState(false);
  const others = Object.keys(options.value).filter((name) => !ELSEWHERE.includes(name)
    && !FIRST.includes(name) && !OF_PICTURE.includes(name) && differs(name) && taken(name));
  const shown = new Set(others.map((name) => leader(name)));
  const negative = asked.value.negative_prompt !== undefined;
  return html`<div class="chips" role="group" aria-label="Settings">
    <${SizeChip} />
    ${["steps", "guidance_scale"].map((name) => html`<${Chip} name=${name} />`)}
    <${SeedChip} />
    <${Chip} name="batch_size" />
    ${[...shown].map((name) => html`<${Chip} name=${name} />`)}
    <${AdapterChips} />
    <${GivenChips} />
    <${ControlsChip} />
    <${ReduxChip} />
    <button type="button" class="chip" aria-pressed=${negative} onClick=${() =>
      say("negative_prompt", negative ? null : "")}><${Icon} name=${negative ? "check" : "add"} />
      Negative</button>
    <button type="button" class="chip" aria-haspopup="dialog" onClick=${() => setMore(true)}>
      <${Icon} name="sliders" />More</button>
    ${Object.keys(asked.value).some((name) => differs(name) && name !== "prompt"
      && name !== "model") && html`<button type="button" class="chip" onClick=${reset}>
      Reset</button>`}
    ${more && html`<${More} close=${() => setMore(false)} />`}
  </div>`;
}

/** The chip that has an option. */
function leader(name) {
  const found = Object.entries(TOGETHER).find(([, names]) => names.includes(name));
  return found ? found[0] : name;
}

/** Take back everything but the prompt and the model. */
function reset() {
  const { prompt, model, device, negative_prompt } = asked.value;
  asked.value = { prompt, model, device, negative_prompt };
  sayAll({});
}

/** An option, or several that belong together, as a chip. */
function Chip({ name }) {
  const names = TOGETHER[name] ?? [name];
  const first = names.find((each) => differs(each)) ?? name;
  const changed = names.some((each) => differs(each));
  const text = options.value[name] && model.value ? written(first, value(first)) : "…";
  return html`<${Dropdown} className=${changed ? "chip changed" : "chip"}
    title=${`${title(first)}: ${text}`}
    label=${html`<span class="chip-name">${title(first)}</span> ${text}`}>
    ${names.map((each) => html`<${AnyOption} name=${each} />`)}<//>`;
}

/** The field of an option: a file of a kind, or what its schema allows. */
const AnyOption = ({ name }) => name in KINDS ? html`<${FileOption} name=${name} />`
  : html`<${Option} name=${name} />`;

function SeedChip() {
  const seed = value("seed");
  const random = seed === -1;
  return html`<${Dropdown} className=${random ? "chip" : "chip changed"}
    title=${`Seed: ${written("seed", seed)}`}
    label=${html`<span class="chip-name">Seed</span> ${written("seed", seed)}`}>
    <div class="option"><div class="option-head"><label for="option-seed">Seed</label>
      <button type="button" class="quiet small" onClick=${fixSeed}>
        ${random ? "Keep one" : "Random again"}</button></div>
      <${NumberField} id="option-seed" name="seed" schema=${options.value.seed ?? {}}
        value=${seed} change=${(next) => say("seed", next)} />
      <p class="help">Which noise to start from. The same seed and settings make the same picture;
        −1 draws a new one each time.</p></div>
    <${Option} name="variation_strength" /><//>`;
}

/** Ratios of sides that the size chip offers. */
const RATIOS = [[1, 1], [4, 3], [3, 2], [16, 9]];
const GRID = 64; // pixels that sides of latent models are usually multiples of

function SizeChip() {
  const [width, height] = [value("width"), value("height")];
  const changed = differs("width") || differs("height");
  const text = width && height ? `${width} × ${height}` : "…";
  return html`<${Dropdown} className=${changed ? "chip changed" : "chip"} title=${`Size: ${text}`}
    label=${html`<span class="chip-name">Size</span> ${text}`}>
    <div class="option"><div class="option-head"><span>Shape</span>
      ${changed && html`<button type="button" class="quiet small"
        onClick=${() => sayAll({ width: null, height: null })}>${
        `Reset to ${usual("width")} × ${usual("height")}`}</button>`}</div>
      <div class="shapes">${sizes().map((each) => html`<${Shape} ...${each} />`)}</div></div>
    <div class="sides">
      <${Option} name="width" help=${false} />
      <${IconButton} icon="swap" label="Swap width and height"
        onClick=${() => sayAll({ width: height, height: width })} />
      <${Option} name="height" help=${false} />
    </div><//>`;
}

/** One shape, drawn as it is. */
function Shape({ width, height }) {
  const pressed = value("width") === width && value("height") === height;
  const longest = Math.max(width, height);
  return html`<button type="button" class="shape" aria-pressed=${pressed}
    onClick=${() => sayAll({ width, height })}>
    <span class="shape-drawn" aria-hidden="true" style=${{ width: `${24 * width / longest}px`,
      height: `${24 * height / longest}px` }}></span>${width} × ${height}</button>`;
}

/** Sizes that the model was made for; where they are few, shapes with as many pixels, too. */
function sizes() {
  const told = about.value?.sizes ?? [];
  const [width, height] = [usual("width") ?? 512, usual("height") ?? 512];
  const side = Math.sqrt(width * height);
  const grid = side >= 4 * GRID ? GRID : GRID / 2;
  const near = (pixels) => Math.max(grid, Math.round(pixels / grid) * grid);
  const found = RATIOS.flatMap(([long, short]) => {
    const stretch = Math.sqrt(long / short);
    const [wide, low] = [near(side * stretch), near(side / stretch)];
    return wide === low ? [[wide, low]] : [[wide, low], [low, wide]];
  });
  const all = told.length >= RATIOS.length ? told : [...told, ...found];
  return [...new Map(all.map((each) => [each.join(), each])).values()]
    .map(([wide, high]) => ({ width: wide, height: high }));
}

/** Everything else that decides a picture, in the groups of the schema. */
function More({ close }) {
  const [search, setSearch] = useState("");
  const near = search.toLowerCase();
  const names = Object.keys(options.value).filter((name) => !ELSEWHERE.includes(name)
    && taken(name)
    && `${title(name)} ${name} ${options.value[name].description}`.toLowerCase().includes(near));
  const groups = Map.groupBy(names, (name) => options.value[name].group ?? "parts");
  return html`<${Dialog} title="All settings" close=${close} className="more">
    <input type="search" placeholder="Find a setting" aria-label="Find a setting" value=${search}
      data-first onInput=${(event) => setSearch(event.target.value)} />
    ${[...groups].map(([group, each]) => html`<section class="more-group">
      <h3>${GROUPS[group] ?? group}</h3>
      <div class="more-options">${inOrder(each).map((name) =>
        html`<${AnyOption} name=${name} />`)}</div>
    </section>`)}
    ${names.length === 0 && html`<p class="quiet-text">No setting has “${search}” in its name or in
      what it is for.</p>`}<//>`;
}

/** Options that one chip has together follow the first of them. */
const inOrder = (names) => [...new Set(names.flatMap((name) => TOGETHER[leader(name)] ?? [name]))]
  .filter((name) => names.includes(name));

const KINDS = { vae: "vae", text_encoders: "text-encoder", hires_upscaler: "esrgan",
  refiner: "model" };

/** The files that an option may name: refiners are models of the same family, or made for it. */
function filesFor(name) {
  const own = model.value;
  return ofKind(KINDS[name]).filter((each) => each.usable && (name !== "refiner"
    || (each.name !== own?.name && [own?.family, `${own?.family}-refiner`].includes(each.family))));
}

/** What an option that names files is where nothing is said. */
function ownFiles(name) {
  if (name === "refiner") return "none";
  const beside = [model.value?.[name] ?? []].flat().filter(Boolean).map(stem).join(", ");
  return options.value[name].usual ?? (beside || "the model's own");
}

/** An option that names a file of a kind, or several. */
function FileOption({ name }) {
  const schema = options.value[name];
  const several = schema.type === "array";
  const chosen = several ? asked.value[name] ?? [] : [asked.value[name]].filter(Boolean);
  const room = chosen.length < (schema.maxItems ?? 1);
  const take = (at, file) => {
    const next = [...chosen.slice(0, at), file, ...chosen.slice(at + 1)].filter(Boolean);
    say(name, several ? (next.length ? next : null) : file || null);
  };
  const rows = room ? [...chosen, ""] : chosen;
  return html`<div class="option"><div class="option-head"><label for=${`option-${name}`}>
      ${title(name)}</label></div>
    ${rows.map((file, at) => html`<select id=${at === 0 ? `option-${name}` : undefined} key=${at}
      aria-label=${at === 0 ? undefined : `${title(name)}, ${at + 1}`} value=${file}
      onChange=${(event) => take(at, event.target.value)}>
      <option value="">${at > 0 ? "none" : ownFiles(name)}</option>
      ${filesFor(name).map((each) => html`<option value=${each.name}>${each.name}</option>`)}
      </select>`)}
    <p class="help">${schema.description} ${beside(schema)}</p></div>`;
}
