// Pictures that somebody gives for the next one: which size it is made in then, and what of it.

import { base64 } from "./api.js";
import { readPicture, SIDE_MAX } from "./picture_file.js";
import { about, asked, given, sayAll, usual } from "./state.js";

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
  const { blob, width, height } = await readPicture(file);
  given.value = { image: await base64(blob), mask: null, width, height };
  sayAll(fitted(width, height));
}

/** Begin the next picture with what came out of the editor. */
export function takeEdited({ image, mask, mask_blur: blur, width, height, extended }) {
  given.value = { image, mask, width, height };
  sayAll({ width, height, mask_blur: mask === null ? null : blur,
    strength: extended ? ALL : asked.value.strength });
}

/** Make the next picture from noise alone again, in the model's own size. */
export function dropGiven() {
  given.value = null;
  sayAll({ width: null, height: null, strength: null, mask_blur: null, only_masked: null,
    padding: null });
}
