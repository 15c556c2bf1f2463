// Legend: only what the scene shows; and the scale bar.

import { attentionLook, percentText, shownAttention } from "./attention_layer.js";
import { boxColors, groupOf, paletteOf } from "./colors.js";
import { drawLight } from "./map_layer.js";
import { element } from "./text.js";

const GROUP_NAMES = {
  focal: "focal agent",
  scored: "scored agent",
  recorder: "recording vehicle",
  context: "other agent",
  faint: "static object",
  crowd: "pedestrian with forecast",
};

function swatch(draw) {
  const canvas = element("canvas");
  canvas.width = 52;
  canvas.height = 28;
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  draw(pen);
  return canvas;
}

function lineSwatch(color, width, dashes, end = "") {
  return swatch((pen) => {
    pen.strokeStyle = color;
    pen.lineWidth = width;
    pen.setLineDash(dashes);
    pen.beginPath();
    pen.moveTo(1, 7);
    pen.lineTo(end ? 20 : 25, 7);
    pen.stroke();
    pen.setLineDash([]);
    pen.beginPath();
    if (end === "dot") {
      pen.arc(21, 7, 3, 0, 2 * Math.PI);
      pen.fillStyle = color;
      pen.fill();
    } else if (end === "cross") {
      pen.moveTo(18, 4);
      pen.lineTo(24, 10);
      pen.moveTo(18, 10);
      pen.lineTo(24, 4);
      pen.stroke();
    }
  });
}

function boxSwatch(face, edge) {
  return swatch((pen) => {
    pen.fillStyle = face;
    pen.strokeStyle = edge;
    pen.fillRect(5, 3, 16, 8);
    pen.strokeRect(5, 3, 16, 8);
  });
}

function roundSwatch(face, edge) {
  return swatch((pen) => {
    pen.beginPath();
    pen.arc(13, 7, 5, 0, 2 * Math.PI);
    pen.fillStyle = face;
    pen.fill();
    pen.strokeStyle = edge;
    pen.stroke();
  });
}

function stripedSwatch(color) {
  return swatch((pen) => {
    pen.strokeStyle = color;
    pen.strokeRect(5, 3, 16, 8);
    pen.beginPath();
    for (const x of [5, 9, 13]) {
      pen.moveTo(x, 11);
      pen.lineTo(x + 8, 3);
    }
    pen.stroke();
  });
}

/** Fill the legend for a scene; the key of a file is its letter. */
export function showLegend(box, scene, view, settings) {
  const palette = paletteOf(settings);
  const entries = [];
  for (const [group, name] of Object.entries(GROUP_NAMES)) {
    const example = scene.agents.find((agent) => groupOf(agent) === group);
    if (!example) continue;
    const draw = group === "crowd" ? roundSwatch : boxSwatch;
    entries.push([draw(...boxColors(palette, example, view.numFiles)), name]);
  }
  entries.push(...forecastEntries(scene, view, settings, palette));
  const hasFuture = scene.steps > scene.history;
  if (hasFuture) entries.push([lineSwatch(palette.truth, 2, [5, 2], "cross"), "recorded future"]);
  entries.push(...mapEntries(scene, palette));
  entries.push(...attentionEntries(scene, view, palette));
  box.replaceChildren(...entries.map(([key, name]) =>
    element("div", "entry", "", key, element("span", "", name))));
}

function forecastEntries(scene, view, settings, palette) {
  const tracks = scene.forecasts.flatMap((forecast) => forecast.tracks);
  if (!tracks.length) return [];
  if (view.numFiles > 1) {
    return view.files.map((file) => {
      const dashes = settings.fileDashes[file % settings.fileDashes.length];
      const color = palette.files[file % palette.files.length];
      return [lineSwatch(color, 2, dashes, "dot"), `forecast ${String.fromCharCode(65 + file)}`];
    });
  }
  const crowd = scene.agents.some((agent) => agent.color >= 0);
  if (crowd) return [[lineSwatch(palette.crowd[0], 2, [], "dot"), "forecast (a color per agent)"]];
  const roles = new Set(tracks.map((track) => scene.agents[track.agent].role === 2));
  const entries = [];
  if (roles.has(true)) entries.push([lineSwatch(palette.focal, 2.4, [], "dot"), "forecast (focal)"]);
  if (roles.has(false)) {
    const name = roles.has(true) ? "forecast (others)" : "forecast";
    entries.push([lineSwatch(palette.scored, 1.6, [], "dot"), name]);
  }
  return entries;
}

/** The largest share, and a quarter of it. */
function attentionEntries(scene, view, palette) {
  const largest = shownAttention(scene, view)?.entries[0]?.share;
  if (!largest) return [];
  return [1, 0.25].map((ratio) => {
    const { color, width } = attentionLook(palette, ratio);
    return [lineSwatch(color, width, []), `${percentText(ratio * largest)} of the attention`];
  });
}

function mapEntries(scene, palette) {
  const kinds = new Set(scene.polylines.filter((line) => line.x.length).map((line) => line.kind));
  const entries = [];
  for (const [kind, look] of Object.entries(palette.lanes)) {
    if (!kinds.has(Number(kind))) continue;
    entries.push([lineSwatch(look.color, look.width * 1.3, look.dashes), `${look.name} (center)`]);
  }
  if (kinds.has(3)) entries.push([stripedSwatch(palette.crosswalk), "crosswalk"]);
  if (kinds.has(4)) entries.push([boxSwatch(palette.drivable, palette.drivableEdge), "drivable area"]);
  if (kinds.has(5)) entries.push([lineSwatch(palette.roadEdge, 1.2, []), "road edge"]);
  if (kinds.has(6)) entries.push([lineSwatch(palette.roadLine, 1.2, [4, 2]), "road line"]);
  if (scene.lights.length) {
    const both = swatch((pen) => {
      drawLight(pen, palette, 1, 6, 7);
      drawLight(pen, palette, 3, 20, 7);
    });
    entries.push([both, "traffic light (? unknown)"]);
  }
  return entries;
}

/** A bar of a round length between 60 and 150 pixels. */
export function showScaleBar(bar, label, scale, unit) {
  const power = 10 ** Math.floor(Math.log10(150 / scale));
  const digit = [10, 5, 2, 1].find((size) => size * power * scale <= 150);
  const length = digit * power;
  bar.style.width = `${length * scale}px`;
  label.textContent = `${Number(length.toPrecision(2))} ${unit}`;
}
