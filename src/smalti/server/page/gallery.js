// The gallery: all pictures, the newest first. Only those that are seen are elements of the page.

import { signal } from "./vendor/signals.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { attempt } from "./actions.js";
import { get, post, query, remove } from "./api.js";
import { takeOver } from "./drop.js";
import { shortcut } from "./keys.js";
import { askFile } from "./picture_file.js";
import { announced, chosen, sheet } from "./state.js";
import { html, Icon, IconButton } from "./ui.js";

const LISTED = 200; // pictures that are asked for at a time
const SEARCH_AFTER = 200; // milliseconds after the last letter
const GAP = 4;
const TILE = 96; // pixels that a picture takes at least
const TILE_WIDE = 176; // where the gallery has all of the page
const ROWS_BESIDE = 2; // that are made above and below what is seen

/** Those that are known so far. */
export const pictures = signal([]);
const search = signal("");
const favourites = signal(false);
const complete = signal(false);
/** Whether the gallery has all of the page but the top. */
export const wide = signal(false);
let asking = 0; // the number of the last search; answers to earlier ones are dropped

/** Begin the list anew. */
export async function reload() {
  asking += 1;
  await loadMore([]);
}

async function loadMore(known = pictures.value) {
  const own = asking;
  await attempt(async () => {
    const told = await get(query("/api/pictures", { search: search.value, limit: LISTED,
      favourite: favourites.value || null, before: known.at(-1)?.id }));
    if (own !== asking) return;
    pictures.value = [...known, ...told.pictures];
    complete.value = told.pictures.length < LISTED;
  });
}

/** A picture was made, or changed. */
export function pictureMade(picture) {
  const at = pictures.value.findIndex((each) => each.id === picture.id);
  if (at >= 0) pictures.value = pictures.value.with(at, picture);
  else if (search.value || favourites.value) reload();
  else pictures.value = [picture, ...pictures.value].sort((one, other) => other.id - one.id);
  if (chosen.value?.id === picture.id) chosen.value = picture;
}

/** A picture is gone. */
export function pictureRemoved(id) {
  const at = pictures.value.findIndex((each) => each.id === id);
  if (at < 0) return;
  const left = pictures.value.toSpliced(at, 1);
  if (chosen.value?.id === id) chosen.value = left[Math.min(at, left.length - 1)] ?? null;
  pictures.value = left;
}

/** Mark a picture as a favourite, or no more. */
export const setFavourite = (picture, favourite) => attempt(async () => {
  await post(`/api/pictures/${picture.id}/favourite`, { favourite });
  pictureMade({ ...picture, favourite });
  announced.value = favourite ? "A favourite" : "No favourite any more";
});

/** Delete a picture and its file. */
export const takeAway = (picture) => attempt(async () => {
  await remove(`/api/pictures/${picture.id}`);
  pictureRemoved(picture.id);
  announced.value = "Deleted";
});

/** The way back from a sheet, which phones have. */
export function CloseSheet() {
  return html`<${IconButton} icon="close" label="Close" className="only-narrow"
    onClick=${() => { sheet.value = ""; }} />`;
}

export function Gallery() {
  const box = useRef(null);
  const waiting = useRef(0);
  const searched = (event) => {
    search.value = event.target.value;
    clearTimeout(waiting.current);
    waiting.current = setTimeout(reload, SEARCH_AFTER);
  };
  useEffect(() => shortcut("/", () => box.current.focus()), []);
  return html`<section class=${wide.value ? "gallery wide-gallery" : "gallery"}
    aria-label="Gallery">
    <header class="side-head"><h2>Gallery</h2><span class="spring"></span>
      <${IconButton} icon="open" label="Take over the settings of a picture file"
        onClick=${async () => takeOver(await askFile())} />
      <${IconButton} icon="heart" label="Favourites only" pressed=${favourites.value}
        onClick=${() => {
          favourites.value = !favourites.value;
          reload();
        }} />
      <${IconButton} icon="expand" className="only-wide" pressed=${wide.value}
        label=${wide.value ? "Small gallery" : "Large gallery"}
        onClick=${() => { wide.value = !wide.value; }} />
      <${CloseSheet} /></header>
    <label class="search"><${Icon} name="search" /><input type="search" ref=${box}
      placeholder="Search prompts and settings" aria-label="Search the gallery"
      value=${search.value} onInput=${searched} /></label>
    <${Tiles} />
  </section>`;
}

/** The pictures as tiles: rows outside of what is seen are empty space. */
function Tiles() {
  const box = useRef(null);
  const [view, setView] = useState({ width: 0, height: 0, top: 0 });
  const look = () => setView({ width: box.current.clientWidth, height: box.current.clientHeight,
    top: box.current.scrollTop });
  useEffect(() => {
    const observer = new ResizeObserver(look);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const all = pictures.value;
  const least = GAP + (wide.value ? TILE_WIDE : TILE);
  const columns = Math.max(1, Math.floor((view.width + GAP) / least));
  const tile = (view.width + GAP) / columns;
  const rows = Math.ceil(all.length / columns);
  const from = Math.max(0, Math.floor(view.top / tile) - ROWS_BESIDE);
  const to = Math.min(rows, Math.ceil((view.top + view.height) / tile) + ROWS_BESIDE);
  useEffect(() => {
    if (view.height && rows && !complete.value && to >= rows - ROWS_BESIDE) loadMore();
  }, [to, rows, view.height]);
  const seen = view.width ? all.slice(from * columns, to * columns) : [];
  // one of them is reached by Tab, the others by the arrow keys
  const reached = (seen.find((each) => each.id === chosen.value?.id) ?? seen[0])?.id;
  return html`<div class="tiles" ref=${box} onScroll=${look}
    onKeyDown=${(event) => tileKey(event, columns)}>
    ${all.length === 0 && complete.value && html`<p class="empty">${search.value
      || favourites.value ? "No picture is like that." : "Pictures that were made stay here."}</p>`}
    <div class="tiles-space" style=${{ height: `${rows * tile}px` }}>
      <ul class="tiles-seen" style=${{ transform: `translateY(${from * tile}px)`,
        "--columns": columns }}>
        ${seen.map((each) => html`<${Tile} key=${each.id} picture=${each}
          reached=${each.id === reached} />`)}</ul>
    </div></div>`;
}

function Tile({ picture, reached }) {
  const pressed = chosen.value?.id === picture.id;
  return html`<li><button type="button" class="tile" aria-pressed=${pressed}
    data-picture=${picture.id} tabindex=${reached ? 0 : -1}
    title=${picture.prompt} aria-label=${picture.prompt || "A picture"}
    onClick=${() => {
      chosen.value = picture;
      wide.value = false;
      sheet.value = "";
    }}>
    <img src=${`/api/pictures/${picture.id}/thumbnail`} alt="" loading="lazy" decoding="async" />
    ${picture.favourite && html`<span class="tile-heart"><${Icon} name="heart" /></span>`}
  </button></li>`;
}

/** The keys that go from picture to picture. */
function tileKey(event, columns) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const own = Number(event.target.closest("[data-picture]")?.dataset.picture);
  if (!(event.key in moves) || !own) return;
  event.preventDefault();
  event.stopPropagation();
  const at = pictures.value.findIndex((each) => each.id === own);
  const next = pictures.value[at + moves[event.key]];
  if (!next) return;
  chosen.value = next;
  requestAnimationFrame(() => {
    const tile = document.querySelector(`[data-picture="${next.id}"]`);
    tile?.focus();
    tile?.scrollIntoView({ block: "nearest" });
  });
}
