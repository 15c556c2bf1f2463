// Error over time of the selected agent: a line per mode, in SVG.

import { bestMode, errorsOverTime } from "./motion.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 288;
const HEIGHT = 168;
const LEFT = 34;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 32;

function shape(name, attributes, text = "") {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** Round numbers for an axis from 0: at most six. */
function ticks(largest) {
  const raw = largest / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= raw);
  const result = [];
  for (let value = 0; value <= largest * 1.0001; value += step) result.push(value);
  return result;
}

/** Lines of the chart: errors, color, opacity and emphasis of each mode. */
export function chartLines(scene, agent, tracks, hovered) {
  const lines = [];
  for (const { track, color, dashes, several } of tracks) {
    const best = bestMode(scene, agent, track);
    const highest = Math.max(...track.modes.map((mode) => mode.probability), 1e-9);
    for (const mode of track.modes) {
      if (several && mode !== best) continue;
      const alpha = 0.25 + 0.5 * (mode.probability / highest);
      const strong = mode === best || mode === hovered;
      lines.push({
        errors: errorsOverTime(scene, agent, mode), color, dashes,
        alpha: strong ? 1 : alpha, width: strong ? 2.4 : 1.2,
      });
    }
  }
  return lines;
}

export class Chart {
  /** `seek` is called with the seconds after the last observed step that the user points at. */
  constructor(svg, seek) {
    this.svg = svg;
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    let dragging = false;
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      const part = (x - LEFT) / (WIDTH - LEFT - RIGHT);
      seek(Math.min(Math.max(part, 0), 1) * this.horizon);
    };
    svg.addEventListener("pointerdown", (event) => {
      dragging = true;
      svg.setPointerCapture(event.pointerId);
      point(event);
    });
    svg.addEventListener("pointermove", (event) => dragging && point(event));
    svg.addEventListener("pointerup", () => { dragging = false; });
  }

  x(seconds) {
    return LEFT + (seconds / this.horizon) * (WIDTH - LEFT - RIGHT);
  }

  y(error) {
    return HEIGHT - BOTTOM - (error / this.largest) * (HEIGHT - TOP - BOTTOM);
  }

  draw(scene, lines) {
    this.horizon = scene.future * scene.period;
    const known = lines.flatMap((line) => line.errors).filter(Number.isFinite);
    this.largest = Math.max(...known, 1) * 1.05;
    this.svg.replaceChildren();
    for (const value of ticks(this.largest)) this.addTick(value, "y", scene.unit);
    for (const value of ticks(this.horizon)) this.addTick(value, "x");
    const middle = (LEFT + WIDTH - RIGHT) / 2;
    const bottom = { x: middle, y: HEIGHT - 3, class: "axis", "text-anchor": "middle" };
    this.svg.append(shape("text", bottom, "time after the forecast (s)"));
    for (const line of lines) this.svg.append(this.path(scene, line));
    this.cursor = shape("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM });
    this.svg.append(this.cursor);
  }

  addTick(value, axis, unit = "") {
    const label = Number(value.toPrecision(3)).toString();
    if (axis === "x") {
      const x = this.x(value);
      const place = { x, y: HEIGHT - BOTTOM + 13, class: "tick", "text-anchor": "middle" };
      this.svg.append(shape("text", place, label));
      return;
    }
    const y = this.y(value);
    this.svg.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    const place = { x: LEFT - 5, y: y + 3.5, class: "tick", "text-anchor": "end" };
    this.svg.append(shape("text", place, value === 0 ? `0 ${unit}` : label));
  }

  path(scene, line) {
    let commands = "";
    let drawing = false;
    line.errors.forEach((error, f) => {
      if (Number.isFinite(error)) {
        const x = this.x((f + 1) * scene.period).toFixed(1);
        commands += `${drawing ? "L" : "M"}${x} ${this.y(error).toFixed(1)}`;
      }
      drawing = Number.isFinite(error);
    });
    return shape("path", {
      d: commands, fill: "none", stroke: line.color, "stroke-width": line.width,
      "stroke-opacity": line.alpha, "stroke-dasharray": line.dashes.join(" "),
      "stroke-linejoin": "round",
    });
  }

  /** Move the line of the current time, in seconds. */
  moveCursor(seconds) {
    if (!this.cursor) return;
    const x = this.x(Math.min(Math.max(seconds, 0), this.horizon));
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", seconds < 0 ? "hidden" : "visible");
  }
}
