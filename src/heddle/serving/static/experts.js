/* Experts of a mixture: the gates of those that each token uses, and the router's probabilities. */
import { post } from "/static/api.js";
import { $, make, num } from "/static/dom.js";
import { looked, on, shows, state } from "/static/state.js";
import { strip } from "/static/strips.js";

let layers = [];
const short = (name) => name.replace("stack.", "");

function gates(layer) { // of all experts; 0: not used
  return layer.chosen.map((own) => {
    const row = Array(layer.experts).fill(0);
    own.forEach(([id, gate]) => { row[id] = gate; });
    return row;
  });
}
function show() {
  $("routers").replaceChildren(...layers.flatMap((layer, i) => strip(`experts ${i}`, {
    name: short(layer.name), sequence: layer.sequence, first: "gate", row: "expert", values: { gate: gates(layer), probability: layer.probabilities },
  })));
}
function tell() { // of the chosen token; that it is the next one: of the last
  const rows = layers.filter((layer) => layer.sequence === state.sequences.at(-1).name).map((layer) => {
    const used = layer.chosen[Math.min(state.selected, layer.chosen.length - 1)];
    const line = make("li", { textContent: `${short(layer.name)}: ${used.map(([id, gate]) => `expert ${id} ${num(gate, 4)}`).join(", ") || "none"}` });
    line.dataset.used = JSON.stringify(used);
    return line;
  });
  $("used").replaceChildren(...rows);
}
async function ask() {
  const turn = state.turn;
  layers = [];
  $("experts").hidden = !shows("experts");
  if ($("experts").hidden) return;
  try {
    const found = await post("/v1/heddle/explain", { ...looked(), what: "experts" });
    if (turn !== state.turn) return;
    layers = found.experts;
    show();
    if (state.selected !== null) tell();
  } catch (error) {
    if (turn !== state.turn) return;
    $("used").replaceChildren();
    $("routers").replaceChildren(make("p", { className: "soft", textContent: error.message }));
  }
}
on("looked", ask);
on("selected", () => { if (layers.length) tell(); });
