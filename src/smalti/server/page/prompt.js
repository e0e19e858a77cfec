// The box of the prompt: it grows, paints weights and tags behind the text, and completes names.

import { useRef, useState } from "./vendor/hooks.js";
import { create, stem } from "./actions.js";
import { CONTROL } from "./keys.js";
import { asked, ofKind, say, taken } from "./state.js";
import { html } from "./ui.js";
import { painted } from "./weights.js";

const COMPLETIONS_MAX = 8;
const LETTERS_MIN = 2; // of a word, before names of embeddings are offered for it

/** The prompt, what it should not show where that is wanted, and the button that creates. */
export function PromptBox() {
  const negative = asked.value.negative_prompt;
  return html`<form class="prompts" onSubmit=${(event) => {
    event.preventDefault();
    create();
  }}>
    <div class="prompt-boxes">
      <${TextBox} name="prompt" label="Prompt" hint="What the picture shows" first />
      ${negative !== undefined && html`<${TextBox} name="negative_prompt"
        label="Negative prompt" hint="What to leave out" />`}
    </div>
    <div class="create">
      <button type="submit" class="primary">Create</button>
      <span class="key-hint" aria-hidden="true">${CONTROL} Enter</span>
    </div>
  </form>`;
}

/** One box of text. */
function TextBox({ name, label, hint, first = false }) {
  const text = asked.value[name] ?? "";
  const area = useRef(null);
  const behind = useRef(null);
  const [found, setFound] = useState(null);
  const look = () => setFound(completions(area.current.value, area.current.selectionStart));
  const take = (each) => {
    const next = text.slice(0, found.start) + each.written + text.slice(found.end);
    say(name, next);
    setFound(null);
    const caret = found.start + each.written.length;
    requestAnimationFrame(() => area.current?.setSelectionRange(caret, caret));
  };
  const pressed = (event) => completionKey(event, found, setFound, take);
  const list = `${name}-names`;
  return html`<div class="text-box">
    <div class="text-behind" aria-hidden="true" ref=${behind}>
      ${painted(text).map((each) => html`<${Stretch} ...${each} />`)}${"\u200b"}</div>
    <textarea ref=${area} rows="1" spellcheck="true" autocapitalize="none" aria-label=${label}
      placeholder=${hint} value=${text} id=${name} autofocus=${first && matchMedia(WIDE).matches}
      aria-controls=${found ? list : undefined} aria-autocomplete="list"
      aria-activedescendant=${found ? `${list}-${found.at}` : undefined}
      onInput=${(event) => { say(name, event.target.value); look(); }}
      onKeyDown=${pressed} onBlur=${() => setFound(null)} onClick=${() => setFound(null)}
      onScroll=${() => { behind.current.scrollTop = area.current.scrollTop; }}></textarea>
    ${found && html`<${Completions} id=${list} found=${found} take=${take} />`}
  </div>`;
}

const WIDE = "(min-width: 900px)";
const FULL = 0.6; // a weight so far from 1 is painted with the whole colour

/** A stretch behind the text: warm where it counts more, cool where it counts less. */
function Stretch({ text, weight, kind }) {
  if (kind === "" && weight === 1) return text;
  if (kind) return html`<mark class=${`mark-${kind}`}>${text}</mark>`;
  if (!taken("emphasis")) return text; // the model reads no weights
  const share = 30 + 70 * Math.min(1, Math.abs(weight - 1) / FULL);
  return html`<mark class=${weight > 1 ? "mark-strong" : "mark-weak"}
    style=${{ "--share": `${Math.round(share)}%` }}>${text}</mark>`;
}

function Completions({ id, found, take }) {
  return html`<ul class="completions" role="listbox" id=${id} aria-label="Names">
    ${found.names.map((each, at) => html`<li role="option" id=${`${id}-${at}`}
      aria-selected=${at === found.at} onPointerDown=${(event) => {
        event.preventDefault();
        take(each);
      }}><span>${each.name}</span><span class="quiet-text">${each.kind}</span></li>`)}
  </ul>`;
}

/** What could be meant by what stands before the caret: names, and which stretch they replace. */
function completions(text, caret) {
  const before = text.slice(0, caret);
  const tag = /<(lora:|lyco:)?([^<>:]*)$/i.exec(before);
  if (tag) {
    const letters = !tag[1] && "lora:".startsWith(tag[2].toLowerCase()) ? "" : tag[2];
    return offered("lora", letters, tag.index, caret, (name) => `<lora:${name}:1>`);
  }
  const word = /[\p{L}\p{N}_.-]+$/u.exec(before);
  if (!word || word[0].length < LETTERS_MIN) return null;
  return offered("embedding", word[0], word.index, caret, (name) => name);
}

function offered(kind, letters, start, end, written) {
  const near = letters.toLowerCase();
  const names = ofKind(kind).map((each) => stem(each.name))
    .filter((name) => name.toLowerCase().includes(near) && name !== letters)
    .sort((one, other) => one.toLowerCase().indexOf(near) - other.toLowerCase().indexOf(near))
    .slice(0, COMPLETIONS_MAX)
    .map((name) => ({ name, kind: kind === "lora" ? "LoRA" : kind, written: written(name) }));
  return names.length ? { names, start, end, at: 0 } : null;
}

/** The keys that choose among completions. */
function completionKey(event, found, setFound, take) {
  if (!found || event.isComposing || event.ctrlKey || event.metaKey) return;
  const count = found.names.length;
  const moves = { ArrowDown: 1, ArrowUp: count - 1 };
  if (event.key in moves) setFound({ ...found, at: (found.at + moves[event.key]) % count });
  else if (event.key === "Enter" || event.key === "Tab") take(found.names[found.at]);
  else if (event.key === "Escape") setFound(null);
  else return;
  event.preventDefault();
}
