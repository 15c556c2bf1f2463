// Connects the parts: state of the view, controls, keyboard, pointer and address.

import { AttentionPanel } from "./attention_panel.js";
import { decodeIndex, decodeScene } from "./decode.js";
import { showLegend, showScaleBar } from "./legend.js";
import { Panel } from "./panel.js";
import { Playback } from "./playback.js";
import { SceneList } from "./scene_list.js";
import { FileSource, ServerSource } from "./source.js";
import { Stage } from "./stage.js";
import { element, probabilityText, shortened, timeText } from "./text.js";

const CACHED_SCENES = 8;
const byId = (id) => document.getElementById(id);

/** What the canvas and the panel show. */
const view = {
  selected: null, // index of an agent
  follow: null,
  hovered: null, // mode
  files: [], // numbers of the forecast files that are shown
  numFiles: 0,
  modes: "all",
  onlySelected: false,
  attention: { on: true, layer: null, head: 0 }, // no layer is the last one, head 0 the mean
  important: new Set(), // targets and agents with a forecast
  layers: {
    areas: true, lanes: true, crossings: true, borders: true, lights: true,
    histories: true, futures: true, forecasts: true, ids: false,
  },
};

let settings;
let source;
let stage;
let panel;
let attentionPanel;
let list;
let scene = null;
let scheduled = false;
const cache = new Map();

// ---- drawing ------------------------------------------------------------------------------------

function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    if (!scene) return;
    stage.draw(view, playback.time);
    panel.tick(scene, playback);
    showScaleBar(byId("scale-bar"), byId("scale-label"), stage.camera.scale, scene.unit);
  });
}

const playback = new Playback(() => {
  const seconds = playback.seconds();
  const scrubber = byId("time");
  scrubber.value = playback.time;
  scrubber.setAttribute("aria-valuetext", timeText(seconds));
  byId("clock").textContent = timeText(seconds);
  byId("phase").textContent = playback.time <= playback.now ? "observed" : "future";
  byId("play").textContent = playback.playing ? "❚❚  Pause" : "▶  Play";
  byId("speed").value = String(playback.speed);
  redraw();
});

/** Show the selection and the choices in panel and legend. */
function refresh() {
  if (!scene) return;
  panel.show(scene, view);
  attentionPanel.show(scene);
  showLegend(byId("legend"), scene, view, settings);
  const follow = byId("follow");
  follow.disabled = view.selected === null;
  follow.setAttribute("aria-pressed", String(view.follow !== null));
  redraw();
}

// ---- scenes -------------------------------------------------------------------------------------

async function load(number) {
  if (!cache.has(number)) {
    cache.set(number, decodeScene(await source.scene(number), settings));
    if (cache.size > CACHED_SCENES) cache.delete(cache.keys().next().value);
  }
  return cache.get(number);
}

let requested = -1;

async function openScene(number, agentId = null) {
  requested = number;
  let loaded;
  try {
    loaded = await load(number);
  } catch (error) {
    showNotice(error.message);
    return;
  }
  if (requested !== number) return; // another scene was opened meanwhile
  scene = loaded;
  showNotice(scene.notice);
  view.follow = null;
  view.hovered = null;
  view.important = importantAgents(scene);
  view.selected = mainAgent(scene);
  if (agentId !== null) {
    const named = scene.agents.findIndex((agent) => agent.id === agentId);
    if (named >= 0) view.selected = named;
  }
  stage.load(scene);
  showTitle(scene);
  showFutureChoices(scene);
  showLayerChoices(scene);
  const scrubber = byId("time");
  scrubber.max = scene.now + scene.future;
  const observed = (100 * scene.now) / (scene.now + scene.future);
  scrubber.style.setProperty("--observed", `${observed}%`);
  byId("now-mark").style.setProperty("--observed", observed / 100);
  playback.load(scene);
  list.mark(number);
  refresh();
  stage.fit(view); // the legend of this scene is shown
  writeAddress();
  // the row now has errors of the forecast that the server made
  if (settings.live && settings.live.sortable < settings.files.length) list.update();
}

/** A line above the scene, such as the reason why it has no forecast. */
function showNotice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

/** Targets, and agents with a forecast. */
function importantAgents(of) {
  const important = new Set();
  for (const forecast of of.forecasts) {
    for (const track of forecast.tracks) important.add(track.agent);
  }
  for (const agent of of.agents) if (agent.role > 0) important.add(agent.index);
  return important;
}

/** The agent that a scene opens with: its main agent, or the one with the largest error. */
function mainAgent(of) {
  if (of.judged.length === 1) return of.judged[0];
  let worst = null;
  let largest = -1;
  for (const track of of.forecasts[0]?.tracks ?? []) {
    const error = track.fde ?? 0;
    if (error > largest) {
      largest = error;
      worst = track.agent;
    }
  }
  return worst ?? of.judged[0] ?? null;
}

function showTitle(of) {
  const title = byId("scene-title");
  title.textContent = shortened(of.id, 44);
  title.title = of.id;
  const parts = [of.source, of.split, of.city, of.agents.length === 1 ? "1 agent" : `${of.agents.length} agents`];
  byId("scene-detail").textContent = parts.filter(Boolean).map((part) => shortened(part, 24)).join(" · ");
}

/** The choices of "futures": joint futures have one probability for the whole scene. */
function showFutureChoices(of) {
  const select = byId("modes");
  const shown = view.files.map((file) => of.forecasts[file]).filter((one) => one?.tracks.length);
  const joint = shown.length > 0 && shown.every((forecast) => forecast.joint);
  const most = Math.max(0, ...shown.flatMap((one) => one.tracks.map((track) => track.modes.length)));
  const choices = [["all", "all modes"], ["likely", "most probable"]];
  if (of.steps > of.history) choices.push(["best", "nearest to the recording"]);
  for (let k = 0; k < Math.min(most, 20); k++) {
    const probability = probabilityText(shown[0].tracks[0].modes[k]?.probability ?? 0);
    const name = joint ? `joint future ${k + 1} (${probability})` : `mode ${k + 1} of each agent`;
    choices.push([String(k), name]);
  }
  select.replaceChildren(...choices.map(([value, name]) => {
    const option = element("option", "", name);
    option.value = value;
    return option;
  }));
  if (!choices.some(([value]) => value === view.modes)) view.modes = "all";
  select.value = view.modes;
  byId("forecast-box").hidden = !settings.files.length;
}

/** Hide the switches of layers that the scene does not have. */
function showLayerChoices(of) {
  const kinds = new Set(of.polylines.map((line) => line.kind));
  const present = {
    areas: kinds.has(4), crossings: kinds.has(3), borders: kinds.has(5) || kinds.has(6),
    lanes: kinds.has(0) || kinds.has(1) || kinds.has(2), lights: of.lights.length > 0,
    futures: of.steps > of.history, forecasts: settings.files.length > 0,
  };
  for (const [name, has] of Object.entries(present)) byId(`layer-${name}`).parentElement.hidden = !has;
}

// ---- address: #scene or #scene/agent ------------------------------------------------------------

function writeAddress() {
  if (location.protocol === "about:") return; // a frame of a notebook has no address
  const parts = [encodeURIComponent(scene.id)];
  if (view.selected !== null) parts.push(encodeURIComponent(scene.agents[view.selected].id));
  history.replaceState(null, "", `#${parts.join("/")}`);
}

/** Scene number and agent id of the address, or null. */
async function readAddress() {
  let words;
  try {
    words = location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    return null; // not an address of this page
  }
  const [id, agent = null] = words;
  const number = id ? await source.find(id) : null;
  return number === null ? null : { number, agent };
}

// ---- controls -----------------------------------------------------------------------------------

function select(agent) {
  view.selected = agent;
  if (view.follow !== null) view.follow = agent;
  refresh();
  writeAddress();
}

function toggleFollow() {
  view.follow = view.follow === null ? view.selected : null;
  refresh();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  if (stage) refresh();
}

function toggleTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

function fit() {
  view.follow = null;
  stage.fit(view);
  refresh();
}

async function openNeighbor(direction) {
  const number = await list.neighbor(direction);
  if (number !== null) openScene(number);
}

function zoom(factor) {
  stage.camera.zoomBy(factor);
  redraw();
}

const KEYS = {
  " ": () => playback.toggle(),
  ArrowLeft: () => playback.stepBy(-1),
  ArrowRight: () => playback.stepBy(1),
  Home: () => playback.seek(0),
  End: () => playback.seek(playback.last),
  0: () => playback.seek(playback.now),
  "+": () => zoom(1.25),
  "=": () => zoom(1.25),
  "-": () => zoom(0.8),
  f: fit,
  l: toggleFollow,
  n: () => openNeighbor(1),
  p: () => openNeighbor(-1),
  "]": () => playback.changeSpeed(1),
  "[": () => playback.changeSpeed(-1),
  d: toggleTheme,
  a: () => attentionPanel.toggle(),
  ",": () => attentionPanel.stepLayer(scene, -1),
  ".": () => attentionPanel.stepLayer(scene, 1),
  h: () => attentionPanel.stepHead(scene),
  "?": () => byId("help").showModal(),
  Escape: () => select(null),
};

function onKey(event) {
  const typing = event.target.matches("input[type=search], input[type=number], select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  // Space on a focused button presses it
  const pressesButton = event.key === " " && event.target.matches("button, input[type=checkbox]");
  const action = KEYS[event.key];
  if (!action || pressesButton) return;
  event.preventDefault();
  action();
}

function connectControls() {
  document.addEventListener("keydown", onKey);
  byId("play").addEventListener("click", () => playback.toggle());
  byId("present").addEventListener("click", () => playback.seek(playback.now));
  byId("time").addEventListener("input", (event) => {
    playback.playing = false;
    playback.seek(Number(event.target.value));
  });
  byId("speed").addEventListener("change", (event) => {
    playback.speed = Number(event.target.value);
  });
  byId("fit").addEventListener("click", fit);
  byId("follow").addEventListener("click", toggleFollow);
  byId("theme").addEventListener("click", toggleTheme);
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("zoom-in").addEventListener("click", () => zoom(1.25));
  byId("zoom-out").addEventListener("click", () => zoom(0.8));
  byId("modes").addEventListener("change", (event) => {
    view.modes = event.target.value;
    refresh();
  });
  byId("only-selected").addEventListener("change", (event) => {
    view.onlySelected = event.target.checked;
    refresh();
  });
  for (const name of Object.keys(view.layers)) {
    byId(`layer-${name}`).addEventListener("change", (event) => {
      view.layers[name] = event.target.checked;
      redraw();
    });
  }
  window.addEventListener("hashchange", async () => {
    const address = await readAddress();
    if (address) openScene(address.number, address.agent);
  });
  new ResizeObserver(() => {
    stage.resize();
    redraw();
  }).observe(byId("canvas"));
}

/** A switch for each forecast file. */
function makeFileSwitches() {
  const box = byId("files");
  settings.files.forEach((name, file) => {
    const input = element("input");
    input.type = "checkbox";
    input.checked = true;
    input.addEventListener("change", () => {
      view.files = settings.files.map((_, i) => i).filter((i) => box.querySelectorAll("input")[i].checked);
      if (scene) showFutureChoices(scene);
      refresh();
    });
    const letter = settings.files.length > 1 ? `${String.fromCharCode(65 + file)}  ` : "";
    const label = element("label", "", "", input, element("span", "", letter + shortened(name, 30)));
    label.title = name;
    box.append(label);
  });
  view.numFiles = settings.files.length;
  view.files = settings.files.map((_, file) => file);
}

/** Pan by dragging, zoom by wheel, select by click. */
function connectPointer(canvas) {
  let start = null;
  let moved = false;
  canvas.addEventListener("pointerdown", (event) => {
    start = [event.clientX, event.clientY];
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!start) {
      const agent = scene && stage.agentAt(event.offsetX, event.offsetY, playback.time);
      canvas.classList.toggle("over-agent", agent !== null);
      return;
    }
    const [x, y] = [event.clientX - start[0], event.clientY - start[1]];
    if (!moved && Math.hypot(x, y) < 4) return;
    moved = true;
    view.follow = null;
    stage.camera.panBy(x, y);
    start = [event.clientX, event.clientY];
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (start && !moved && scene) {
      select(stage.agentAt(event.offsetX, event.offsetY, playback.time));
    }
    start = null;
    if (moved) refresh();
  });
  canvas.addEventListener("pointercancel", () => { start = null; });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const factor = Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015));
    stage.camera.zoomBy(factor, event.offsetX, event.offsetY);
    redraw();
  }, { passive: false });
}

// ---- start --------------------------------------------------------------------------------------

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  settings = await decodeIndex();
  document.documentElement.classList.toggle("single", Boolean(settings.single));
  // a frame of a notebook and a telephone are small
  byId("legend-box").open = !settings.single && !matchMedia("(max-width: 640px)").matches;
  byId("title").textContent = settings.title;
  document.title = `${shortened(settings.title, 60)} – trajformer`;
  stage = new Stage(byId("canvas"), settings);
  const hover = (mode) => {
    view.hovered = mode;
    redraw();
  };
  panel = new Panel(settings, hover, (seconds) => {
    playback.playing = false;
    playback.seek(playback.now + seconds / playback.period);
  });
  attentionPanel = new AttentionPanel(settings, view, refresh, select);
  makeFileSwitches();
  source = settings.live ? new ServerSource(settings) : new FileSource(settings);
  list = new SceneList(settings, source, openScene, (error) => showNotice(error.message));
  await list.update();
  connectControls();
  connectPointer(byId("canvas"));
  stage.resize();
  const address = await readAddress();
  await openScene(address?.number ?? 0, address?.agent ?? null);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  const text = `This page needs a browser from 2023 or later. (${error.message})`;
  byId("scene-title").textContent = text;
  console.error(error);
});
