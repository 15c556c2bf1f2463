// The list of scenes: errors, sorting and filters.

import { decimal, element, shortened } from "./text.js";

const POLL_MS = 1000; // while a server computes errors

/** Columns of errors: both errors of one file, or the end-point errors of several files. */
function errorColumns(files) {
  if (files.length === 0) return [{ key: "agents", title: "agents", value: (s) => s.numAgents }];
  if (files.length === 1) {
    return ["minADE", "minFDE"].map((title, part) => ({
      key: title, title, file: 0, part, value: (scene) => scene.errors[0]?.[part],
    }));
  }
  const columns = files.slice(0, 3).map((name, file) => ({
    key: `fde${file}`, title: `FDE ${String.fromCharCode(65 + file)}`, file, part: 1, hint: name,
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
  /** `open` is called with the number of the scene that the user chooses, `fail` with an error. */
  constructor(index, source, open, fail) {
    Object.assign(this, { index, source, open, fail });
    this.columns = [{ key: "id", title: "scene" }, ...errorColumns(index.files)];
    this.sorting = { column: this.columns[0], descending: false };
    this.filter = { text: "", kind: "", manoeuvre: "", error: 0 };
    this.start = 0; // first row of the page, if the list has pages
    this.shown = [];
    this.updates = 0;
    this.current = -1;
    this.body = document.getElementById("scenes");
    this.makeHeader();
    this.makeFilters();
    this.makePages();
  }

  makeHeader() {
    const row = document.getElementById("columns");
    for (const column of this.columns) {
      const cell = element("th");
      const button = element("button", "sort", column.title);
      button.dataset.column = column.key;
      if (column.hint) button.title = column.hint;
      button.disabled = !this.sortable(column);
      button.addEventListener("click", () => this.sortBy(column));
      cell.append(button);
      row.append(cell);
    }
  }

  /** A server sorts by errors of forecast files only, because others need all scenes. */
  sortable(column) {
    if (!this.source.paged || column.key === "id") return true;
    return column.part !== undefined && column.file < this.index.live.sortable;
  }

  sortBy(column) {
    const same = this.sorting.column === column;
    // errors start with the largest
    this.sorting = { column, descending: same ? !this.sorting.descending : column.key !== "id" };
    if (this.source.paged && column.key === "id") this.sorting.descending = false;
    this.start = 0;
    this.update();
  }

  makeFilters() {
    const search = document.getElementById("search");
    search.addEventListener("input", () => {
      this.filter.text = search.value.toLowerCase();
      this.start = 0;
      this.update();
    });
    if (this.source.paged) {
      // the other filters need all scenes
      search.placeholder = "Search id";
      search.ariaLabel = "Search id";
      for (const label of document.querySelectorAll("#filters label")) label.hidden = true;
      return;
    }
    const count = (name, value) => this.source.scenes.filter((scene) => scene[name].includes(value)).length;
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
    listen("error", "error", (text) => Number(text) || 0);
    document.getElementById("error-filter").hidden = !this.index.files.length;
  }

  makePages() {
    document.getElementById("pages").hidden = !this.source.paged;
    const turn = (direction) => {
      this.start = Math.max(this.start + direction * this.source.rowsPerPage, 0);
      this.update();
    };
    document.getElementById("page-back").addEventListener("click", () => turn(-1));
    document.getElementById("page-next").addEventListener("click", () => turn(1));
  }

  /** Show the rows of the present filter, order and page. */
  async update() {
    this.updates++;
    const { updates, filter, sorting, start } = this;
    let answer;
    try {
      answer = await this.source.rows({ filter, sorting, start });
    } catch (error) {
      this.fail(error);
      return;
    }
    if (updates !== this.updates) return; // another update was started meanwhile
    const { rows, more, known } = answer;
    this.shown = rows;
    this.more = more;
    this.body.replaceChildren(...rows.map((scene) => this.row(scene)));
    this.showCount(known);
    for (const button of document.querySelectorAll("#columns button")) {
      const active = button.dataset.column === sorting.column.key;
      const direction = sorting.descending ? "descending" : "ascending";
      button.parentElement.ariaSort = active ? direction : "none";
    }
    this.mark(this.current);
    // the server computes errors of more scenes
    if (known !== null && known < this.source.total) {
      setTimeout(() => updates === this.updates && this.update(), POLL_MS);
    }
  }

  showCount(known) {
    const { total } = this.source;
    const noun = total === 1 ? "scene" : "scenes";
    const all = `${total.toLocaleString("en")} ${noun}`;
    const count = document.getElementById("count");
    if (!this.source.paged) {
      const isPart = this.shown.length < total;
      count.textContent = isPart ? `${this.shown.length} of ${all}` : all;
      return;
    }
    const isPart = known !== null && known < total;
    count.textContent = isPart ? `${all}, errors of ${known.toLocaleString("en")} read` : all;
    const last = this.start + this.shown.length;
    const range = last ? `${this.start + 1}–${last}` : "none";
    document.getElementById("page-label").textContent = range;
    document.getElementById("page-back").disabled = this.start === 0;
    document.getElementById("page-next").disabled = !this.more;
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
      if (active) scrollTo(row);
    }
  }

  /** Number of the scene after or before the current one in the shown order. */
  async neighbor(direction) {
    const place = this.shown.findIndex((scene) => scene.number === this.current);
    let next = this.shown[place + direction];
    const canTurn = direction > 0 ? this.more : this.start > 0;
    if (!next && canTurn) {
      this.start = Math.max(this.start + direction * this.source.rowsPerPage, 0);
      await this.update();
      next = this.shown.at(direction > 0 ? 0 : -1);
    }
    return next ? next.number : null;
  }
}

/** Scroll the list, and not the page of a telephone, until a row is below its header. */
function scrollTo(row) {
  const box = document.getElementById("table-box");
  const frame = box.getBoundingClientRect();
  const { top, bottom } = row.getBoundingClientRect();
  const first = box.querySelector("thead").getBoundingClientRect().height + frame.top;
  if (top < first) box.scrollTop -= first - top;
  else if (bottom > frame.bottom) box.scrollTop += bottom - frame.bottom;
}
