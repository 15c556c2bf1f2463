// The map: areas, crossings, lanes by kind and road lines, drawn from paths that are built once.

const CROSSWALK = 3;
const DRIVABLE = 4;
const ROAD_EDGE = 5;
const ROAD_LINE = 6;
const INTERSECTION = 1;
const ARROW_SPACING = 30; // metres
const ARROW_SIZE = 1.2;
const MIN_LANE_WITH_ARROW = 8;
const ROAD_LINE_DASHES = [5, 3];

function addLine(path, line, closed) {
  path.moveTo(line.x[0], line.y[0]);
  for (let i = 1; i < line.x.length; i++) path.lineTo(line.x[i], line.y[i]);
  if (closed) path.closePath();
}

/** Small open arrowheads in driving direction, at equal distances. */
function addArrows(path, line) {
  const arc = [0];
  for (let i = 1; i < line.x.length; i++) {
    arc.push(arc[i - 1] + Math.hypot(line.x[i] - line.x[i - 1], line.y[i] - line.y[i - 1]));
  }
  const total = arc[arc.length - 1];
  if (total < MIN_LANE_WITH_ARROW) return;
  const count = Math.max(Math.round(total / ARROW_SPACING), 1);
  let segment = 1;
  for (let n = 0; n < count; n++) {
    const distance = ((n + 0.5) / count) * total;
    while (arc[segment] < distance) segment++;
    const length = arc[segment] - arc[segment - 1];
    const alongX = (line.x[segment] - line.x[segment - 1]) / length;
    const alongY = (line.y[segment] - line.y[segment - 1]) / length;
    const rest = distance - arc[segment - 1];
    const x = line.x[segment - 1] + alongX * rest;
    const y = line.y[segment - 1] + alongY * rest;
    const side = ARROW_SIZE * 0.55;
    const backX = x - alongX * ARROW_SIZE;
    const backY = y - alongY * ARROW_SIZE;
    path.moveTo(backX - alongY * side, backY + alongX * side);
    path.lineTo(x, y);
    path.lineTo(backX + alongY * side, backY - alongX * side);
  }
}

/** Paths of a scene's map in scene coordinates, by layer. */
export function buildMap(scene) {
  const lanes = new Map();
  const paths = { drivable: [], crosswalk: null, roadEdge: null, roadLine: null, lanes };
  const path = (name) => (paths[name] ??= new Path2D());
  for (const line of scene.polylines) {
    if (line.x.length < 2) continue;
    if (line.kind === DRIVABLE) {
      const area = new Path2D();
      addLine(area, line, true);
      paths.drivable.push(area);
    } else if (line.kind === CROSSWALK) addLine(path("crosswalk"), line, true);
    else if (line.kind === ROAD_EDGE) addLine(path("roadEdge"), line, false);
    else if (line.kind === ROAD_LINE) addLine(path("roadLine"), line, false);
    else {
      if (!lanes.has(line.kind)) {
        const made = { inside: new Path2D(), outside: new Path2D(), arrows: new Path2D() };
        lanes.set(line.kind, made);
      }
      const of = lanes.get(line.kind);
      if (line.flags & INTERSECTION) addLine(of.inside, line, false);
      else {
        addLine(of.outside, line, false);
        if (scene.unit === "m") addArrows(of.arrows, line);
      }
    }
  }
  return paths;
}

/** Diagonal stripes of crossings, of constant size on the screen. */
function stripes(context, color, scale) {
  const tile = document.createElement("canvas");
  tile.width = 6;
  tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = 1.4;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}

/** Draw onto a context whose unit is a metre; `scale` is the number of pixels per metre. */
export function drawMap(context, paths, palette, scale, layers) {
  const pixel = 1 / scale;
  context.lineJoin = "round";
  if (layers.areas) {
    context.fillStyle = palette.drivable;
    context.strokeStyle = palette.drivableEdge;
    context.lineWidth = pixel;
    for (const area of paths.drivable) {
      context.fill(area, "evenodd");
      context.stroke(area);
    }
  }
  if (layers.crossings && paths.crosswalk) {
    context.fillStyle = stripes(context, palette.crosswalk, scale);
    context.strokeStyle = palette.crosswalk;
    context.lineWidth = pixel;
    context.fill(paths.crosswalk);
    context.stroke(paths.crosswalk);
  }
  if (layers.borders) drawBorders(context, paths, palette, pixel);
  if (layers.lanes) drawLanes(context, paths, palette, pixel, scale);
}

function drawBorders(context, paths, palette, pixel) {
  context.lineWidth = 1.1 * pixel;
  if (paths.roadEdge) {
    context.strokeStyle = palette.roadEdge;
    context.stroke(paths.roadEdge);
  }
  if (paths.roadLine) {
    context.strokeStyle = palette.roadLine;
    context.setLineDash(ROAD_LINE_DASHES.map((length) => length * pixel));
    context.stroke(paths.roadLine);
    context.setLineDash([]);
  }
}

function drawLanes(context, paths, palette, pixel, scale) {
  for (const [kind, of] of paths.lanes) {
    const look = palette.lanes[kind];
    context.lineWidth = look.width * pixel;
    context.setLineDash(look.dashes.map((length) => length * pixel));
    context.strokeStyle = look.light;
    context.stroke(of.inside);
    context.strokeStyle = look.color;
    context.stroke(of.outside);
    context.setLineDash([]);
    // arrows of a few pixels would only be noise
    if (scale >= 3) {
      context.lineWidth = 1.2 * pixel;
      context.stroke(of.arrows);
    }
  }
}

const LIGHT_LETTERS = ["?", "R", "Y", "G"];

/** A traffic light at a point of a canvas; a letter also tells the state. */
export function drawLight(context, palette, state, x, y) {
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = "bold 9px system-ui, sans-serif";
  context.beginPath();
  context.arc(x, y, 6, 0, 2 * Math.PI);
  context.fillStyle = palette.lights[state];
  context.fill();
  context.fillStyle = palette.paper;
  context.fillText(LIGHT_LETTERS[state], x, y + 0.5);
}

/** Traffic lights at the start of their lanes. */
export function drawLights(context, scene, camera, palette, time) {
  for (const light of scene.lights) {
    const lane = scene.polylines[light.lane];
    if (!lane || !lane.x.length || !camera.sees(lane.x[0], lane.y[0])) continue;
    const [x, y] = camera.toScreen(lane.x[0], lane.y[0]);
    drawLight(context, palette, light.state[Math.round(time)], x, y);
  }
}
