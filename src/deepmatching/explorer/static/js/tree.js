// The quadtree below the top of the best path, from the switches that the server sends.

const MISSING = 255;

// Patches by level: [{x, y, u, v}], centre in the first image and displacement. See inspection.Trace.tree.
export function quadtree(inspection, geometry) {
  const { path } = inspection.meta;
  if (!path.length) return [];
  const top = path[path.length - 1];
  const codes = inspection.arrays.tree.data;
  const levels = [];
  let parents = [{ x: top.p[0], y: top.p[1], u: top.q[0] - top.p[0], v: top.q[1] - top.p[1] }];
  levels[top.level] = parents;
  const side = 2 * geometry.reach + 1;
  let at = 0;
  for (let level = top.level - 1; level >= 0; level--) {
    const half = (2 ** level * geometry.delta) / 2;
    const stride = 2 ** level * geometry.gamma;
    const children = [];
    for (const parent of parents) {
      for (const [down, right] of geometry.corners) {
        const code = codes[at++];
        if (!parent || code === MISSING) {
          children.push(null);
          continue;
        }
        children.push({
          x: parent.x + right * half,
          y: parent.y + down * half,
          u: parent.u + stride * ((code % side) - geometry.reach),
          v: parent.v + stride * (Math.floor(code / side) - geometry.reach),
        });
      }
    }
    parents = children;
    levels[level] = children;
  }
  return levels.map((patches) => patches.filter(Boolean));
}
