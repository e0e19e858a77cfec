// What the page knows: signals, of which all that is shown is made. What the person wrote and chose
// is remembered by the browser, and the same in all its tabs.

import { computed, effect, signal } from "./vendor/signals.js";
import { keptLarge } from "./kept.js";

/** A signal that is kept under a name, and follows what other tabs make of it. */
export function kept(name, first) {
  const key = `smalti.${name}`;
  const found = signal(read(key, first));
  effect(() => {
    const text = JSON.stringify(found.value);
    try {
      if (localStorage.getItem(key) !== text) localStorage.setItem(key, text);
    } catch {
      // A browser that keeps nothing: then it is known until the page is closed.
    }
  });
  addEventListener("storage", (event) => {
    if (event.key === key) found.value = read(key, first);
  });
  return found;
}

function read(key, first) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? first;
  } catch {
    return first;
  }
}

/** What waits in the box when the page is seen first: something that the shipped model draws. */
const FIRST_PROMPT = "a red apple";

/** The request as far as it was said: names of options, and of what is loaded. What is not in it is
 * the model's own. Pictures are beside it (`given`), because they are large. */
export const asked = kept("asked", { prompt: FIRST_PROMPT, seed: -1 });

/** Pictures that the next one is made of: `{image, mask, width, height, others}` in base64, or
 * null, where `others` are what models read besides, `{image, width, height}` each; and ControlNets
 * as `{model, picture, strength, start, end, edges}`. */
export const given = keptLarge("given", null);
export const controls = keptLarge("controls", []);
/** Pictures that the prompt takes on, in base64. */
export const redux = keptLarge("redux", []);

export const theme = kept("theme", "system");
/** Failed jobs that the person put away. */
export const dismissed = kept("dismissed", []);

/** What the server tells: its jobs by id, the ids of all that wait in their order, of which not all
 * need be among the jobs, its models and options. */
export const jobs = signal(new Map());
export const order = signal([]);
export const paused = signal(false);
export const connected = signal(true);
/** Models, devices and the properties of a request's JSON Schema are kept too: a server that has
 * just begun needs a moment to tell them, and until then they are as they were. */
export const models = kept("models", []);
export const devices = kept("devices", { working: [], devices: [], loading: {} });
export const options = kept("options", {});
/** What is known of the model that is chosen beyond its line in the list. */
export const about = signal(null);

/** The picture on the stage; null for the one that is made, or was made last. */
export const chosen = signal(null);
/** The job of this tab that the stage shows until something else is chosen. */
export const followed = signal(null);
/** The sheet that is open on a phone: "", "queue" or "gallery". */
export const sheet = signal("");
/** A request that the server has not answered yet, or null. */
export const asking = signal(null);
/** An error beside the prompt: {message, details}, or null. */
export const refused = signal(null);
/** What is to be known of what was just done, beside the prompt: lines of text. */
export const noted = signal([]);
/** What a screen reader is told next. */
export const announced = signal("");

export const running = computed(() =>
  [...jobs.value.values()].filter((each) => each.state === "running"));
export const waiting = computed(() =>
  [...jobs.value.values()].filter((each) => each.state === "queued")
    .sort((one, other) => one.place - other.place));

/** How many wait: an order is told a moment after the job that comes into it. */
export const waitingCount = computed(() =>
  Math.max(order.value.length, waiting.value.length));

/** What a kind of file is called, where the server has several names for it. */
export const ofKind = (kind) => models.value.filter((each) => each.kind === kind);

/** The model that is chosen; the first one is that which ships. */
export const model = computed(() => {
  const all = ofKind("model");
  return all.find((each) => each.name === asked.value.model) ?? all[0] ?? null;
});

/** Whether a ControlNet of this name fits the model that is chosen, as far as is known. */
export const steers = (name) => model.value?.controls?.includes(name) ?? true;

/** Whether the model that is chosen takes an option, as far as is known. */
export const taken = (name) => !(model.value?.untaken ?? []).includes(name);

/** Whether the model that is chosen reads the picture that it is given, and changes it as the
 * prompt says, instead of beginning with it. */
export const reads = () => !["text", "", undefined].includes(model.value?.purpose);

/** How many pictures the model that is chosen takes at most. */
export const picturesMax = () => model.value?.pictures ?? 1;

/** The pictures that it reads besides the first one. */
export const besides = () => (given.value?.others ?? []).slice(0, picturesMax() - 1);

/** Say an option; null and undefined take it back. */
export function say(name, value) {
  sayAll({ [name]: value });
}

/** Say several options at once. */
export function sayAll(values) {
  const next = { ...asked.value, ...values };
  for (const [name, value] of Object.entries(next)) {
    if (value === null || value === undefined) delete next[name];
  }
  asked.value = next;
}

/** Of a picture that is changed: the motif stays, and what it is made of changes, as in A1111. */
const STRENGTH = 0.75;
/** Of a model that reads the picture, and begins with noise alone. */
const STRENGTH_READ = 1;

/** What an option is where nothing is said. */
export function usual(name) {
  if (name === "seed") return -1;
  if (name === "strength") return reads() ? STRENGTH_READ : STRENGTH;
  return model.value?.defaults?.[name] ?? options.value[name]?.default ?? null;
}

/** What an option is. */
export function value(name) {
  return asked.value[name] ?? usual(name);
}

/** Whether an option is other than the model's own. */
export function differs(name) {
  const said = asked.value[name];
  return said !== undefined && JSON.stringify(said) !== JSON.stringify(usual(name));
}

/** Keep a job as an event told it. */
export function keepJob(job) {
  const next = new Map(jobs.value);
  next.set(job.id, job);
  jobs.value = next;
}

/** Keep a job as the answer to a request told it: an event may have come before the answer, and
 * what that told is newer. */
export function keepAnswered(job) {
  if (!jobs.value.has(job.id)) keepJob(job);
}

/** Forget a job. */
export function dropJob(id) {
  const next = new Map(jobs.value);
  next.delete(id);
  jobs.value = next;
}
