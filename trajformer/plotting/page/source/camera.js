// The part of the scene that the canvas shows: its center in the scene, and pixels per metre.

const MIN_SCALE = 0.02;
const MAX_SCALE = 400;

export class Camera {
  constructor() {
    this.x = 0;
    this.y = 0;
    this.scale = 8;
    this.up = 1; // -1: y of the scene points down, as in a video
    this.width = 1;
    this.height = 1;
  }

  resize(width, height) {
    this.width = width;
    this.height = height;
  }

  /** Position on the canvas in CSS pixels. */
  toScreen(x, y) {
    return [
      this.width / 2 + (x - this.x) * this.scale,
      this.height / 2 - this.up * (y - this.y) * this.scale,
    ];
  }

  toScene(screenX, screenY) {
    return [
      this.x + (screenX - this.width / 2) / this.scale,
      this.y - (this.up * (screenY - this.height / 2)) / this.scale,
    ];
  }

  panBy(pixelsX, pixelsY) {
    this.x -= pixelsX / this.scale;
    this.y += (this.up * pixelsY) / this.scale;
  }

  /** Zoom so that the point under the pointer stays in its place. */
  zoomBy(factor, screenX = this.width / 2, screenY = this.height / 2) {
    const [x, y] = this.toScene(screenX, screenY);
    this.scale = Math.min(Math.max(this.scale * factor, MIN_SCALE), MAX_SCALE);
    const [newX, newY] = this.toScene(screenX, screenY);
    this.x += x - newX;
    this.y += y - newY;
  }

  /** Show a rectangle of the scene with a margin in pixels, left of `covered` pixels. */
  fit(box, margin = 60, covered = 0) {
    const scaleX = (this.width - covered - 2 * margin) / Math.max(box.right - box.left, 1e-3);
    const scaleY = (this.height - 2 * margin) / Math.max(box.top - box.bottom, 1e-3);
    this.scale = Math.min(Math.max(Math.min(scaleX, scaleY), MIN_SCALE), MAX_SCALE);
    this.x = (box.left + box.right + covered / this.scale) / 2;
    this.y = (box.bottom + box.top) / 2;
  }

  /** True if a point is within the canvas or at most `margin` pixels outside. */
  sees(x, y, margin = 40) {
    const [screenX, screenY] = this.toScreen(x, y);
    return screenX > -margin && screenY > -margin
      && screenX < this.width + margin && screenY < this.height + margin;
  }
}
