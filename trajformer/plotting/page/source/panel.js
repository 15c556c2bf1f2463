// The panel at the right: the selected agent, its modes and errors, and the legend.

import { Chart, chartLines } from "./chart.js";
import { boxColors, forecastColor, paletteOf } from "./colors.js";
import { bestMode, errorsOverTime, speedAt } from "./motion.js";
import { decimal, element, probabilityText, shortened } from "./text.js";

/** Error of a mode at the end of the horizon; NaN if it is not recorded. */
function lastError(scene, agent, mode) {
  const errors = errorsOverTime(scene, agent, mode);
  return errors[errors.length - 1];
}

const MAX_ROWS = 8; // modes of a forecast in the panel

export class Panel {
  /** `hover` is called with the mode under the pointer or null, `seek` with seconds. */
  constructor(settings, hover, seek) {
    this.settings = settings;
    this.hover = hover;
    this.agent = document.getElementById("agent");
    this.modes = document.getElementById("agent-modes");
    this.chart = new Chart(document.getElementById("chart"), seek);
    this.chartBox = document.getElementById("chart-box");
  }

  /** Forecasts of the selected agent in the files that are shown. */
  tracksOf(scene, view) {
    const palette = paletteOf(this.settings);
    const dashes = this.settings.fileDashes;
    const agent = scene.agents[view.selected];
    const tracks = [];
    for (const file of view.files) {
      const track = scene.forecasts[file]?.tracks.find((one) => one.agent === view.selected);
      if (!track || !track.modes.length) continue;
      const several = view.numFiles > 1;
      const color = forecastColor(palette, agent, file, view.numFiles);
      tracks.push({ file, track, color, several, dashes: several ? dashes[file % dashes.length] : [] });
    }
    return tracks;
  }

  show(scene, view) {
    const agent = scene.agents[view.selected];
    this.shown = agent;
    this.modes.replaceChildren();
    if (!agent) {
      this.agent.replaceChildren(element("p", "hint", "Click an agent to see its forecast."));
      this.chartBox.hidden = true;
      return;
    }
    this.showAgent(scene, agent);
    const tracks = this.tracksOf(scene, view);
    for (const one of tracks) this.showTrack(scene, agent, one);
    if (!tracks.length && scene.forecasts.length) {
      this.modes.append(element("p", "hint", "No forecast of this agent is shown."));
    }
    const lines = chartLines(scene, agent, tracks, view.hovered);
    this.chartBox.hidden = !lines.some((line) => line.errors.some(Number.isFinite));
    if (!this.chartBox.hidden) this.chart.draw(scene, lines);
  }

  showAgent(scene, agent) {
    const swatch = element("span", "swatch");
    const palette = paletteOf(this.settings);
    [swatch.style.background] = boxColors(palette, agent, this.settings.files.length);
    const id = element("strong", "agent-id", shortened(agent.id, 24));
    id.title = agent.id;
    const role = ["", "scored", "focal"][agent.role];
    const words = [role, this.settings.kinds[agent.kind], this.settings.manoeuvres[agent.manoeuvre]];
    const detail = element("div", "detail", words.filter(Boolean).join(" · "));
    this.speed = element("span");
    const assumed = scene.sized ? "" : " (assumed)";
    const size = `${decimal(agent.length, 1)} × ${decimal(agent.width, 1)} ${scene.unit}${assumed}`;
    const facts = element("div", "detail", "", this.speed, ` · ${size}`);
    this.agent.replaceChildren(element("div", "agent-head", "", swatch, id), detail, facts);
  }

  showTrack(scene, agent, { file, track, color, several }) {
    const best = bestMode(scene, agent, track);
    const recorded = track.ade !== null;
    if (several) {
      const letter = String.fromCharCode(65 + file);
      const name = element("div", "file-name", `${letter}  ${shortened(this.settings.files[file], 30)}`);
      name.style.color = color;
      this.modes.append(name);
    }
    const { unit } = scene;
    const text = recorded
      ? `minADE ${decimal(track.ade)} ${unit} · minFDE ${decimal(track.fde)} ${unit}`
      : "no recorded end: no error";
    this.modes.append(element("div", "errors", text));
    const highest = Math.max(...track.modes.map((mode) => mode.probability), 1e-9);
    const most = several ? 3 : MAX_ROWS;
    // the best mode is always listed
    const listed = track.modes.filter((mode) => mode.rank < most || (mode === best && recorded));
    for (const mode of listed) {
      const bar = element("span", "bar");
      bar.style.width = `${Math.round((100 * mode.probability) / highest)}%`;
      bar.style.background = color;
      // the error of the best mode is known before the rounding
      const end = decimal(mode === best && recorded ? track.fde : lastError(scene, agent, mode));
      const row = element("div", mode === best && recorded ? "mode best" : "mode", "",
        element("span", "mode-name", probabilityText(mode.probability)),
        element("span", "bar-box", "", bar),
        element("span", "mode-error", recorded ? `${end} ${unit}` : ""));
      row.title = `mode ${mode.rank + 1}: probability, and error at the end`;
      row.addEventListener("pointerenter", () => this.hover(mode));
      row.addEventListener("pointerleave", () => this.hover(null));
      this.modes.append(row);
    }
    const hidden = track.modes.length - listed.length;
    if (hidden > 0) this.modes.append(element("div", "detail", `and ${hidden} more modes`));
  }

  /** Update the parts that depend on the time. */
  tick(scene, playback) {
    if (!this.shown) return;
    const speed = speedAt(this.shown, Math.min(playback.time, scene.steps - 1), scene.period);
    this.speed.textContent = speed === null ? "not seen now" : `${decimal(speed, 1)} ${scene.unit}/s`;
    if (!this.chartBox.hidden) this.chart.moveCursor(playback.seconds());
  }
}
