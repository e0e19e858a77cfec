// Two pictures over each other, with a divider between them, and what differs in their settings.

import { render } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { carried } from "./actions.js";
import { title, written } from "./fields.js";
import { Dialog, html } from "./ui.js";

/** Where the divider is at first, in percent from the left. */
const MIDDLE = 50;

/**
 * Show two pictures of the gallery beside each other, until the window is closed.
 * @param {object} one a picture as the server tells of it
 * @param {object} other
 */
export function openCompare(one, other) {
  const host = document.createElement("div");
  document.body.append(host);
  const close = () => {
    render(null, host);
    host.remove();
  };
  render(html`<${Compare} one=${one} other=${other} close=${close} />`, host);
}

function Compare({ one, other, close }) {
  const [differences, tell] = useState(null);
  useEffect(() => {
    Promise.all([carried(one), carried(other)])
      .then(([left, right]) => tell(differing(left.request, right.request)), () => tell([]));
  }, []);
  return html`<${Dialog} title="Compare" close=${close} className="compare">
    <${Divided} one=${one} other=${other} />
    ${differences === null ? html`<p class="help">Reading their settings</p>`
      : differences.length === 0 ? html`<p class="help">Their settings are the same.</p>`
      : html`<table class="compare-table"><caption class="help">What differs</caption>
        <thead><tr><th scope="col">Setting</th><th scope="col">Left</th>
          <th scope="col">Right</th></tr></thead>
        <tbody>${differences.map(({ name, left, right }) => html`<tr key=${name}>
          <th scope="row">${title(name)}</th><td>${told(name, left)}</td>
          <td>${told(name, right)}</td></tr>`)}</tbody></table>`}
  <//>`;
}

/** Settings that two requests do not have in common, by name. */
export function differing(one, other) {
  const names = [...new Set([...Object.keys(one), ...Object.keys(other)])].sort();
  return names.filter((name) => JSON.stringify(one[name]) !== JSON.stringify(other[name]))
    .map((name) => ({ name, left: one[name], right: other[name] }));
}

/** A setting in words. */
function told(name, value) {
  if (Array.isArray(value) && value.some((each) => typeof each === "object")) {
    return value.map((each) => `${each.name} ${each.weight}`).join(", ");
  }
  return value === undefined ? "—" : written(name, value);
}

/** The pictures; the divider follows a pointer on them, and is a slider for the keyboard. */
function Divided({ one, other }) {
  const [share, move] = useState(MIDDLE);
  const box = useRef(null);
  const follow = (event) => {
    if (event.type === "pointermove" && event.buttons === 0) return;
    const at = box.current.getBoundingClientRect();
    move(Math.max(0, Math.min(100, (event.clientX - at.left) / at.width * 100)));
  };
  const ratio = { "--compare-ratio": `${one.width} / ${one.height}`, "--compare-at": `${share}%` };
  return html`<div class="compare-pictures" ref=${box} style=${ratio} onPointerDown=${follow}
    onPointerMove=${follow}>
    <img src=${other.file} alt=${`Right: ${other.prompt}`} draggable=${false} />
    <img class="compare-left" src=${one.file} alt=${`Left: ${one.prompt}`} draggable=${false} />
    <div class="compare-line" aria-hidden="true"></div>
    <input class="compare-slider" type="range" min="0" max="100" step="1" value=${share}
      data-first aria-label="Divider between the two pictures, in percent from the left"
      onInput=${(event) => move(Number(event.target.value))} />
  </div>`;
}
