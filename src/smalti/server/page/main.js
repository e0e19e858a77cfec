// The page: what it consists of, and what it hears from the server.

import { render } from "./vendor/preact.js";
import { effect } from "./vendor/signals.js";
import { aboutModel, create, loadModels, loadWaiting, stop } from "./actions.js";
import { get, listen } from "./api.js";
import { Chips } from "./chips.js";
import { DropTarget } from "./drop.js";
import { Gallery, pictureMade, pictureRemoved, reload } from "./gallery.js";
import { Header, toggleHelp } from "./header.js";
import { shortcut } from "./keys.js";
import { PromptBox } from "./prompt.js";
import { Queue } from "./queue.js";
import { Stage, tellProgress } from "./stage.js";
import { about, announced, connected, devices, dropJob, jobs, keepJob, model, noted, options,
  order, paused, refused, running, sheet, theme } from "./state.js";
import { html } from "./ui.js";

function Page() {
  return html`<div class="page" data-sheet=${sheet.value}>
    <${Header} />
    <main class="work">
      <section class="ask" aria-label="What to make">
        <${PromptBox} />
        <${Chips} />
        <${Problem} />
        <${Noted} />
      </section>
      <${Stage} />
    </main>
    ${sheet.value && html`<div class="sheet-veil" onClick=${() => { sheet.value = ""; }} />`}
    <aside class="side" aria-label="Queue and gallery">
      <${Queue} />
      <${Gallery} />
    </aside>
    <${DropTarget} />
    <p class="spoken" role="status" aria-live="polite">${announced}</p>
  </div>`;
}

/** What was refused, where it was asked for. */
function Problem() {
  if (!connected.value) {
    return html`<p class="problem" role="alert">The server does not answer. Is <code>smalti
      serve</code> still running? Trying again…</p>`;
  }
  if (!refused.value) return null;
  return html`<p class="problem" role="alert">${refused.value.message}
    <button type="button" class="quiet" onClick=${() => { refused.value = null; }}>Close</button>
  </p>`;
}

/** What is to be known of what was just done. */
function Noted() {
  if (!noted.value.length) return null;
  return html`<p class="noted">${noted.value.join(" ")}
    <button type="button" class="quiet" onClick=${() => { noted.value = []; }}>Close</button></p>`;
}

/** What the server tells, by the names of its events. */
const HEARD = {
  hello: (told) => {
    jobs.value = new Map(told.jobs.map((each) => [each.id, each]));
    order.value = told.order;
    paused.value = told.paused;
    reload();
  },
  job: keepJob,
  gone: (told) => dropJob(told.id),
  queue: (told) => {
    paused.value = told.paused;
    const places = new Map(told.order.map((id, at) => [id, at + 1]));
    jobs.value = new Map([...jobs.value].map(([id, each]) =>
      [id, { ...each, place: places.get(id) ?? null }]));
    order.value = told.order;
    loadWaiting().catch(unreachable);
  },
  picture: pictureMade,
  removed: (told) => pictureRemoved(told.id),
  models: () => loadModels(),
};

function start() {
  render(html`<${Page} />`, document.getElementById("page"));
  shortcut("Enter", () => create(), { control: true });
  shortcut("Escape", () => stop());
  shortcut("?", toggleHelp);
  effect(() => {
    const chosen = theme.value;
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
  });
  effect(() => {
    document.title = [...running.value.map(percent), "Smalti"].join(" · ");
  });
  effect(() => {
    const name = model.value?.name;
    if (name) aboutModel(name).then((told) => { about.value = told; }, () => {});
  });
  tellProgress();
  listen((name, told) => HEARD[name](told), (yes) => { connected.value = yes; });
  get("/api/options").then((told) => { options.value = told.properties; }, unreachable);
  loadModels().catch(unreachable);
  get("/api/devices").then((told) => { devices.value = told; }, unreachable);
}

/** How far a job is, for those who look at another tab. */
function percent({ progress }) {
  return progress?.steps ? `${Math.round(100 * progress.step / progress.steps)} %` : "Starting";
}

function unreachable(error) {
  refused.value = { message: error.message };
}

start();
