// Where scenes and rows of the list come from: data blocks of this file, or the program that serves it.

import { blockBytes, inflate } from "./decode.js";

/** Value of a scene by which a column sorts; unknown values are last. */
function sortValue(scene, column) {
  if (column.key === "id") return scene.number;
  return column.value(scene) ?? NaN;
}

/** Scenes of this file. */
export class FileSource {
  constructor(index) {
    this.scenes = index.scenes.map((scene, number) => ({ ...scene, number }));
    this.total = this.scenes.length;
    this.paged = false;
  }

  /** Bytes of a scene for `decodeScene`. */
  async scene(number) {
    return inflate(blockBytes(`scene-${number}`));
  }

  /** Number of the scene with an id, or null. */
  async find(id) {
    const number = this.scenes.findIndex((scene) => scene.id === id);
    return number < 0 ? null : number;
  }

  /** All rows that match the filter, in order. */
  async rows({ filter, sorting: { column, descending } }) {
    const rows = this.scenes.filter((scene) => FileSource.matches(scene, filter));
    const sign = descending ? -1 : 1;
    rows.sort((a, b) => {
      const left = sortValue(a, column);
      const right = sortValue(b, column);
      if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right);
      return sign * (left - right) || a.number - b.number;
    });
    return { rows, more: false, known: null };
  }

  static matches(scene, { text, kind, manoeuvre, error }) {
    if (text && !`${scene.id} ${scene.city}`.toLowerCase().includes(text)) return false;
    if (kind && !scene.kinds.includes(Number(kind))) return false;
    if (manoeuvre && !scene.manoeuvres.includes(Number(manoeuvre))) return false;
    if (error > 0) {
      const largest = Math.max(...scene.errors.map((pair) => pair?.[1] ?? -1), -1);
      return largest >= error;
    }
    return true;
  }
}

/** Scenes of the program that serves this page: rows in pages, and one scene at a time. */
export class ServerSource {
  constructor(index) {
    this.total = index.live.count;
    this.rowsPerPage = index.live.rows;
    this.paged = true;
  }

  /** The answer to a request relative to the address of this page. */
  async request(part, values = {}) {
    const query = new URLSearchParams(values).toString();
    const address = query ? `${part}?${query}` : part;
    let answer;
    try {
      answer = await fetch(address, { credentials: "omit", referrerPolicy: "no-referrer" });
    } catch {
      throw new Error("trajformer view has ended: start it again and open its new address");
    }
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer;
  }

  async scene(number) {
    const answer = await this.request(`scene/${number}`);
    return inflate(new Uint8Array(await answer.arrayBuffer()));
  }

  async find(id) {
    return (await (await this.request("find", { id })).json()).number;
  }

  async rows({ filter, sorting: { column, descending }, start }) {
    const values = { start, search: filter.text };
    if (column.key !== "id") {
      values.column = column.file;
      values.part = column.part;
      values.order = descending ? "descending" : "ascending";
    }
    return (await this.request("rows", values)).json();
  }
}
