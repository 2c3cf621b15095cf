// Where data come from in an exported page: the page itself.

import { inflate, unpack } from "./unpack.js";

export class EmbeddedSource {
  live = false;

  constructor(data) {
    this.data = data;
  }

  imageUrl = (pair, which) => this.data.images[which];

  async result() {
    const [grid, layers] = await Promise.all([this.block(this.data.grid), this.block(this.data.layers)]);
    return { id: "embedded", facts: this.data.run, grid: grid.arrays, layers: layers.arrays };
  }

  // Only every `step`-th point has its maps in the page.
  nearest(row, column) {
    let best = null;
    let shortest = Infinity;
    for (const key of Object.keys(this.data.points)) {
      const [i, j] = key.split(",").map(Number);
      const distance = (i - row) ** 2 + (j - column) ** 2;
      if (distance < shortest) [best, shortest] = [{ row: i, column: j }, distance];
    }
    return best;
  }

  point = (id, row, column) => this.block(this.data.points[`${row},${column}`]);
  block = async (text) => unpack(await inflate(text));
}
