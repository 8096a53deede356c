/* Attention: a grid of layers and heads on canvas, and the row of the chosen token as underlines. */
import { post } from "/static/api.js";
import { $, arrows, cellAt, drawMap, make, num, paint, say, visible } from "/static/dom.js";
import { looked, on, placeOf, shows, state } from "/static/state.js";
import { rows } from "/static/tokens.js";

let maps = null, now = { map: 0, head: 0 };
const side = (name) => state.sides.find((one) => one.name === name);
const word = (name, i) => `${i} ${visible(side(name).tokens[i])}`;
const weights = () => maps[now.map].weights[now.head];

function draw(canvas, map, head) {
  const own = maps[map].weights[head], hidden = $("sink").checked && own[0].length > 1;
  drawMap(canvas, (r, c) => (hidden && c === 0 ? 0 : own[r][c]), own.length, own[0].length, 1);
}
function underline() {
  Object.values(rows).flat().forEach((node) => { const mark = node.querySelector("i"); if (mark) mark.remove(); });
  if (!maps || state.selected === null) return;
  const query = placeOf(state.selected), own = weights(), keys = rows[maps[now.map].keys];
  if (query < 0 || query >= own.length || maps[now.map].queries !== state.sides.at(-1).name) return;
  const hidden = $("sink").checked && own[0].length > 1;
  own[query].forEach((weight, c) => {
    if (!keys[c] || (hidden && c === 0)) return;
    const mark = make("i");
    mark.style.opacity = String(weight);
    mark.dataset.weight = String(weight);
    keys[c].append(mark);
  });
}
function tellCell([r, c]) {
  const map = maps[now.map];
  say(`${map.name}, head ${now.head}: ${word(map.queries, r)} → ${word(map.keys, c)}: ${num(weights()[r][c], 9)}`);
}
function showBig() {
  const map = maps[now.map], own = weights(), big = $("map");
  $("map-name").textContent = `${map.name}, head ${now.head} (${map.kind}): ${map.queries} looks at ${map.keys}`;
  big.style.aspectRatio = `${own[0].length} / ${own.length}`;
  draw(big, now.map, now.head);
  document.querySelectorAll(".heads button").forEach((node) => node.setAttribute("aria-pressed", String(node.dataset.map === `${now.map} ${now.head}`)));
  underline();
}
const seen = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
  if (!isIntersecting) return;
  seen.unobserve(target);
  if (maps && maps[target.map] && target.turn === state.turn) draw(target, target.map, target.head);
}), { rootMargin: "200px" });

function grid() {
  const most = Math.max(...maps.map((map) => map.weights.length)), box = make("div", { className: "heads" });
  box.style.gridTemplateColumns = `max-content repeat(${most}, max-content)`;
  maps.forEach((map, m) => {
    box.append(make("span", { textContent: map.name.replace(".mixer", "").replace("stack.", "") }));
    for (let h = 0; h < most; h++) {
      if (h >= map.weights.length) { box.append(make("span")); continue; }
      const canvas = Object.assign(make("canvas", { className: "thumb" }), { map: m, head: h, turn: state.turn });
      const button = make("button", { type: "button", title: `${map.name}, head ${h}` }, canvas);
      button.setAttribute("aria-label", `${map.name}, head ${h}`);
      button.dataset.map = `${m} ${h}`;
      button.onclick = () => { now = { map: m, head: h }; if (maps) showBig(); };
      seen.observe(canvas);
      box.append(button);
    }
  });
  $("grid").replaceChildren(box);
}
function redraw() {
  if (!maps) return;
  document.querySelectorAll(".thumb").forEach((canvas) => seen.observe(canvas));
  showBig();
}
async function ask() {
  const turn = state.turn;
  maps = null;
  $("attention").hidden = !shows("attention");
  if ($("attention").hidden) return;
  $("map-name").textContent = "";
  try {
    const found = await post("/v1/heddle/explain", { ...looked(), what: "attention" });
    if (turn !== state.turn) return;
    maps = found.attention;
  } catch (error) {
    $("grid").replaceChildren();
    $("map").hidden = true;
    $("map-name").textContent = error.message;
    return;
  }
  $("map").hidden = false;
  if (now.map >= maps.length || now.head >= maps[now.map].weights.length) now = { map: 0, head: 0 };
  grid();
  paint("attention", redraw);
}
$("sink").onchange = redraw;
$("map").onmousemove = (event) => { const cell = maps && cellAt($("map"), event); if (cell) tellCell(cell); };
arrows($("map"), (cell) => { if (maps) tellCell(cell); });
on("looked", ask);
on("selected", underline);
