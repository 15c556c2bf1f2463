// Numbers and names as text, and elements whose content is text only (never HTML).

/** A new element with text and children; `text` may be any content of a scene. */
export function element(tag, className = "", text = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

/** A shorter name: long ids keep their beginning and end. */
export function shortened(name, length = 20) {
  if (name.length <= length) return name;
  const half = Math.floor((length - 1) / 2);
  return `${name.slice(0, half)}…${name.slice(-half)}`;
}

/** A number with two decimals, or a dash if it is unknown. */
export function decimal(value, digits = 2) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

/** Probability as text: 0.07. */
export function probabilityText(value) {
  return value.toFixed(2);
}

/** Time relative to the last observed step: −1.5 s. */
export function timeText(seconds) {
  if (Math.abs(seconds) < 0.05) return "0.0 s";
  const sign = seconds < 0 ? "−" : "+";
  return `${sign}${Math.abs(seconds).toFixed(1)} s`;
}
