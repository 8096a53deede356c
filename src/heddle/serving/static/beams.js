/* Beam search as a tree; its leaves are what `heddle generate --beams` returns. */
import { post } from "/static/api.js";
import { $, fault, make, num, say, visible } from "/static/dom.js";
import { looked, on, shows, state } from "/static/state.js";

function path(nodes, at) {
  const found = [];
  for (; at !== null; at = nodes[at].parent) found.unshift(nodes[at]);
  return found;
}
function show({ nodes, finished }) {
  const lists = new Map([[null, make("ul")]]), items = [];
  nodes.forEach((one, i) => {
    const item = make("li", { className: `${one.kept ? "" : "dead"} ${one.score === null ? "" : "end"}`.trim() });
    const score = one.score === null ? "" : `  = ${num(one.score, 6)} (${one.reason})`;
    item.append(make("bdi", { textContent: visible(one.text) }), ` ${one.logprob.toFixed(2)}${score}`);
    item.onmouseenter = () => say(`${visible(one.text)} (id ${one.id}): logprob ${num(one.logprob, 9)}, of the sequence ${num(one.total, 9)}`);
    if (!lists.has(one.parent)) {
      const list = make("ul");
      items[one.parent].append(list);
      lists.set(one.parent, list);
    }
    lists.get(one.parent).append(item);
    items[i] = item;
  });
  $("tree").replaceChildren(lists.get(null));
  $("leaves").replaceChildren(...finished.map((end) => {
    const way = path(nodes, end), line = make("li", {}, make("bdi", { textContent: way.map((one) => visible(one.text)).join("") }), `  ${num(nodes[end].score, 6)}`);
    line.dataset.ids = JSON.stringify(way.map((one) => one.id));
    line.dataset.score = String(nodes[end].score);
    return line;
  }));
}
$("beams-go").onclick = async () => {
  const turn = state.turn, button = $("beams-go");
  fault(null);
  button.disabled = true;
  try {
    const sizes = { beams: Number($("beams-count").value), max_tokens: Number($("beams-tokens").value) };
    const found = await post("/v1/heddle/explain", { ...looked(), what: "beams", ...sizes });
    if (turn === state.turn) show(found.beams);
  } catch (error) { fault(error); } finally { button.disabled = false; }
};
on("looked", () => {
  $("beams").hidden = !shows("beams");
  $("beams-about").textContent = `${state.able.kind === "an encoder-decoder" ? "What the model may write to the source." : "What may follow the text."} Branches that were given up are grey.`;
  $("tree").replaceChildren();
  $("leaves").replaceChildren();
});
