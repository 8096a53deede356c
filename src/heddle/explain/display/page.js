"use strict";
/* The page of `heddle explain`: every text is set as text, every number comes from the data. */
(async () => {
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

  async function inflate(text) {
    const chars = atob(text), raw = new Uint8Array(chars.length);
    for (let i = 0; i < raw.length; i++) raw[i] = chars.charCodeAt(i);
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }
  const [head, ...packed] = $("data").textContent.trim().split("\n");
  const data = JSON.parse(new TextDecoder().decode(await inflate(head)));
  $("data").remove();
  const blobs = [];
  async function unpack(array) { // an array of numbers: floats as they are, or codes of few bits
    if (!blobs[array.blob]) {
      const bytes = await inflate(packed[array.blob]);
      blobs[array.blob] = array.code === "f32" ? new Float32Array(bytes) : new Uint8Array(bytes);
    }
    const codes = blobs[array.blob];
    const { code, low, high, levels } = array;
    let get = (i) => low + (codes[i] / levels) * (high - low);
    if (code === "f32") get = (i) => codes[i];
    if (code === "root") get = (i) => (codes[i] / levels) ** 2;
    get.codes = code === "f32" ? null : codes;
    get.values = code === "f32" ? null : Array.from({ length: levels + 1 }, (_, k) => (code === "root" ? (k / levels) ** 2 : low + (k / levels) * (high - low)));
    return get;
  }
  const exact = (array) => array.code === "f32";

  function make(tag, props, ...children) {
    const node = Object.assign(document.createElement(tag), props || {});
    node.append(...children);
    return node;
  }
  const visible = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff]/g,
    (c) => (c === "\n" ? "↵" : c === "\t" ? "→" : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"))).replace(/ /g, "␣");
  const num = (x, digits = 6) => (x === null || x === undefined ? "" : Number(x.toPrecision(digits)).toString());
  const say = (text) => { $("readout").textContent = text; };
  let colours = {}; // of this theme
  const style = (name) => (colours[name] ||= getComputedStyle(root).getPropertyValue(name).split(",").map(Number));
  const mix = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * Math.min(1, Math.max(0, t))));
  const rgb = (c) => `rgb(${c.join(",")})`;
  const sequence = (name) => data.sequences.find((s) => s.name === name);
  const painters = []; // to paint again in the other theme
  const paint = (f) => { painters.push(f); f(); };

  function section(name, title, about) {
    const node = make("section", { id: name }, make("h2", { textContent: title }), make("p", { className: "about", textContent: about }));
    $("main").append(node);
    return node;
  }
  function choose(options, change, label) {
    const select = make("select", { ariaLabel: label });
    options.forEach((text, i) => select.append(make("option", { value: i, textContent: text })));
    select.onchange = () => change(Number(select.value));
    return select;
  }
  function table(columns, rows) {
    const head = make("tr", {}, ...columns.map((c) => make("th", { textContent: c })));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell, i) => {
      const node = make(i ? "td" : "th", { textContent: cell && cell.text !== undefined ? cell.text : cell });
      if (cell && cell.title) { node.title = cell.title; node.onmouseenter = () => say(cell.title); }
      if (cell && cell.share !== undefined) paint(() => { node.style.background = shade(cell.share); });
      return node;
    })));
    return make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  }
  const shade = (share) => rgb(share < 0 ? mix(style("--low"), style("--cold"), -share) : mix(style("--low"), style("--high"), share));
  function chips(words, shares, titles, pick) {
    const box = make("div", { className: "chips" });
    const nodes = words.map((word, i) => {
      const node = make("button", { type: "button", className: "chip", textContent: visible(word), title: titles[i] });
      node.setAttribute("aria-pressed", "false");
      node.onmouseenter = node.onfocus = () => say(titles[i]);
      if (pick) node.onclick = () => pick(i);
      return node;
    });
    paint(() => nodes.forEach((node, i) => { node.style.background = shares[i] === null ? "transparent" : shade(shares[i]); }));
    box.append(...nodes);
    return { box, nodes };
  }

  /* --- the text, its surprisal and the next tokens --- */
  const BITS = 12; // of a token with full colour
  const texts = {};
  let selected = null;
  const listeners = [];
  function pick(name, place) {
    selected = { name, place };
    for (const [other, { nodes }] of Object.entries(texts)) {
      nodes.forEach((node, i) => node.setAttribute("aria-pressed", String(other === name && i === place)));
    }
    listeners.forEach((f) => f());
  }
  function showText() {
    const p = data.probabilities;
    const node = section("text", "Text", p ? `Colour: surprisal, up to ${BITS} bits. Click a token: what the model expects there, and where it looks.` : "Click a token: where the model looks.");
    const left = make("div"), right = make("div", { id: "bars" });
    for (const s of data.sequences) {
      const own = p && p.sequence === s.name ? p.surprisals : s.tokens.map(() => null);
      const titles = s.tokens.map((word, i) => `${s.name} ${i}: ${visible(word)} (id ${s.ids[i]})${own[i] === null ? "" : `, ${num(own[i])} bits, logprob ${num(p.logprobs[i])}`}`);
      if (data.sequences.length > 1) left.append(make("p", { className: "note", textContent: s.name }));
      texts[s.name] = chips(s.tokens, own.map((bits) => (bits === null ? null : bits / BITS)), titles, (i) => pick(s.name, i));
      left.append(texts[s.name].box);
    }
    node.append(make("div", { className: "two" }, left, right));
    if (!p) return;
    listeners.push(() => {
      const place = p.predicts === "class" ? 0 : selected.place;
      if (selected.name !== p.sequence) return;
      const here = p.places[place];
      right.replaceChildren(make("p", { className: "note", textContent: `${p.predicts}${p.predicts === "class" ? "" : ` at place ${place}`}, entropy ${num(here.entropy, 4)} bits` }));
      for (const one of here.best) {
        const bar = make("b");
        bar.style.width = `${100 * one.probability}%`;
        const line = make("div", { className: "bar" }, make("span", { textContent: visible(one.text) }), bar, make("em", { textContent: `${(100 * one.probability).toFixed(2)} %` }));
        line.onmouseenter = () => say(`${visible(one.text)} (id ${one.id}): probability ${num(one.probability, 9)}, logit ${num(one.logit, 9)}`);
        right.append(line);
      }
    });
  }

  /* --- pictures: the weight of each patch, over the frames --- */
  const pictures = {};
  async function showPictures() {
    for (const s of data.sequences) {
      if (!s.picture) continue;
      const [count, height, width, channels] = s.picture.size, [frames, rows, columns] = s.picture.grid;
      const pixels = new Uint8Array(await inflate(s.picture.pixels));
      const node = section("picture", count > 1 ? "Frames" : "Picture", "Where the chosen token looks, by the chosen map: the stronger the colour of a patch, the larger its weight. Choose a token of the output, and a map of cross-attention.");
      const box = make("div", { className: "frames" }), canvases = [];
      for (let f = 0; f < count; f++) {
        const canvas = make("canvas", { className: "frame", width, height, title: count > 1 ? `frame ${f}` : "picture" });
        canvases.push(canvas);
        box.append(canvas);
      }
      node.append(box);
      const draw = (weight) => canvases.forEach((canvas, f) => {
        const pen = canvas.getContext("2d"), image = pen.createImageData(width, height), high = style("--map");
        const tube = Math.min(frames - 1, Math.floor((f * frames) / count));
        for (let y = 0, at = 0; y < height; y++) for (let x = 0; x < width; x++, at += 4) {
          const place = s.picture.first + (tube * rows + Math.floor((y * rows) / height)) * columns + Math.floor((x * columns) / width);
          const base = ((f * height + y) * width + x) * channels, share = weight ? weight(place) : 0;
          for (let c = 0; c < 3; c++) { const own = pixels[base + (channels === 3 ? c : 0)]; image.data[at + c] = weight ? own * 0.35 + (high[c] - own * 0.35) * 0.8 * share : own; }
          image.data[at + 3] = 255;
        }
        pen.putImageData(image, 0, 0);
      });
      pictures[s.name] = draw;
      draw(null);
    }
  }

  /* --- matrices on canvas --- */
  function drawMap(canvas, value, rows, columns, top, bounds) {
    canvas.width = columns; canvas.height = rows;
    const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows), pixels = image.data;
    const low = style("--paper"), high = style("--map"), cold = style("--warm");
    for (let r = 0, at = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++, at += 4) {
        const x = value(r, c) / top, t = Math.min(1, Math.abs(x)), to = x < 0 ? cold : high, share = bounds ? t : Math.sqrt(t);
        pixels[at] = low[0] + (to[0] - low[0]) * share; pixels[at + 1] = low[1] + (to[1] - low[1]) * share;
        pixels[at + 2] = low[2] + (to[2] - low[2]) * share; pixels[at + 3] = 255;
      }
    }
    pen.putImageData(image, 0, 0);
  }
  function drawWeights(canvas, get, base, rows, columns, hidden) { // as drawMap; codes are coloured by a table
    if (!get.codes) return drawMap(canvas, (r, c) => (hidden && c === 0 ? 0 : get(base + r * columns + c)), rows, columns, 1);
    canvas.width = columns; canvas.height = rows;
    const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
    const low = style("--paper"), high = style("--map"), bytes = new Uint8Array(4), word = new Uint32Array(bytes.buffer);
    const table = Uint32Array.from(get.values, (x) => { bytes.set([...mix(low, high, Math.sqrt(x)), 255]); return word[0]; });
    for (let at = 0; at < pixels.length; at++) pixels[at] = table[get.codes[base + at]];
    if (hidden) for (let r = 0; r < rows; r++) pixels[r * columns] = table[0];
    pen.putImageData(image, 0, 0);
  }
  function cellAt(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const c = Math.floor(((event.clientX - box.left - canvas.clientLeft) / canvas.clientWidth) * canvas.width), r = Math.floor(((event.clientY - box.top - canvas.clientTop) / canvas.clientHeight) * canvas.height);
    return r < 0 || c < 0 || r >= canvas.height || c >= canvas.width ? null : [r, c];
  }

  async function showAttention() {
    const maps = data.attention;
    const rounded = maps.some((m) => !exact(m.weights));
    const node = section("attention", "Attention", "One map per layer and head: rows attend to columns. The stronger the colour, the larger the weight (its square root).");
    if (rounded) node.append(make("p", { className: "note", id: "rounded", textContent: `The text is long: weights are kept to ${maps[0].weights.levels + 1} levels here (an error of at most ${num(maps[0].weights.error, 2)}), and exact in the JSON.` }));
    const values = await Promise.all(maps.map((m) => unpack(m.weights)));
    const hide = make("input", { type: "checkbox", id: "sink" });
    const tools = make("div", { className: "tools" }, make("label", {}, hide, " hide the first key, where heads often park their attention"));
    const grid = make("div", { className: "grid" }), big = make("canvas", { className: "big", id: "map" }), name = make("p", { className: "note" });
    node.append(tools, make("div", { className: "two" }, make("div", {}, name, big), make("div", { className: "scroll" }, grid)));
    const most = Math.max(...maps.map((m) => m.shape[0]));
    grid.style.gridTemplateColumns = `max-content repeat(${most}, max-content)`;
    let now = { map: 0, head: 0 };
    const at = (m, h) => { const [, q, k] = maps[m].shape, base = h * q * k, get = values[m]; return (r, c) => (hide.checked && c === 0 && k > 1 ? 0 : get(base + r * k + c)); };
    const draw = (canvas, m, h) => { const [, q, k] = maps[m].shape; drawWeights(canvas, values[m], h * q * k, q, k, hide.checked && k > 1); };
    const words = (which, count, i) => { const s = sequence(which); return s.tokens.length === count ? `${i} ${visible(s.tokens[i])}` : `${i}`; };
    const thumbs = [];
    const seen = new IntersectionObserver((entries) => entries.forEach((e) => { if (e.isIntersecting) { seen.unobserve(e.target); e.target.draw(); } }), { rootMargin: "200px" });
    maps.forEach((m, i) => {
      grid.append(make("label", { textContent: m.name.replace(".mixer", "").replace("stack.", "") }));
      for (let h = 0; h < most; h++) {
        if (h >= m.shape[0]) { grid.append(make("span")); continue; }
        const canvas = make("canvas", { className: "thumb", tabIndex: 0, title: `${m.name}, head ${h}` });
        canvas.setAttribute("role", "button");
        canvas.setAttribute("aria-label", `${m.name}, head ${h}`);
        canvas.draw = () => draw(canvas, i, h);
        canvas.onclick = () => { now = { map: i, head: h }; show(); };
        canvas.onkeydown = (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); canvas.onclick(); } };
        thumbs.push({ canvas, map: i, head: h });
        seen.observe(canvas);
        grid.append(canvas);
      }
    });
    function show() {
      const m = maps[now.map];
      name.textContent = `${m.name}, head ${now.head} (${m.kind}): ${m.queries} attends to ${m.keys}`;
      big.style.setProperty("--shape", `${m.shape[2]} / ${m.shape[1]}`);
      draw(big, now.map, now.head);
      thumbs.forEach((t) => t.canvas.setAttribute("aria-pressed", String(t.map === now.map && t.head === now.head)));
      underline();
    }
    function underline() {
      Object.values(texts).forEach(({ nodes }) => nodes.forEach((n) => { const mark = n.querySelector("i"); if (mark) mark.remove(); }));
      const m = maps[now.map];
      Object.values(pictures).forEach((picture) => picture(null));
      if (!selected || selected.name !== m.queries || sequence(m.keys).tokens.length !== m.shape[2] || selected.place >= m.shape[1]) return;
      const value = at(now.map, now.head);
      if (pictures[m.keys]) {
        let most = 1e-9;
        for (let c = sequence(m.keys).picture.first; c < m.shape[2]; c++) most = Math.max(most, value(selected.place, c));
        pictures[m.keys]((c) => value(selected.place, c) / most);
      }
      texts[m.keys].nodes.forEach((n, c) => { const mark = make("i"); mark.style.opacity = String(value(selected.place, c)); n.append(mark); });
    }
    big.onmousemove = (event) => {
      const cell = cellAt(big, event), m = maps[now.map];
      if (!cell) return;
      const [r, c] = cell, weight = values[now.map](now.head * m.shape[1] * m.shape[2] + r * m.shape[2] + c);
      say(`${m.name}, head ${now.head}: ${words(m.queries, m.shape[1], r)} → ${words(m.keys, m.shape[2], c)}: ${exact(m.weights) ? "" : "≈ "}${num(weight, exact(m.weights) ? 9 : 3)}`);
    };
    hide.onchange = () => { thumbs.forEach((t) => t.canvas.draw()); show(); };
    listeners.push(underline);
    painters.push(() => { thumbs.forEach((t) => { if (t.canvas.width !== 300) t.canvas.draw(); }); show(); });
    show();
  }

  async function showGates() {
    const node = section("gates", "Gates", "One row per unit, one column per token; units that remember longest are on top. Candidates and states have one colour above zero and another below.");
    for (const cell of data.gates) {
      const names = Object.keys(cell.values), canvas = make("canvas", { className: "strip" });
      const label = make("strong", { textContent: `${cell.name} (${cell.kind})` });
      const select = choose(names, (i) => show(i), "value");
      node.append(make("div", { className: "tools" }, label, select), canvas, make("p", { className: "note", textContent: `recomputed; at most ${num(cell.error, 2)} from the model's own state` }));
      let order = [], value = null, now = 0;
      const units = (i) => cell.values[names[i]].shape[1];
      async function show(i) {
        now = i;
        const array = cell.values[names[i]], [length, width] = array.shape;
        value = await unpack(array);
        order = [...Array(width).keys()];
        if (cell.memory && cell.memory.length === width) order.sort((a, b) => cell.memory[b] - cell.memory[a]);
        let top = 1;
        for (let k = 0; k < length * width; k++) top = Math.max(top, Math.abs(value(k)));
        drawMap(canvas, (r, c) => value(c * width + order[r]), width, length, top, true);
      }
      canvas.onmousemove = (event) => {
        const place = cellAt(canvas, event), array = cell.values[names[now]];
        if (!place || !value) return;
        const unit = order[place[0]], s = sequence(cell.sequence);
        const memory = cell.memory && cell.memory.length === units(now) ? `, remembers ${num(cell.memory[unit], 3)} tokens` : "";
        say(`${cell.name} ${names[now]}: unit ${unit}${memory}, at ${place[1]} ${visible(s.tokens[place[1]])}: ${exact(array) ? "" : "≈ "}${num(value(place[1] * units(now) + unit), 9)}`);
      };
      select.value = String(Math.max(0, names.indexOf("forget")));
      await show(Number(select.value));
      painters.push(() => show(now));
    }
  }

  /* --- tables --- */
  function showLens() {
    const node = section("lens", "Logit lens", "What the last norm and the head would predict from each layer's stream; the last row is the model's output.");
    const words = sequence(data.lens.sequence).tokens;
    node.append(table(["layer", ...words.map(visible)], data.lens.layers.map((layer) => [layer.name, ...layer.places.map((place, i) => ({
      text: visible(place[0].text), share: place[0].probability,
      title: `${layer.name} at ${i} ${visible(words[i])}: ` + place.map((one) => `${visible(one.text)} ${num(one.probability, 6)}`).join("  "),
    }))])));
  }
  function showResidual() {
    const node = section("residual", "Residual stream", "The share of each branch in the final stream at every place; all shares of a column sum to one.");
    const words = sequence(data.residual.sequence).tokens;
    node.append(table(["contribution", ...words.map(visible)], data.residual.contributions.map((one) => [one.name, ...one.shares.map((share, i) => ({
      text: share.toFixed(3), share, title: `${one.name} at ${i}: share ${num(share, 9)}, length ${num(one.norms[i], 9)}`,
    }))])));
  }
  function showExperts() {
    const node = section("experts", "Experts", "The experts that each token uses, with their gates.");
    for (const layer of data.experts) {
      const words = sequence(layer.sequence).tokens;
      node.append(make("p", { className: "note", textContent: layer.name }), table(["token", "experts: gates", ...layer.probabilities[0].map((_, i) => `p(${i})`)], words.map((word, i) => [
        visible(word), layer.chosen[i].map(([id, gate]) => `${id}: ${num(gate, 4)}`).join("   "),
        ...layer.probabilities[i].map((p) => ({ text: p.toFixed(3), share: p, title: num(p, 9) })),
      ])));
    }
  }
  function showAttribution() {
    const a = data.attribution, names = Object.keys(a.methods);
    const why = `Why “${visible(a.target)}”${a.instead === null ? "" : ` and not “${visible(a.instead)}”`}: ${num(a.score, 6)} nats.`;
    const node = section("attribution", "Attribution", `${why} Orange speaks for it, blue against it.`), box = make("div");
    function show(i) {
      box.replaceChildren();
      const all = Object.values(a.methods[names[i]]).flat(), top = Math.max(1e-30, ...all.map(Math.abs));
      for (const [name, values] of Object.entries(a.methods[names[i]])) {
        const words = sequence(name).tokens;
        box.append(chips(words, values.map((v) => v / top), values.map((v, k) => `${names[i]}, ${name} ${k} ${visible(words[k])}: ${num(v, 9)}`)).box);
      }
    }
    node.append(make("div", { className: "tools" }, choose(names.map((n) => n.replace(/_/g, " ")), show, "method")), box);
    show(0);
    Object.values(a.refused).forEach((line) => node.append(make("p", { className: "note", textContent: `Not shown: ${line}` })));
  }
  function showPatching() {
    const p = data.patching;
    const node = section("patching", "Activation patching", `The corrupted text, with one place of one layer taken from the other: how much of ${num(p.clean_score - p.corrupted_score, 4)} nats comes back (1 = all).`);
    node.append(table(["layer", ...p.corrupted.map(visible)], p.layers.map((name, r) => [name, ...p.effects[r].map((e, i) => ({ text: e.toFixed(2), share: e, title: `${name} at ${i}: ${num(e, 9)}` }))])));
  }
  function showBeams() {
    const b = data.beams, node = section("beams", "Beam search", `${b.beams} beams. Branches that were given up are grey; a finished sequence shows its score.`);
    const lists = new Map([[null, make("ul")]]);
    b.nodes.forEach((one, i) => {
      const item = make("li", { className: `${one.kept ? "" : "dead"} ${one.score === null ? "" : "end"}`.trim() });
      item.append(make("bdi", { textContent: visible(one.text) }), ` ${one.logprob.toFixed(2)}${one.score === null ? "" : `  = ${num(one.score, 6)} (${one.reason})`}`);
      item.onmouseenter = () => say(`${visible(one.text)} (id ${one.id}): logprob ${num(one.logprob, 9)}, of the sequence ${num(one.total, 9)}`);
      if (!lists.has(one.parent)) { const list = make("ul"); lists.get(`item ${one.parent}`).append(list); lists.set(one.parent, list); }
      lists.get(one.parent).append(item);
      lists.set(`item ${i}`, item);
    });
    node.append(make("div", { className: "tree scroll" }, lists.get(null)));
  }
  function showTrace() {
    const node = section("trace", "Trace", "Every step of the forward pass; all values are in the JSON.");
    node.append(table(["step", "what", "shape", "mean", "deviation", "last values"], data.trace.map((one) => [one.name, one.kind, one.shape.join(" × "), num(one.mean, 5), num(one.deviation, 5), one.last.map((x) => num(x, 5)).join("  ")])));
  }

  $("title").textContent = data.model || "Heddle";
  $("about").textContent = data.kind;
  $("main").replaceChildren();
  showText();
  await showPictures();
  const shows = { attention: showAttention, gates: showGates, lens: showLens, residual: showResidual, experts: showExperts, attribution: showAttribution, patching: showPatching, beams: showBeams, trace: showTrace };
  for (const [name, show] of Object.entries(shows)) if (data[name]) await show();
  const refused = Object.values(data.refused);
  if (refused.length) $("main").append(make("p", { className: "note", textContent: `Not shown. ${refused.join("; ")}` }));
  const last = data.probabilities ? data.probabilities.sequence : data.sequences.at(-1).name;
  pick(last, sequence(last).tokens.length - 1);
  $("theme").onclick = () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; colours = {}; painters.forEach((f) => f()); };
  window.heddle = { data, unpack };
  root.dataset.ready = String(Math.round(performance.now()));
})();
