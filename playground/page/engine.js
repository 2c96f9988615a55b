// Talks to hir, which is compiled to WebAssembly and runs in a worker: a request that takes too long ends with its worker.

/** The longest time of a request, in milliseconds. */
const LIMIT = 20000;

/** The code of the worker. The page has no other files, so the worker has it as a text. */
function work() {
  // The first message is the module; a request may arrive before it is compiled.
  let module;
  onmessage = event => module ? answer(event) : module = load(event.data);
  async function load(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return (await WebAssembly.instantiate(await new Response(stream).arrayBuffer(), {})).instance.exports;
  }
  async function answer(event) {
    try {
      const hir = await module;
      const bytes = new TextEncoder().encode(JSON.stringify(event.data));
      for (let at = 0; at < bytes.length; at += 4)
        hir.put(bytes[at] | bytes[at + 1] << 8 | bytes[at + 2] << 16 | bytes[at + 3] << 24);
      const length = hir.answer(bytes.length);
      const text = new Uint8Array(length);
      for (let at = 0; at < length; at += 4) {
        const four = hir.get(at);
        for (let more = 0; more < 4 && at + more < length; ++more) text[at + more] = four >>> 8 * more;
      }
      postMessage(JSON.parse(new TextDecoder().decode(text)));
    } catch (fault) {
      // A panic leaves the module in an unknown state: the next request gets a new one.
      postMessage({ error: "a bug in hir, or not enough memory: " + fault.message, ended: true });
    }
  }
}

export class Engine {
  /** `packed` is the module, compressed with gzip. */
  constructor(packed) {
    this.packed = packed;
    this.url = URL.createObjectURL(new Blob([`(${work})()`], { type: "text/javascript" }));
    this.queue = Promise.resolve();
    this.worker = null;
  }

  /** Sends a request after those that wait, and returns its answer. */
  ask(request) {
    const answer = this.queue.then(() => this.send(request));
    this.queue = answer.catch(() => null);
    return answer;
  }

  send(request) {
    if (!this.worker) {
      this.worker = new Worker(this.url);
      this.worker.postMessage(this.packed);
    }
    return new Promise(done => {
      const end = answer => {
        clearTimeout(timer);
        if (answer.ended) {
          this.worker.terminate();
          this.worker = null;
        }
        done(answer);
      };
      const timer = setTimeout(
        () => end({ error: `stopped after ${LIMIT / 1000} seconds: use hir itself, or a smaller program`, ended: true }), LIMIT);
      this.worker.onmessage = event => end(event.data);
      this.worker.onerror = event => end({ error: event.message, ended: true });
      this.worker.postMessage(request);
    });
  }
}
