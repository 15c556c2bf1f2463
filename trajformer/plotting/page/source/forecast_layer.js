// Modes of forecasts: lines that are opaque where probable, end points, and states during play.

import { ROLE_FOCAL, forecastColor } from "./colors.js";
import { bestMode, modePoseAt } from "./motion.js";

const MIN_ALPHA = 0.3;
const DOT_SIZE = 0.45; // metres; smaller in views from far away
const LABEL_GAP = 15; // pixels between labels

/** The modes of a track that a choice selects: "all", "likely", "best" or the number of a mode. */
export function chosenModes(scene, track, choice) {
  if (choice === "all") return track.modes;
  if (choice === "likely") return track.modes.slice(0, 1);
  if (choice === "best") return [bestMode(scene, scene.agents[track.agent], track)];
  return track.modes.filter((mode) => mode.rank === Number(choice));
}

/** Everything that is drawn for the forecasts: track, mode, color, opacity and width. */
export function visibleModes(scene, view, palette) {
  const files = view.files.filter((file) => scene.forecasts[file]);
  const result = [];
  for (const file of files) {
    for (const track of scene.forecasts[file].tracks) {
      const agent = scene.agents[track.agent];
      const isMain = agent.role === ROLE_FOCAL || track.agent === view.selected;
      if (view.onlySelected && track.agent !== view.selected) continue;
      const highest = Math.max(...track.modes.map((mode) => mode.probability), 1e-9);
      const color = forecastColor(palette, agent, file, view.numFiles);
      for (const mode of chosenModes(scene, track, view.modes)) {
        const alpha = MIN_ALPHA + (1 - MIN_ALPHA) * (mode.probability / highest);
        result.push({ file, track, agent, mode, color, alpha, isMain });
      }
    }
  }
  // probable modes and the selected agent are drawn last
  const rank = (one) => (one.isMain ? 2 : 0) + one.alpha;
  return result.sort((a, b) => rank(a) - rank(b));
}

/** Lines and end points of modes. */
export function drawModes(context, scene, camera, modes, view, dashes) {
  const manyModes = modes.length > 300;
  context.lineJoin = "round";
  for (const one of modes) {
    const { agent, mode } = one;
    const emphasized = view.hovered === mode;
    context.globalAlpha = view.hovered && !emphasized ? one.alpha * 0.35 : one.alpha;
    context.strokeStyle = one.color;
    let width = one.isMain ? 2.6 : 1.5;
    if (manyModes) width = 0.9;
    context.lineWidth = emphasized ? width + 1.5 : width;
    context.setLineDash(view.numFiles > 1 ? dashes[one.file % dashes.length] : []);
    context.beginPath();
    if (agent.valid[scene.now]) {
      context.moveTo(...camera.toScreen(agent.x[scene.now], agent.y[scene.now]));
    }
    for (let i = 0; i < mode.x.length; i++) {
      context.lineTo(...camera.toScreen(mode.x[i], mode.y[i]));
    }
    context.stroke();
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
}

/** Where each mode expects its agent: dots, and an outline of the selected agent. */
export function drawModeStates(context, scene, camera, palette, modes, time, selected) {
  const shown = Math.max(time, scene.now);
  const atEnd = shown <= scene.now;
  for (const one of modes) {
    const moment = atEnd ? scene.now + scene.future : shown;
    const pose = modePoseAt(scene, one.agent, one.mode, moment);
    if (!pose || !camera.sees(pose.x, pose.y)) continue;
    const [x, y] = camera.toScreen(pose.x, pose.y);
    context.globalAlpha = Math.max(one.alpha, 0.5);
    if (!atEnd && one.agent.index === selected && one.agent.kind !== 2) {
      outline(context, one, pose, x, y, camera);
      continue;
    }
    context.beginPath();
    const largest = one.isMain ? 4 : 2.6;
    const radius = Math.min(Math.max(DOT_SIZE * camera.scale, 1.3), largest);
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = one.color;
    context.fill();
    if (radius < 2) continue; // too small for an outline
    context.strokeStyle = palette.paper;
    context.lineWidth = 1;
    context.stroke();
  }
  context.globalAlpha = 1;
}

function outline(context, one, pose, x, y, camera) {
  const length = Math.max(one.agent.length * camera.scale, 6);
  const width = Math.max(one.agent.width * camera.scale, 4);
  context.save();
  context.translate(x, y);
  context.rotate(-camera.up * pose.heading);
  context.strokeStyle = one.color;
  context.lineWidth = 1.6;
  context.strokeRect(-length / 2, -width / 2, length, width);
  context.globalAlpha *= 0.25;
  context.fillStyle = one.color;
  context.fillRect(-length / 2, -width / 2, length, width);
  context.restore();
}

/** Probabilities at the ends of the selected agent's modes, without overlaps. */
export function drawProbabilities(context, camera, palette, modes, selected, text) {
  const taken = [];
  context.font = "600 11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 3.5;
  context.strokeStyle = palette.paper;
  // the most probable mode gets its label first
  for (const one of [...modes].reverse()) {
    if (one.agent.index !== selected || one.mode.probability < 0.005) continue;
    const last = one.mode.x.length - 1;
    const middle = Math.max(Math.floor(last / 2), 0);
    const [x, y] = camera.toScreen(one.mode.x[last], one.mode.y[last]);
    const [fromX, fromY] = camera.toScreen(one.mode.x[middle], one.mode.y[middle]);
    const length = Math.hypot(x - fromX, y - fromY) || 1;
    const labelX = x + (16 * (x - fromX)) / length;
    const labelY = y + (14 * (y - fromY)) / length;
    const overlaps = taken.some(([otherX, otherY]) =>
      Math.abs(otherX - labelX) < 2 * LABEL_GAP && Math.abs(otherY - labelY) < LABEL_GAP);
    if (overlaps) continue;
    taken.push([labelX, labelY]);
    context.strokeText(text(one.mode.probability), labelX, labelY);
    context.fillStyle = palette.ink;
    context.fillText(text(one.mode.probability), labelX, labelY);
  }
}
