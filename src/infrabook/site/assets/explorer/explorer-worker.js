// Runs the book's library in the reader's browser. One worker serves all explorers of a page.
const asset = (path) => new URL(path, import.meta.url);

async function get(path, options) {
  const response = await fetch(asset(path), options);
  if (!response.ok) throw new Error(`${path}: HTTP ${response.status}`);
  return response;
}

async function start(names) {
  const about = await (await get("explorer.json", { cache: "no-cache" })).json();
  const library = get(about.library).then((response) => response.arrayBuffer());
  library.catch(() => {}); // awaited below, where it is reported
  const { loadPyodide } = await import(asset(`${about.engine}/pyodide.mjs`));
  // Nothing is installed at run time, so an empty lock stands in for pyodide-lock.json.
  const python = await loadPyodide({ lockFileContents: { info: about.info, packages: {} } });
  python.unpackArchive(await library, "zip");
  const explore = python.pyimport("infrabook.explore");
  for (const name of names) explore.reply(name, "{}"); // imports what this page shows, and warms it
  return explore;
}

// Pyodide never settles where its WebAssembly could not be fetched; only an unhandled rejection tells.
addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  postMessage({ failed: String(event.reason?.message ?? event.reason) });
});

let ready;
onmessage = async ({ data: { names, id, name, values } }) => {
  ready ??= start(names);
  let explore;
  try {
    explore = await ready;
  } catch (error) {
    return postMessage({ failed: String(error.message ?? error) });
  }
  if (!id) return postMessage({ id });
  try {
    postMessage({ id, ...JSON.parse(explore.reply(name, values)) });
  } catch (error) { // not bad input, which is answered with a sentence, but a mistake in the explorer
    postMessage({ id, error: `This explorer has a mistake: ${String(error.message).trim().split("\n").at(-1)}` });
  }
};
