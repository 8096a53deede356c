/* Tokens as chips, coloured by surprisal. */
import { $, make, num, paint, say, shade, visible } from "/static/dom.js";
import { main, on, state, tell } from "/static/state.js";

const LONG = 400; // chips, beyond which the row scrolls and is drawn as it comes into view
export const rows = {}; // side: its chips
let fresh = Infinity; // the first token that was written last

export const markFresh = (first) => { fresh = first; };

function chip(text, bits, title) {
  const node = make("button", { type: "button", className: "chip", textContent: visible(text), title });
  node.dir = "ltr";
  node.dataset.bits = bits === null || bits === undefined ? "" : String(bits);
  node.style.background = shade(bits);
  node.setAttribute("aria-pressed", "false");
  node.onmouseenter = node.onfocus = () => say(title);
  return node;
}
const described = (name, at, text, id, bits, logprob) =>
  `${name} ${at}: ${visible(text)} (id ${id})${bits === null || bits === undefined ? "" : `, ${num(bits)} bits, logprob ${num(logprob)}`}`;

export function select(at) {
  state.selected = at;
  const row = rows[main().name];
  row.forEach((node, i) => node.setAttribute("aria-pressed", String(i === at)));
  tell("selected");
}

/* A row of chips that can be walked through with the arrow keys. */
function walk(box, nodes) {
  box.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const to = Math.min(nodes.length - 1, Math.max(0, nodes.indexOf(document.activeElement) + step));
    nodes[to].focus();
    nodes[to].scrollIntoView({ block: "nearest" });
  };
}
function showRow(side) {
  const own = state.probabilities && state.probabilities.side === side.name ? state.probabilities : null;
  const isMain = side === main(), expects = isMain && own;
  const nodes = side.tokens.map((text, i) => {
    const bits = own ? own.surprisals[i] : null, logprob = own ? own.logprobs[i] : null;
    const node = chip(text, bits, described(side.name, i, text, side.ids[i], bits, logprob));
    if (isMain) node.onclick = () => select(i);
    if (isMain && i >= fresh) node.classList.add("new");
    return node;
  });
  if (expects && state.predicts === "next token") {
    const next = chip("next?", null, "what would come next");
    next.classList.add("next");
    next.onclick = () => select(side.tokens.length);
    nodes.push(next);
  }
  const box = make("div", { className: nodes.length > LONG ? "chips long" : "chips" }, ...nodes);
  walk(box, nodes);
  rows[side.name] = nodes;
  const label = state.sides.length > 1 ? [make("p", { className: "soft", textContent: side.name })] : [];
  box.dataset.side = side.name;
  $("rows").append(...label, box);
}
const ABOUT = {
  "next token": "Colour: how surprising each token was to the model. Choose one: what was expected in its place.",
  "masked token": "Colour: how surprising each token is when it is masked. Choose one: what the model expects in its place.",
  "class": "The class of the whole text is beside; choose a token to see where it looks.",
};
function show() {
  $("tokens").hidden = !state.sides.length;
  $("rows").replaceChildren();
  state.sides.forEach(showRow);
  $("tokens-about").textContent = state.probabilities ? ABOUT[state.predicts] : "Choose a token to see where it looks.";
}
on("looked", () => paint("tokens", () => { // in another theme, chips change their colour alone
  if (shown === state.turn) Object.values(rows).flat().forEach((node) => { node.style.background = shade(node.dataset.bits === "" ? null : Number(node.dataset.bits)); });
  else { show(); shown = state.turn; }
}));
let shown = -1;

/* Tokens as they are written; their ids and texts are confirmed when the text is looked at. */
export function append(text, logprob) {
  const row = rows[main().name], bits = logprob === null ? null : -logprob / Math.LN2;
  const node = chip(text, bits, `${visible(text)}${bits === null ? "" : `, ${num(bits)} bits`}`);
  node.classList.add("new");
  const box = $("rows").lastElementChild, next = box.querySelector(".next");
  if (next) { next.remove(); row.pop(); }
  row.push(node);
  box.append(node);
  if (row.length > LONG) box.classList.add("long");
}
