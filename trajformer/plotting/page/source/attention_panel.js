// The panel of attention: layer, head and the five largest shares of the selected agent.

import { attentionLook, percentText, shownAttention } from "./attention_layer.js";
import { paletteOf } from "./colors.js";
import { element, shortened } from "./text.js";

const NUM_ROWS = 5;

function fill(select, names, chosen) {
  select.replaceChildren(...names.map((name, value) => {
    const option = element("option", "", name);
    option.value = String(value);
    return option;
  }));
  select.value = String(chosen);
}

export class AttentionPanel {
  /** `change` is called after a choice, `selectAgent` with the index of an agent. */
  constructor(settings, view, change, selectAgent) {
    this.settings = settings;
    this.view = view;
    this.change = change;
    this.selectAgent = selectAgent;
    const byId = (id) => document.getElementById(id);
    this.box = byId("attention-box");
    this.choices = byId("attention-choices");
    this.rows = byId("attention-rows");
    this.on = byId("attention-on");
    this.layer = byId("attention-layer");
    this.head = byId("attention-head");
    this.on.addEventListener("change", () => this.toggle());
    this.layer.addEventListener("change", () => this.choose({ layer: Number(this.layer.value) }));
    this.head.addEventListener("change", () => this.choose({ head: Number(this.head.value) }));
  }

  choose(changed) {
    Object.assign(this.view.attention, changed);
    this.change();
  }

  toggle() {
    this.choose({ on: !this.view.attention.on });
  }

  /** Next layer (direction 1) or the one before (-1). */
  stepLayer(scene, direction) {
    const shown = shownAttention(scene, this.view);
    if (!shown) return;
    const count = scene.attention.layers.length;
    this.choose({ layer: (shown.number + direction + count) % count });
  }

  /** Mean over heads, then each head. */
  stepHead(scene) {
    const shown = shownAttention(scene, this.view);
    if (shown) this.choose({ head: (shown.head + 1) % (shown.layer.heads + 1) });
  }

  show(scene) {
    this.box.hidden = !scene.attention;
    if (!scene.attention) return;
    this.on.checked = this.view.attention.on;
    const shown = shownAttention(scene, this.view);
    this.choices.hidden = !shown;
    this.rows.replaceChildren();
    if (!shown) {
      const hint = "The model did not forecast this agent.";
      if (this.view.attention.on && this.view.selected !== null) {
        this.rows.append(element("p", "hint", hint));
      }
      return;
    }
    fill(this.layer, scene.attention.layers.map((layer) => layer.name), shown.number);
    const heads = Array.from({ length: shown.layer.heads }, (_, i) => `head ${i + 1}`);
    fill(this.head, ["mean over heads", ...heads], shown.head);
    for (const entry of shown.entries.slice(0, NUM_ROWS)) {
      this.rows.append(this.row(scene, entry, entry.share / shown.entries[0].share));
    }
    this.rows.append(element("div", "detail", totals(shown.entries)));
  }

  row(scene, { agent, part, share }, ratio) {
    const name = element("span", "", agent === null ? this.partName(scene, part) : this.agentName(scene, agent));
    const bar = element("span", "bar");
    bar.style.width = `${Math.round(100 * ratio)}%`;
    bar.style.background = attentionLook(paletteOf(this.settings), ratio).color;
    const parts = [name, element("span", "bar-box", "", bar), element("span", "share", percentText(share))];
    if (agent === null) {
      const plain = element("div", "attended", "", ...parts);
      plain.title = "a part of the map, and its distance from the agent";
      return plain;
    }
    const button = element("button", "attended", "", ...parts);
    button.title = scene.agents[agent].id;
    button.addEventListener("click", () => this.selectAgent(agent));
    return button;
  }

  agentName(scene, agent) {
    if (agent === this.view.selected) return "itself";
    const { id, kind } = scene.agents[agent];
    return `${this.settings.kinds[kind]} ${shortened(id, 10)}`;
  }

  partName(scene, part) {
    const target = scene.agents[this.view.selected];
    const names = { 3: "crosswalk", 5: "road edge", 6: "road line" };
    const name = names[part.kind] ?? paletteOf(this.settings).lanes[part.kind]?.name ?? "map";
    if (!part.middle || !target.valid[scene.now]) return name;
    const [x, y] = part.middle;
    const distance = Math.hypot(x - target.x[scene.now], y - target.y[scene.now]);
    return `${name}, ${distance.toFixed(0)} ${scene.unit}`;
  }
}

/** Sums over agents and over the map, and the rest that the page does not hold. */
function totals(entries) {
  const sum = (of) => of.reduce((total, entry) => total + entry.share, 0);
  const agents = sum(entries.filter((entry) => entry.agent !== null));
  const map = sum(entries.filter((entry) => entry.agent === null));
  const rest = Math.max(1 - agents - map, 0);
  return `agents ${percentText(agents)} · map ${percentText(map)} · small shares ${percentText(rest)}`;
}
