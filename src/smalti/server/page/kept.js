// Signals that hold pictures, kept in the browser's database, since they are too large for where
// other settings are kept. So a reload has them, and other tabs have the same. Where a browser
// keeps nothing (private windows), they are there until the page is closed.

import { effect, signal } from "./vendor/signals.js";

const DATABASE = "smalti", STORE = "large";

/**
 * A signal that is kept under a name, and follows what other tabs make of it. What was kept arrives
 * a moment after the page has begun, unless something else was said until then.
 */
export function keptLarge(name, first) {
  const found = signal(first), tabs = new BroadcastChannel(`smalti.${name}`);
  let known = first; // what the database has, or is about to have
  const read = async () => {
    const before = known;
    const value = await stored("readonly", (store) => store.get(name));
    if (value !== undefined && found.value === before) {
      known = found.value = value;
    }
  };
  effect(() => {
    const { value } = found;
    if (value === known) return;
    known = value;
    stored("readwrite", (store) => store.put(value, name)).then(() => tabs.postMessage(null));
  });
  tabs.addEventListener("message", read);
  read();
  return found;
}

/** What a request to the store gives; undefined where the browser keeps nothing. */
async function stored(mode, ask) {
  const database = await opened();
  if (database === null) return undefined;
  return new Promise((resolve) => {
    const transaction = database.transaction(STORE, mode);
    const request = ask(transaction.objectStore(STORE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => resolve(undefined);
  });
}

/** @type {Promise<IDBDatabase | null> | undefined} */
let opening;

/** The database; null where the browser has none for this page. */
function opened() {
  opening ??= new Promise((resolve) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
  });
  return opening;
}
