// A picture that is dropped anywhere: its settings are taken over, or the next picture begins with
// it.

import { useEffect, useState } from "./vendor/hooks.js";
import { attempt, metadata, shortOf, useAll } from "./actions.js";
import { Refused } from "./api.js";
import { begin } from "./given.js";
import { announced, noted } from "./state.js";
import { html } from "./ui.js";

const WITHOUT_SETTINGS = 422; // what the server answers for a picture that carries none

export function DropTarget() {
  const [over, setOver] = useState(false);
  useEffect(() => listening(setOver), []);
  if (!over) return null;
  return html`<div class="drop"><p>Drop the picture to take over its settings, or to begin with it
    where it carries none.</p></div>`;
}

/** Listen for files over the page, and for those that are pasted. */
function listening(setOver) {
  const hasFile = (event) => event.dataTransfer?.types.includes("Files");
  const on = {
    dragover: (event) => {
      if (!hasFile(event)) return;
      event.preventDefault();
      setOver(true);
    },
    dragleave: (event) => event.relatedTarget === null && setOver(false),
    drop: (event) => {
      if (!hasFile(event)) return;
      event.preventDefault();
      setOver(false);
      takeOver(event.dataTransfer.files[0]);
    },
    paste: (event) => {
      const file = [...event.clipboardData?.files ?? []].find((each) =>
        each.type.startsWith("image/"));
      if (file) takeOver(file);
    },
  };
  for (const [name, action] of Object.entries(on)) addEventListener(name, action);
  return () => Object.entries(on).forEach(([name, action]) => removeEventListener(name, action));
}

/** Take over the settings of a picture's file; one without any is what the next begins with. */
export function takeOver(file) {
  return file && attempt(async () => {
    try {
      const { request, told } = await metadata(file);
      useAll(request);
      announced.value = `The settings of ${file.name} are taken over.`;
      noted.value = [announced.value, ...shortOf(told)];
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== WITHOUT_SETTINGS) throw error;
      await begin(file);
    }
  });
}
