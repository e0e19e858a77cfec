// What all parts of the page are written with: `html`, icons, and things that float.

import { h } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { shortcut } from "./keys.js";

/** Elements as they are written in HTML: html`<b>${text}</b>`. */
export const html = htm.bind(h);

/** One set of icons: 20 pixels, lines of 1.5, as paths of SVG. */
const ICONS = {
  add: "M10 4v12M4 10h12",
  again: "M15.5 10a5.5 5.5 0 1 1-1.7-4M14 2.8V6.2h-3.4",
  change: "M4 13.5V16h2.5L15 7.5 12.5 5 4 13.5zM11 6.5 13.5 9",
  check: "M4 10.5 8 14.5 16 6",
  close: "M5 5l10 10M15 5 5 15",
  compare: "M10 3v14M3 5h4.5v10H3zM12.5 5H17v10h-4.5",
  device: "M6 6h8v8H6zM8 3v3M12 3v3M8 14v3M12 14v3M3 8h3M3 12h3M14 8h3M14 12h3",
  different: "M3 12c2.3-5 4.7-5 7 0s4.7 5 7 0M3 7c2.3-4 4.7-4 7 0",
  down: "M5 8l5 5 5-5",
  edit: "M4 4h12v12H4zM4 12c3-3 5-1 6-3s3-3 6-2",
  expand: "M11.5 4H16v4.5M16 4l-5 5M8.5 16H4v-4.5M4 16l5-5",
  gallery: "M3.5 3.5h5v5h-5zM11.5 3.5h5v5h-5zM3.5 11.5h5v5h-5zM11.5 11.5h5v5h-5z",
  grip: "M7.5 5v.01M12.5 5v.01M7.5 10v.01M12.5 10v.01M7.5 15v.01M12.5 15v.01",
  heart: "M10 16.5 4.2 10.7a3.6 3.6 0 0 1 5.1-5.1l.7.7.7-.7a3.6 3.6 0 0 1 5.1 5.1z",
  help: "M7.6 7.7a2.5 2.5 0 1 1 3.4 2.3c-.7.3-1 .7-1 1.5v.5M10 14.6v.01",
  info: "M10 9v5M10 6v.01M3 10a7 7 0 1 0 14 0 7 7 0 0 0-14 0z",
  larger: "M4 9V4h5M4 4l6 6M16 11v5h-5M16 16l-6-6",
  model: "M10 3 3.5 6.5 10 10l6.5-3.5zM3.5 6.5v7L10 17l6.5-3.5v-7M10 10v7",
  open: "M3.5 6.5v9h13v-8h-7l-2-2h-4zM10 13.5V9.5M8 11.3l2-2 2 2",
  pause: "M7 4.5v11M13 4.5v11",
  picture: "M3.5 4.5h13v11h-13zM3.5 13l4-4 3.5 3.5 2-2 3.5 3M13 8v.01",
  play: "M6.5 4.5v11l9-5.5z",
  queue: "M4 5.5h12M4 10h12M4 14.5h8",
  save: "M10 3.5v9M6.5 9l3.5 3.5L13.5 9M4 16.5h12",
  search: "M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4zM12.7 12.7 16.5 16.5",
  sliders: "M4 6h6M14 6h2M4 14h2M10 14h6M12 4v4M8 12v4",
  stop: "M5.5 5.5h9v9h-9z",
  swap: "M6.5 4v11M4 12.5 6.5 15 9 12.5M13.5 16V5M11 7.5 13.5 5 16 7.5",
  theme: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  trash: "M4 5.5h12M8 5.5V3.5h4v2M5.5 5.5l.7 11h7.6l.7-11",
};

/** An icon; it says nothing to screen readers, what it stands in does. */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
    <path d=${ICONS[name]} /></svg>`;
}

/** A button that is an icon, with its label as name and as what the pointer shows. */
export function IconButton({ icon, label, pressed, className = "", ...rest }) {
  return html`<button type="button" class=${`icon-button ${className}`} aria-label=${label}
    title=${label} aria-pressed=${pressed} ...${rest}><${Icon} name=${icon} /></button>`;
}

/** How far something is, 0 to 1, or that it is under way where that is not known (null). */
export function Bar({ share, label }) {
  const known = share !== null && share !== undefined;
  return html`<div class=${known ? "bar" : "bar unknown"} role="progressbar" aria-label=${label}
    aria-valuemin="0" aria-valuemax="100"
    aria-valuenow=${known ? Math.round(share * 100) : undefined}>
    <div class="bar-done" style=${known ? { width: `${share * 100}%` } : {}}></div></div>`;
}

/** What can be focused inside an element, in order. */
function focusable(element) {
  return [...element.querySelectorAll(
    "button, [href], input, select, textarea, summary, [tabindex]:not([tabindex='-1'])")]
    .filter((each) => !each.disabled && each.offsetParent !== null);
}

/** While it is shown, Tab stays inside, Esc closes it, and focus returns to where it was. */
export function useFloating(box, close, { first = true, trap = true } = {}) {
  useEffect(() => {
    const before = document.activeElement;
    if (first) (box.current.querySelector("[data-first]") ?? focusable(box.current)[0])?.focus();
    const pressed = (event) => {
      if (event.key !== "Tab" || !trap) return;
      const all = focusable(box.current);
      const end = event.shiftKey ? all[0] : all.at(-1);
      if (document.activeElement !== end) return;
      event.preventDefault();
      (event.shiftKey ? all.at(-1) : all[0])?.focus();
    };
    const element = box.current;
    element.addEventListener("keydown", pressed);
    const release = shortcut("Escape", close, { floating: true });
    return () => {
      element.removeEventListener("keydown", pressed);
      release();
      if (element.contains(document.activeElement) || document.activeElement === document.body) {
        before?.focus?.({ preventScroll: true });
      }
    };
  }, []);
}

/** A window over the page; `close` is called by its button, Esc, and a click beside it. */
export function Dialog({ title, close, className = "", children }) {
  const box = useRef(null);
  useFloating(box, close);
  return html`<div class="veil" onPointerDown=${(event) => event.target === event.currentTarget
    && close()}>
    <section class=${`dialog ${className}`} role="dialog" aria-modal="true" aria-label=${title}
      ref=${box}>
      <header class="dialog-head"><h2>${title}</h2>
        <${IconButton} icon="close" label="Close" onClick=${close} /></header>
      <div class="dialog-body">${children}</div>
    </section></div>`;
}

/** A button that opens a panel beneath it, or above where there is more room. */
export function Dropdown({ label, title, className = "chip", wide = false, children, onOpen }) {
  const [open, setOpen] = useState(false);
  const button = useRef(null);
  const toggle = () => {
    if (!open) onOpen?.();
    setOpen(!open);
  };
  return html`<span class="dropdown">
    <button type="button" class=${className} ref=${button} aria-haspopup="dialog"
      aria-expanded=${open} aria-label=${title} title=${title} onClick=${toggle}>${label}</button>
    ${open && html`<${Panel} anchor=${button} title=${title} wide=${wide}
      close=${() => setOpen(false)}>
      ${typeof children === "function" ? children(() => setOpen(false)) : children}<//>`}
  </span>`;
}

function Panel({ anchor, title, wide, close, children }) {
  const box = useRef(null);
  useFloating(box, close);
  useLayoutEffect(() => place(box.current, anchor.current), []);
  useEffect(() => {
    const outside = (event) => {
      const at = event.target;
      if (!box.current.contains(at) && !anchor.current.contains(at)) close();
    };
    const moved = () => place(box.current, anchor.current);
    document.addEventListener("pointerdown", outside);
    window.addEventListener("resize", moved);
    return () => {
      document.removeEventListener("pointerdown", outside);
      window.removeEventListener("resize", moved);
    };
  }, []);
  return html`<div class=${wide ? "panel wide" : "panel"} role="dialog" aria-label=${title}
    ref=${box}>${children}</div>`;
}

const EDGE = 8; // pixels that stay free around what floats

/** Put a panel beside its button, so that all of it is seen; on phones it is a sheet. */
function place(panel, anchor) {
  const at = anchor.getBoundingClientRect();
  panel.style.maxHeight = "";
  const { width, height } = panel.getBoundingClientRect();
  const below = innerHeight - at.bottom - 2 * EDGE;
  const above = at.top - 2 * EDGE;
  const under = height <= below || below >= above;
  panel.style.left = `${Math.max(EDGE, Math.min(at.left, innerWidth - width - EDGE))}px`;
  panel.style.top = under ? `${at.bottom + EDGE / 2}px` : "auto";
  panel.style.bottom = under ? "auto" : `${innerHeight - at.top + EDGE / 2}px`;
  panel.style.maxHeight = `${under ? below : above}px`;
}

/** 75.4 seconds as "1:15". */
export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const minutes = Math.floor(whole / 60);
  const rest = String(whole % 60).padStart(2, "0");
  if (minutes < 60) return `${minutes}:${rest}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

/** A text that begins with a capital. */
export const sentence = (text) => text && text[0].toUpperCase() + text.slice(1);

/** A number of bytes as people say it. */
export function size(bytes) {
  const units = ["B", "kB", "MB", "GB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(bytes, 1)) / 3));
  const value = bytes / 1000 ** at;
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}
