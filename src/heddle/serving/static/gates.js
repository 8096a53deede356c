/* Gates and states of recurrent cells: a strip of units by tokens, sorted by how long each unit remembers. */
import { post } from "/static/api.js";
import { $, arrows, cellAt, drawMap, make, num, paint, say, visible } from "/static/dom.js";
import { looked, on, shows, state } from "/static/state.js";

function show(cell, index) {
  const names = Object.keys(cell.values), canvas = make("canvas", { className: "strip", tabIndex: 0 });
  const choice = make("select", { ariaLabel: `value of ${cell.name}` }, ...names.map((name) => make("option", { value: name, textContent: name })));
  if (names.includes("forget")) choice.value = "forget";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${cell.name}: units by tokens`);
  let order = [];
  const words = state.sides.find((one) => one.name === cell.side).tokens;
  const draw = () => {
    const values = cell.values[choice.value], width = values[0].length, top = Math.max(1, ...values.map((row) => Math.max(...row.map(Math.abs))));
    order = [...Array(width).keys()];
    if (cell.memory && cell.memory.length === width) order.sort((a, b) => cell.memory[b] - cell.memory[a]);
    drawMap(canvas, (r, c) => values[c][order[r]], width, values.length, top, true);
    canvas.dataset.unit = String(order[0]);
  };
  const tell = ([r, c]) => {
    const unit = order[r], memory = cell.memory && cell.memory.length === order.length ? `, remembers ${num(cell.memory[unit], 3)} tokens` : "";
    say(`${cell.name} ${choice.value}: unit ${unit}${memory}, at ${c} ${visible(words[c])}: ${num(cell.values[choice.value][c][unit], 9)}`);
  };
  canvas.onmousemove = (event) => { const at = cellAt(canvas, event); if (at) tell(at); };
  arrows(canvas, tell);
  choice.onchange = draw;
  const label = make("strong", { textContent: `${cell.name} (${cell.kind})` });
  $("cells").append(make("div", { className: "tools" }, label, choice), canvas, make("p", { className: "soft", textContent: `Recomputed: at most ${num(cell.error, 2)} from the model's own state.` }));
  paint(`gates ${index}`, draw);
}
async function ask() {
  const turn = state.turn;
  $("gates").hidden = !shows("gates");
  if ($("gates").hidden) return;
  try {
    const found = await post("/v1/heddle/explain", { ...looked(), what: "gates" });
    if (turn !== state.turn) return;
    $("cells").replaceChildren();
    found.gates.forEach(show);
  } catch (error) {
    $("cells").replaceChildren(make("p", { className: "soft", textContent: error.message }));
  }
}
on("looked", ask);
