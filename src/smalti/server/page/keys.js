// Keys that do something wherever the focus is.

/** @typedef {{key: string, action: (event: KeyboardEvent) => void, control: boolean,
 *    typing: boolean, floating: boolean}} Shortcut */

/** Those in force, the newest last; what floats over the page goes before what does not.
 * @type {Shortcut[]} */
const shortcuts = [];

const PRESSED_BY_ENTER = "button, a, summary, select";

/**
 * Call `action` when a key is pressed; what is returned ends that.
 *
 * @param {string} key as in KeyboardEvent.key
 * @param {(event: KeyboardEvent) => void} action
 * @param {object} how `control`: together with Ctrl or ⌘; `typing`: in fields of text, too;
 *   `floating`: it belongs to what floats, and comes first.
 */
export function shortcut(key, action, { control = false, typing = control || key === "Escape",
                                       floating = false } = {}) {
  const own = { key, action, control, typing, floating };
  shortcuts.push(own);
  return () => shortcuts.splice(shortcuts.indexOf(own), 1);
}

/** Whether text is written, or a value chosen, where the focus is. */
function isTyping(element) {
  return element.matches?.("input:not([type=checkbox]):not([type=radio]), textarea, select") ||
    element.isContentEditable;
}

/** Whether something floats over the page, so that keys of the page are not meant. */
function isCovered() {
  return shortcuts.some((each) => each.floating);
}

function pressed(event) {
  if (event.defaultPrevented || event.isComposing || event.altKey) return;
  const control = event.ctrlKey || event.metaKey;
  const found = shortcuts.filter((each) => each.key === event.key && each.control === control
    && (each.typing || !isTyping(event.target))
    && (each.floating || !isCovered())
    && !(event.key === "Enter" && !control && event.target.matches?.(PRESSED_BY_ENTER)))
    .sort((one, other) => one.floating - other.floating).at(-1);
  if (!found) return;
  event.preventDefault();
  found.action(event);
}

document.addEventListener("keydown", pressed);

/** What the key beside the letters is called here. */
export const CONTROL = /Mac|iP(hone|ad)/.test(navigator.platform) ? "⌘" : "Ctrl";
