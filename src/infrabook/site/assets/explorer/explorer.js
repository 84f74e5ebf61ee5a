// Makes the explorers of a page live. Their controls and first frames stand in the HTML; the first touch starts
// Python in one worker for all of them. What a value may be is decided in Python alone (infrabook.explore).
(() => {
  const source = document.currentScript.src;
  const forms = [...document.querySelectorAll("form[data-explorer]")];
  const names = [...new Set(forms.map((form) => form.dataset.explorer))];

  // -- the worker: ask() gives {html}, {error: sentence} or {failed: why Python could not be loaded} --
  let worker, asked = 0, running = false;
  const waiting = new Map();

  function engine() {
    if (worker) return worker;
    worker = new Worker(new URL("explorer-worker.js", source), { type: "module" });
    worker.onmessage = ({ data }) => {
      if (data.failed) return fail(data.failed);
      running = true;
      waiting.get(data.id)?.(data);
      waiting.delete(data.id);
    };
    worker.onerror = (event) => fail(event.message || "the worker did not start");
    worker.postMessage({ names });
    return worker;
  }

  function fail(failed) {
    worker?.terminate();
    worker = undefined;
    running = false;
    for (const answer of waiting.values()) answer({ failed });
    waiting.clear();
  }

  const ask = (name, values) => new Promise((answer) => {
    waiting.set(++asked, answer);
    engine().postMessage({ names, id: asked, name, values: JSON.stringify(values) });
  });

  // -- links: #explorer?control=value&... --
  function linked(name) {
    const [, who, query] = /^#(\w+)\?(.*)$/.exec(location.hash) ?? [];
    return who === name ? Object.fromEntries(new URLSearchParams(query)) : undefined;
  }

  const word = (value) => (value === true ? "yes" : value === false ? "no" : value);
  const visit = (url) => {
    try { history.replaceState(history.state, "", url); } catch { /* Safari limits how often; the next one will do */ }
  };

  function start(form) {
    const name = form.dataset.explorer;
    const [view, message, status] = ["view", "message", "status"].map((part) => form.querySelector(`.explorer-${part}`));
    const inputs = [...form.querySelectorAll("[name]")];
    const read = () => Object.fromEntries(inputs.map((el) => [el.name, el.type === "checkbox" ? el.checked : el.value]));
    const first = { html: view.innerHTML, values: JSON.stringify(read()) };
    view.tabIndex = -1; // takes the focus from a button that goes
    let wanted, shown = first.values, busy = false, typing, linking;

    // -- what the reader sees --
    function say(words, quiet = false) {
      status.classList.toggle("explorer-quiet", quiet); // for screen readers alone: the view shows it already
      status.textContent = words;
    }
    function blame(sentence = "") { // a sentence about a value begins with its control's label
      for (const el of inputs) {
        const label = el.getAttribute("aria-label") ?? el.closest("label").querySelector("span").textContent;
        if (sentence.startsWith(`${label} has `)) el.setAttribute("aria-invalid", "true");
        else el.removeAttribute("aria-invalid");
      }
      form.toggleAttribute("data-long", sentence !== "" && message.scrollHeight > message.clientHeight + 1);
    }
    function begin() { // the old view fades at once, and a line above it says why
      if (running || form.dataset.state === "starting") return;
      blame();
      message.replaceChildren(Object.assign(document.createElement("p"), { textContent: "Starting Python (6 MB, once) …" }));
      form.dataset.state = "starting";
      say("");
    }
    function complain(sentence, again) {
      const p = Object.assign(document.createElement("p"), { className: "explorer-error", textContent: sentence });
      if (again) {
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Try again" });
        button.addEventListener("click", () => { view.focus(); message.replaceChildren(); again(); });
        p.append(" ", button);
      }
      message.replaceChildren(p);
      blame(sentence);
      form.dataset.state = "error";
      say("");
    }
    function show(html, state) {
      // What has once been taken up stays reserved: a shorter view does not pull up the text below.
      view.style.minHeight = `${view.offsetHeight}px`;
      view.innerHTML = html;
      message.replaceChildren();
      blame();
      form.dataset.state = state;
    }
    function slide(el) { // the slider follows the typed value
      const range = el.closest(".explorer-numeric")?.querySelector("[type=range]");
      const value = Number(el.value.replace(/[, _]/g, ""));
      if (!range || !el.value.trim() || Number.isNaN(value)) return;
      const stops = range.dataset.stops?.split(" ").map(Number);
      const near = (a, b) => (Math.abs(stops[b] - value) < Math.abs(stops[a] - value) ? b : a);
      range.value = stops ? [...stops.keys()].reduce(near) : value;
      if (stops) range.setAttribute("aria-valuetext", el.value);
    }
    function fill(values) {
      for (const el of inputs.filter((el) => el.name in values)) {
        const value = values[el.name];
        if (el.type === "checkbox") el.checked = /^(yes|true|1)$/i.test(value);
        else el.value = value;
        if (el.tagName === "TEXTAREA" && value) el.closest("details").open = true;
        slide(el);
      }
    }
    function toDefaults() {
      fill(JSON.parse(first.values));
      shown = first.values;
    }

    // -- one question at a time; while it is open only the latest values are kept --
    async function update(fromLink) {
      clearTimeout(typing);
      wanted = { values: { ...read(), ...fromLink }, fromLink };
      if (busy) return;
      busy = true;
      while (wanted) {
        const { values, fromLink } = wanted;
        const key = JSON.stringify(values);
        wanted = undefined;
        if (key === shown && form.dataset.state === "ready") continue;
        begin();
        const { html, error, failed } = await ask(name, values);
        if (wanted === null) { wanted = undefined; continue; } // reset meanwhile
        if (failed && wanted) continue;
        if (failed) complain("Could not load Python: the network did not answer.", () => update(fromLink));
        else if (error && fromLink) {
          toDefaults();
          show(first.html, "ready");
          complain(`This link's settings cannot be used: ${error}. These are the defaults.`);
        } else if (error) complain(`${error}.`);
        else {
          shown = key;
          show(html, "ready");
          say(view.querySelector(".explorer-answer")?.textContent ?? "", true);
          clearTimeout(linking);
          linking = setTimeout(() => visit(address()), 250);
        }
      }
      busy = false;
    }

    const address = () => {
      const query = new URLSearchParams();
      for (const [key, value] of Object.entries(JSON.parse(shown))) if (value !== "") query.set(key, word(value));
      return `#${name}?${query}`;
    };

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", ({ target }) => {
      if (target.type === "range") {
        const field = target.closest(".explorer-numeric").querySelector("[name]");
        field.value = target.dataset.stops ? target.dataset.stops.split(" ")[target.value] : target.value;
        if (target.dataset.stops) target.setAttribute("aria-valuetext", field.value);
        update();
      } else if (target.matches("[type=text], textarea")) {
        slide(target);
        begin();
        clearTimeout(typing);
        typing = setTimeout(update, 400); // "2" on the way to "2048" is no mistake
      } else update();
    });
    form.addEventListener("change", ({ target }) => { if (target.matches("[type=text], textarea")) update(); });
    form.addEventListener("reset", (event) => {
      event.preventDefault(); // the sliders, the view and the link have to go back too
      clearTimeout(typing);
      clearTimeout(linking);
      wanted = busy ? null : undefined;
      toDefaults();
      show(first.html, "ready");
      say("These are the defaults.", true);
      if (linked(name)) visit(location.pathname + location.search);
    });
    form.querySelector(".explorer-copy").addEventListener("click", async () => {
      clearTimeout(linking);
      visit(address());
      try {
        await navigator.clipboard.writeText(location.href);
        say("Link copied.");
      } catch {
        say("The link is in the address bar.");
      }
    });
    function restore() {
      const values = linked(name);
      if (!values) return;
      fill(values);
      update(values);
      return true;
    }
    addEventListener("hashchange", restore);

    if (location.protocol === "file:") {
      form.querySelector("fieldset").disabled = true;
      return say("Opened from a file, this page cannot run Python: serve the site (make serve) to move the controls.");
    }
    // Whoever comes near a control will move it: loading starts a moment earlier, and never by itself.
    const warm = () => { if (!navigator.connection?.saveData) engine(); };
    for (const event of ["pointerenter", "focusin"]) form.querySelector("fieldset").addEventListener(event, warm, { once: true });
    form.dataset.state = "ready";
    if (restore() && performance.getEntriesByType("navigation")[0]?.type === "navigate") form.scrollIntoView();
  }

  forms.forEach(start);
})();
