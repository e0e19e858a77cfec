// The mask of a picture as a list of what was done to it, so that all of it can be undone.
//
// Places are in pixels of the picture, whose upper left corner is 0, 0; where the picture is
// extended they go below 0 and beyond its size. What was added is always masked, since nothing
// else is there. A mask is drawn by doing all of the list again, which takes milliseconds.

/**
 * @typedef {{left: number, top: number, right: number, bottom: number}} Bounds
 * @typedef {{x: number, y: number, size: number}} Dab a place of the brush, and its diameter
 * @typedef {{kind: "stroke", erase: boolean, dabs: Dab[]}
 *     | {kind: "fill" | "clear" | "invert"}
 *     | {kind: "extend", left: number, top: number, right: number, bottom: number}} Act
 */

/** How far the mask of what was added reaches into the picture, in times of the feather: as far as
 * the server takes it, so that the seam lies within what is made anew. */
const REACH = 2;
/** Colour of a mask while it is drawn; only its opacity counts. */
const INK = "#fff";

/** A mask of a picture of some size; `given` is one to begin with, white where it masks. */
export class Mask {
  /**
   * @param {number} width
   * @param {number} height
   * @param {CanvasImageSource | null} given
   */
  constructor(width, height, given = null) {
    this.width = width;
    this.height = height;
    this.feather = 0;
    /** Opaque where the picture is made anew; its upper left corner is that of `bounds`. */
    this.canvas = document.createElement("canvas");
    this._context = this.canvas.getContext("2d", {willReadFrequently: true});
    this._given = given === null ? null : opacity(given, width, height);
    /** @type {Act[]} */
    this._acts = [];
    this._done = 0;
    this.draw();
  }

  /** What the picture covers with all that was added. @returns {Bounds} */
  get bounds() {
    const found = {left: 0, top: 0, right: this.width, bottom: this.height};
    for (const act of this._acts.slice(0, this._done)) {
      if (act.kind === "extend") {
        found.left -= act.left;
        found.top -= act.top;
        found.right += act.right;
        found.bottom += act.bottom;
      }
    }
    return found;
  }

  get isExtended() {
    const { left, top, right, bottom } = this.bounds;
    return left < 0 || top < 0 || right > this.width || bottom > this.height;
  }

  get isChanged() {
    return this._done > 0;
  }

  get canRedo() {
    return this._done < this._acts.length;
  }

  /** Do something; what was undone before is forgotten. @param {Act} act */
  add(act) {
    this._acts.splice(this._done, Infinity, act);
    this._done += 1;
    this.draw();
  }

  undo() {
    this._done = Math.max(0, this._done - 1);
    this.draw();
  }

  redo() {
    this._done = Math.min(this._acts.length, this._done + 1);
    this.draw();
  }

  /** Let the mask fade over so many pixels. */
  setFeather(pixels) {
    this.feather = pixels;
    this.draw();
  }

  /** Draw the canvas anew. */
  draw() {
    this._share = null;
    const { left, top, right, bottom } = this.bounds;
    const context = this._context;
    this.canvas.width = right - left;
    this.canvas.height = bottom - top;
    context.translate(-left, -top);
    if (this._given !== null) {
      context.drawImage(this._given, 0, 0);
    }
    for (const act of this._acts.slice(0, this._done)) {
      this._drawAct(act);
    }
    this._drawAdded();
  }

  /** @param {Act} act */
  _drawAct(act) {
    if (act.kind === "stroke") {
      this._drawStroke(act.dabs, act.erase);
    } else if (act.kind !== "extend") {
      const over = {fill: "source-over", clear: "destination-out", invert: "xor"};
      this._context.globalCompositeOperation = over[act.kind];
      this._context.fillStyle = INK;
      this._context.fillRect(0, 0, this.width, this.height);
    }
  }

  /**
   * Draw a stroke that is not at its end yet: the part after the dab `from`.
   * @param {Dab[]} dabs
   * @param {boolean} erase
   * @param {number} from
   */
  drawOn(dabs, erase, from) {
    this._share = null;
    this._drawStroke(dabs, erase, from);
    this._drawAdded();
  }

  _drawStroke(dabs, erase, from = 0) {
    const context = this._context;
    context.globalCompositeOperation = erase ? "destination-out" : "source-over";
    context.strokeStyle = context.fillStyle = INK;
    context.lineCap = "round";
    dabs.forEach((dab, number) => {
      if (number < from) {
        return;
      }
      const before = dabs[Math.max(0, number - 1)];
      context.beginPath();
      if (number === 0) {
        context.arc(dab.x, dab.y, dab.size / 2, 0, 2 * Math.PI);
        context.fill();
        return;
      }
      context.lineWidth = dab.size;
      context.moveTo(before.x, before.y);
      context.lineTo(dab.x, dab.y);
      context.stroke();
    });
  }

  /** Mask what was added to the picture, and a little of the picture beside it. */
  _drawAdded() {
    if (!this.isExtended) {
      return;
    }
    const { left, top, right, bottom } = this.bounds, reach = REACH * this.feather;
    const inner = {
      left: left < 0 ? reach : 0,
      top: top < 0 ? reach : 0,
      right: this.width - (right > this.width ? reach : 0),
      bottom: this.height - (bottom > this.height ? reach : 0),
    };
    const context = this._context;
    context.globalCompositeOperation = "source-over";
    context.fillStyle = INK;
    context.beginPath();
    context.rect(left, top, right - left, bottom - top);
    if (inner.left < inner.right && inner.top < inner.bottom) {
      context.rect(inner.left, inner.top, inner.right - inner.left,
              inner.bottom - inner.top);
    }
    context.fill("evenodd");
  }

  /** Share of the canvas that is masked, from 0 to 1; 0 only where nothing is. */
  share() {
    if (this._share === null) {
      const { width, height } = this.canvas;
      const { data } = this._context.getImageData(0, 0, width, height);
      let sum = 0;
      for (let place = 3; place < data.length; place += 4) sum += data[place];
      this._share = sum / 255 / (width * height);
    }
    return this._share;
  }

  /** It as a picture: white where it masks, black elsewhere. @returns {HTMLCanvasElement} */
  blackAndWhite() {
    const canvas = document.createElement("canvas");
    canvas.width = this.canvas.width;
    canvas.height = this.canvas.height;
    const context = canvas.getContext("2d");
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.canvas, 0, 0);
    return canvas;
  }
}

/** A canvas that is as opaque as a black and white picture is white. */
function opacity(given, width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  context.drawImage(given, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height);
  for (let place = 0; place < pixels.data.length; place += 4) {
    const light = pixels.data[place] * pixels.data[place + 3] / 255;
    pixels.data.set([255, 255, 255, light], place);
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/**
 * Draw a picture, mirrored at its edges as far as `bounds` reach, so that what is made there goes
 * on from colours that fit. The upper left corner of `bounds` is at 0, 0.
 * @param {CanvasRenderingContext2D} context
 * @param {CanvasImageSource} source
 * @param {number} width
 * @param {number} height
 * @param {Bounds} bounds
 */
export function drawMirrored(context, source, width, height, bounds) {
  const first = {column: Math.floor(bounds.left / width), row: Math.floor(bounds.top / height)};
  for (let row = first.row; row * height < bounds.bottom; row++) {
    for (let column = first.column; column * width < bounds.right; column++) {
      const flipX = Math.abs(column % 2), flipY = Math.abs(row % 2);
      context.save();
      context.translate((column + flipX) * width - bounds.left,
                (row + flipY) * height - bounds.top);
      context.scale(flipX ? -1 : 1, flipY ? -1 : 1);
      context.drawImage(source, 0, 0, width, height);
      context.restore();
    }
  }
}
