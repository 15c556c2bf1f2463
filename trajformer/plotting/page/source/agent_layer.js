// Agents: boxes of true size and heading, histories and recorded futures.

import { ROLE_CONTEXT, boxColors, groupOf } from "./colors.js";
import { poseAt } from "./motion.js";

const PEDESTRIAN = 2;
const MIN_PIXELS = 4; // smaller boxes are drawn with this size
const TRAIL_SECONDS = 2; // of agents without a forecast
const MANY_AGENTS = 300; // with more, only agents with a forecast have trails

/** Add a box or circle to a path of shapes, and the front of a box to a path of fronts. */
function addShape(path, fronts, agent, pose, camera) {
  const [x, y] = camera.toScreen(pose.x, pose.y);
  const length = Math.max(agent.length * camera.scale, MIN_PIXELS) / 2;
  const width = Math.max(agent.width * camera.scale, MIN_PIXELS) / 2;
  if (agent.kind === PEDESTRIAN) {
    path.moveTo(x + length, y);
    path.arc(x, y, length, 0, 2 * Math.PI);
    return;
  }
  const cos = Math.cos(pose.heading);
  const sin = -camera.up * Math.sin(pose.heading);
  const corner = (along, across) =>
    [x + along * length * cos - across * width * sin, y + along * length * sin + across * width * cos];
  path.moveTo(...corner(1, 1));
  path.lineTo(...corner(-1, 1));
  path.lineTo(...corner(-1, -1));
  path.lineTo(...corner(1, -1));
  path.closePath();
  if (length > 5) {
    fronts.moveTo(...corner(0.3, 0.6));
    fronts.lineTo(...corner(0.8, 0));
    fronts.lineTo(...corner(0.3, -0.6));
    fronts.closePath();
  }
}

/** Boxes of all agents that are seen at a time; the important ones are on top. */
export function drawBoxes(context, scene, camera, palette, time, numFiles) {
  const groups = new Map();
  for (const agent of scene.agents) {
    const pose = poseAt(agent, time);
    if (!pose || !camera.sees(pose.x, pose.y)) continue;
    const group = groupOf(agent);
    const key = group === "crowd" ? `crowd${agent.color}` : group;
    if (!groups.has(key)) {
      const colors = boxColors(palette, agent, numFiles);
      groups.set(key, { path: new Path2D(), fronts: new Path2D(), colors });
    }
    const { path, fronts } = groups.get(key);
    addShape(path, fronts, agent, pose, camera);
  }
  const order = ["faint", "context", "recorder", "scored", "focal"];
  const rank = (key) => order.indexOf(key);
  for (const key of [...groups.keys()].sort((a, b) => rank(a) - rank(b))) {
    const { path, fronts, colors: [face, edge] } = groups.get(key);
    context.fillStyle = face;
    context.fill(path);
    context.strokeStyle = edge;
    context.lineWidth = 1;
    context.stroke(path);
    context.fillStyle = edge;
    context.fill(fronts);
  }
}

/** A ring around the selected agent. */
export function drawSelection(context, scene, camera, palette, time, selected) {
  const agent = scene.agents[selected];
  const pose = agent && poseAt(agent, time);
  if (!pose) return;
  const [x, y] = camera.toScreen(pose.x, pose.y);
  const radius = Math.max((agent.length * camera.scale) / 2 + 5, 11);
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.strokeStyle = palette.ink;
  context.lineWidth = 1.5;
  context.setLineDash([4, 3]);
  context.stroke();
  context.setLineDash([]);
}

/** Add the recorded path between two steps, with gaps where the agent is not seen. */
function addTrack(path, agent, camera, first, last) {
  let drawing = false;
  for (let step = Math.max(first, 0); step <= last; step++) {
    if (!agent.valid[step]) {
      drawing = false;
      continue;
    }
    const [x, y] = camera.toScreen(agent.x[step], agent.y[step]);
    if (drawing) path.lineTo(x, y);
    else path.moveTo(x, y);
    drawing = true;
  }
}

/** Lines behind agents: the whole past of agents with a forecast, two seconds of others. */
export function drawHistories(context, scene, camera, palette, time, view) {
  const last = Math.floor(time);
  const short = Math.round(TRAIL_SECONDS / scene.period);
  const context_path = new Path2D();
  const paths = new Map();
  const all = scene.agents.length <= MANY_AGENTS;
  for (const agent of scene.agents) {
    const isMain = view.important.has(agent.index) || agent.role !== ROLE_CONTEXT;
    if (!isMain) {
      const seen = agent.valid[last] && camera.sees(agent.x[last], agent.y[last]);
      if (all && seen) addTrack(context_path, agent, camera, last - short, last);
      continue;
    }
    const color = boxColors(palette, agent, view.numFiles)[0];
    if (!paths.has(color)) paths.set(color, new Path2D());
    addTrack(paths.get(color), agent, camera, 0, Math.min(last, scene.now));
  }
  context.lineCap = "round";
  context.lineWidth = 2;
  context.globalAlpha = 0.55;
  context.strokeStyle = palette.context;
  context.stroke(context_path);
  context.lineWidth = 3;
  for (const [color, path] of paths) {
    context.strokeStyle = color;
    context.stroke(path);
  }
  context.globalAlpha = 1;
  context.lineCap = "butt";
}

/** Recorded futures of some agents: a dashed line with a cross at its end. */
export function drawFutures(context, scene, camera, palette, agents, thin) {
  const path = new Path2D();
  const ends = new Path2D();
  const size = thin ? 2.5 : 4;
  for (const index of agents) {
    const agent = scene.agents[index];
    addTrack(path, agent, camera, scene.now, scene.steps - 1);
    const last = agent.valid.lastIndexOf(1);
    if (last < scene.history) continue;
    const [x, y] = camera.toScreen(agent.x[last], agent.y[last]);
    ends.moveTo(x - size, y - size);
    ends.lineTo(x + size, y + size);
    ends.moveTo(x - size, y + size);
    ends.lineTo(x + size, y - size);
  }
  context.strokeStyle = palette.truth;
  context.lineWidth = thin ? 1.2 : 2;
  context.setLineDash([6, 3]);
  context.stroke(path);
  context.setLineDash([]);
  context.lineWidth = thin ? 1.2 : 2;
  context.stroke(ends);
}

/** Ids next to agents. */
export function drawIds(context, scene, camera, palette, time, name) {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.lineWidth = 3;
  context.strokeStyle = palette.paper;
  context.fillStyle = palette.ink;
  for (const agent of scene.agents) {
    const pose = poseAt(agent, time);
    if (!pose || !camera.sees(pose.x, pose.y)) continue;
    const [x, y] = camera.toScreen(pose.x, pose.y);
    const shift = Math.max((agent.length * camera.scale) / 2, 4) + 3;
    context.strokeText(name(agent), x + shift, y);
    context.fillText(name(agent), x + shift, y);
  }
}
