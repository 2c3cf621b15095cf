// Reads the blocks that the server packs: a header in JSON, then arrays. See explorer/packing.py.

const TYPES = { uint8: Uint8Array, int16: Int16Array, float32: Float32Array };

export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const entry of header.arrays) {
    const count = entry.shape.reduce((a, b) => a * b, 1);
    const raw = new TYPES[entry.dtype](buffer, 4 + length + entry.offset, count);
    arrays[entry.name] = { shape: entry.shape, data: read(raw, entry) };
  }
  return { meta: header.meta, arrays };
}

function read(raw, entry) {
  if (entry.step !== undefined) return Float32Array.from(raw, (value) => value * entry.step);
  if (entry.low === undefined) return raw;
  const scale = (entry.high - entry.low) / 254;
  return Float32Array.from(raw, (value) => (value ? entry.low + (value - 1) * scale : -Infinity));
}

export async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
