"use strict";
// One or two films and a clock, in step with each other: `onStep(step)` is told of each change.

class Player {
  constructor(onStep, onPlay) {
    Object.assign(this, {
      onStep,
      onPlay,
      films: [],
      step: 0,
      last: 0,
      fps: 20,
      rate: 1,
      isPlaying: false,
    });
  }

  // scenes: [{film (an address, or null), steps, fps}]; the first gives the time.
  load(scenes) {
    this.pause();
    this.last = Math.max(...scenes.map((scene) => scene.steps)) - 1;
    this.fps = scenes[0].fps;
    this.films = scenes.map((scene) => scene.film && this.film(scene)).filter(Boolean);
    this.goTo(Math.min(this.step, this.last));
  }

  film({ film, steps, fps }) {
    const video = el("video", { src: film, muted: true, playsInline: true, preload: "auto" });
    video.onclick = () => this.toggle();
    video.onloadedmetadata = () => this.seek();
    return { video, steps, fps };
  }

  goTo(step) {
    this.step = Math.min(this.last, Math.max(0, Math.round(step)));
    this.position = this.step;
    this.seek();
    this.onStep(this.step);
  }

  // Show the frame of the present step: a film's time is in the middle of it.
  seek() {
    for (const { video, steps, fps } of this.films)
      video.currentTime = (Math.min(this.step, steps - 1) + 0.5) / fps;
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  play() {
    if (this.step >= this.last) this.goTo(0);
    this.isPlaying = true;
    this.before = performance.now();
    for (const { video, fps } of this.films) {
      video.playbackRate = this.rate * (this.fps / fps);
      video.play().catch(() => {}); // it may be replaced by another before it begins
    }
    this.onPlay(true);
    requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    for (const { video } of this.films) {
      video.pause();
      // On a busy machine a later frame that was on its way may be drawn after that of the seek.
      if (this.step < this.last)
        video.requestVideoFrameCallback(() => this.isPlaying || this.seek());
    }
    this.seek();
    this.onPlay(false);
  }

  // A film that runs is the clock; without one, or after its end, steps go by the time.
  tick(now) {
    if (!this.isPlaying) return;
    const clock = this.films.find(
      ({ video }) => !video.paused && !video.ended && video.readyState > 1,
    );
    if (clock) this.position = clock.video.currentTime * clock.fps;
    else this.position += (Math.max(0, now - this.before) / 1000) * this.fps * this.rate;
    this.before = now;
    this.keepTogether(clock);
    const step = Math.min(this.last, Math.floor(this.position));
    if (step !== this.step) {
      this.step = step;
      this.onStep(step);
    }
    if (this.position >= this.last + 0.5) this.pause();
    else requestAnimationFrame((later) => this.tick(later));
  }

  keepTogether(clock) {
    for (const { video, steps, fps } of this.films) {
      const isOff = Math.abs(video.currentTime * fps - this.position) > 0.25 * fps;
      if (video !== clock?.video && this.position < steps && isOff && !video.seeking)
        video.currentTime = this.position / fps;
    }
  }

  setRate(rate) {
    this.rate = rate;
    for (const { video, fps } of this.films) video.playbackRate = rate * (this.fps / fps);
  }
}
