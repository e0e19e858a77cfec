// What the page asks of the server: see docs/server.md.

/** What the server refused, or that it cannot be reached, in words that say what to do. */
export class Refused extends Error {
  /** @param {number} status of HTTP, 0 where there was no answer
   *  @param {string} message
   *  @param {string} name of the error, as the server calls it */
  constructor(status, message, name = "") {
    super(message);
    this.status = status;
    this.title = name;
  }
}

/**
 * One request; the JSON of its answer.
 *
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @throws {Refused}
 */
export async function ask(method, path, body) {
  const sent = method === "POST" ? { headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body ?? {}) } : {};
  let answer;
  try {
    answer = await fetch(path, { method, ...sent });
  } catch {
    throw new Refused(0, "The server does not answer. Is `smalti serve` still running?");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    throw new Refused(answer.status, told.message ?? `The server answered ${answer.status}.`,
      told.error);
  }
  return told;
}

export const get = (path) => ask("GET", path);
export const post = (path, body) => ask("POST", path, body);
export const remove = (path) => ask("DELETE", path);

/** A query behind a path, without what is empty. */
export function query(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null
    && value !== undefined && value !== false);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/**
 * Everything that happens, from now on: `take` is called with the name of an event and its data,
 * `connected` with whether there is a connection. A connection that is lost is made anew.
 */
export function listen(take, connected) {
  const names = ["hello", "job", "gone", "queue", "picture", "removed", "models"];
  const source = new EventSource("/api/events");
  for (const name of names) {
    source.addEventListener(name, (event) => take(name, JSON.parse(event.data)));
  }
  source.addEventListener("open", () => connected(true));
  source.addEventListener("error", () => {
    connected(false);
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => listen(take, connected), AGAIN_AFTER);
    }
  });
}

const AGAIN_AFTER = 2000; // milliseconds; a server that is started again answers within one

/** The content of a file, or of an address of this server, in base64.
 * @param {Blob} blob */
export function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** The content of a picture of the gallery. @returns {Promise<Blob>} */
export async function pictureFile(picture) {
  const answer = await fetch(picture.file);
  if (!answer.ok) throw new Refused(answer.status, "The file of this picture is gone.");
  return answer.blob();
}
