// The data stands in the page deflated and in base64, in a block that no browser runs.
export async function unpacked(id) {
  const block = document.getElementById(id);
  if (!block) return null;
  const bytes = Uint8Array.from(atob(block.textContent.trim()), (c) => c.charCodeAt(0));
  block.remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}
