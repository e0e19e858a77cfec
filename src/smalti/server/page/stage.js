// The picture, as large as fits: the one that is chosen, is made, or was made last.

import { computed, effect } from "./vendor/signals.js";
import { useEffect, useState } from "./vendor/hooks.js";
import { again, cancel, change, different, edit, enlarge, larger, retry, stem }
  from "./actions.js";
import { query } from "./api.js";
import { FirstRun } from "./first_run.js";
import { pictures, setFavourite, takeAway } from "./gallery.js";
import { shortcut } from "./keys.js";
import { SettingsOf } from "./settings_of.js";
import { announced, asking, chosen, followed, jobs, ofKind, paused, running, sheet, usual }
  from "./state.js";
import { Bar, clock, Dropdown, html, Icon, IconButton, sentence } from "./ui.js";

/** What the stage shows: `{job}`, `{picture}`, or nothing of both. */
export const shown = computed(() => {
  if (chosen.value) return { picture: chosen.value, job: jobs.value.get(chosen.value.job) };
  if (asking.value) return { job: { state: "asking", request: asking.value }, picture: null };
  const own = jobs.value.get(followed.value);
  const made = running.value.at(-1);
  const job = own && (own.state !== "queued" || !made) ? own : made;
  if (job?.state === "done" && job.pictures.length) return { job, picture: job.pictures[0] };
  if (job && job.state !== "done" && job.state !== "cancelled") return { job, picture: null };
  const picture = pictures.value[0] ?? null;
  return { picture, job: picture && jobs.value.get(picture.job) };
});

export function Stage() {
  const { job, picture } = shown.value;
  const [settings, setSettings] = useState(false);
  useEffect(() => pictureKeys(), []);
  if (picture) {
    return html`<section class="stage" aria-label="Picture">
      <div class="stage-picture"><${Large} picture=${picture} />
        ${settings && html`<${SettingsOf} picture=${picture}
          close=${() => setSettings(false)} />`}</div>
      <${Others} job=${job} picture=${picture} />
      <${Warnings} texts=${job?.warnings ?? []} />
      <${Actions} picture=${picture} job=${job} settings=${settings}
        toggle=${() => setSettings(!settings)} /></section>`;
  }
  if (!job) {
    return html`<section class="stage" aria-label="Picture"><${FirstRun} /></section>`;
  }
  return html`<section class="stage" aria-label="Picture">
    <div class="stage-picture">${job.state === "failed" ? html`<${Failed} job=${job} />`
      : html`<${Making} job=${job} />`}</div>
    ${job.state !== "failed" && html`<${Progress} job=${job} />`}</section>`;
}

function Large({ picture }) {
  return html`<img class="large" src=${picture.file} alt=${picture.prompt || "A picture"}
    style=${largest(picture)} key=${picture.id} />`;
}

/** How large a picture is shown at most: small ones are not blown up to a blur. */
const largest = ({ width, height }) => ({ maxWidth: `${ENLARGED_MAX * width}px`,
  maxHeight: `${ENLARGED_MAX * height}px` });
const ENLARGED_MAX = 4;

/** The pictures of the same batch. */
function Others({ job, picture }) {
  if (!job || job.pictures.length < 2) return null;
  return html`<div class="batch" role="group" aria-label="Pictures of this batch">
    ${job.pictures.map((each, at) => html`<button type="button" class="thumb"
      aria-pressed=${each.id === picture.id} aria-label=${`Picture ${at + 1}`}
      onClick=${() => { chosen.value = each; }}>
      <img src=${`/api/pictures/${each.id}/thumbnail`} alt="" /></button>`)}</div>`;
}

/** What was done otherwise than asked, or may not be what was meant. */
function Warnings({ texts }) {
  if (!texts.length) return null;
  return html`<details class="warnings"><summary>${texts.length === 1 ? sentence(texts[0])
    : `${texts.length} things to know of this picture`}</summary>
    ${texts.length > 1 && html`<ul>${texts.map((text) => html`<li>${sentence(text)}</li>`)}</ul>`}
  </details>`;
}

/** What is known of a picture that is being made: its preview, or an empty sheet of its shape. */
function Making({ job }) {
  const width = job.request.width ?? usual("width") ?? 512;
  const height = job.request.height ?? usual("height") ?? 512;
  const preview = job.progress?.preview;
  const ratio = { ...largest({ width, height }), aspectRatio: `${width} / ${height}` };
  if (preview === null || preview === undefined) {
    return html`<div class="sheet-empty" style=${ratio}></div>`;
  }
  return html`<img class="large preview" style=${ratio} alt="What it looks like so far"
    src=${query(`/api/jobs/${job.id}/preview`, { n: preview })} />`;
}

/** What a job waits for. */
function placed(job) {
  if (paused.value) return "The queue is paused";
  return job.place > 1 ? `${job.place - 1} before it` : "Next in the queue";
}

function Progress({ job }) {
  const { step = 0, steps = 0, seconds_left: left, doing } = job.progress ?? {};
  const share = steps ? step / steps : null;
  const text = job.state === "queued" ? placed(job)
    : steps ? `Step ${step} of ${steps}` : sentence(doing || "starting");
  return html`<div class="progress">
    <span class="progress-text">${text}</span>
    <${Bar} share=${job.state === "queued" ? 0 : share} label="Progress" />
    <span class="progress-left">${left >= 1 ? `${clock(left)} left` : ""}</span>
    <button type="button" class="secondary" disabled=${!job.id} onClick=${() => cancel(job.id)}>
      <${Icon} name="stop" />Stop</button></div>`;
}

/** A job that failed: what the engine says, and the way on. */
function Failed({ job }) {
  return html`<div class="failed" role="alert">
    <h2>This picture could not be made</h2>
    <p>${job.error.message}</p>
    <details><summary>Details</summary><p>${job.error.name}, job ${job.id}</p>
      <pre>${JSON.stringify(job.request, null, 2)}</pre></details>
    <button type="button" class="secondary" onClick=${() => retry(job.id)}>
      <${Icon} name="again" />Try again</button></div>`;
}

/** What can be done with a picture. */
function Actions({ picture, job, settings, toggle }) {
  const seconds = job?.timings && Object.values(job.timings).reduce((sum, each) => sum + each, 0);
  const act = (icon, label, action) => html`<button type="button" class="action"
    onClick=${() => action(picture)}><${Icon} name=${icon} />${label}</button>`;
  return html`<div class="actions" role="group" aria-label="This picture">
    ${act("again", "Again", again)}
    ${act("different", "A little different", different)}
    <${Larger} picture=${picture} />
    ${act("change", "Change", change)}
    ${act("edit", "Edit", edit)}
    <a class="action" href=${picture.file} download><${Icon} name="save" />Save</a>
    <span class="spring"></span>
    ${seconds > 0 && html`<${Times} job=${job} seconds=${seconds} />`}
    <${IconButton} icon="heart" label="Favourite" pressed=${Boolean(picture.favourite)}
      onClick=${() => setFavourite(picture, !picture.favourite)} />
    <${Compare} picture=${picture} />
    <${IconButton} icon="info" label="Settings of this picture" pressed=${settings}
      onClick=${toggle} />
    <${Delete} picture=${picture} />
  </div>`;
}

/** Larger by a second pass, or by one of the networks for that where there are any. */
function Larger({ picture }) {
  const networks = ofKind("esrgan").filter((each) => each.usable);
  const label = html`<${Icon} name="larger" />Larger`;
  if (!networks.length) {
    return html`<button type="button" class="action" onClick=${() => larger(picture)}>${label}
      </button>`;
  }
  const way = (name, text, action) => html`<li><button type="button" class="file"
    onClick=${action}><span class="file-text"><span class="file-name">${name}</span>
    <span class="quiet-text">${text}</span></span></button></li>`;
  return html`<${Dropdown} className="action" title="Larger" label=${label}>${(close) =>
    html`<ul class="files">
      ${way("Second pass", "twice as large, with new details", () => {
        close();
        larger(picture);
      })}
      ${networks.map((each) => way(stem(each.name), "the same picture, enlarged", () => {
        close();
        enlarge(picture, each.name);
      }))}</ul>`}<//>`;
}

/** How long it took; a click shows where the time went. */
function Times({ job, seconds }) {
  const [View, setView] = useState(null);
  const open = async () => {
    const { Times: Found } = await import("./times.js");
    setView(() => Found);
  };
  return html`<button type="button" class="quiet" title="Where does the time go?" onClick=${open}>
    ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s</button>
    ${View && html`<${View} job=${job} close=${() => setView(null)} />`}`;
}

const CHOOSE_OTHER = "Choose the other picture in the gallery";

/** Two pictures side by side: this one, and the one that is clicked next. */
function Compare({ picture }) {
  const [first, setFirst] = useState(null);
  useEffect(() => {
    if (!first || picture.id === first.id) return;
    setFirst(null);
    import("./compare.js").then(({ openCompare }) => openCompare(first, picture));
  }, [first, picture.id]);
  const begin = () => {
    setFirst(first ? null : picture);
    announced.value = first ? "" : CHOOSE_OTHER;
    if (!first) sheet.value = "gallery"; // where there is one
  };
  return html`${first && html`<span class="note">${CHOOSE_OTHER}</span>`}
    <${IconButton} icon="compare" pressed=${Boolean(first)} onClick=${begin}
      label=${first ? "Do not compare" : "Compare with another picture"} />`;
}

function Delete({ picture }) {
  const [sure, setSure] = useState(false);
  useEffect(() => setSure(false), [picture.id]);
  if (!sure) {
    return html`<${IconButton} icon="trash" label="Delete" onClick=${() => setSure(true)} />`;
  }
  return html`<span class="sure"><button type="button" class="danger"
    onClick=${() => takeAway(picture)}>Delete for good</button>
    <button type="button" class="quiet" onClick=${() => setSure(false)}>Keep</button></span>`;
}

/** Keys that do something with the picture. */
function pictureKeys() {
  const beside = (by) => {
    const all = pictures.value;
    const at = all.findIndex((each) => each.id === shown.value.picture?.id);
    const next = all[at + by];
    if (next) chosen.value = next;
  };
  const act = (action) => () => shown.value.picture && action(shown.value.picture);
  const ends = [shortcut("ArrowLeft", () => beside(-1)), shortcut("ArrowRight", () => beside(1)),
    shortcut("a", act(again)), shortcut("d", act(different)),
    shortcut("f", act((picture) => setFavourite(picture, !picture.favourite)))];
  return () => ends.forEach((end) => end());
}

const SAID_EVERY = 0.25; // share of the steps after which a screen reader is told again

/** Tell screen readers how far it is: at the start, each quarter, and at the end. */
export function tellProgress() {
  let last = "";
  return effect(() => {
    const job = jobs.value.get(followed.value);
    if (!job) return;
    const { step = 0, steps = 0 } = job.progress ?? {};
    const quarter = steps ? Math.floor(step / steps / SAID_EVERY) * SAID_EVERY * 100 : 0;
    const said = { queued: "In the queue", running: `Making the picture, ${quarter} percent`,
      done: "The picture is made", failed: `Failed: ${job.error?.message}`,
      cancelled: "Stopped" }[job.state];
    if (said !== last) announced.value = last = said;
  });
}
