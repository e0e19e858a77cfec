// The line at the top: model, device, light or dark, help; on phones the way to queue and gallery.

import { signal } from "./vendor/signals.js";
import { useState } from "./vendor/hooks.js";
import { refreshModels, setTheme, stem } from "./actions.js";
import { FilePicture } from "./adapters.js";
import { CONTROL } from "./keys.js";
import { asked, devices, jobs, model, models, ofKind, say, sheet, theme } from "./state.js";
import { Dialog, Dropdown, html, Icon, IconButton, size } from "./ui.js";

const helped = signal(false);

/** Show the keys, or hide them. */
export function toggleHelp() {
  helped.value = !helped.value;
}

export function Header() {
  const busy = [...jobs.value.values()].filter((each) =>
    each.state === "queued" || each.state === "running").length;
  const open = (name) => () => { sheet.value = sheet.value === name ? "" : name; };
  return html`<header class="header">
    <h1 class="name"><img src="/page/icon.svg" alt="" />Smalti</h1>
    <${ModelChip} />
    <${DeviceChip} />
    <span class="spring"></span>
    <span class="only-narrow">
      <button type="button" class="icon-button" aria-label=${`Queue, ${busy} jobs`} title="Queue"
        aria-expanded=${sheet.value === "queue"} onClick=${open("queue")}><${Icon} name="queue" />
        ${busy > 0 && html`<span class="badge">${busy}</span>`}</button>
      <button type="button" class="icon-button" aria-label="Gallery" title="Gallery"
        aria-expanded=${sheet.value === "gallery"} onClick=${open("gallery")}>
        <${Icon} name="gallery" /></button>
    </span>
    <${ThemeChip} />
    <${IconButton} icon="help" label="Help and keys" onClick=${toggleHelp} />
    ${helped.value && html`<${Help} />`}
  </header>`;
}

function ModelChip() {
  const wanted = asked.value.model;
  const gone = wanted && models.value.length > 0 && model.value?.name !== wanted;
  const name = gone ? `${stem(wanted)} is not here` : model.value ? nameOf(model.value) : "…";
  return html`<${Dropdown} className=${gone ? "chip danger" : "chip plain"}
    title=${`Model: ${name}`} wide
    label=${html`<${Icon} name="model" /><span class="cut">${name}</span><${Icon} name="down" />`}>
    ${(close) => html`<${ChooseModel} close=${close} />`}<//>`;
}

/** What people call a model: the name of its file. */
const nameOf = (file) => stem(file.name);

/** What a model is, and which other files bring what its own lacks. */
function toldOf(file) {
  const beside = [...file.text_encoders ?? [], file.vae].filter(Boolean).map(stem);
  return [file.title, size(file.bytes), beside.length ? `with ${beside.join(", ")}` : ""]
    .filter(Boolean).join(", ");
}

function ChooseModel({ close }) {
  const [search, setSearch] = useState("");
  const found = ofKind("model").filter((each) =>
    `${each.name} ${each.title}`.toLowerCase().includes(search.toLowerCase()));
  const unknown = models.value.filter((each) => each.kind === "unknown").length;
  return html`<div class="row"><input type="search" placeholder="Find a model" data-first
      aria-label="Find a model" value=${search}
      onInput=${(event) => setSearch(event.target.value)} />
      <${IconButton} icon="again" label="Look for new files" onClick=${refreshModels} /></div>
    <ul class="files">${found.map((each) => html`<li><button type="button" class="file"
      aria-pressed=${each.name === model.value?.name} disabled=${!each.usable} onClick=${() => {
        say("model", each.name === ofKind("model")[0].name ? null : each.name);
        close();
      }}><${FilePicture} file=${each} /><span class="file-text">
        <span class="file-name">${nameOf(each)}</span>
        <span class="quiet-text">${each.usable ? toldOf(each) : each.problem}</span></span>
      </button></li>`)}</ul>
    <p class="help">${unknown > 0 && `${unknown} more files are of no known kind. `}Add models by
      starting Smalti with <code>smalti serve --models FOLDER</code>; folders of A1111, Forge and
      ComfyUI are understood.</p>`;
}

/** What the precisions of `smalti serve --precision` are. */
const PRECISIONS = {
  auto: "as the device does best, 32 bits on a CPU and 16 on a GPU (--precision auto)",
  f32: "32 bits (--precision f32)", f16: "16 bits (--precision f16)",
  bf16: "16 bits of a wide range (--precision bf16)",
  int8: "8 bits in large products, faster and a little different (--precision int8)",
};

const deviceOf = (id) => devices.value.devices.find((each) => each.id === id);

/** A device by its name; several, with a part of the model each, by what each one does. */
function named(place) {
  const [others, ...parts] = place.split(",");
  const name = (id) => deviceOf(id)?.name ?? id;
  if (!parts.length) return name(others);
  return [name(others), ...parts.map((each) => {
    const [part, id] = each.split("=");
    return `${part.replace("_", " ")} on ${name(id)}`;
  })].join(", ");
}

/** What is known of a device in a few words: its memory, where it has its own, and its cores. */
function ofDevice(id) {
  const found = deviceOf(id);
  if (!found) return [];
  return [found.kind === "cpu" ? `${found.cores} cores` : `${size(found.memory_bytes)} of memory`];
}

function DeviceChip() {
  const working = devices.value.working;
  const { precision = "auto", memory, gpu_memory: ofGpus } = devices.value.loading ?? {};
  const limits = [memory && `${memory} of main memory`, ofGpus && `${ofGpus} of that of GPUs`]
    .filter(Boolean).join(", ");
  if (!working.length) return null;
  const now = asked.value.device;
  const text = now ? named(now) : working.length > 1 ? "any device" : named(working[0]);
  return html`<${Dropdown} className="chip plain device" title=${`Device: ${text}`}
    label=${html`<${Icon} name="device" /><span class="cut">${text}</span>`}>
    ${(close) => html`<ul class="files">${[null, ...working].map((id) =>
      (id || working.length > 1) && html`<li><button type="button" class="file"
        aria-pressed=${(now ?? (working.length > 1 ? null : id)) === id} onClick=${() => {
          say("device", working.length > 1 ? id : null);
          close();
        }}><span class="file-text"><span class="file-name">${id ? named(id) : "Any device"}</span>
          <span class="quiet-text">${id ? [id, ...ofDevice(id)].join(", ")
            : "whichever is free"}</span></span></button></li>`)}</ul>
    <p class="help">Numbers: ${PRECISIONS[precision] ?? precision}. ${limits
      && `Models may take ${limits}. `}Others are added with <code>smalti serve --device
      ID</code>; <code>smalti devices</code> lists them.</p>`}<//>`;
}

const THEMES = { system: "As the system", light: "Light", dark: "Dark" };

function ThemeChip() {
  return html`<${Dropdown} className="icon-button" title="Light or dark"
    label=${html`<${Icon} name="theme" />`}>${(close) => html`<ul class="files">
      ${Object.entries(THEMES).map(([name, text]) => html`<li><button type="button" class="file"
        aria-pressed=${theme.value === name} onClick=${() => {
          setTheme(name);
          close();
        }}>${text}</button></li>`)}</ul>`}<//>`;
}

const KEYS = [
  [[CONTROL, "Enter"], "create a picture"], [["Esc"], "stop the picture that is made"],
  [["←", "→"], "newer and older pictures"], [["A"], "again, with other noise"],
  [["D"], "a little different"], [["F"], "mark as favourite"], [["/"], "search the gallery"],
  [["?"], "this help"],
];
const WRITING = [
  ["(word:1.3)", "counts 1.3 times as much; (word) 1.1 times, [word] less"],
  ["[cat:dog:0.5]", "a dog from half of the steps on"],
  ["[cat|dog]", "one and the other in turns"],
  ["<lora:name:0.8>", "a LoRA, as strong as 0.8"],
  ["red BREAK blue", "two parts that are read each for itself"],
];

/** Keys, how prompts are written, and where to read more. */
function Help() {
  return html`<${Dialog} title="Help" close=${toggleHelp}>
    <h3>Keys</h3>
    <dl class="keys">${KEYS.map(([keys, text]) => html`<dt>${keys.map((key) =>
      html`<kbd>${key}</kbd> `)}</dt><dd>${text}</dd>`)}</dl>
    <h3>In the prompt</h3>
    <dl class="keys">${WRITING.map(([sample, text]) => html`<dt><code>${sample}</code></dt>
      <dd>${text}</dd>`)}</dl>
    <h3>Settings of a picture</h3>
    <p>Every picture carries its settings. Drop a PNG of Smalti, A1111 or ComfyUI anywhere on this
      page to take them over.</p><//>`;
}
