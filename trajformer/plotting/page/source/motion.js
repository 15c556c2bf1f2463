// States between recorded steps, and errors of modes over time.

/** Position and heading of an agent at a time in (fractional) steps, or null if it is not seen. */
export function poseAt(agent, time) {
  const before = Math.floor(time);
  const part = time - before;
  if (!agent.valid[before]) return null;
  const after = before + 1;
  if (part < 1e-6 || !agent.valid[after]) {
    if (part > 0.5) return null;
    return { x: agent.x[before], y: agent.y[before], heading: agent.heading[before] };
  }
  // the shorter way around the circle
  const turn = agent.heading[after] - agent.heading[before];
  const shortest = Math.atan2(Math.sin(turn), Math.cos(turn));
  return {
    x: agent.x[before] + part * (agent.x[after] - agent.x[before]),
    y: agent.y[before] + part * (agent.y[after] - agent.y[before]),
    heading: agent.heading[before] + part * shortest,
  };
}

/** Speed in metres per second around a step, or null if it is unknown. */
export function speedAt(agent, time, period) {
  const step = Math.round(time);
  const first = agent.valid[step - 1] ? step - 1 : step;
  const last = agent.valid[step + 1] ? step + 1 : step;
  if (!agent.valid[step] || first === last) return null;
  const distance = Math.hypot(agent.x[last] - agent.x[first], agent.y[last] - agent.y[first]);
  return distance / ((last - first) * period);
}

/** Position and heading of a mode at a time after the last observed step, or null before it. */
export function modePoseAt(scene, agent, mode, time) {
  const step = time - scene.now;
  if (step <= 0 || step > scene.future) return null;
  const after = Math.min(Math.ceil(step), scene.future) - 1;
  const before = after - 1;
  let startX = agent.x[scene.now];
  let startY = agent.y[scene.now];
  if (before >= 0) {
    startX = mode.x[before];
    startY = mode.y[before];
  } else if (!agent.valid[scene.now]) {
    startX = mode.x[0];
    startY = mode.y[0];
  }
  const part = step - (before + 1);
  const stepX = mode.x[after] - startX;
  const stepY = mode.y[after] - startY;
  // while standing, the direction of a tiny step is noise
  const moves = Math.hypot(stepX, stepY) > 0.05;
  const heading = moves ? Math.atan2(stepY, stepX) : agent.heading[scene.now];
  return { x: startX + part * stepX, y: startY + part * stepY, heading };
}

/** Distance of a mode from the recording at each future step; NaN where nothing is recorded. */
export function errorsOverTime(scene, agent, mode) {
  return Array.from(mode.x, (x, f) => {
    const step = scene.history + f;
    if (step >= scene.steps || !agent.valid[step]) return NaN;
    return Math.hypot(x - agent.x[step], mode.y[f] - agent.y[step]);
  });
}

/** The mode with the smallest error at the end (the most probable one if it is unknown). */
export function bestMode(scene, agent, track) {
  let best = track.modes[0];
  let smallest = Infinity;
  for (const mode of track.modes) {
    const errors = errorsOverTime(scene, agent, mode);
    const end = errors[errors.length - 1];
    if (end < smallest) {
      smallest = end;
      best = mode;
    }
  }
  return best;
}
