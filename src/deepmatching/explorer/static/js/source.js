// Where data come from: the server.

import { unpack } from "./unpack.js";

export const GONE = "The explorer's server does not answer. Start it again with “deepmatching explore”, then reload this page.";

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error(GONE);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const error = new Error(body.error || `The server answered ${response.status}.`);
  error.status = response.status;
  throw error;
}

const json = async (path, options) => (await request(path, options)).json();
const block = async (path) => unpack(await (await request(path)).arrayBuffer());
const post = (path, values) => json(path, { method: "POST", body: JSON.stringify(values) });

export class LiveSource {
  live = true;
  about = () => json("/api/about");
  pair = (id) => json(`/api/pairs/${id}`);
  openPair = (first, second) => post("/api/pairs", { first, second });
  imageUrl = (pair, which) => `/api/pairs/${pair.id}/images/${which}`;
  start = (pair, settings) => post("/api/runs", { pair, settings });
  run = (id) => json(`/api/runs/${id}`);
  cancel = (id) => json(`/api/runs/${id}`, { method: "DELETE" });
  facts = (id) => json(`/api/runs/${id}/facts`);
  grid = (id) => block(`/api/runs/${id}/grid`);
  layers = (id) => block(`/api/runs/${id}/layers`);
  point = (id, row, column) => block(`/api/runs/${id}/points/${row}/${column}`);
  page = async (id) => (await request(`/api/runs/${id}/page`)).blob();
  nearest = (row, column) => ({ row, column });

  upload(file) {
    const headers = { "X-Name": encodeURIComponent(file.name), "Content-Type": "application/octet-stream" };
    return json("/api/pictures", { method: "POST", body: file, headers });
  }

  // The result of a run, once it is finished; `watch` is told how far it is.
  async finished(started, watch) {
    let run = started;
    while (run.state === "waiting" || run.state === "running") {
      watch(run);
      await new Promise((resolve) => setTimeout(resolve, 120));
      run = await this.run(run.id);
    }
    watch(run);
    if (run.state === "failed") throw new Error(run.error);
    return run.state === "done" ? this.result(run) : null;
  }

  async result(run) {
    const [facts, grid, layers] = await Promise.all([this.facts(run.id), this.grid(run.id), this.layers(run.id)]);
    return { id: run.id, facts, grid: grid.arrays, layers: layers.arrays };
  }
}
