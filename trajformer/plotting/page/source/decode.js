// Data blocks of the page: base64, zlib, zigzag numbers and differences (see streams.py).

/** Compressed bytes of the data block with this element id. */
export function blockBytes(id) {
  const text = atob(document.getElementById(id).textContent);
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The list of scenes and the settings of the page. */
export async function decodeIndex() {
  return JSON.parse(new TextDecoder().decode(await inflate(blockBytes("index"))));
}

/** Signed integers by name, and the header, of a packed scene. */
function unpack(bytes) {
  const headerLength = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerLength)));
  let offset = 4 + headerLength;
  const streams = {};
  for (const [name, count] of header.streams) {
    const values = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      let unsigned = 0;
      let factor = 1;
      let byte;
      do {
        byte = bytes[offset++];
        unsigned += (byte & 0x7f) * factor;
        factor *= 128;
      } while (byte & 0x80);
      values[i] = unsigned % 2 ? -(unsigned + 1) / 2 : unsigned / 2;
    }
    streams[name] = values;
  }
  return [header, streams];
}

/** Reads groups of first or second differences one after the other. */
class Groups {
  constructor(values, order, step) {
    this.values = values;
    this.order = order;
    this.step = step;
    this.offset = 0;
  }

  /** The next `length` values in metres (or another unit). */
  next(length) {
    const result = new Float32Array(length);
    let value = 0;
    let difference = 0;
    for (let i = 0; i < length; i++) {
      const stored = this.values[this.offset++];
      if (i === 0) value = stored;
      else if (this.order === 1 || i === 1) difference = stored;
      else difference += stored;
      if (i > 0) value += difference;
      result[i] = value * this.step;
    }
    return result;
  }
}

/** A scene with agents, polylines, lights and forecasts; arrays have one entry per step. */
export function decodeScene(bytes, settings) {
  const [header, streams] = unpack(bytes);
  const scene = { ...header, now: header.history - 1 };
  scene.agents = decodeAgents(header, streams, settings);
  scene.polylines = decodePolylines(streams, settings);
  scene.lights = decodeLights(header, streams);
  scene.forecasts = header.forecasts.map((forecast, file) =>
    decodeForecasts(forecast, streams, file, header.future, settings));
  scene.attention = header.attention && decodeAttention(header, streams, scene, settings);
  return scene;
}

function decodeAgents(header, streams, settings) {
  const bits = streams.valid;
  const x = new Groups(streams.x, 2, settings.lengthStep);
  const y = new Groups(streams.y, 2, settings.lengthStep);
  const turns = new Groups(streams.heading, 1, (2 * Math.PI) / settings.headingSteps);
  return header.agentId.map((id, index) => {
    // steps at which the agent is seen
    const steps = [];
    for (let step = 0; step < header.steps; step++) {
      const bit = index * header.steps + step;
      if ((bits[bit >> 3] >> (7 - (bit & 7))) & 1) steps.push(step);
    }
    const agent = {
      index,
      id,
      kind: streams.kind[index],
      role: streams.role[index],
      length: streams.length[index] * settings.lengthStep,
      width: streams.width[index] * settings.lengthStep,
      manoeuvre: header.manoeuvre[index],
      color: header.color ? header.color[index] : -1,
      valid: new Uint8Array(header.steps),
      x: new Float32Array(header.steps),
      y: new Float32Array(header.steps),
      heading: new Float32Array(header.steps),
    };
    const valuesX = x.next(steps.length);
    const valuesY = y.next(steps.length);
    const headings = turns.next(steps.length);
    steps.forEach((step, i) => {
      agent.valid[step] = 1;
      agent.x[step] = valuesX[i];
      agent.y[step] = valuesY[i];
      agent.heading[step] = headings[i];
    });
    return agent;
  });
}

function decodePolylines(streams, settings) {
  const x = new Groups(streams.lineX, 2, settings.lengthStep);
  const y = new Groups(streams.lineY, 2, settings.lengthStep);
  return Array.from(streams.lineSize, (size, index) => ({
    kind: streams.lineKind[index],
    flags: streams.lineFlags[index],
    x: x.next(size),
    y: y.next(size),
  }));
}

function decodeLights(header, streams) {
  const states = new Groups(streams.lightState, 1, 1);
  return Array.from(streams.lightLane, (lane) => ({ lane, state: states.next(header.steps) }));
}

function decodeForecasts(forecast, streams, file, future, settings) {
  const x = new Groups(streams[`forecast${file}X`], 2, settings.lengthStep);
  const y = new Groups(streams[`forecast${file}Y`], 2, settings.lengthStep);
  const probability = streams[`forecast${file}Probability`];
  let first = 0;
  const tracks = forecast.agent.map((agent, i) => {
    const modes = [];
    for (let k = 0; k < forecast.modes[i]; k++) {
      modes.push({
        rank: k,
        probability: probability[first + k] * settings.probabilityStep,
        x: x.next(future),
        y: y.next(future),
      });
    }
    first += forecast.modes[i];
    return { agent, modes, ade: forecast.ade[i], fde: forecast.fde[i] };
  });
  return { joint: forecast.joint, tracks };
}

/**
 * Layers with name and number of heads, and by agent, layer and head (0 for the mean) the shares:
 * entries with `agent` (an index) or `part` (a part of a polyline), the largest first.
 */
function decodeAttention(header, streams, scene, settings) {
  const { layers, target } = header.attention;
  const lines = new Groups(streams.attentionLine, 1, 1).next(streams.attentionLine.length);
  const parts = Array.from(lines, (line, i) =>
    cutPart(scene.polylines[line], streams.attentionPart[i], streams.attentionParts[i]));
  const tokens = new Groups(streams.attentionToken, 1, 1);
  let offset = 0;
  let row = 0;
  const nextRow = () => {
    const entries = Array.from(tokens.next(streams.attentionCount[row++]), (token) => ({
      agent: token < scene.agents.length ? token : null,
      part: parts[token - scene.agents.length] ?? null,
      share: streams.attentionShare[offset++] * settings.shareStep,
    }));
    return entries.sort((a, b) => b.share - a.share);
  };
  const byAgent = new Map();
  for (const agent of target) {
    byAgent.set(agent, layers.map(({ heads }) => Array.from({ length: heads + 1 }, nextRow)));
  }
  return { layers, byAgent };
}

/** Points and kind of the part `number` of `count` parts of equal length of a polyline. */
function cutPart(line, number, count) {
  const arc = [0];
  for (let i = 1; i < line.x.length; i++) {
    arc.push(arc[i - 1] + Math.hypot(line.x[i] - line.x[i - 1], line.y[i] - line.y[i - 1]));
  }
  const total = arc[arc.length - 1] ?? 0;
  const from = (total * number) / count;
  const to = (total * (number + 1)) / count;
  const at = (distance) => {
    let i = 1;
    while (i < arc.length - 1 && arc[i] < distance) i++;
    const ratio = arc[i] > arc[i - 1] ? (distance - arc[i - 1]) / (arc[i] - arc[i - 1]) : 0;
    const between = (values) => values[i - 1] + ratio * (values[i] - values[i - 1]);
    return [between(line.x), between(line.y)];
  };
  if (arc.length < 2) return { kind: line.kind, points: [], middle: null };
  const inner = [];
  arc.forEach((distance, i) => {
    if (distance > from && distance < to) inner.push([line.x[i], line.y[i]]);
  });
  return { kind: line.kind, points: [at(from), ...inner, at(to)], middle: at((from + to) / 2) };
}
