/* Tasks as forms: what a model was trained for, and nothing else. */
import { post } from "/static/api.js";
import { $, fault, make, num, visible } from "/static/dom.js";
import { state } from "/static/state.js";

const TITLES = { answer: "Answer a question", classify: "Classify", fill: "Fill in the masks", summarize: "Summarize", tag: "Tag words", translate: "Translate" };
const WRITES = ["summarize", "translate"]; // by beam search
const percent = (p) => (p === null || p === undefined ? "" : `${(100 * p).toFixed(2)} %`);

function table(columns, rows) {
  const line = (cells, tag) => make("tr", {}, ...cells.map((text) => make(tag, { textContent: text, dir: "auto" })));
  return make("table", {}, make("thead", {}, line(columns, "th")), make("tbody", {}, ...rows.map((row) => line(row, "td"))));
}
const written = (text) => make("p", { className: "written", textContent: text || "(nothing)", dir: "auto" });
const SHOW = {
  answer: (found) => table(["answer", "probability"], [[found.text || "no answer", percent(found.probability)]]),
  classify: (found) => (found.score !== null && found.score !== undefined
    ? table(["score"], [[num(found.score)]])
    : table(["class", "probability"], Object.entries(found.probabilities).sort((a, b) => b[1] - a[1]).map(([name, p]) => [name, percent(p)]))),
  fill: (found) => table(["mask", "token", "probability"], found.masks.flatMap((gap, i) => gap.map((one) => [String(i + 1), visible(one.token), percent(one.probability)]))),
  summarize: (found) => written(found.text),
  translate: (found) => written(found.text),
  tag: (found) => table(["word", "tag", "probability"], found.words.map((one) => [one.text, one.tag, percent(one.probability)])),
};
function pick() {
  $("task-more").hidden = $("task").value !== "answer";
  $("task-search").hidden = !WRITES.includes($("task").value);
  $("task-label").textContent = { answer: "Question", fill: "Text with masks, written [MASK]" }[$("task").value] || "Text";
  $("task-result").replaceChildren();
}
export function offer() {
  const { tasks } = state.able;
  $("tasks").hidden = !tasks.length;
  $("task").replaceChildren(...tasks.map((name) => make("option", { value: name, textContent: TITLES[name] })));
  if (tasks.length) pick();
}
$("task").onchange = pick;
$("task-go").onclick = async () => {
  const name = $("task").value;
  fault(null);
  try {
    const texts = [$("task-text").value];
    const search = WRITES.includes(name) ? { beams: Number($("task-beams").value), max_tokens: Number($("task-tokens").value) } : {};
    const given = name === "answer" ? { questions: texts, contexts: [$("task-context").value] } : { texts, ...search };
    const [found] = (await post(`/v1/heddle/${name}`, { model: state.able.id, ...given })).data;
    $("task-result").replaceChildren(SHOW[name](found));
  } catch (error) { fault(error); }
};
