/* Tokens as chips, coloured by surprisal. A long row is a list of blocks, of which only those in view have chips. */
import { $, make, num, paint, say, shade, visible } from "/static/dom.js";
import { main, on, state, tell } from "/static/state.js";

const LONG = 400; // tokens, beyond which a row is virtualised
const BLOCK = 64;
const NEXT = { text: "next?", bits: null, title: "what would come next", next: true };
let rows = {}; // by sequence
let fresh = Infinity; // the first token that was written last

export const markFresh = (first) => { fresh = first; };

class Row {
  constructor(name, items, isMain) {
    Object.assign(this, { name, items, isMain, chips: new Map(), marks: null, long: false });
    this.box = make("div", { className: "chips" });
    this.box.dataset.sequence = name;
    this.box.setAttribute("role", "group");
    this.box.setAttribute("aria-label", `Tokens of the ${name}`);
    this.box.onclick = (event) => { const at = this.at(event.target); if (at !== null && isMain) select(at); };
    this.box.onmouseover = this.box.onfocus = (event) => { const at = this.at(event.target); if (at !== null) say(this.items[at].title); };
    this.box.addEventListener("focusin", this.box.onfocus);
    this.box.onkeydown = (event) => this.walk(event);
    if (items.length > LONG) this.divide();
    else this.box.append(...items.map((_, i) => this.chip(i)));
  }
  at(node) {
    const own = node.closest(".chip");
    return own && own.place !== undefined ? own.place : null;
  }
  chip(i) {
    const { text, bits, title, next } = this.items[i], node = make("button", { type: "button", className: "chip", textContent: visible(text), title, dir: "ltr", place: i });
    node.dataset.bits = bits === null || bits === undefined ? "" : String(bits);
    node.style.background = shade(bits);
    if (next) node.classList.add("next");
    else if (this.isMain && i >= fresh) node.classList.add("new");
    this.chips.set(i, node);
    this.press(i);
    this.underline(i);
    return node;
  }
  press(i) {
    const node = this.chips.get(i), chosen = i === (this.isMain ? state.selected : 0);
    if (!node) return;
    node.tabIndex = chosen ? 0 : -1; // one stop of the tab key; arrows lead to the others
    if (this.isMain) node.setAttribute("aria-pressed", String(chosen));
  }
  underline(i) {
    const node = this.chips.get(i), weight = this.marks && this.marks(i), has = weight !== null && weight !== undefined;
    let line = node.querySelector("i");
    if (!has) return line && line.remove();
    if (!line) node.append(line = make("i"));
    line.style.opacity = String(weight);
    line.dataset.weight = String(weight);
  }
  /* --- a long row --- */
  divide() {
    this.long = true;
    this.chips.clear();
    this.box.classList.add("long");
    this.box.tabIndex = 0;
    this.watch = new IntersectionObserver((seen) => seen.forEach(({ isIntersecting, target }) => (isIntersecting ? this.fill(target) : this.empty(target))), { root: this.box, rootMargin: "200px" });
    const blocks = [];
    for (let from = 0; from < this.items.length; from += BLOCK) blocks.push(this.block(from));
    this.box.replaceChildren(...blocks);
  }
  block(from) {
    const block = make("div", { className: "block", from });
    block.dataset.from = String(from);
    this.watch.observe(block);
    return block;
  }
  fill(block) {
    if (block.childElementCount) return;
    const to = Math.min(this.items.length, block.from + BLOCK), nodes = [];
    for (let i = block.from; i < to; i++) nodes.push(this.chip(i));
    block.append(...nodes);
    block.style.minHeight = "";
  }
  empty(block) {
    if (!block.childElementCount || block.contains(document.activeElement)) return;
    block.style.minHeight = `${block.offsetHeight}px`; // so that nothing moves
    block.replaceChildren();
    for (let i = block.from; i < block.from + BLOCK; i++) this.chips.delete(i);
  }
  show(i) { // the chip, which is made if it is out of view
    if (this.long) this.fill(this.box.children[Math.floor(i / BLOCK)]);
    return this.chips.get(i);
  }
  scrollTo(i) {
    if (!this.long) return;
    const node = this.show(i), box = this.box.getBoundingClientRect(), own = node.getBoundingClientRect();
    if (own.top < box.top || own.bottom > box.bottom) this.box.scrollTop += own.top - box.top - box.height / 3;
  }
  walk(event) { // with the arrow keys
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key], here = this.at(event.target);
    if (!step || here === null) return;
    event.preventDefault();
    const node = this.show(Math.min(this.items.length - 1, Math.max(0, here + step)));
    node.focus();
    node.scrollIntoView({ block: "nearest" });
  }
  push(item) { // at the end, in the place of the one that would come next
    if (this.items.at(-1).next) {
      this.items.pop();
      const last = this.chips.get(this.items.length);
      if (last) last.remove();
      this.chips.delete(this.items.length);
    }
    const i = this.items.push(item) - 1;
    if (!this.long && i < LONG) return this.box.append(this.chip(i));
    if (!this.long) this.divide();
    let last = this.box.lastElementChild;
    if (i - last.from >= BLOCK) this.box.append(last = this.block(i));
    if (last.childElementCount || last.from === i) last.append(this.chip(i));
    this.box.scrollTop = this.box.scrollHeight;
  }
}

const described = (name, at, text, id, bits, logprob) =>
  `${name} ${at}: ${visible(text)} (id ${id})${bits === null || bits === undefined ? "" : `, ${num(bits)} bits, logprob ${num(logprob)}`}`;

export function select(at) {
  const row = rows[main().name], before = state.selected;
  state.selected = at;
  [before, at].forEach((i) => row.press(i));
  row.scrollTo(at);
  tell("selected");
}
/* Underlines the tokens of a sequence by weights, and those of no other; a weight of null: no line. */
export function underline(name, weight) {
  Object.values(rows).forEach((row) => {
    row.marks = row.name === name ? weight : null;
    row.chips.forEach((_, i) => row.underline(i));
  });
}
function showRow(sequence) {
  const own = state.probabilities && state.probabilities.sequence === sequence.name ? state.probabilities : null, isMain = sequence === main();
  const items = sequence.tokens.map((text, i) => {
    const bits = own ? own.surprisals[i] : null;
    return { text, bits, title: described(sequence.name, i, text, sequence.ids[i], bits, own ? own.logprobs[i] : null) };
  });
  if (isMain && own && state.predicts === "next token") items.push(NEXT);
  const row = rows[sequence.name] = new Row(sequence.name, items, isMain);
  const label = state.sequences.length > 1 ? [make("p", { className: "soft", textContent: sequence.name })] : [];
  $("rows").append(...label, row.box);
}
const ABOUT = {
  "next token": "Colour: how surprising each token was to the model. Choose one: what was expected in its place.",
  "masked token": "Colour: how surprising each token is when it is masked. Choose one: what the model expects in its place.",
  "class": "The class of the whole text is beside; choose a token to see where it looks.",
};
function show() {
  $("tokens").hidden = !state.sequences.length;
  $("rows").replaceChildren();
  Object.values(rows).forEach((row) => row.watch && row.watch.disconnect());
  rows = {};
  state.selected = null;
  state.sequences.forEach(showRow);
  $("tokens-about").textContent = state.probabilities ? ABOUT[state.predicts] : "Choose a token to see where it looks.";
}
let shown = -1;
on("looked", () => paint("tokens", () => { // in another theme, chips change their colour alone
  if (shown === state.turn) Object.values(rows).forEach((row) => row.chips.forEach((node, i) => { node.style.background = shade(row.items[i].bits); }));
  else { show(); shown = state.turn; }
}));

/* Tokens as they are written; their ids and texts are confirmed when the text is looked at. */
export function append(text, logprob) {
  const bits = logprob === null ? null : -logprob / Math.LN2;
  rows[main().name].push({ text, bits, title: `${visible(text)}${bits === null ? "" : `, ${num(bits)} bits`}` });
}
