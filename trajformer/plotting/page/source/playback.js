// The clock: play, pause, scrub, step and speed. Times are fractional steps of the recording.

export const SPEEDS = [0.25, 0.5, 1, 2, 4];

export class Playback {
  /** `changed` is called after each change of the time or of playing. */
  constructor(changed) {
    this.changed = changed;
    this.time = 0;
    this.last = 0;
    this.now = 0;
    this.period = 0.1;
    this.speed = 1;
    this.playing = false;
    this.previousFrame = 0;
  }

  /** Start with a new scene, in its last observed step. */
  load(scene) {
    this.now = scene.now;
    this.last = scene.now + scene.future;
    this.period = scene.period;
    this.seek(scene.now);
  }

  seek(time) {
    this.time = Math.min(Math.max(time, 0), this.last);
    this.changed();
  }

  stepBy(steps) {
    this.playing = false;
    this.seek(Math.round(this.time) + steps);
  }

  toggle() {
    this.playing = !this.playing;
    if (this.playing) {
      if (this.time >= this.last) this.time = 0;
      this.previousFrame = performance.now();
      requestAnimationFrame((moment) => this.advance(moment));
    }
    this.changed();
  }

  advance(moment) {
    if (!this.playing) return;
    const elapsed = Math.max(moment - this.previousFrame, 0) / 1000;
    this.previousFrame = moment;
    const time = this.time + (elapsed * this.speed) / this.period;
    if (time >= this.last) this.playing = false;
    this.seek(time);
    if (this.playing) requestAnimationFrame((next) => this.advance(next));
  }

  /** The next faster or slower speed. */
  changeSpeed(direction) {
    const index = SPEEDS.indexOf(this.speed) + direction;
    this.speed = SPEEDS[Math.min(Math.max(index, 0), SPEEDS.length - 1)];
    this.changed();
  }

  /** Seconds relative to the last observed step. */
  seconds() {
    return (this.time - this.now) * this.period;
  }
}
