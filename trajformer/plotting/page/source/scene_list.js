// The list of scenes: errors, sorting and filters.

import { decimal, element, shortened } from "./text.js";

/** Value of a scene by which a column sorts; unknown values are last. */
function sortValue(scene, column) {
  if (column.key === "id") return scene.number;
  return column.value(scene) ?? NaN;
}

/** Columns of errors: both errors of one file, or the end-point errors of several files. */
function errorColumns(files) {
  if (files.length === 0) return [{ key: "agents", title: "agents", value: (s) => s.numAgents }];
  if (files.length === 1) {
    return ["minADE", "minFDE"].map((title, part) => ({
      key: title, title, file: -1, value: (scene) => scene.errors[0]?.[part],
    }));
  }
  const columns = files.slice(0, 3).map((name, file) => ({
    key: `fde${file}`, title: `FDE ${String.fromCharCode(65 + file)}`, file, hint: name,
    value: (scene) => scene.errors[file]?.[1],
  }));
  if (files.length === 2) {
    columns.push({
      key: "difference", title: "B − A", file: -1, hint: "negative: B is better",
      value: (scene) => (scene.errors[1]?.[1] ?? NaN) - (scene.errors[0]?.[1] ?? NaN),
    });
  }
  return columns;
}

export class SceneList {
  /** `open` is called with the number of the scene that the user chooses. */
  constructor(index, open) {
    this.index = index;
    this.open = open;
    this.scenes = index.scenes.map((scene, number) => ({ ...scene, number }));
    this.columns = [{ key: "id", title: "scene" }, ...errorColumns(index.files)];
    this.sorting = { column: this.columns[0], descending: false };
    this.filter = { text: "", kind: "", manoeuvre: "", error: 0 };
    this.current = -1;
    this.body = document.getElementById("scenes");
    this.makeHeader();
    this.makeFilters();
    this.update();
  }

  makeHeader() {
    const row = document.getElementById("columns");
    for (const column of this.columns) {
      const cell = element("th");
      const button = element("button", "sort", column.title);
      button.dataset.column = column.key;
      if (column.hint) button.title = column.hint;
      button.addEventListener("click", () => this.sortBy(column));
      cell.append(button);
      row.append(cell);
    }
  }

  sortBy(column) {
    const same = this.sorting.column === column;
    // errors start with the largest
    this.sorting = { column, descending: same ? !this.sorting.descending : column.key !== "id" };
    this.update();
  }

  makeFilters() {
    const count = (name, value) => this.scenes.filter((scene) => scene[name].includes(value)).length;
    const fill = (id, labels, name) => {
      const select = document.getElementById(id);
      for (const [value, label] of Object.entries(labels)) {
        const scenes = count(name, Number(value));
        if (!scenes) continue;
        const option = element("option", "", `${label} (${scenes})`);
        option.value = value;
        select.append(option);
      }
      select.disabled = select.options.length < 2;
    };
    fill("kind", this.index.kinds, "kinds");
    fill("manoeuvre", this.index.manoeuvres, "manoeuvres");
    const listen = (id, name, convert) =>
      document.getElementById(id).addEventListener("input", (event) => {
        this.filter[name] = convert(event.target.value);
        this.update();
      });
    listen("kind", "kind", String);
    listen("manoeuvre", "manoeuvre", String);
    listen("search", "text", (text) => text.toLowerCase());
    listen("error", "error", (text) => Number(text) || 0);
    document.getElementById("error-filter").hidden = !this.index.files.length;
  }

  matches(scene) {
    const { text, kind, manoeuvre, error } = this.filter;
    if (text && !`${scene.id} ${scene.city}`.toLowerCase().includes(text)) return false;
    if (kind && !scene.kinds.includes(Number(kind))) return false;
    if (manoeuvre && !scene.manoeuvres.includes(Number(manoeuvre))) return false;
    if (error > 0) {
      const largest = Math.max(...scene.errors.map((pair) => pair?.[1] ?? -1), -1);
      return largest >= error;
    }
    return true;
  }

  update() {
    const { column, descending } = this.sorting;
    this.shown = this.scenes.filter((scene) => this.matches(scene));
    const sign = descending ? -1 : 1;
    this.shown.sort((a, b) => {
      const left = sortValue(a, column);
      const right = sortValue(b, column);
      if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right);
      return sign * (left - right) || a.number - b.number;
    });
    this.body.replaceChildren(...this.shown.map((scene) => this.row(scene)));
    const total = this.scenes.length;
    const noun = total === 1 ? "scene" : "scenes";
    const part = this.shown.length === total ? total : `${this.shown.length} of ${total}`;
    document.getElementById("count").textContent = `${part} ${noun}`;
    for (const button of document.querySelectorAll("#columns button")) {
      const active = button.dataset.column === column.key;
      const direction = descending ? "descending" : "ascending";
      button.parentElement.ariaSort = active ? direction : "none";
    }
    this.mark(this.current);
  }

  row(scene) {
    const row = element("tr");
    row.dataset.number = scene.number;
    const letters = this.columns.length > 3 ? 14 : 18;
    const name = element("button", "scene-name", shortened(scene.id, letters));
    name.title = scene.id;
    const labels = scene.manoeuvres.map((kind) => this.index.manoeuvres[kind]);
    const kinds = scene.kinds.map((kind) => this.index.kinds[kind]);
    // a scene with many judged agents has no one manoeuvre
    const single = scene.judged.length === 1;
    const described = single ? [...kinds, ...labels] : [`${scene.judged.length || "no"} targets`];
    if (scene.city) described.unshift(shortened(scene.city, 16));
    const cell = element("td", "", "", name, element("div", "detail", described.join(" · ")));
    row.append(cell);
    for (const column of this.columns.slice(1)) {
      const digits = column.key === "agents" ? 0 : 2;
      row.append(element("td", "number", decimal(column.value(scene), digits)));
    }
    row.addEventListener("click", () => this.open(scene.number));
    return row;
  }

  /** Highlight the open scene. */
  mark(number) {
    this.current = number;
    for (const row of this.body.children) {
      const active = Number(row.dataset.number) === number;
      row.classList.toggle("current", active);
      row.ariaCurrent = active ? "true" : "false";
      if (active) row.scrollIntoView({ block: "nearest" });
    }
  }

  /** Number of the scene after or before the current one in the shown order. */
  neighbor(direction) {
    const place = this.shown.findIndex((scene) => scene.number === this.current);
    const next = this.shown[place + direction];
    return next ? next.number : null;
  }
}
