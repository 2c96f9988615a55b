// A link holds the program in its fragment, compressed: nothing is sent to a server.

const through = (bytes, stream) =>
  new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer().then(it => new Uint8Array(it));

export async function fragmentOf(text) {
  const packed = await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  let binary = "";
  for (const byte of packed) binary += String.fromCharCode(byte);
  return "#p=" + btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Returns the program of a fragment; null if it has none or is cut off. */
export async function textOf(fragment) {
  if (!fragment.startsWith("#p=")) return null;
  try {
    const binary = atob(fragment.slice(3).replaceAll("-", "+").replaceAll("_", "/"));
    const packed = Uint8Array.from(binary, it => it.charCodeAt(0));
    return new TextDecoder().decode(await through(packed, new DecompressionStream("deflate-raw")));
  } catch {
    return null;
  }
}
