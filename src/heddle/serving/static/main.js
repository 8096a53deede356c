/* The playground: writes with a model, and looks at what it wrote. */
import { get, post, setKey, stream } from "/static/api.js";
import { onTake } from "/static/bars.js";
import { $, fault, make, startTheme } from "/static/dom.js";
import { looked, main, shows, state, tell } from "/static/state.js";
import { offer } from "/static/tasks.js";
import { append, markFresh, select } from "/static/tokens.js";
import "/static/attention.js";
import "/static/beams.js";
import "/static/beside.js";
import "/static/experts.js";
import "/static/gates.js";

const number = (id) => Number($(id).value);
const isPair = () => state.able.kind === "an encoder-decoder";
const UNLIMITED = 1 << 20; // tokens: a recurrent model
let aborter = null, typed = null, branches = [], answerFrom = 0;

/* --- looking --- */
async function look(request, at = null) {
  const turn = ++state.turn, what = shows("probabilities") ? "probabilities" : state.able.shows[0];
  if (!what || (what === "beams")) return false;
  const found = await post("/v1/heddle/explain", { ...request, what, top: 1 });
  if (turn !== state.turn) return false;
  state.sequences = found.sequences;
  state.ids = main().ids;
  state.probabilities = found.probabilities || null;
  state.predicts = found.probabilities ? found.probabilities.predicts : "next token";
  tell("looked");
  const last = main().ids.length - (state.probabilities && state.predicts === "next token" ? 0 : 1);
  select(at === null ? last : Math.min(at, last));
  return true;
}
const asTyped = () => ({ model: state.able.id, text: $("prompt").value });
async function lookAtText() {
  typed = state.text = $("prompt").value;
  branches = [];
  markFresh(Infinity);
  if (await look(asTyped())) keepBranch();
}
function keepBranch() { // rows that were written, to go back to
  branches.push(state.ids);
  $("branches").replaceChildren(...(branches.length < 2 ? [] : ["Branches", ...branches.map((ids, i) => {
    const button = make("button", { type: "button", textContent: String(i + 1) });
    button.setAttribute("aria-pressed", String(i === branches.length - 1));
    button.onclick = () => doing(async () => {
      state.ids = ids;
      markFresh(Infinity);
      await look(looked());
      [...$("branches").querySelectorAll("button")].forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    });
    return button;
  })]));
}

/* --- writing --- */
function sampling() {
  const temperature = number("temperature");
  const drawn = temperature > 0 ? { top_p: number("top-p"), seed: number("seed") } : {};
  return { model: state.able.id, max_tokens: number("max-tokens"), temperature, return_token_ids: true, ...drawn };
}
/* Continues a row of ids, of an encoder-decoder its output; tokens are shown as they come. */
async function write(ids) {
  const new_ids = [], body = { ...sampling(), ...(isPair() ? { prompt: state.text, output: ids } : { prompt: ids }), logprobs: 1 };
  for await (const event of stream("/v1/completions", body, aborter.signal)) {
    const [choice] = event.choices;
    new_ids.push(...(choice.token_ids || []));
    if (choice.logprobs && state.probabilities) choice.logprobs.tokens.forEach((text, i) => append(text, choice.logprobs.token_logprobs[i]));
  }
  return new_ids;
}
async function go() {
  if (isPair()) return goPair();
  if (typed !== $("prompt").value || !state.ids.length) {
    await lookAtText();
    branches = [];
  }
  const before = state.ids;
  await shown(before, await write(before));
}
async function goPair() {
  typed = state.text = $("prompt").value;
  branches = [];
  const { start } = state.able;
  state.ids = start; // nothing is written yet
  markFresh(start.length);
  await look(looked(), start.length);
  await shown(start, await write(start));
}
async function shown(before, written) {
  state.ids = [...before, ...written];
  markFresh(before.length);
  if (written.length && await look(looked(), before.length)) keepBranch();
}
/* Takes another token in the place of the chosen one, and writes on from there. */
async function branch(id) {
  const kept = [...state.ids.slice(0, state.selected), id], at = state.selected;
  if (!state.able.generates) {
    state.ids = [...kept, ...state.ids.slice(at + 1)];
    markFresh(Infinity);
    if (await look(looked(), at)) keepBranch();
    return;
  }
  state.ids = kept;
  markFresh(at);
  await look(looked(), at);
  const ended = state.able.ends.includes(id); // nothing is written after the end of an output
  state.ids = [...kept, ...(ended ? [] : await write(kept))];
  if (await look(looked(), at)) keepBranch();
  if (state.chatting) await showAnswer(state.ids.slice(answerFrom));
}

/* --- chat --- */
function showMessages() {
  $("messages").replaceChildren(...state.messages.map(({ role, content }) => make("li", { className: role, textContent: content, dir: "auto" })));
  $("messages").scrollTop = $("messages").scrollHeight;
}
async function showAnswer(ids) {
  if (answerFrom === 0 || !ids.length) return;
  const { prompt } = await post("/detokenize", { model: state.able.id, tokens: ids });
  state.messages.at(-1).content = prompt;
  showMessages();
}
async function say() {
  const content = $("prompt").value;
  if (!content) return;
  $("prompt").value = "";
  state.messages.push({ role: "user", content }, { role: "assistant", content: "" });
  showMessages();
  const messages = state.messages.slice(0, -1), line = $("messages").lastElementChild, answer = state.messages.at(-1);
  let ids = [];
  try {
    const { tokens } = await post("/tokenize", { model: state.able.id, messages });
    for await (const event of stream("/v1/chat/completions", { ...sampling(), messages }, aborter.signal)) {
      const [choice] = event.choices;
      answer.content += choice.delta.content || "";
      line.textContent = answer.content;
      ids = choice.token_ids || ids;
    }
    answerFrom = tokens.length;
    branches = [];
    await shown(tokens, ids);
  } catch (error) {
    if (!answer.content) state.messages.splice(-2);
    showMessages();
    $("prompt").value ||= answer.content ? "" : content;
    throw error;
  }
}
function setChatting(value) {
  state.chatting = value && state.able.chat;
  $("modes").hidden = !state.able.chat;
  $("mode-text").setAttribute("aria-pressed", String(!state.chatting));
  $("mode-chat").setAttribute("aria-pressed", String(state.chatting));
  $("clear").hidden = !state.chatting;
  $("look").hidden = state.chatting || !state.able.shows.length;
  $("messages").hidden = !state.chatting;
  $("go").textContent = state.chatting ? "Send" : isPair() ? "Write" : "Continue";
  $("prompt-label").textContent = state.chatting ? "Message" : isPair() ? "Source" : "Text";
  state.messages = [];
  answerFrom = 0;
  showMessages();
}

/* --- the page --- */
async function doing(work) {
  fault(null);
  aborter = new AbortController();
  const buttons = ["go", "look", "model"].map($);
  buttons.forEach((node) => { node.disabled = true; });
  $("stop").hidden = false;
  document.body.ariaBusy = "true";
  try { await work(); } catch (error) { if (error.name !== "AbortError") fault(error); }
  buttons.forEach((node) => { node.disabled = false; });
  $("stop").hidden = true;
  document.body.ariaBusy = "false";
}
function useModel() {
  state.able = state.models.find((one) => one.id === $("model").value);
  Object.assign(state, { sequences: [], ids: [], probabilities: null, selected: null, text: null });
  state.turn++;
  typed = null;
  branches = [];
  $("branches").replaceChildren();
  $("kind").textContent = `${state.able.kind}${state.able.context && state.able.context < UNLIMITED ? `, ${state.able.context} tokens at most` : ""}`;
  $("go").hidden = !state.able.generates;
  document.querySelectorAll(".generates").forEach((node) => { node.hidden = !state.able.generates; });
  document.querySelector("#write details").hidden = !state.able.generates;
  for (const name of ["tokens", "expects", "attention", "gates", "experts", "beams", "beside"]) $(name).hidden = true;
  setChatting(false);
  offer();
  if (state.able.shows.some((name) => name !== "beams")) doing(lookAtText);
}
async function open() {
  const { data } = await get("/v1/heddle/models");
  state.models = data;
  $("model").replaceChildren(...data.map((one) => make("option", { value: one.id, textContent: one.id })));
  $("key-form").hidden = true;
  $("work").hidden = false;
  useModel();
}
async function start() {
  fault(null);
  try { await open(); } catch (error) {
    if (error.status !== 401) return fault(error);
    if (!$("key-form").hidden) fault(new Error("This key is not one of the server's."));
    $("key-form").hidden = false;
    $("key").focus();
  }
}
$("key-form").onsubmit = (event) => {
  event.preventDefault();
  setKey($("key").value);
  $("key").value = "";
  start();
};
$("model").onchange = useModel;
$("look").onclick = () => doing(lookAtText);
$("go").onclick = () => doing(state.chatting ? say : go);
$("stop").onclick = () => aborter.abort();
$("clear").onclick = () => setChatting(true);
$("mode-text").onclick = () => setChatting(false);
$("mode-chat").onclick = () => setChatting(true);
$("prompt").onkeydown = (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey || (state.chatting && !event.shiftKey))) return;
  event.preventDefault();
  if (!$("go").disabled) (state.able.generates ? $("go") : $("look")).click();
};
onTake((id) => doing(() => branch(id)));
startTheme();
start().then(() => { document.documentElement.dataset.ready = String(Math.round(performance.now())); });
