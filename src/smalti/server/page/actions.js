// What the person can have done: make pictures, from the prompt and from other pictures.

import { base64, get, pictureFile, post, query, remove } from "./api.js";
import { takeEdited, takeFile } from "./init_picture.js";
import { asked, asking, besides, chosen, controls, dismissed, dropJob, followed, given, jobs,
  keepAnswered, models, noted, ofKind, options, order, reads, redux, refused, running, say, sayAll,
  taken, theme, usual, value } from "./state.js";

/** How far "a little different" goes towards other noise: the motif stays, details change. */
const LITTLE = 0.15;
/** How much of a picture "change" makes anew: its layout stays. */
const CHANGED = 0.6;
const LARGER = 2;
/** How much the second pass of "larger" makes anew: details, so that it stays the same picture. */
const LARGER_CHANGED = 0.35;
const SEED_END = 2 ** 32;
/** Requests with pictures, by the id of their job: the server tells requests without them. */
const sent = new Map();
const SENT_MAX = 20;

/** Options that count together with a picture only. */
const OF_PICTURE = ["strength", "mask_blur", "only_masked", "padding", "extend"];
const LOADED = ["model", "vae", "text_encoders", "refiner", "loras", "device"];

/** The request that Create sends: of what was said, all that counts for the model and with what
 * else was said. */
export function request() {
  const found = { ...asked.value, prompt: asked.value.prompt ?? "" };
  if (given.value) {
    const others = besides().map((each) => each.image);
    found.image = others.length ? [given.value.image, ...others] : given.value.image;
    if (given.value.mask) found.mask = given.value.mask;
  }
  if (controls.value.length) found.controls = controls.value;
  if (redux.value.length) found.redux = redux.value;
  return counting(found);
}

/** What counts of a request: the model takes it, and something that it needs is there, too. */
export function counting(wanted) {
  const found = { ...wanted };
  const known = options.value;
  if (!known.prompt) return found;
  for (const name of Object.keys(found)) { // unknown is what an older version of the page kept
    if (!(name in known) || !taken(name)) delete found[name];
  }
  const lacks = (name) => known[name].needs?.every((each) => !found[each]);
  let lost = Object.keys(found).filter(lacks);
  for (; lost.length; lost = Object.keys(found).filter(lacks)) {
    for (const name of lost) delete found[name];
  }
  return found;
}

/** Ask for a picture; the stage shows it. Whatever is refused stands beside the prompt. */
export async function create(wanted = request()) {
  refused.value = null;
  noted.value = [];
  chosen.value = null;
  asking.value = wanted;
  try {
    const job = await post("/api/jobs", wanted);
    if (wanted.image || wanted.controls || wanted.redux) {
      sent.set(job.id, wanted);
      if (sent.size > SENT_MAX) sent.delete(sent.keys().next().value);
    }
    keepAnswered(job);
    followed.value = job.id;
  } catch (error) {
    refused.value = { message: error.message };
  }
  asking.value = null;
}

/** Do something that the server may refuse; what it says then stands beside the prompt. */
export async function attempt(action) {
  refused.value = null;
  try {
    return await action();
  } catch (error) {
    refused.value = { message: error.message };
    return null;
  }
}

/** The job that made a picture: with its pictures, if it was asked for here and lately. */
async function jobOf(picture) {
  const whole = sent.get(picture.job);
  if (whole) return { request: whole };
  return jobs.value.get(picture.job) ?? await get(`/api/jobs/${picture.job}`).catch(() => null);
}

/** Whether a request began with pictures that are not in it any more. */
const isEmptied = (wanted) => ["image", "mask", "redux"].some((name) => wanted[name] === null)
  || Boolean(wanted.controls?.some((each) => each.picture === null));

/** The request that made a picture, with the seed that it was made with. */
export async function requestOf(picture) {
  const job = await jobOf(picture);
  if (job && !("upscaler" in job.request) && !isEmptied(job.request)) {
    return { ...job.request, seed: picture.seed, batch_size: job.request.batch_size ?? 1 };
  }
  const { request: read } = await carried(picture); // of the one that was enlarged, too
  return read;
}

/** The same, to be sent again. Throws where the picture that it began with is gone. */
async function repeated(picture) {
  const job = await jobOf(picture);
  const wanted = await requestOf(picture);
  const began = !wanted.image && OF_PICTURE.some((name) => name in wanted);
  if (began || (job && !("upscaler" in job.request) && isEmptied(job.request))) {
    throw new Error("This picture was made of another one, which is not here any more. Give that "
      + "one with “Picture”, take over the settings of this one with “Use all”, and press Create.");
  }
  return wanted;
}

const read = new Map();

/** The settings that a picture of the gallery carries: `{options, request, told}`. */
export async function carried(picture) {
  if (!read.has(picture.id)) {
    const told = await metadata(await pictureFile(picture));
    read.set(picture.id, { ...told, request: { ...told.request, seed: picture.seed } });
  }
  return read.get(picture.id);
}

/** The settings that the file of any picture carries, as a request; A1111's and ComfyUI's, too. */
export async function metadata(file) {
  const told = await post("/api/metadata", { picture: await base64(file) });
  const found = { ...told.options };
  const missing = { ...told.missing };
  const named = models.value.find((each) => isModel(each) && each.usable
    && stem(each.name) === stem(told.model ?? ""));
  if (named) found.model = named.name;
  else if (told.model) missing.model = `the model ${told.model}`;
  for (const [name, file] of Object.entries(told.files ?? {})) {
    const here = ofKind(FILES[name]).find((each) => each.usable && stem(each.name) === stem(file));
    if (!here) continue;
    found[name] = here.name;
    delete missing[name];
  }
  if (told.loras?.length) {
    found.loras = told.loras.map((each) => ({ ...each, name: loraName(each.name) }));
  }
  for (const name of Object.keys(found)) {
    if (found[name] === null || (!(name in options.value) && !LOADED.includes(name))) {
      delete found[name];
    }
  }
  return { told: { ...told, missing }, request: found };
}

/** Options whose files settings name -> the kinds of these. */
const FILES = { refiner: "model", hires_upscaler: "esrgan" };

/** What cannot be as it was when settings are taken over, in sentences. */
export function shortOf({ missing, unknown }) {
  const { model: wanted, ...others } = missing;
  const lines = [];
  if (wanted) lines.push(`It was made by ${wanted}, which is not here.`);
  if (Object.keys(others).length) {
    lines.push(`It was made with ${Object.values(others).join(", and ")}: give that besides.`);
  }
  if (Object.keys(unknown).length) {
    lines.push(`Not understood, and left out: ${Object.keys(unknown).join(", ")}.`);
  }
  return lines;
}

const isModel = (file) => file.kind === "model";

/** A name without folders and ending, as texts have it. */
export function stem(name) {
  return name.split("/").at(-1).replace(/\.(safetensors|ckpt|pt|pth|bin|gguf|sft)$/, "");
}

function loraName(name) {
  return models.value.find((each) => each.kind === "lora" && stem(each.name) === stem(name))?.name
    ?? name;
}

/** The same with other noise. */
export const again = (picture) => attempt(async () => {
  const { variation_seed, variation_strength, ...wanted } = await repeated(picture);
  await create({ ...wanted, seed: -1 });
});

/** The same with nearly the same noise. */
export const different = (picture) => attempt(async () => create({
  ...await repeated(picture), batch_size: 1, variation_strength: LITTLE,
  variation_seed: Math.floor(Math.random() * SEED_END) }));

/** The same picture, larger, in a second pass. */
export const larger = (picture) => attempt(async () => {
  const wanted = { ...await repeated(picture), batch_size: 1 };
  await create({ hires_strength: LARGER_CHANGED, ...wanted, hires: Math.min(
    (wanted.hires ?? 1) * LARGER, options.value.hires?.maximum ?? LARGER) });
});

/** The picture as it is, enlarged by a network. */
export const enlarge = (picture, upscaler) => attempt(async () =>
  create({ upscaler, image: await base64(await pictureFile(picture)) }));

/** Begin the next picture with this one. */
export const change = (picture) => attempt(async () => {
  await takeFile(await pictureFile(picture));
  if (!reads()) say("strength", asked.value.strength ?? CHANGED);
  if (picture.prompt) say("prompt", picture.prompt);
});

/** Paint on a picture, or extend it; what comes back is what the next picture begins with. */
export const edit = (picture) => attempt(async () => {
  const { openEditor } = await import("./editor.js");
  const made = await openEditor({ picture: picture.file, width: picture.width,
    height: picture.height });
  if (made) takeEdited(made);
});

/** Take over all settings of a request, instead of those that are said. */
export function useAll(wanted) {
  const next = {};
  for (const [name, each] of Object.entries(wanted)) {
    const own = name === "model" ? each === models.value.find(isModel)?.name
      : name !== "prompt" && JSON.stringify(each) === JSON.stringify(usual(name));
    const given = ["image", "mask", "controls", "redux"].includes(name);
    if (each !== null && !given && !own) next[name] = each;
  }
  asked.value = { prompt: "", ...next };
}

/** Take over one setting; a size is two. */
export function useOne(wanted, name) {
  if (name === "width") sayAll({ width: wanted.width, height: wanted.height });
  else say(name, wanted[name]);
}

/** End a job that waits or runs. */
export const cancel = (id) => attempt(() => remove(`/api/jobs/${id}`));
/** End the job that runs; of several, the one that began last; where none does, the one that waits
 * on the stage. */
export function stop() {
  const own = jobs.value.get(followed.value);
  const job = running.value.at(-1) ?? (own?.state === "queued" ? own : null);
  if (job) cancel(job.id);
}
export const move = (id, place) => attempt(() => post(`/api/jobs/${id}/move`, { place }));
export const pause = (yes) => attempt(() => post("/api/jobs/pause", { paused: yes }));

/** Ask for a failed job again; it takes the place of the failed one. */
export const retry = (id) => attempt(async () => {
  const job = await post(`/api/jobs/${id}/retry`);
  dismiss(id);
  keepAnswered(job);
  followed.value = job.id;
  chosen.value = null;
});

const NEXT_MIN = 100; // jobs that wait, of which the page knows the texts, as many as it shows
const NEXT_MAX = 200; // that it asks for at once
const DISMISSED_MAX = 200; // ids that are remembered; failed jobs older than these are not shown

/** Put a failed job away. */
export function dismiss(id) {
  dismissed.value = [...dismissed.value, id].slice(-DISMISSED_MAX);
  dropJob(id);
}

/** Load what waits next, where the page was not told of it: it is told of the first ones only. */
export async function loadWaiting() {
  const next = order.value.slice(0, NEXT_MIN);
  if (next.every((id) => jobs.value.has(id))) return;
  const told = await get(query("/api/jobs", { state: "queued", limit: NEXT_MAX }));
  told.jobs.forEach(keepAnswered);
}

/** Search the folders of models again. */
export async function refreshModels() {
  await attempt(() => post("/api/models/refresh"));
  await loadModels();
}

export async function loadModels() {
  models.value = (await get("/api/models")).models;
}

/** What is known of a model beside its line in the list. */
export const aboutModel = (name) => get(query("/api/models/defaults", { name }));

/** Light, dark, or as the system has it. */
export function setTheme(name) {
  theme.value = name;
}

/** A seed for the next picture, so that it can be told. */
export function fixSeed() {
  say("seed", value("seed") === -1 ? Math.floor(Math.random() * SEED_END) : -1);
}
