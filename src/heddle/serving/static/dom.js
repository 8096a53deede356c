/* Elements, texts and colours. Every text is set as text: nothing that a model writes becomes markup. */
export const $ = (id) => document.getElementById(id);
const root = document.documentElement;

export function make(tag, props, ...children) {
  const node = Object.assign(document.createElement(tag), props || {});
  node.append(...children);
  return node;
}
export const visible = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff]/gu,
  (c) => (c === "\n" ? "↵" : c === "\t" ? "→" : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"))).replace(/ /g, "␣");
export const num = (x, digits = 6) => (x === null || x === undefined ? "" : Number(x.toPrecision(digits)).toString());
export const say = (text) => { $("readout").textContent = text; };
export function fault(error) {
  $("fault").textContent = error ? error.message : "";
  $("fault").hidden = !error;
}

/* --- colours: the same scale for every text and model; lightness alone tells the values apart --- */
export const BITS = 12; // of surprisal, at full colour
let known = {};
export const colour = (name) => (known[name] ||= getComputedStyle(root).getPropertyValue(name).split(",").map(Number));
export const mix = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * Math.min(1, Math.max(0, t))));
export const shade = (bits) => (bits === null || bits === undefined ? "transparent" : `rgb(${mix(colour("--low"), colour("--high"), bits / BITS).join(",")})`);
const painters = new Map(); // by view, to paint again in the other theme
export function paint(name, f) { painters.set(name, f); f(); }
function legend() {
  const pen = $("scale").getContext("2d");
  for (let x = 0; x < 120; x++) { pen.fillStyle = shade((x / 119) * BITS); pen.fillRect(x, 0, 1, 1); }
}
export function setTheme(name) {
  root.dataset.theme = name;
  known = {};
  painters.forEach((f) => f());
}
export function startTheme() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  $("theme").onclick = () => setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  paint("scale", legend);
}

/* --- matrices on canvas --- */
export function drawMap(canvas, value, rows, columns, top, even) {
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows), pixels = image.data;
  const low = colour("--paper"), high = colour("--map"), other = colour("--warm");
  for (let r = 0, at = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++, at += 4) {
      const x = value(r, c) / top, size = Math.min(1, Math.abs(x)), to = x < 0 ? other : high, share = even ? size : Math.sqrt(size);
      for (let k = 0; k < 3; k++) pixels[at + k] = low[k] + (to[k] - low[k]) * share;
      pixels[at + 3] = 255;
    }
  }
  pen.putImageData(image, 0, 0);
}
/* Weights as codes from 0 to `levels`, whose colours are looked up; `hidden`: not the first column. */
export function drawCodes(canvas, codes, rows, columns, levels, hidden) {
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  const low = colour("--paper"), high = colour("--map"), bytes = new Uint8Array(4), word = new Uint32Array(bytes.buffer);
  const table = Uint32Array.from({ length: levels + 1 }, (_, k) => { bytes.set([...mix(low, high, k / levels), 255]); return word[0]; });
  for (let at = 0; at < pixels.length; at++) pixels[at] = table[codes[at]];
  if (hidden) for (let at = 0; at < pixels.length; at += columns) pixels[at] = table[0];
  pen.putImageData(image, 0, 0);
}
export function cellAt(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const c = Math.floor(((event.clientX - box.left - canvas.clientLeft) / canvas.clientWidth) * canvas.width), r = Math.floor(((event.clientY - box.top - canvas.clientTop) / canvas.clientHeight) * canvas.height);
  return r < 0 || c < 0 || r >= canvas.height || c >= canvas.width ? null : [r, c];
}
export function arrows(canvas, move) { // a cell by the keyboard
  let at = [0, 0];
  canvas.onkeydown = (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    at = [Math.min(canvas.height - 1, Math.max(0, at[0] + step[0])), Math.min(canvas.width - 1, Math.max(0, at[1] + step[1]))];
    move(at);
  };
}
