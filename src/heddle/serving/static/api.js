/* The server's routes. The key lives in this variable alone. */
let key = "";
export const setKey = (value) => { key = value; };

async function send(path, body, signal) {
  const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, credentials: "omit", cache: "no-store" });
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try { message = (await response.json()).error.message; } catch { /* no JSON: the status says it */ }
  throw Object.assign(new Error(message), { status: response.status });
}
export const get = async (path) => (await send(path)).json();
export const post = async (path, body) => (await send(path, body)).json();

/* A JSON text and the bytes after it. */
export async function binary(path, body) {
  const bytes = await (await send(path, body)).arrayBuffer(), length = new DataView(bytes).getUint32(0, true);
  return { about: JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))), data: new Uint8Array(bytes, 4 + length) };
}

/* Yields the events of a stream as they come. */
export async function* stream(path, body, signal) {
  const response = await send(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
