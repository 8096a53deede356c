/* What the page is looking at. Views ask for it, and are told when it changes. */
export const state = {
  models: [], // what each can show and do
  able: null, // the model that is looked at
  chatting: false,
  messages: [],
  text: null, // as it was typed: the source of an encoder-decoder
  ids: [], // of the row that is predicted
  sequences: [], // rows of tokens
  probabilities: null,
  predicts: "next token",
  selected: null, // a token of that row; its length: the one that would come next
  turn: 0, // what was asked for before the last change comes too late
};
const hearers = { looked: [], selected: [] };
export const on = (event, f) => hearers[event].push(f);
export const tell = (event) => hearers[event].forEach((f) => f());

export const shows = (name) => state.able !== null && state.able.shows.includes(name);
export const main = () => state.sequences.at(-1);
/* The text of a request: an encoder-decoder reads a source, and has the row as its output. */
export function looked() {
  return state.able.kind === "an encoder-decoder"
    ? { model: state.able.id, text: state.text, output: state.ids }
    : { model: state.able.id, text: state.ids };
}
/* The place whose logits predict the chosen token. */
export const placeOf = (selected) => (state.predicts === "next token" ? selected - 1 : state.predicts === "class" ? 0 : selected);
