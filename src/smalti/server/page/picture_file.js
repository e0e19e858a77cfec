// Pictures that somebody opens, drops or pastes: read with limits, and in a sentence what is wrong.

/** Bytes of a file that is read; the server takes requests of 64 MiB, which is 48 as base64. */
export const FILE_BYTES_MAX = 40 << 20;
/** Pixels that are decoded: more than phones' cameras have, 256 MB in memory. */
export const PIXELS_MAX = 64e6;
/** Pixels of a side that the server takes; larger pictures are made smaller. */
export const SIDE_MAX = 4096;

const MIB = 1 << 20;
/** How files begin, by the type of their content; a name may say anything. */
const BEGINNINGS = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["image/gif", /^GIF8/],
  ["image/bmp", /^BM/],
];

/** What is wrong with a picture that was given, in a sentence for the one who gave it. */
export class PictureError extends Error {}

/**
 * A picture whose content, type and size are known, and which can be drawn.
 * @typedef {{blob: Blob, width: number, height: number, element: HTMLImageElement}} OpenedPicture
 */

/**
 * Read a picture. Throws PictureError for what is none, or is too large.
 * @param {Blob} file
 * @returns {Promise<OpenedPicture>}
 */
export async function readPicture(file) {
  const name = file.name ? `“${file.name}”` : "This";
  if (file.size > FILE_BYTES_MAX) {
    throw new PictureError(`${name} has ${Math.ceil(file.size / MIB)} MiB; pictures of up to ` +
      `${FILE_BYTES_MAX / MIB} MiB are read. Save it smaller, as JPEG.`);
  }
  const type = await typeOf(file);
  if (type === null) {
    throw new PictureError(`${name} is no picture that can be read here; ` +
      "open a PNG, JPEG, WebP, GIF or BMP.");
  }
  const blob = file.slice(0, file.size, type);
  const element = await loaded(blob, name);
  const { naturalWidth: width, naturalHeight: height } = element;
  if (width * height > PIXELS_MAX) {
    throw new PictureError(`${name} has ${width}×${height} pixels; pictures of up to ` +
      `${PIXELS_MAX / 1e6} million pixels are read. Make it smaller.`);
  }
  return width > SIDE_MAX || height > SIDE_MAX ? smaller(element) :
    { blob, width, height, element };
}

/** The type of what a file holds; null where it is no picture that is read. */
async function typeOf(file) {
  const bytes = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const beginning = String.fromCharCode(...bytes);
  const found = BEGINNINGS.find(([, pattern]) => pattern.test(beginning));
  return found === undefined ? null : found[0];
}

/** An element that shows a picture. Its pixels are decoded when they are first drawn. */
async function loaded(blob, name) {
  const element = new Image();
  const address = URL.createObjectURL(blob);
  try {
    element.src = address;
    await new Promise((resolve, reject) => {
      element.onload = resolve;
      element.onerror = () => reject(new PictureError(
        `${name} cannot be read: the file is damaged or not complete.`));
    });
  } finally {
    URL.revokeObjectURL(address);
  }
  return element;
}

/** A picture in a size that the server takes. */
async function smaller(element) {
  const scale = SIDE_MAX / Math.max(element.naturalWidth, element.naturalHeight);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(element.naturalWidth * scale));
  canvas.height = Math.max(1, Math.round(element.naturalHeight * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(element, 0, 0, canvas.width, canvas.height);
  return readPicture(await asPng(canvas));
}

/**
 * What a canvas shows, as PNG.
 * @param {HTMLCanvasElement} canvas
 * @returns {Promise<Blob>}
 */
export function asPng(canvas) {
  return new Promise((resolve, reject) => canvas.toBlob(
    (blob) => blob === null ? reject(new PictureError(
      `A picture of ${canvas.width}×${canvas.height} pixels does not fit into the memory ` +
      "that the browser gives. Make it smaller.")) : resolve(blob), "image/png"));
}

/** The content that base64 stands for. */
function fromBase64(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Blob([bytes]);
}

/**
 * The picture of an address of this server, of a `data:` address, or of bytes that are there.
 * @param {string | Blob} source
 * @returns {Promise<OpenedPicture>}
 */
export async function openPicture(source) {
  if (source instanceof Blob) {
    return readPicture(source);
  }
  if (source.startsWith("data:")) { // which the page's policy lets nobody fetch
    return readPicture(fromBase64(source.slice(source.indexOf(",") + 1)));
  }
  const answer = await fetch(source);
  if (!answer.ok) {
    throw new PictureError("The picture is no longer there; its file was moved or deleted.");
  }
  return readPicture(await answer.blob());
}

/**
 * What an element does with files that are dropped on it or pasted into it: `take` is called with
 * the file, and nothing around the element sees it.
 * @param {(file: File) => void} take
 */
export function receiving(take) {
  const own = (event, file) => {
    event.preventDefault();
    event.stopPropagation();
    if (file) take(file);
  };
  return {
    onDragOver: (event) => own(event, null),
    onDrop: (event) => own(event, event.dataTransfer.files[0]),
    onPaste: (event) => {
      const file = [...event.clipboardData.files].find((each) => each.type.startsWith("image/"));
      if (file) own(event, file);
    },
  };
}

/**
 * Ask for a file with the browser's dialog; null where none is chosen.
 * @returns {Promise<File | null>}
 */
export function askFile() {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = BEGINNINGS.map(([type]) => type).join(",");
  return new Promise((resolve) => {
    input.addEventListener("change", () => resolve(input.files[0] ?? null));
    input.addEventListener("cancel", () => resolve(null));
    input.click();
  });
}
