// The editor over the page: paint what of a picture is to be made anew, and extend the picture.

import { render } from "./vendor/preact.js";
import { useEffect, useReducer, useRef, useState } from "./vendor/hooks.js";
import { base64 } from "./api.js";
import { drawMirrored, Mask } from "./editor_mask.js";
import { EditorView } from "./editor_view.js";
import { askFile, asPng, openPicture, PictureError, receiving, SIDE_MAX } from "./picture_file.js";
import { fitted, multiple } from "./init_picture.js";
import { CONTROL } from "./keys.js";
import { html, useFloating } from "./ui.js";

/** The brush at first, as a share of the picture's shorter side, and its largest diameter. */
const BRUSH_SHARE = 0.15, BRUSH_MAX = 1024;
/** What a key multiplies the brush and the zoom by. */
const KEY_FACTOR = 1.2;
/** How far an arrow key moves the brush, as a share of its diameter. */
const ARROW_SHARE = 0.25;
/** Over how many pixels a mask may fade, and does at first, as in A1111. */
const FEATHER_MAX = 64, FEATHER = 4;
/** How much is added to a side at first, as a share of the picture. */
const ADDED_SHARE = 0.5;
const ARROWS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};
const SIDES = [["left", "←"], ["top", "↑"], ["bottom", "↓"], ["right", "→"]];

/**
 * Let somebody edit a picture.
 *
 * `width` and `height` are the size that it is to have, as near as the multiples of the model
 * allow; where they are not given it has as many pixels as the model was made for. `mask` is one to
 * begin with. What comes back is null where nothing is to be done; `mask` is null where nothing is
 * masked, `mask_blur` are the pixels over which it fades, and `extended` tells whether the picture
 * became larger. Pictures are PNG in base64.
 *
 * @param {{picture?: string | Blob, mask?: string | Blob | null, mask_blur?: number | null,
 *     width?: number, height?: number}} asked
 * @returns {Promise<null | {image: string, mask: string | null, mask_blur: number, width: number,
 *     height: number, extended: boolean}>}
 */
export function openEditor(asked) {
  const host = document.createElement("div");
  document.body.append(host);
  return new Promise((resolve) => {
    const close = (made) => {
      render(null, host);
      host.remove();
      resolve(made);
    };
    render(html`<${Editor} asked=${asked} close=${close} />`, host);
  });
}

/** A picture in the size that is worked on, and its mask. */
async function sheetOf(picture, { mask, mask_blur: feather, width, height }) {
  const opened = await openPicture(picture), step = multiple();
  const given = mask ? await openPicture(mask) : null;
  const usual = fitted(opened.width, opened.height);
  const rounded = (side) => Math.min(SIDE_MAX, Math.max(1, Math.round(side / step)) * step);
  const source = document.createElement("canvas");
  source.width = rounded(width ?? usual.width);
  source.height = rounded(height ?? usual.height);
  const context = source.getContext("2d");
  const scale = Math.max(source.width / opened.width, source.height / opened.height);
  const wide = opened.width * scale, high = opened.height * scale;
  context.imageSmoothingQuality = "high";
  context.drawImage(opened.element, (source.width - wide) / 2, (source.height - high) / 2,
                    wide, high);
  const found = new Mask(source.width, source.height, given?.element ?? null);
  found.setFeather(feather ?? FEATHER);
  return { source, mask: found, step };
}

/** What was made of a sheet, as `openEditor` gives it. */
async function resultOf({ source, mask }) {
  const { width, height } = mask.canvas;
  const whole = document.createElement("canvas");
  whole.width = width;
  whole.height = height;
  drawMirrored(whole.getContext("2d"), source, mask.width, mask.height, mask.bounds);
  const masked = mask.share() > 0;
  return {
    image: await base64(await asPng(whole)),
    mask: masked ? await base64(await asPng(mask.blackAndWhite())) : null,
    mask_blur: mask.feather, width, height, extended: mask.isExtended,
  };
}

function Editor({ asked, close }) {
  const [sheet, setSheet] = useState(null);
  const [said, say] = useState("");
  const box = useRef(null), warned = useRef(false), current = useRef(null);
  current.current = sheet;
  const leave = () => {
    if (current.current?.mask.isChanged && !warned.current) {
      warned.current = true;
      say("There are changes. Esc once more leaves without them.");
    } else {
      close(null);
    }
  };
  useFloating(box, leave);
  const trying = async (action) => {
    try {
      await action();
      say("");
    } catch (error) {
      if (!(error instanceof PictureError)) throw error;
      say(error.message);
    }
  };
  const load = (picture, options) => trying(async () => setSheet(await sheetOf(picture, options)));
  const replace = (file) => load(file, {});
  const open = async () => {
    const file = await askFile();
    if (file) replace(file);
  };
  useEffect(() => {
    if (asked.picture) load(asked.picture, asked);
  }, []);
  return html`<section class="editor" role="dialog" aria-modal="true" ref=${box}
    aria-label="Edit the picture" ...${receiving(replace)}>
    <header class="editor-head">
      <h2>Edit</h2>
      <p class="editor-hint">Paint over what is to be made anew. The rest stays as it is.</p>
      <button type="button" class="secondary" onClick=${open}>
        Open…</button>
      <button type="button" class="secondary" onClick=${() => close(null)}>Cancel</button>
      <button type="button" class="primary" disabled=${!sheet} data-test="editor-use"
        title=${`${CONTROL}+Enter`}
        onClick=${() => trying(async () => close(await resultOf(sheet)))}>Use</button>
    </header>
    ${sheet === null ? html`<p class="editor-empty">${said ? "" :
        asked.picture ? "Opening the picture" : "Drop or paste a picture here, or open one."}</p>`
      : html`<${Desk} key=${sheet.source} sheet=${sheet} say=${say}
          use=${() => trying(async () => close(await resultOf(sheet)))} />`}
    <p class=${said ? "editor-said" : "editor-said empty"} role="alert">${said}</p>
  </section>`;
}

/** The tools, the picture under its mask, and a line that says what there is. */
function Desk({ sheet, say, use }) {
  const { mask, step } = sheet;
  const shorter = Math.min(mask.width, mask.height);
  const canvas = useRef(null), view = useRef(null);
  const brush = useRef({ size: Math.max(1, Math.round(shorter * BRUSH_SHARE)), erase: false });
  const [, redraw] = useReducer((count) => count + 1, 0);
  const shown = (action) => (...values) => {
    action(...values);
    view.current?.draw();
    redraw();
  };
  const tools = {
    resize: shown((size) => {
      brush.current.size = Math.max(1, Math.min(BRUSH_MAX, size));
    }),
    grow: (factor) => {
      const { size } = brush.current, next = Math.round(size * factor);
      tools.resize(next === size ? size + Math.sign(factor - 1) : next);
    },
    erase: shown((erase) => {
      brush.current.erase = erase;
    }),
    feather: shown((pixels) => mask.setFeather(pixels)),
    act: shown((act) => mask.add(act)),
    undo: shown(() => mask.undo()),
    redo: shown(() => mask.redo()),
    zoom: (factor) => view.current.zoom(factor),
    fit: () => view.current.fit(),
    extend: (side, pixels) => extend(mask, side, pixels, step, say) && tools.settled(),
    settled: shown(() => view.current.fit()),
    use,
  };
  useEffect(() => {
    view.current = new EditorView(canvas.current, sheet, brush.current, {
      stroke: (dabs, erase) => tools.act({ kind: "stroke", erase, dabs }),
      size: tools.grow,
      zoomed: redraw,
    });
    canvas.current.focus({ preventScroll: true });
    return () => view.current.close();
  }, []);
  const pressed = (event) => keyPressed(event, view.current, brush.current, tools);
  return html`<div class="editor-desk" onKeyDown=${pressed}
    onKeyUp=${(event) => { if (event.key === " ") view.current.panning = false; }}>
    <${Tools} brush=${brush.current} mask=${mask} step=${step} tools=${tools}
      zoom=${view.current?.scale ?? 1} />
    <canvas class="editor-canvas" ref=${canvas} tabindex="0" role="application" data-test="editor"
      aria-label="The picture and its mask" aria-describedby="editor-keys"></canvas>
    <p class="editor-status"><span role="status" data-test="editor-status">${status(mask)}</span>
      <span id="editor-keys" class="editor-keys">Arrows move the brush, Enter paints · B brush,
        E eraser · [ ] or wheel: size · ${CONTROL}+Z undo · + − 0 zoom · Space and drag: move</span>
    </p></div>`;
}

/** What there is, in words. */
function status(mask) {
  const { width, height } = mask.canvas, share = mask.share();
  const percent = share > 0 && share < 0.01 ? "less than 1" : Math.round(share * 100);
  return `${width}×${height} · ` + (share === 0 ? "nothing masked: all of it is changed" :
    `${percent} % is made anew`);
}

/** Add to a side of a picture, in multiples of `step`; whether that can be. */
function extend(mask, side, pixels, step, say) {
  const wide = side === "left" || side === "right";
  const added = Math.max(1, Math.round(pixels / step)) * step;
  const length = (wide ? mask.canvas.width : mask.canvas.height) + added;
  if (length > SIDE_MAX) {
    say(`The picture would be ${length} pixels ${wide ? "wide" : "high"}; ` +
      `${SIDE_MAX} are the most. Add less.`);
    return false;
  }
  say("");
  mask.add({ kind: "extend", left: 0, top: 0, right: 0, bottom: 0, [side]: added });
  return true;
}

/** The keys of the editor; those of its fields are the browser's. */
function keyPressed(event, view, brush, tools) {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const onCanvas = event.target === view.canvas;
  let action;
  if (event.ctrlKey || event.metaKey) {
    action = { z: event.shiftKey ? tools.redo : tools.undo, y: tools.redo, Enter: tools.use }[key];
  } else if (!event.target.matches("input")) {
    action = {
      b: () => tools.erase(false), e: () => tools.erase(true),
      "[": () => tools.grow(1 / KEY_FACTOR), "]": () => tools.grow(KEY_FACTOR),
      f: () => tools.act({ kind: "fill" }), i: () => tools.act({ kind: "invert" }),
      Delete: () => tools.act({ kind: "clear" }), Backspace: () => tools.act({ kind: "clear" }),
      "+": () => tools.zoom(KEY_FACTOR), "=": () => tools.zoom(KEY_FACTOR),
      "-": () => tools.zoom(1 / KEY_FACTOR), 0: tools.fit,
    }[key];
    if (onCanvas && key in ARROWS) {
      const far = event.shiftKey ? 1 : Math.max(1, brush.size * ARROW_SHARE);
      action = () => view.moveBrush(...ARROWS[key].map((way) => way * far));
    } else if (onCanvas && key === "Enter") {
      action = () => {
        view.moveBrush(0, 0);
        tools.act({ kind: "stroke", erase: brush.erase,
                    dabs: [{ ...view.place, size: brush.size }] });
      };
    } else if (onCanvas && key === " ") {
      action = () => { view.panning = true; };
    }
  }
  if (action) {
    event.preventDefault();
    event.stopPropagation();
    action();
  }
}

function Tools({ brush, mask, step, tools, zoom }) {
  const longest = Math.min(BRUSH_MAX, Math.max(mask.width, mask.height));
  const act = (kind) => () => tools.act({ kind });
  return html`<div class="editor-tools" role="toolbar" aria-label="Tools">
    <div class="editor-group" role="group" aria-label="Brush">
      <${Tool} label="Brush" title="B" pressed=${!brush.erase} act=${() => tools.erase(false)} />
      <${Tool} label="Eraser" title="E" pressed=${brush.erase} act=${() => tools.erase(true)} />
      <${Range} label="Size" value=${brush.size} low="1" high=${longest} set=${tools.resize} />
      <${Range} label="Feather" value=${mask.feather} low="0" high=${FEATHER_MAX}
        set=${tools.feather} />
    </div>
    <div class="editor-group" role="group" aria-label="The whole mask">
      <${Tool} label="Fill" title="F" act=${act("fill")} />
      <${Tool} label="Clear" title="Delete" act=${act("clear")} />
      <${Tool} label="Invert" title="I" act=${act("invert")} />
    </div>
    <div class="editor-group" role="group" aria-label="What was done">
      <${Tool} label="Undo" title=${`${CONTROL}+Z`} disabled=${!mask.isChanged}
        act=${tools.undo} />
      <${Tool} label="Redo" title=${`${CONTROL}+Shift+Z`} disabled=${!mask.canRedo}
        act=${tools.redo} />
    </div>
    <${Extend} mask=${mask} step=${step} extend=${tools.extend} />
    <div class="editor-group" role="group" aria-label="Zoom">
      <${Tool} label="−" name="Smaller" title="-" act=${() => tools.zoom(1 / KEY_FACTOR)} />
      <${Tool} label=${`${Math.round(zoom * 100)} %`} name="Show all" title="0"
        act=${tools.fit} />
      <${Tool} label="+" name="Larger" title="+" act=${() => tools.zoom(KEY_FACTOR)} />
    </div>
  </div>`;
}

/** A button of the editor; `name` is what it is called where its label is a sign. */
function Tool({ label, name, title, pressed, disabled, act }) {
  return html`<button type="button" class="editor-tool" aria-label=${name} disabled=${disabled}
    title=${`${name ?? label} (${title})`} aria-pressed=${pressed} onClick=${act}>
    ${label}</button>`;
}

function Range({ label, value, low, high, set }) {
  return html`<label class="editor-range"><span>${label}</span>
    <input type="range" min=${low} max=${high} step="1" value=${value}
      onInput=${(event) => set(Number(event.target.value))} />
    <output>${value}</output></label>`;
}

/** Buttons that make the picture larger on one side. */
function Extend({ mask, step, extend }) {
  const usual = Math.max(1, Math.round(Math.min(mask.width, mask.height) * ADDED_SHARE / step));
  const [pixels, set] = useState(usual * step);
  return html`<div class="editor-group" role="group" aria-label="Extend the picture">
    <label class="editor-range"><span>Extend by</span>
      <input type="number" class="field" min=${step} max=${SIDE_MAX} step=${step} value=${pixels}
        onChange=${(event) => set(Number(event.target.value) || step)} /></label>
    ${SIDES.map(([side, sign]) => html`<${Tool} label=${sign} name=${`Extend ${WORDS[side]}`}
      title=${`by ${pixels} pixels`} act=${() => extend(side, pixels)} />`)}
  </div>`;
}

const WORDS = { left: "to the left", top: "upwards", right: "to the right", bottom: "downwards" };
