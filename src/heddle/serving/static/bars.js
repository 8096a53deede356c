/* The most probable tokens of a place, at any temperature: probabilities are computed here, from all logits. */
import { post } from "/static/api.js";
import { $, fault, make, num, say, visible } from "/static/dom.js";
import { looked, main, on, placeOf, state } from "/static/state.js";

const SHOWN = 12;
let found = null, take = () => {};
export const onTake = (f) => { take = f; };

/* The probability of each logit at a temperature; at 0, the best one has all. */
export function softmax(logits, temperature) {
  let top = -Infinity, best = 0;
  logits.forEach((x, i) => { if (x !== null && x > top) { top = x; best = i; } });
  if (temperature === 0) return logits.map((_, i) => (i === best ? 1 : 0));
  const shares = logits.map((x) => (x === null ? 0 : Math.exp((x - top) / temperature)));
  const sum = shares.reduce((a, b) => a + b, 0);
  return shares.map((x) => x / sum);
}
function show() {
  const temperature = Number($("slider").value), shares = softmax(found.logits, temperature);
  $("slider-value").textContent = temperature.toFixed(2);
  const sequence = main(), at = state.selected, here = found.predicts !== "class" && at < sequence.ids.length ? sequence.ids[at] : null;
  const best = found.best.slice(0, SHOWN);
  if (here !== null && !best.some((one) => one.id === here)) best.push({ id: here, text: sequence.tokens[at] });
  const takes = found.predicts !== "class";
  $("bars").replaceChildren(...best.map((one) => {
    const p = shares[one.id], name = visible(one.text), bar = make("b"), isHere = one.id === here;
    bar.style.width = `${100 * p}%`;
    const words = make("span", { textContent: name, dir: "ltr", title: name });
    const line = make("div", { className: isHere ? "bar here" : "bar" }, words, bar, make("em", { textContent: `${(100 * p).toFixed(2)} %` }));
    line.dataset.id = String(one.id);
    line.dataset.probability = String(p);
    const title = `${name} (id ${one.id}): probability ${num(p, 9)} at temperature ${temperature}, logit ${num(found.logits[one.id], 9)}`;
    line.onmouseenter = () => say(title);
    if (takes && !isHere) {
      const button = make("button", { type: "button", textContent: "take", title: "take this one instead" });
      button.setAttribute("aria-label", `take ${name} instead`);
      button.onclick = () => take(one.id);
      button.onfocus = () => say(title);
      line.append(button);
    }
    return line;
  }));
}
async function ask() {
  const at = state.selected, place = placeOf(at), turn = state.turn;
  $("expects").hidden = !state.probabilities;
  if (!state.probabilities) return;
  const sequence = main(), whole = state.predicts === "class";
  $("expects-title").textContent = whole ? "Class" : at === sequence.ids.length ? "What comes next" : "What was expected";
  $("heat").hidden = place < 0;
  if (place < 0) {
    $("bars").replaceChildren();
    $("expects-about").textContent = "Nothing comes before the first token: no model predicts it.";
    return;
  }
  try {
    const answer = await post("/v1/heddle/logits", { ...looked(), place, top: 20 });
    if (turn !== state.turn || at !== state.selected) return;
    found = answer;
  } catch (error) { return fault(error); }
  const word = at < sequence.ids.length ? `instead of ${visible(sequence.tokens[at])} (${sequence.name} ${at})` : "after the last token";
  $("expects-about").textContent = whole ? "Of the whole text." : `${word}: the best of ${found.logits.length} tokens.`;
  $("bars").dataset.place = String(place);
  show();
}
$("slider").oninput = () => { if (found) show(); };
on("selected", ask);
