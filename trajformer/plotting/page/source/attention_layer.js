// Attention of the selected agent: colored lanes and agents, wider where the share is larger.

import { poseAt } from "./motion.js";

const NUM_LABELS = 5;
const LABEL_HEIGHT = 14;

/** Layer and head that are shown, and the entries of the selected agent; null if there are none. */
export function shownAttention(scene, view) {
  const { attention } = scene;
  if (!attention || !view.attention.on) return null;
  const number = Math.min(view.attention.layer ?? Infinity, attention.layers.length - 1);
  const layer = attention.layers[number];
  const head = Math.min(view.attention.head, layer.heads);
  const heads = attention.byAgent.get(view.selected)?.[number];
  return heads ? { number, layer, head, entries: heads[head] } : null;
}

function mixed(from, to, ratio) {
  const channel = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mix = (i) => Math.round(channel(from, i) + ratio * (channel(to, i) - channel(from, i)));
  return `rgb(${mix(0)},${mix(1)},${mix(2)})`;
}

/** Color and width in pixels of a share; `ratio` is the share over the largest one. */
export function attentionLook(palette, ratio) {
  const strength = Math.sqrt(ratio);
  return { color: mixed(...palette.attention, strength), width: 1.5 + 7 * strength };
}

/** Parts of lanes and crossings, the largest share on top. */
export function drawAttendedParts(context, camera, palette, entries) {
  const largest = entries[0]?.share ?? 1;
  context.lineCap = "round";
  for (const { part, share } of [...entries].reverse()) {
    if (!part) continue;
    const { color, width } = attentionLook(palette, share / largest);
    context.beginPath();
    for (const [x, y] of part.points) context.lineTo(...camera.toScreen(x, y));
    context.strokeStyle = color;
    context.lineWidth = width;
    context.stroke();
  }
  context.lineCap = "butt";
}

/** Discs under attended agents. */
export function drawAttendedAgents(context, scene, camera, palette, time, entries) {
  const largest = entries[0]?.share ?? 1;
  for (const { agent, share } of [...entries].reverse()) {
    const pose = agent !== null && poseAt(scene.agents[agent], time);
    if (!pose) continue;
    const { color, width } = attentionLook(palette, share / largest);
    const [x, y] = camera.toScreen(pose.x, pose.y);
    const radius = Math.max((scene.agents[agent].length * camera.scale) / 2, 5) + 1 + width / 2;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.globalAlpha = 0.3;
    context.fillStyle = color;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = color;
    context.lineWidth = width;
    context.stroke();
  }
}

/** The largest shares in percent, where labels do not overlap. */
export function drawShares(context, scene, camera, palette, time, entries) {
  context.font = "bold 11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 3.5;
  context.strokeStyle = palette.paper;
  context.fillStyle = palette.ink;
  const boxes = [];
  for (const { agent, part, share } of entries.slice(0, NUM_LABELS)) {
    const pose = agent !== null ? poseAt(scene.agents[agent], time) : null;
    const place = agent !== null ? pose && [pose.x, pose.y] : part?.middle;
    if (!place) continue;
    const text = percentText(share);
    const size = agent !== null ? Math.max((scene.agents[agent].length * camera.scale) / 2, 5) : 0;
    const [x, middle] = camera.toScreen(...place);
    const y = middle - size - 14;
    const half = context.measureText(text).width / 2 + 2;
    const overlaps = (box) => Math.abs(box.x - x) < box.half + half && Math.abs(box.y - y) < LABEL_HEIGHT;
    if (boxes.some(overlaps)) continue;
    boxes.push({ x, y, half });
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
  }
}

/** A share as text: 12 % or 0.4 %. */
export function percentText(share) {
  const percent = 100 * share;
  return `${percent.toFixed(percent < 9.95 ? 1 : 0)} %`;
}
