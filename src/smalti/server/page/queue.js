// The queue: what is made, what waits, and what failed.

import { useRef, useState } from "./vendor/hooks.js";
import { cancel, dismiss, move, pause, retry } from "./actions.js";
import { query } from "./api.js";
import { CloseSheet } from "./gallery.js";
import { announced, chosen, dismissed, followed, jobs, paused, running, sheet, waiting,
  waitingCount } from "./state.js";
import { Bar, clock, html, Icon, IconButton, sentence } from "./ui.js";

const SHOWN_MAX = 100; // of those that wait; the rest is a number
const FAILED_MAX = 20;
const FAILED_SECONDS = 24 * 3600; // how long failed jobs are shown

export function Queue() {
  const failed = failures();
  const count = running.value.length + waitingCount.value;
  return html`<section class="queue" aria-label="Queue">
    <header class="side-head"><h2>Queue</h2>
      ${count > 0 && html`<span class="quiet-text">${count}</span>`}
      <span class="spring"></span>
      <button type="button" class="quiet small" aria-pressed=${paused.value}
        onClick=${() => pause(!paused.value)}><${Icon} name=${paused.value ? "play" : "pause"} />
        ${paused.value ? "Go on" : "Pause"}</button><${CloseSheet} /></header>
    ${paused.value && html`<p class="note">Paused: nothing new is begun.</p>`}
    ${count + failed.length === 0 && html`<p class="empty">What you ask for waits here.</p>`}
    <ul class="jobs">${running.value.map((job) => html`<${Running} key=${job.id} job=${job} />`)}
    </ul>
    <${Waiting} />
    ${failed.length > 1 && html`<div class="side-head"><h3>Failed</h3><span class="spring"></span>
      <button type="button" class="quiet small" onClick=${() =>
        failed.forEach((job) => dismiss(job.id))}>Put all away</button></div>`}
    <ul class="jobs">${failed.map((job) => html`<${Failed} key=${job.id} job=${job} />`)}</ul>
  </section>`;
}

/** Failed jobs that were not put away, the newest first. */
function failures() {
  const away = new Set(dismissed.value);
  const since = Date.now() / 1000 - FAILED_SECONDS;
  return [...jobs.value.values()].filter((each) => each.state === "failed"
    && each.ended > since && !away.has(each.id))
    .sort((one, other) => other.ended - one.ended).slice(0, FAILED_MAX);
}

/** Show a job on the stage. */
function follow(job) {
  chosen.value = null;
  followed.value = job.id;
  sheet.value = "";
}

/** What a job is called. */
const titled = ({ prompt, upscaler }) => prompt || (upscaler ? `Larger with ${upscaler}`
  : "Without a prompt");

function Text({ job }) {
  return html`<button type="button" class="job-text" onClick=${() => follow(job)}>
    ${titled(job.request)}</button>`;
}

function Running({ job }) {
  const { step = 0, steps = 0, seconds_left: left, doing, preview } = job.progress ?? {};
  const text = steps ? `${step} of ${steps}${left >= 1 ? `, ${clock(left)} left` : ""}`
    : sentence(doing || "starting");
  return html`<li class="job">
    <span class="job-picture">${preview !== null && preview !== undefined
      && html`<img alt="" src=${query(`/api/jobs/${job.id}/preview`, { n: preview })} />`}</span>
    <div class="job-lines"><${Text} job=${job} />
      <${Bar} share=${steps ? step / steps : null} label=${`Progress of ${titled(job.request)}`} />
      <span class="quiet-text">${text}</span></div>
    <${IconButton} icon="close" label="Stop" onClick=${() => cancel(job.id)} /></li>`;
}

function Failed({ job }) {
  return html`<li class="job failed-job">
    <div class="job-lines"><${Text} job=${job} />
      <span class="error-text">${job.error.message}</span>
      <span class="row"><button type="button" class="quiet small" onClick=${() => retry(job.id)}>
        <${Icon} name="again" />Try again</button></span></div>
    <${IconButton} icon="close" label="Put away" onClick=${() => dismiss(job.id)} /></li>`;
}

/** Those that wait, in an order that can be changed: by dragging the handle, or its arrow keys. */
function Waiting() {
  const [drag, setDrag] = useState(null);
  const list = useRef(null);
  const count = waitingCount.value;
  const listed = waiting.value.slice(0, SHOWN_MAX);
  const from = drag ? listed.findIndex((each) => each.id === drag.id) : -1;
  const order = from < 0 ? listed : moved(listed, from, drag.to);
  const pointer = {
    start: (at, event) => {
      event.currentTarget.setPointerCapture(event.pointerId);
      setDrag({ id: listed[at].id, to: at });
    },
    over: (event) => drag && setDrag({ ...drag, to: rowAt(list.current, event.clientY) }),
    end: () => {
      if (from >= 0 && drag.to !== from) move(drag.id, drag.to + 1);
      setDrag(null);
    },
    cancel: () => setDrag(null),
  };
  return html`<ol class="jobs" ref=${list}>${order.map((job, at) => html`<${WaitingJob}
      key=${job.id} job=${job} at=${at} count=${count} pointer=${pointer}
      dragged=${drag?.id === job.id} />`)}</ol>
    ${count > listed.length && html`<p class="note">and ${count - listed.length} more</p>`}`;
}

function WaitingJob({ job, at, count, pointer, dragged }) {
  const keys = { ArrowUp: at, ArrowDown: at + 2, Home: 1, End: count };
  const pressed = (event) => {
    const place = keys[event.key];
    if (place === undefined) return;
    event.preventDefault();
    if (place < 1 || place > count || place === at + 1) return;
    move(job.id, place);
    announced.value = `Place ${place} of ${count}`;
  };
  return html`<li class=${dragged ? "job dragged" : "job"} data-row>
    <button type="button" class="grip" title="Drag, or use the arrow keys"
      aria-label=${`Place ${at + 1} of ${count}: ${titled(job.request)}. Arrow keys move it.`}
      onKeyDown=${pressed} onPointerDown=${(event) => pointer.start(at, event)}
      onPointerMove=${pointer.over} onPointerUp=${pointer.end} onPointerCancel=${pointer.cancel}>
      <${Icon} name="grip" /></button>
    <div class="job-lines"><${Text} job=${job} /></div>
    <${IconButton} icon="close" label="Take out of the queue" onClick=${() => cancel(job.id)} />
  </li>`;
}

/** Which row of the list a pointer is over. */
function rowAt(list, y) {
  const rows = [...list.querySelectorAll("[data-row]")];
  const below = rows.findIndex((each) => y < each.getBoundingClientRect().bottom);
  return below < 0 ? rows.length - 1 : below;
}

/** A list with one of its items at another place. */
function moved(list, from, to) {
  const next = [...list];
  next.splice(to, 0, ...next.splice(from, 1));
  return next;
}
