/* Strips on canvas: a row for each unit or expert, a column for each token. */
import { arrows, cellAt, drawMap, make, num, paint, say, visible } from "/static/dom.js";
import { state } from "/static/state.js";

/* A strip of `of.values`: by name, [tokens][rows]; `of.order` sorts the rows, `of.about` tells of one. */
export function strip(name, of) {
  const names = Object.keys(of.values), canvas = make("canvas", { className: "strip", tabIndex: 0 });
  const choice = make("select", { ariaLabel: `value of ${of.name}` }, ...names.map((one) => make("option", { value: one, textContent: one })));
  if (names.includes(of.first)) choice.value = of.first;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${of.name}: ${of.row}s by tokens`);
  const words = state.sequences.find((one) => one.name === of.sequence).tokens;
  let order = [];
  const draw = () => {
    const values = of.values[choice.value], width = values[0].length, top = Math.max(1, ...values.map((row) => Math.max(...row.map(Math.abs))));
    order = of.order ? of.order([...Array(width).keys()]) : [...Array(width).keys()];
    drawMap(canvas, (r, c) => values[c][order[r]], width, values.length, top, true);
    canvas.dataset.unit = String(order[0]);
  };
  const tell = ([r, c]) => {
    const row = order[r], about = of.about ? of.about(row, order.length) : "";
    say(`${of.name} ${choice.value}: ${of.row} ${row}${about}, at ${c} ${visible(words[c])}: ${num(of.values[choice.value][c][row], 9)}`);
  };
  canvas.onmousemove = (event) => { const at = cellAt(canvas, event); if (at) tell(at); };
  arrows(canvas, tell);
  choice.onchange = draw;
  const label = make("strong", { textContent: of.kind ? `${of.name} (${of.kind})` : of.name });
  paint(name, draw);
  return [make("div", { className: "tools" }, label, choice), canvas];
}
