// SVG to PNG with resvg: `node render.mjs [PX]`, after build_manifest.py --render.
// A broken SVG ends the process; the one in progress is noted and left out on the next start.
import fs from "fs";
import { Resvg } from "@resvg/resvg-js";

const folder = "data";
const size = Number(process.argv[2] || 256);
const current = `${folder}/render_current.txt`;
const list = `${folder}/render_bad.txt`;
const read = (path) => (fs.existsSync(path) ? fs.readFileSync(path, "utf8") : "");

const bad = new Set(read(list).split("\n"));
const note = (path) => {
  bad.add(path);
  fs.appendFileSync(list, path + "\n");
};
const broken = read(current);
if (broken && !fs.existsSync(broken)) note(broken);

for (const job of JSON.parse(fs.readFileSync(`${folder}/render_jobs.json`))) {
  if (bad.has(job.out) || fs.existsSync(job.out)) continue;
  fs.writeFileSync(current, job.out);
  try {
    const settings = { fitTo: { mode: "width", value: size }, font: { loadSystemFonts: false } };
    fs.writeFileSync(job.out, new Resvg(job.svg, settings).render().asPng());
  } catch (error) {
    note(job.out);
  }
}
fs.writeFileSync(current, "");
