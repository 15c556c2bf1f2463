// The canvas: draws all layers of a scene, and finds the agent under the pointer.

import { drawBoxes, drawFutures, drawHistories, drawIds, drawSelection } from "./agent_layer.js";
import { Camera } from "./camera.js";
import { paletteOf } from "./colors.js";
import {
  drawModeStates, drawModes, drawProbabilities, visibleModes,
} from "./forecast_layer.js";
import { buildMap, drawLights, drawMap } from "./map_layer.js";
import { poseAt } from "./motion.js";
import { probabilityText, shortened } from "./text.js";

const MAP_MARGIN = 200; // pixels of map around the canvas, so that following an agent is cheap
const REACH = 14; // pixels around the pointer
const PEDESTRIAN = 2;
const TRAIL_STEPS = 10; // last observed steps that are inside of the first view

/** Smallest width of the first view. */
function smallestView(scene) {
  if (scene.unit !== "m") return 200;
  return scene.agents.every((agent) => agent.kind === PEDESTRIAN) ? 12 : 70;
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

  /** Show targets, agents with forecasts and their futures; without any, all agents. */
  fit(view) {
    const scene = this.scene;
    const box = { left: Infinity, right: -Infinity, bottom: Infinity, top: -Infinity };
    const add = (x, y) => {
      box.left = Math.min(box.left, x);
      box.right = Math.max(box.right, x);
      box.bottom = Math.min(box.bottom, y);
      box.top = Math.max(box.top, y);
    };
    const shown = view.important.size ? view.important : new Set(scene.agents.keys());
    for (const index of shown) {
      const agent = scene.agents[index];
      const first = view.important.size ? Math.max(scene.history - TRAIL_STEPS, 0) : 0;
      for (let step = first; step < scene.steps; step++) {
        if (agent.valid[step]) add(agent.x[step], agent.y[step]);
      }
    }
    if (box.left > box.right) add(0, 0);
    this.addModes(box, add);
    const smallest = smallestView(scene);
    const half = Math.max(smallest - (box.right - box.left), 0) / 2;
    box.left -= half;
    box.right += half;
    this.camera.fit(box);
  }

  /** Add the ends of modes; a diverged forecast must not hide the scene. */
  addModes(box, add) {
    const reach = Math.max(box.right - box.left, box.top - box.bottom, smallestView(this.scene));
    const near = (x, y) =>
      x > box.left - reach && x < box.right + reach && y > box.bottom - reach && y < box.top + reach;
    const ends = [];
    for (const { tracks } of this.scene.forecasts) {
      for (const mode of tracks.flatMap((track) => track.modes)) {
        const last = mode.x.length - 1;
        if (near(mode.x[last], mode.y[last])) ends.push([mode.x[last], mode.y[last]]);
      }
    }
    for (const [x, y] of ends) add(x, y);
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
    if (view.layers.lights && scene.lights.length) {
      drawLights(context, scene, camera, palette, Math.min(time, scene.steps - 1));
    }
    if (view.layers.histories) {
      drawHistories(context, scene, camera, palette, time, view.important);
    }
    const modes = view.layers.forecasts ? visibleModes(scene, view, palette) : [];
    drawModes(context, scene, camera, modes, view, this.settings.fileDashes);
    if (view.layers.futures) {
      const agents = view.onlySelected ? [view.selected] : view.important;
      const known = [...agents].filter((index) => scene.agents[index]);
      drawFutures(context, scene, camera, palette, known, known.length > 12);
    }
    drawBoxes(context, scene, camera, palette, time);
    drawModeStates(context, scene, camera, palette, modes, time, view.selected);
    drawSelection(context, scene, camera, palette, time, view.selected);
    if (view.layers.ids) {
      drawIds(context, scene, camera, palette, time, (agent) => shortened(agent.id, 14));
    }
    drawProbabilities(context, camera, palette, modes, view.selected, probabilityText);
    this.frames++;
  }

  /** Copy the map from a larger canvas, which is drawn again only when it no longer fits. */
  drawCachedMap(view, palette) {
    const { camera, map, ratio, context } = this;
    const layers = JSON.stringify(view.layers);
    const key = [camera.scale, layers, palette.paper, camera.width, camera.height].join();
    const shiftX = map.x === undefined ? 0 : (map.x - camera.x) * camera.scale;
    const shiftY = map.y === undefined ? 0 : (camera.y - map.y) * camera.scale;
    if (key !== map.key || Math.abs(shiftX) > MAP_MARGIN || Math.abs(shiftY) > MAP_MARGIN) {
      this.redrawMap(view, palette);
      map.key = key;
    }
    const x = Math.round(((map.x - camera.x) * camera.scale - MAP_MARGIN) * ratio);
    const y = Math.round(((camera.y - map.y) * camera.scale - MAP_MARGIN) * ratio);
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
    pen.setTransform(scale, 0, 0, -scale, centerX - camera.x * scale, centerY + camera.y * scale);
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
