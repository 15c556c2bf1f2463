// The canvas: draws all layers of a scene, and finds the agent under the pointer.

import { drawBoxes, drawFutures, drawHistories, drawIds, drawSelection } from "./agent_layer.js";
import {
  drawAttendedAgents, drawAttendedParts, drawShares, shownAttention,
} from "./attention_layer.js";
import { Camera } from "./camera.js";
import { ROLE_FOCAL, paletteOf } from "./colors.js";
import {
  drawModeStates, drawModes, drawProbabilities, visibleModes,
} from "./forecast_layer.js";
import { buildMap, drawLights, drawMap } from "./map_layer.js";
import { poseAt } from "./motion.js";
import { probabilityText, shortened } from "./text.js";

const MAP_MARGIN = 200; // pixels of map around the canvas, so that following an agent is cheap
const COVER = 30; // pixels between an agent and the legend that covers it
const REACH = 14; // pixels around the pointer
const PEDESTRIAN = 2;
const MAX_TARGETS_VIEW = 100; // metres; other targets widen the first view up to it
const TRAIL_STEPS = 10; // last observed steps that are inside of the first view

/** A rectangle of the scene that grows. */
class Box {
  constructor(left = Infinity, right = -Infinity, bottom = Infinity, top = -Infinity) {
    Object.assign(this, { left, right, bottom, top });
  }

  add(x, y) {
    this.left = Math.min(this.left, x);
    this.right = Math.max(this.right, x);
    this.bottom = Math.min(this.bottom, y);
    this.top = Math.max(this.top, y);
  }

  addAll(points) {
    for (const [x, y] of points) this.add(x, y);
  }

  grown(by) {
    return new Box(this.left - by, this.right + by, this.bottom - by, this.top + by);
  }

  contains(x, y) {
    return x > this.left && x < this.right && y > this.bottom && y < this.top;
  }

  /** The longer side. */
  width() {
    return Math.max(this.right - this.left, this.top - this.bottom);
  }

  center() {
    return { x: (this.left + this.right) / 2, y: (this.bottom + this.top) / 2 };
  }
}

/** Smallest width of the first view. */
function smallestView(scene) {
  if (scene.unit !== "m") return 200;
  return scene.agents.every((agent) => agent.kind === PEDESTRIAN) ? 8 : 50;
}

/** Positions of an agent in its last observed and its future steps. */
function recordedPoints(scene, agent) {
  const points = [];
  for (let step = 0; step < scene.steps; step++) {
    const recent = step >= scene.history - TRAIL_STEPS;
    if (recent && agent.valid[step]) points.push([agent.x[step], agent.y[step]]);
  }
  return points;
}

/** End points of the modes of some agents. */
function modeEnds(scene, agents) {
  const ends = [];
  for (const track of scene.forecasts.flatMap((forecast) => forecast.tracks)) {
    if (!agents.has(scene.agents[track.agent])) continue;
    const last = scene.future - 1;
    for (const mode of track.modes) ends.push([mode.x[last], mode.y[last]]);
  }
  return ends;
}

export class Stage {
  constructor(canvas, settings) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.settings = settings;
    this.camera = new Camera();
    this.map = { canvas: document.createElement("canvas"), key: "" };
    this.scene = null;
    this.frames = 0;
  }

  load(scene) {
    this.scene = scene;
    this.camera.up = scene.unit === "px" ? -1 : 1;
    this.paths = buildMap(scene);
    this.map.key = "";
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(Math.round(box.width * ratio), 1);
    this.canvas.height = Math.max(Math.round(box.height * ratio), 1);
    this.ratio = ratio;
    this.camera.resize(box.width, box.height);
    this.map.key = "";
  }

  /**
   * Show the focal agent with its future and modes, then the nearest other targets that fit. Without
   * a focal agent all targets count as focal, without targets all agents.
   */
  fit(view) {
    const scene = this.scene;
    const focal = scene.agents.filter((agent) => agent.role === ROLE_FOCAL);
    const targets = [...view.important].map((index) => scene.agents[index]);
    const main = [focal, targets, scene.agents].find((group) => group.length);
    const box = new Box();
    for (const agent of main) box.addAll(recordedPoints(scene, agent));
    if (!Number.isFinite(box.width())) box.add(0, 0);
    const smallest = smallestView(scene);
    const reach = Math.max(box.width(), smallest);
    // a diverged forecast must not hide the scene
    const around = box.grown(reach);
    for (const [x, y] of modeEnds(scene, new Set(main))) if (around.contains(x, y)) box.add(x, y);

    const center = box.center();
    const far = (agent) => Math.hypot(agent.x[scene.now] - center.x, agent.y[scene.now] - center.y);
    const others = targets.filter((agent) => !main.includes(agent) && agent.valid[scene.now]);
    for (const agent of others.sort((a, b) => far(a) - far(b))) {
      const wider = box.grown(0);
      wider.addAll(recordedPoints(scene, agent));
      if (wider.width() > MAX_TARGETS_VIEW) break;
      Object.assign(box, wider);
    }
    const whole = box.grown(Math.max(smallest - box.width(), 0) / 2);
    this.camera.fit(whole);
    const legend = document.getElementById("legend-box").getBoundingClientRect();
    const canvas = this.canvas.getBoundingClientRect();
    const isCovered = main.some(({ x, y }) => {
      const [left, top] = this.camera.toScreen(x[scene.now], y[scene.now]);
      return left > legend.left - canvas.left - COVER && top > legend.top - canvas.top - COVER;
    });
    if (isCovered && legend.width < canvas.width / 2) this.camera.fit(whole, 60, legend.width);
  }

  draw(view, time) {
    const scene = this.scene;
    if (!scene) return;
    const palette = paletteOf(this.settings);
    const { context, camera } = this;
    if (view.follow !== null) {
      const pose = poseAt(scene.agents[view.follow], time);
      if (pose) Object.assign(camera, { x: pose.x, y: pose.y });
    }
    this.drawCachedMap(view, palette);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const entries = shownAttention(scene, view)?.entries ?? [];
    drawAttendedParts(context, camera, palette, entries);
    if (view.layers.lights && scene.lights.length) {
      drawLights(context, scene, camera, palette, Math.min(time, scene.steps - 1));
    }
    if (view.layers.histories) {
      drawHistories(context, scene, camera, palette, time, view);
    }
    const modes = view.layers.forecasts ? visibleModes(scene, view, palette) : [];
    drawModes(context, scene, camera, modes, view, this.settings.fileDashes);
    if (view.layers.futures) {
      const agents = view.onlySelected ? [view.selected] : view.important;
      const known = [...agents].filter((index) => scene.agents[index]);
      drawFutures(context, scene, camera, palette, known, known.length > 12);
    }
    drawAttendedAgents(context, scene, camera, palette, time, entries);
    drawBoxes(context, scene, camera, palette, time, view.numFiles);
    drawModeStates(context, scene, camera, palette, modes, time, view.selected);
    drawSelection(context, scene, camera, palette, time, view.selected);
    if (view.layers.ids) {
      drawIds(context, scene, camera, palette, time, (agent) => shortened(agent.id, 14));
    }
    // one kind of numbers at a time; the panel has both
    if (entries.length) drawShares(context, scene, camera, palette, time, entries);
    else drawProbabilities(context, camera, palette, modes, view.selected, probabilityText);
    this.frames++;
  }

  /** Copy the map from a larger canvas, which is drawn again only when it no longer fits. */
  drawCachedMap(view, palette) {
    const { camera, map, ratio, context } = this;
    const layers = JSON.stringify(view.layers);
    const key = [camera.scale, layers, palette.paper, camera.width, camera.height].join();
    const shiftX = map.x === undefined ? 0 : (map.x - camera.x) * camera.scale;
    const shiftY = map.y === undefined ? 0 : camera.up * (camera.y - map.y) * camera.scale;
    if (key !== map.key || Math.abs(shiftX) > MAP_MARGIN || Math.abs(shiftY) > MAP_MARGIN) {
      this.redrawMap(view, palette);
      map.key = key;
    }
    const x = Math.round(((map.x - camera.x) * camera.scale - MAP_MARGIN) * ratio);
    const y = Math.round((camera.up * (camera.y - map.y) * camera.scale - MAP_MARGIN) * ratio);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(map.canvas, x, y);
  }

  redrawMap(view, palette) {
    const { camera, map, ratio } = this;
    map.x = camera.x;
    map.y = camera.y;
    map.canvas.width = Math.round((camera.width + 2 * MAP_MARGIN) * ratio);
    map.canvas.height = Math.round((camera.height + 2 * MAP_MARGIN) * ratio);
    const pen = map.canvas.getContext("2d", { alpha: false });
    pen.fillStyle = palette.paper;
    pen.fillRect(0, 0, map.canvas.width, map.canvas.height);
    const scale = camera.scale * ratio;
    const centerX = map.canvas.width / 2;
    const centerY = map.canvas.height / 2;
    const scaleY = -camera.up * scale;
    pen.setTransform(scale, 0, 0, scaleY, centerX - camera.x * scale, centerY - camera.y * scaleY);
    drawMap(pen, this.paths, palette, camera.scale, view.layers);
  }

  /** Index of the agent at a point of the canvas, or null. */
  agentAt(screenX, screenY, time) {
    let best = null;
    let nearest = Infinity;
    for (const agent of this.scene.agents) {
      const pose = poseAt(agent, time);
      if (!pose) continue;
      const [x, y] = this.camera.toScreen(pose.x, pose.y);
      const distance = Math.hypot(x - screenX, y - screenY);
      const reach = Math.max(REACH, (agent.length * this.camera.scale) / 2);
      if (distance < reach && distance < nearest) {
        nearest = distance;
        best = agent.index;
      }
    }
    return best;
  }
}
