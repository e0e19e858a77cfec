// Pictures that somebody gives for the next one: which size it is made in then, and what of it.

import { base64 } from "./api.js";
import { PictureError, readPicture, SIDE_MAX } from "./picture_file.js";
import { about, announced, asked, besides, given, picturesMax, sayAll, usual } from "./state.js";

/** What sizes are multiples of where the server does not say it: every model takes these. */
const MULTIPLE = 64;
/** Pixels up to which a picture keeps its own size, in times of what the model was made for. */
const OWN_TIMES = 4;
/** Strength where all of the mask is new, as beside a picture that was extended. */
const ALL = 1;

/** What width and height are multiples of for the model that is chosen. */
export const multiple = () => about.value?.multiple ?? MULTIPLE;

/**
 * The size in which a picture is made anew: its own where the model can do that, else one of the
 * same proportions and with about as many pixels as the model was made for.
 * @param {number} width
 * @param {number} height
 * @returns {{width: number, height: number}}
 */
export function fitted(width, height) {
  const pixels = (usual("width") ?? width) * (usual("height") ?? height), step = multiple();
  if (width % step === 0 && height % step === 0 && width * height <= OWN_TIMES * pixels) {
    return { width, height };
  }
  const scale = Math.sqrt(pixels / (width * height));
  const rounded = (side) =>
    Math.min(SIDE_MAX, Math.max(1, Math.round(side * scale / step)) * step);
  return { width: rounded(width), height: rounded(height) };
}

/** Begin the next picture with the one in a file. Throws PictureError. @param {Blob} file */
export async function takeFile(file) {
  beginWith(await inFile(file));
}

async function inFile(file) {
  const { blob, width, height } = await readPicture(file);
  return { image: await base64(blob), width, height };
}

function beginWith(first, others = []) {
  given.value = { ...first, mask: null, others };
  sayAll(fitted(first.width, first.height));
}

/** Have the picture in a file read besides the first one. Throws PictureError. */
export async function addFile(file) {
  const one = await inFile(file);
  if (!given.value) { // it was removed meanwhile
    beginWith(one);
    return;
  }
  const others = [...given.value.others ?? [], one];
  if (others.length >= picturesMax()) {
    throw new PictureError(`This model reads ${picturesMax()} pictures at most; remove one.`);
  }
  given.value = { ...given.value, others };
  announced.value = `Picture ${others.length + 1} is added`;
}

/** Read one of the others no more. @param {number} at its place among them */
export function dropOther(at) {
  given.value = { ...given.value, others: given.value.others.filter((_, each) => each !== at) };
  announced.value = `Picture ${at + 2} is removed`;
}

/** Begin the next picture with what came out of the editor. */
export function takeEdited({ image, mask, mask_blur: blur, width, height, extended, others = [] }) {
  given.value = { image, mask, width, height, others };
  sayAll({ width, height, mask_blur: mask === null ? null : blur,
    strength: extended ? ALL : asked.value.strength });
}

/** Remove the first picture: the next one takes its place; without one the picture is made from
 * noise alone again, in the model's own size. */
export function dropGiven() {
  const [next, ...others] = besides();
  sayAll({ width: null, height: null, strength: null, mask_blur: null, only_masked: null,
    padding: null });
  if (next) beginWith(next, others);
  else given.value = null;
}
