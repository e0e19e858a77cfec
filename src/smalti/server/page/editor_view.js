/**
 * A picture on the screen under its mask: where it lies, how it is drawn, and what mouse, pen and
 * fingers do there. One finger, a pen or the mouse paints, two fingers or the middle button move
 * the picture, and the wheel changes the brush, with Ctrl the zoom.
 */

import { drawMirrored } from "./editor_mask.js";

/** @typedef {import("./editor_mask.js").Mask} Mask */
/** @typedef {import("./editor_mask.js").Dab} Dab */

/** Pixels of the screen for one of the picture. */
const ZOOM_MIN = 0.05, ZOOM_MAX = 32;
/** From this zoom on the pixels of a picture are shown as squares, so that they can be hit. */
const ZOOM_SQUARES = 8;
/** Pixels of the screen around a picture that fits. */
const MARGIN = 24;
/** How opaque a mask is shown: what lies below is still seen. */
const MASK_OPACITY = 0.55;
/** How far what fades is seen, in times of the feather. */
const FADES = 3;
/** What one notch of a wheel multiplies the brush or the zoom by; it counts 100 of its units. */
const WHEEL_FACTOR = 1.15, WHEEL_NOTCH = 100;
/** Dabs closer than this share of the brush change nothing that is seen. */
const DAB_DISTANCE = 0.05;
const MIDDLE = 1, RIGHT = 2, PEN_ERASER = 5;

export class EditorView {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {{source: CanvasImageSource, mask: Mask}} sheet the picture, in the size of its mask
   * @param {{size: number, erase: boolean}} brush
   * @param {{stroke: (dabs: Dab[], erase: boolean) => void, size: (factor: number) => void,
   *     zoomed: () => void}} tell what is called when something was done
   */
  constructor(canvas, sheet, brush, tell) {
    this.canvas = canvas;
    this.sheet = sheet;
    this.brush = brush;
    this.tell = tell;
    this.scale = 1;
    this.x = this.y = 0; // of the picture's upper left corner, in pixels of the screen
    /** Where the brush is, in pixels of the picture; null where it is not shown. */
    this.place = null;
    this.panning = false; // while the space bar is held
    this._pointers = new Map();
    this._stroke = null;
    this._fits = true;
    this._tint = document.createElement("canvas");
    this._extended = { canvas: document.createElement("canvas"), of: "" };
    this._waiting = false;
    for (const [name, called] of Object.entries({
      pointerdown: this._down, pointermove: this._move, pointerup: this._up,
      pointercancel: this._abandon, pointerleave: this._leave, wheel: this._wheel,
      contextmenu: (event) => event.preventDefault(),
    })) {
      canvas.addEventListener(name, called.bind(this), { passive: false });
    }
    this._sized = new ResizeObserver(() => this._resize());
    this._sized.observe(canvas);
  }

  /** Stop looking at the size of the canvas. */
  close() {
    this._sized.disconnect();
  }

  /** Show all of the picture. */
  fit() {
    const { left, top, right, bottom } = this.sheet.mask.bounds;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.scale = limited(Math.min((width - 2 * MARGIN) / (right - left),
                                  (height - 2 * MARGIN) / (bottom - top)));
    this.x = (width - (right - left) * this.scale) / 2 - left * this.scale;
    this.y = (height - (bottom - top) * this.scale) / 2 - top * this.scale;
    this._fits = true;
    this.tell.zoomed();
    this.draw();
  }

  /** Zoom by a factor around a place of the canvas, its middle where none is given. */
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = limited(this.scale * factor), change = scale / this.scale;
    this.x = x - (x - this.x) * change;
    this.y = y - (y - this.y) * change;
    this.scale = scale;
    this._fits = false;
    this.tell.zoomed();
    this.draw();
  }

  /** Move the picture by pixels of the screen. */
  pan(x, y) {
    this.x += x;
    this.y += y;
    this._fits = false;
    this.draw();
  }

  /** Move the brush by pixels of the picture, and the picture where the brush would leave it. */
  moveBrush(x, y) {
    const { left, top, right, bottom } = this.sheet.mask.bounds;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const from = this.place ?? { x: (left + right) / 2, y: (top + bottom) / 2 };
    this.place = { x: Math.min(right, Math.max(left, from.x + x)),
                   y: Math.min(bottom, Math.max(top, from.y + y)) };
    const shown = { x: this.x + this.place.x * this.scale, y: this.y + this.place.y * this.scale };
    this.x += Math.min(0, width - MARGIN - shown.x) + Math.max(0, MARGIN - shown.x);
    this.y += Math.min(0, height - MARGIN - shown.y) + Math.max(0, MARGIN - shown.y);
    this.draw();
  }

  /** Draw with the next frame of the screen. */
  draw() {
    if (!this._waiting) {
      this._waiting = true;
      requestAnimationFrame(() => {
        this._waiting = false;
        this._draw();
      });
    }
  }

  _resize() {
    const ratio = window.devicePixelRatio;
    for (const canvas of [this.canvas, this._tint]) {
      canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * ratio));
      canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * ratio));
    }
    if (this._fits) {
      this.fit();
    }
    this._draw(); // at once, since a canvas of a new size is empty
  }

  _draw() {
    const context = this.canvas.getContext("2d"), ratio = window.devicePixelRatio;
    const { left, top, right, bottom } = this.sheet.mask.bounds;
    const zoom = this.scale * ratio;
    const place = [zoom, 0, 0, zoom, (this.x + left * this.scale) * ratio,
                   (this.y + top * this.scale) * ratio];
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(...place);
    context.imageSmoothingEnabled = this.scale < ZOOM_SQUARES;
    context.drawImage(this._picture(), 0, 0, right - left, bottom - top);
    this._drawTint(place);
    context.save();
    context.beginPath();
    context.rect(0, 0, right - left, bottom - top);
    context.clip();
    context.setTransform(1, 0, 0, 1, 0, 0);
    const { feather } = this.sheet.mask;
    context.filter = feather > 0 ? `blur(${feather * zoom}px)` : "none";
    context.globalAlpha = MASK_OPACITY;
    context.drawImage(this._tint, 0, 0);
    context.restore();
    context.setTransform(1, 0, 0, 1, 0, 0);
    this._drawBrush(context, ratio);
  }

  /** Put the mask into `_tint`, in the accent's colour; beyond its edges it goes on, as it does
   * where the server lets it fade. */
  _drawTint(place) {
    const context = this._tint.getContext("2d"), { canvas, feather } = this.sheet.mask;
    const { width, height } = canvas, more = Math.ceil(FADES * feather);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.globalCompositeOperation = "copy";
    context.fillStyle = "transparent";
    context.fillRect(0, 0, this._tint.width, this._tint.height);
    context.globalCompositeOperation = "source-over";
    context.setTransform(...place);
    const across = [[0, 1, -more, more], [0, width, 0, width], [width - 1, 1, width, more]];
    const down = [[0, 1, -more, more], [0, height, 0, height], [height - 1, 1, height, more]];
    for (const [x, wide, toX, toWide] of across) {
      for (const [y, high, toY, toHigh] of down) {
        if (toWide > 0 && toHigh > 0) {
          context.drawImage(canvas, x, y, wide, high, toX, toY, toWide, toHigh);
        }
      }
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = getComputedStyle(this.canvas).color;
    context.fillRect(0, 0, this._tint.width, this._tint.height);
  }

  /** A ring where the brush is, dark and light, so that it is seen on every picture. */
  _drawBrush(context, ratio) {
    if (this.place === null) {
      return;
    }
    const radius = Math.max(1, this.brush.size / 2 * this.scale);
    for (const [colour, more] of [["#000", 1], ["#fff", 0]]) {
      context.beginPath();
      context.arc((this.x + this.place.x * this.scale) * ratio,
                  (this.y + this.place.y * this.scale) * ratio,
                  (radius + more) * ratio, 0, 2 * Math.PI);
      context.setLineDash(this.brush.erase ? [4 * ratio, 4 * ratio] : []);
      context.strokeStyle = colour;
      context.lineWidth = ratio;
      context.stroke();
    }
    context.setLineDash([]);
  }

  /** The picture with what was added to it. */
  _picture() {
    const { source, mask } = this.sheet;
    if (!mask.isExtended) {
      return source;
    }
    const { bounds } = mask, of = JSON.stringify(bounds), kept = this._extended;
    if (kept.of !== of) {
      kept.canvas.width = bounds.right - bounds.left;
      kept.canvas.height = bounds.bottom - bounds.top;
      drawMirrored(kept.canvas.getContext("2d"), source, mask.width, mask.height, bounds);
      kept.of = of;
    }
    return kept.canvas;
  }

  /** Where an event is, in pixels of the picture. */
  _at(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left - this.x) / this.scale,
             y: (event.clientY - box.top - this.y) / this.scale };
  }

  _down(event) {
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this._pointers.set(event.pointerId, event);
    this.place = this._at(event);
    if (this._pointers.size > 1) {
      this._abandonStroke(); // a second finger: both move the picture
    } else if (event.button !== MIDDLE && !this.panning) {
      const erase = this.brush.erase || event.button === RIGHT || event.button === PEN_ERASER;
      this._stroke = { erase, dabs: [this._dab(event)] };
      this.sheet.mask.drawOn(this._stroke.dabs, erase, 0);
    }
    this.draw();
  }

  _dab(event) {
    const size = this.brush.size * (event.pointerType === "pen" ? event.pressure || 1 : 1);
    return { ...this._at(event), size };
  }

  _move(event) {
    this.place = this._at(event);
    const before = this._pointers.get(event.pointerId);
    if (this._stroke !== null) {
      const { dabs, erase } = this._stroke, from = dabs.length;
      const events = event.getCoalescedEvents?.() ?? [];
      for (const each of events.length ? events : [event]) {
        const dab = this._dab(each), last = dabs[dabs.length - 1];
        if (Math.hypot(dab.x - last.x, dab.y - last.y) > DAB_DISTANCE * dab.size) {
          dabs.push(dab);
        }
      }
      this.sheet.mask.drawOn(dabs, erase, from);
    } else if (before !== undefined) {
      this._drag(before, event);
    }
    if (before !== undefined) {
      this._pointers.set(event.pointerId, event);
    }
    this.draw();
  }

  /** Move the picture by one pointer, and zoom by the distance of two. */
  _drag(before, event) {
    const box = this.canvas.getBoundingClientRect();
    const other = [...this._pointers.values()].find((each) => each.pointerId !== event.pointerId);
    if (other === undefined) {
      this.pan(event.clientX - before.clientX, event.clientY - before.clientY);
      return;
    }
    const apart = (each) => Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY);
    this.pan((event.clientX - before.clientX) / 2, (event.clientY - before.clientY) / 2);
    this.zoom(apart(event) / Math.max(1, apart(before)),
              (event.clientX + other.clientX) / 2 - box.left,
              (event.clientY + other.clientY) / 2 - box.top);
  }

  _up(event) {
    this._pointers.delete(event.pointerId);
    if (this._stroke !== null) {
      const { dabs, erase } = this._stroke;
      this._stroke = null;
      this.tell.stroke(dabs, erase);
    }
    if (event.pointerType === "touch") {
      this.place = null;
    }
    this.draw();
  }

  _abandon(event) {
    this._pointers.delete(event.pointerId);
    this._abandonStroke();
  }

  /** Take back a stroke that is not at its end. */
  _abandonStroke() {
    if (this._stroke !== null) {
      this._stroke = null;
      this.sheet.mask.draw();
      this.draw();
    }
  }

  _leave() {
    if (this._stroke === null && document.activeElement !== this.canvas) {
      this.place = null;
      this.draw();
    }
  }

  _wheel(event) {
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    const notches = Math.max(-1, Math.min(1, -(event.deltaY || event.deltaX) / WHEEL_NOTCH));
    const factor = WHEEL_FACTOR ** notches;
    if (event.ctrlKey || event.metaKey) {
      this.zoom(factor, event.clientX - box.left, event.clientY - box.top);
    } else {
      this.tell.size(factor);
      this.draw();
    }
  }
}

/** A zoom that is possible. */
const limited = (scale) => Math.min(ZOOM_MAX, Math.max(ZOOM_MIN, scale));
