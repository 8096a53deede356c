/* Attention: thumbnails of all layers and heads on canvas, the exact map of one, and its row as underlines of tokens. */
import { binary } from "/static/api.js";
import { $, arrows, cellAt, drawCodes, make, num, paint, say, visible } from "/static/dom.js";
import { looked, on, placeOf, shows, state } from "/static/state.js";
import { underline } from "/static/tokens.js";

const FINE = 1023; // levels of colour of the large map
let layers = null, now = { layer: 0, head: 0 }, weights = null, known = new Map(); // heads that were asked for

const sequence = (name) => state.sequences.find((one) => one.name === name);
const hides = (keys) => $("sink").checked && keys > 1;
function word(name, count, i) {
  const { tokens } = sequence(name);
  return tokens.length === count ? `${i} ${visible(tokens[i])}` : String(i);
}
function drawThumbnail(canvas) {
  const { codes, thumbnail: [, rows, columns] } = layers[canvas.layer], at = canvas.head * rows * columns;
  drawCodes(canvas, codes.subarray(at, at + rows * columns), rows, columns, 255, hides(columns));
}
function drawLarge() {
  const map = layers[now.layer], [, queries, keys] = map.shape, codes = new Uint16Array(queries * keys);
  for (let i = 0; i < codes.length; i++) codes[i] = Math.sqrt(weights[i]) * FINE + 0.5;
  drawCodes($("map"), codes, queries, keys, FINE, hides(keys));
}
function underlineRow() {
  const map = layers && layers[now.layer], query = state.selected === null ? -1 : placeOf(state.selected);
  if (!map || !weights || query < 0 || query >= map.shape[1] || map.queries !== state.sequences.at(-1).name) return underline(null);
  const keys = map.shape[2], hidden = hides(keys);
  underline(map.keys, (c) => (c >= keys || (hidden && c === 0) ? null : weights[query * keys + c]));
}
function tellCell([r, c]) {
  const map = layers[now.layer], [, queries, keys] = map.shape;
  say(`${map.name}, head ${now.head}: ${word(map.queries, queries, r)} → ${word(map.keys, keys, c)}: ${num(weights[r * keys + c], 9)}`);
}
async function choose(layer, head) {
  const turn = state.turn, name = `${layer} ${head}`;
  now = { layer, head };
  weights = null;
  underlineRow();
  document.querySelectorAll(".heads button").forEach((node) => {
    node.setAttribute("aria-pressed", String(node.dataset.map === name));
    node.tabIndex = node.dataset.map === name ? 0 : -1; // one stop of the tab key; arrows lead to the others
  });
  if (!known.has(name)) known.set(name, binary("/v1/heddle/attention", { ...looked(), layer, head }));
  try {
    const { data } = await known.get(name);
    if (turn !== state.turn || now.layer !== layer || now.head !== head) return;
    weights = new Float32Array(data.buffer, data.byteOffset, data.byteLength / 4);
  } catch (error) {
    if (turn !== state.turn) return;
    known.delete(name); // so that it can be asked for again
    if (now.layer !== layer || now.head !== head) return;
    $("map").hidden = true; // the grid stays, to ask from
    $("map-name").textContent = error.message;
    return;
  }
  const map = layers[layer];
  $("map-name").textContent = `${map.name}, head ${head} (${map.kind}): ${map.queries} looks at ${map.keys}`;
  $("map").style.aspectRatio = `${map.shape[2]} / ${map.shape[1]}`;
  $("map").hidden = false;
  $("map").dataset.map = name;
  drawLarge();
  underlineRow();
}
function refused(error) {
  $("grid").replaceChildren();
  $("grid").hidden = $("map").hidden = true;
  $("map-name").textContent = error.message;
}
const seen = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
  if (!isIntersecting) return;
  seen.unobserve(target);
  if (layers && target.turn === state.turn) drawThumbnail(target);
}), { rootMargin: "200px" });

function grid() {
  const most = Math.max(...layers.map((one) => one.shape[0])), box = make("div", { className: "heads" });
  box.style.gridTemplateColumns = `max-content repeat(${most}, max-content)`;
  layers.forEach((one, layer) => {
    box.append(make("span", { textContent: one.name.replace(".mixer", "").replace("stack.", "") }));
    for (let head = 0; head < most; head++) {
      if (head >= one.shape[0]) { box.append(make("span")); continue; }
      const canvas = Object.assign(make("canvas", { className: "thumb" }), { layer, head, turn: state.turn });
      const button = make("button", { type: "button", title: `${one.name}, head ${head}` }, canvas);
      button.setAttribute("aria-label", `${one.name}, head ${head}`);
      button.dataset.map = `${layer} ${head}`;
      button.onclick = () => { if (layers) choose(layer, head); };
      seen.observe(canvas);
      box.append(button);
    }
  });
  $("grid").replaceChildren(box);
  $("grid").hidden = false;
}
$("grid").onkeydown = (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key], here = event.target.dataset.map;
  if (!step || !here) return;
  event.preventDefault();
  const [layer, head] = here.split(" ").map((x, i) => Number(x) + step[i]), next = $("grid").querySelector(`[data-map="${layer} ${head}"]`);
  if (next) next.focus();
};
function redraw() {
  if (!layers) return;
  document.querySelectorAll(".thumb").forEach((canvas) => seen.observe(canvas));
  if (weights) drawLarge();
  underlineRow();
}
async function ask() {
  const turn = state.turn;
  layers = weights = null;
  known = new Map();
  $("attention").hidden = !shows("attention");
  if ($("attention").hidden) return;
  $("map-name").textContent = "";
  try {
    const { about, data } = await binary("/v1/heddle/attention", looked());
    if (turn !== state.turn) return;
    let from = 0;
    layers = about.map((one) => ({ ...one, codes: data.subarray(from, from += one.thumbnail.reduce((a, b) => a * b)) }));
  } catch (error) { return turn === state.turn && refused(error); }
  if (now.layer >= layers.length || now.head >= layers[now.layer].shape[0]) now = { layer: 0, head: 0 };
  grid();
  paint("attention", redraw);
  choose(now.layer, now.head);
}
$("sink").onchange = redraw;
$("map").onmousemove = (event) => { const cell = weights && cellAt($("map"), event); if (cell) tellCell(cell); };
arrows($("map"), (cell) => { if (weights) tellCell(cell); });
on("looked", ask);
on("selected", underlineRow);
