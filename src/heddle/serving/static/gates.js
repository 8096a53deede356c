/* Gates and states of recurrent cells: strips of units by tokens, sorted by how long each unit remembers. */
import { post } from "/static/api.js";
import { $, make, num } from "/static/dom.js";
import { looked, on, shows, state } from "/static/state.js";
import { strip } from "/static/strips.js";

function show(cell, index) {
  const { memory } = cell, has = (count) => memory && memory.length === count;
  const of = {
    ...cell, first: "forget", row: "unit",
    order: (units) => (has(units.length) ? units.sort((a, b) => memory[b] - memory[a]) : units),
    about: (unit, count) => (has(count) ? `, remembers ${num(memory[unit], 3)} tokens` : ""),
  };
  $("cells").append(...strip(`gates ${index}`, of), make("p", { className: "soft", textContent: `Recomputed: at most ${num(cell.error, 2)} from the model's own state.` }));
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
