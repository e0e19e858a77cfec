// How a prompt is read, for its colours: the rules of diffusion/prompt.py and schedule_text.py,
// with the places where each stretch stands. tests/server/page/test_prompt.py compares both.

const NUMBER = String.raw`[-+]?(?:\d+\.?\d*|\.\d+)`;
const PIECE = new RegExp(
  String.raw`\\[()\[\]\\]|[()\[\]]|:\s*(${NUMBER})\s*\)|[^\\()\[\]:]+|[\\:]`, "gu");
const BREAK = /\s*(?<![\p{L}\p{N}_])BREAK(?![\p{L}\p{N}_])\s*/gu;
const TAG = /<([\p{L}\p{N}_]+):([^<>]+)>/gu;
const SCHEDULE_PIECE = /\\.|[()\[\]:|]|[^\\()\[\]:|]+|\\/gsu;
const WHEN = new RegExp(String.raw`^\s*${NUMBER}\s*$`, "u");
const STEP_UP = 1.1;
const DEPTH_MAX = 50;

/** @typedef {{text: string | null, weight: number, start: number, end: number}} Stretch */

/**
 * Stretches of a prompt with their weights, and the BREAKs between them, whose text is null.
 *
 * @param {string} text
 * @returns {Stretch[]}
 */
export function emphasised(text) {
  const pieces = [...text.matchAll(PIECE)];
  const { factors, ends } = brackets(pieces);
  const open = [];
  let weight = 1;
  const said = [];
  const leave = (place) => {
    const inner = [];
    for (let last = open.pop(); ; last = open.pop()) {
      weight = last.before;
      if (last.place === place) break;
      inner.push(last);
    }
    for (const each of inner.reverse()) enter(each.place, each.factor);
  };
  const enter = (place, factor) => {
    open.push({ place, factor, before: weight });
    weight *= factor;
  };
  pieces.forEach((piece, place) => {
    if (factors.has(place)) enter(place, factors.get(place));
    else if (ends.has(place)) leave(ends.get(place));
    else if (piece[0].startsWith("\\")) {
      const plain = piece[0].slice(1);
      said.push({ text: plain, weight, start: piece.index, end: piece.index + piece[0].length });
    } else said.push(...chunks(piece[0], piece.index, weight));
  });
  return joined(said);
}

/** A stretch without brackets, cut where BREAK stands. */
function chunks(text, offset, weight) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(BREAK)) {
    const at = offset + match.index;
    found.push({ text: text.slice(from, match.index), weight, start: offset + from, end: at },
      { text: null, weight: 1, start: at, end: at + match[0].length });
    from = match.index + match[0].length;
  }
  const rest = { text: text.slice(from), weight, start: offset + from, end: offset + text.length };
  return [...found, rest];
}

/** Neighbours of the same weight as one. */
function joined(said) {
  const result = [];
  for (const each of said.filter((part) => part.text !== "")) {
    const last = result.at(-1);
    if (last && last.text !== null && each.text !== null && last.weight === each.weight) {
      last.text += each.text;
      last.end = each.end;
    } else result.push({ ...each });
  }
  return result;
}

/** Place of an opening bracket -> its factor; place of a closing one -> that of its opening one. */
function brackets(pieces) {
  const factors = new Map();
  const ends = new Map();
  const waiting = { "(": [], "[": [] };
  pieces.forEach(([sign, number], place) => {
    if (sign in waiting) {
      waiting[sign].push(place);
      factors.set(place, sign === "(" ? STEP_UP : 1 / STEP_UP);
    } else if ((sign === ")" || number !== undefined) && waiting["("].length) {
      ends.set(place, waiting["("].pop());
      if (number !== undefined) factors.set(ends.get(place), Number(number));
    } else if (sign === "]" && waiting["["].length) {
      ends.set(place, waiting["["].pop());
    }
  });
  return { factors, ends };
}

/**
 * Where [before:after:0.5] and [one|other] stand, and which signs in them are no text.
 *
 * @param {string} text
 * @returns {{start: number, end: number, signs: [number, number][]}[]}
 */
export function changes(text) {
  const found = [];
  const bracket = (sign, start) => ({ sign, start, between: [], sections: [[]] });
  const stack = [bracket("", 0)];
  const into = (nodes) => stack.at(-1).sections.at(-1).push(...nodes);
  for (const match of text.matchAll(SCHEDULE_PIECE)) {
    const [piece] = match;
    const top = stack.at(-1);
    if ("([".includes(piece) && stack.length <= DEPTH_MAX) stack.push(bracket(piece, match.index));
    else if ((piece === ")" && top.sign === "(") || (piece === "]" && top.sign === "[")) {
      stack.pop();
      const signs = scheduleSigns(top, match.index);
      if (signs) found.push({ start: top.start, end: match.index + 1, signs });
      into(signs ? [top] : ["[", "]"]);
    } else if (piece === ":" || piece === "|") {
      top.between.push({ sign: piece, at: match.index });
      top.sections.push([]);
    } else top.sections.at(-1).push(piece);
  }
  return found;
}

/** The signs of a bracket that changes from step to step; null where it does not. */
function scheduleSigns(bracket, end) {
  if (bracket.sign !== "[" || !bracket.between.length) return null;
  const edges = [[bracket.start, bracket.start + 1], [end, end + 1]];
  const colons = bracket.between.filter((each) => each.sign === ":");
  if (!colons.length) return [...edges, ...bracket.between.map(({ at }) => [at, at + 1])];
  const last = bracket.sections.at(-1);
  const isLast = bracket.between.at(-1).sign === ":";
  const number = last.length === 1 && typeof last[0] === "string" ? last[0] : "";
  if (colons.length > 2 || !isLast || !WHEN.test(number)) return null;
  const inner = colons.slice(0, -1).map(({ at }) => [at, at + 1]);
  return [...edges, ...inner, [colons.at(-1).at, end]];
}

/** Where <lora:name:0.8> and its like stand. */
export function tags(text) {
  return [...text.matchAll(TAG)].map((match) => ({
    start: match.index, end: match.index + match[0].length, kind: match[1], text: match[0] }));
}

/**
 * A prompt as stretches to paint one after the other: all of the text, with the weight of each, and
 * whether it is a tag, belongs to what changes from step to step, or ends a chunk.
 *
 * @param {string} text
 * @returns {{text: string, weight: number, kind: "" | "tag" | "change" | "break"}[]}
 */
export function painted(text) {
  const kinds = new Array(text.length).fill("");
  const weights = new Array(text.length).fill(1);
  const found = tags(text);
  let untagged = text;
  for (const { start, end } of found) {
    kinds.fill("tag", start, end);
    untagged = untagged.slice(0, start) + " ".repeat(end - start) + untagged.slice(end);
  }
  for (const [start, end] of changes(untagged).flatMap((each) => each.signs)) {
    for (let at = start; at < end; at += 1) kinds[at] ||= "change";
  }
  const places = Array.from(kinds.keys()).filter((at) => !kinds[at]);
  const plain = places.map((at) => text[at]).join("");
  for (const each of emphasised(plain)) {
    for (let at = each.start; at < each.end; at += 1) {
      if (each.text === null) kinds[places[at]] = "break";
      weights[places[at]] = each.weight;
    }
  }
  return runs(text, kinds, weights);
}

function runs(text, kinds, weights) {
  const result = [];
  for (let at = 0; at < text.length; at += 1) {
    const last = result.at(-1);
    if (last && last.kind === kinds[at] && last.weight === weights[at]) last.text += text[at];
    else result.push({ text: text[at], weight: weights[at], kind: kinds[at] });
  }
  return result;
}
