// Light and dark colors, and the color of each agent and forecast.

export const ROLE_CONTEXT = 0;
export const ROLE_FOCAL = 2;
const KIND_STATIC = [6, 7, 8];
const RECORDER_ID = "AV";

/** The palette of the theme that the page shows. */
export function paletteOf(settings) {
  return settings.palette[document.documentElement.dataset.theme];
}

/** Name of the group that decides the look of an agent's box. */
export function groupOf(agent) {
  if (agent.color >= 0) return "crowd";
  if (agent.role === ROLE_FOCAL) return "focal";
  if (agent.role !== ROLE_CONTEXT) return "scored";
  if (agent.id === RECORDER_ID) return "recorder";
  return KIND_STATIC.includes(agent.kind) ? "faint" : "context";
}

/** Face and edge of an agent's box. With several files, colors belong to the files. */
export function boxColors(palette, agent, numFiles) {
  const group = groupOf(agent);
  if (group === "faint") return [palette.faint, palette.contextEdge];
  if (numFiles > 1 && group === "focal") return [palette.ink, palette.context];
  if (numFiles > 1 && (group === "scored" || group === "crowd")) {
    return [palette.contextEdge, palette.ink];
  }
  if (group === "crowd") return [palette.crowd[agent.color], palette.paper];
  return [palette[group], palette[`${group}Edge`]];
}

/** Color of the modes of an agent: by file if several are shown, else by agent. */
export function forecastColor(palette, agent, file, numFiles) {
  if (numFiles > 1) return palette.files[file % palette.files.length];
  if (agent.color >= 0) return palette.crowd[agent.color];
  return agent.role === ROLE_FOCAL ? palette.focal : palette.scored;
}
