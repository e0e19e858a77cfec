// Where the time of a picture went: a bar of its stages, and the longest kernels of each.

import { useEffect, useState } from "./vendor/hooks.js";
import { get, Refused } from "./api.js";
import { Dialog, html } from "./ui.js";

/** Colours that stages have, one after the other: see `.times-part` in editor.css. */
const COLOURS = 6;
/** Below this share of the bar a part has no room for its name. */
const NAMED_SHARE = 0.12;

/**
 * A window with the stages of a job that is done; a click on one shows its longest kernels, with
 * what the model of the device expects beside what was measured.
 * @param {{job: {id: string}, close: () => void}} given
 */
export function Times({ job, close }) {
  return html`<${Dialog} title="Where the time went" close=${close} className="times-window">
    <${Stages} job=${job} /><//>`;
}

function Stages({ job }) {
  const [found, tell] = useState({ stages: null, problem: "" });
  const [open, choose] = useState(null);
  useEffect(() => {
    let current = true;
    tell({ stages: null, problem: "" });
    choose(null);
    get(`/api/jobs/${job.id}/times`).then(
      ({ stages }) => current && tell({ stages, problem: "" }),
      (error) => {
        if (!(error instanceof Refused)) throw error;
        if (current) tell({ stages: [], problem: error.message });
      });
    return () => { current = false; };
  }, [job.id]);
  const { stages, problem } = found;
  if (problem) return html`<p class="help">${problem}</p>`;
  if (stages === null) return html`<p class="help">Reading the times</p>`;
  if (stages.length === 0) return html`<p class="help">No times were kept of this picture.</p>`;
  const total = stages.reduce((sum, each) => sum + each.seconds, 0);
  const stage = stages.find((each) => each.name === open);
  return html`<div class="times">
    <p class="times-total">${seconds(total)} in all. Choose a part to see what it consists of.</p>
    <div class="times-bar">
      ${stages.map((each, at) => html`<button type="button" key=${each.name}
        class=${`times-part times-colour-${at % COLOURS}`} aria-pressed=${each.name === open}
        style=${{ "--times-share": each.share }} title=${`${each.name}: ${seconds(each.seconds)}`}
        aria-label=${`${each.name}: ${seconds(each.seconds)}, ${percent(each.share)}`}
        onClick=${() => choose(each.name === open ? null : each.name)}>
        ${each.share >= NAMED_SHARE ? each.name : ""}</button>`)}
    </div>
    <ul class="times-legend">${stages.map((each, at) => html`<li key=${each.name}>
      <span class=${`times-dot times-colour-${at % COLOURS}`} aria-hidden="true"></span>
      ${each.name} <span class="quiet">${seconds(each.seconds)}, ${percent(each.share)}</span>
      </li>`)}</ul>
    ${stage && html`<${Kernels} stage=${stage} />`}
  </div>`;
}

/** The longest kernels of a stage. */
function Kernels({ stage }) {
  const expected = stage.expected === null ? "" :
    `, ${seconds(stage.expected)} expected by the model of this device`;
  if (stage.kernels.length === 0) {
    return html`<p class="help">${stage.name}: ${seconds(stage.seconds)}${expected}.</p>`;
  }
  const start = commonStart(stage.kernels.map((each) => each.name));
  return html`<table class="times-kernels">
    <caption class="help">${stage.name}: ${seconds(stage.seconds)}${expected}. Its longest kernels:
    </caption>
    <thead><tr><th scope="col">Kernel</th><th scope="col">Runs</th><th scope="col">Measured</th>
      <th scope="col">Expected</th><th scope="col">Share</th><th scope="col">Limited by</th></tr>
    </thead>
    <tbody>${stage.kernels.map((each) => html`<tr key=${each.name}>
      <th scope="row" title=${each.name}>${each.name.slice(start)}</th><td>${each.runs}</td>
      <td>${each.seconds === null ? "—" : seconds(each.seconds)}</td>
      <td>${each.expected === null ? "—" : seconds(each.expected)}</td>
      <td>${percent(each.share)}</td><td>${each.limit ?? ""}</td></tr>`)}</tbody></table>`;
}

/** How many letters names have in common at their beginning, whole parts between dots of them. */
function commonStart(names) {
  const [first, ...others] = names.map((each) => each.split("."));
  let same = 0;
  while (same < first.length - 1 && others.every((each) => each[same] === first[same])) same += 1;
  return first.slice(0, same).join(".").length + (same > 0 ? 1 : 0);
}

/** A time with three digits and the unit that suits it. */
function seconds(value) {
  const [number, unit] = value >= 1 ? [value, "s"] : value >= 1e-3 ? [value * 1e3, "ms"]
    : [value * 1e6, "µs"];
  return `${number >= 100 ? Math.round(number) : Number(number.toPrecision(3))} ${unit}`;
}

function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;
}
