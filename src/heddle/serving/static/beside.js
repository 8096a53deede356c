/* Two models on the same tokens: the surprisal of each, and how far their expectations are apart (KL divergence). */
import { post } from "/static/api.js";
import { $, fault, make, num, paint, shade, visible } from "/static/dom.js";
import { on, state } from "/static/state.js";

const others = () => state.models.filter((one) => one.id !== state.able.id && one.kind === state.able.kind && one.vocab === state.able.vocab && one.shows.includes("probabilities"));

function show(found) {
  const cells = [], cell = (value, bits) => {
    const node = make("td", { textContent: value === null ? "" : num(value, 5) });
    node.dataset.value = value === null ? "" : String(value);
    cells.push([node, bits]);
    return node;
  };
  const rows = found.tokens.map((text, i) => make("tr", {},
    make("th", { textContent: visible(text), dir: "ltr" }), ...found.surprisals.map((own) => cell(own[i], own[i])), cell(found.kl[i], found.kl[i])));
  const head = make("tr", {}, ...["token", ...found.models.map((name) => `bits, ${name}`), "KL after it, bits"].map((name) => make("th", { textContent: name, scope: "col" })));
  $("pair").replaceChildren(make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
  paint("pair", () => cells.forEach(([node, bits]) => { node.style.background = shade(bits); }));
  const mean = found.kl.reduce((a, b) => a + b, 0) / found.kl.length;
  $("beside-about").textContent = `${num(mean, 4)} bits of KL divergence of ${found.models[1]} from ${found.models[0]} on average.`;
}
$("beside-go").onclick = async () => {
  const turn = state.turn;
  fault(null);
  try {
    const found = await post("/v1/heddle/divergence", { models: [state.able.id, $("other").value], text: state.ids });
    if (turn === state.turn) show(found);
  } catch (error) { fault(error); }
};
on("looked", () => {
  const names = state.able.kind === "a language model" ? others().map((one) => one.id) : [];
  $("beside").hidden = !names.length;
  const before = $("other").value;
  $("other").replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
  if (names.includes(before)) $("other").value = before;
  $("pair").replaceChildren();
  $("beside-about").textContent = "KL divergence: how many bits the second model's expectation costs where the first one is right.";
});
