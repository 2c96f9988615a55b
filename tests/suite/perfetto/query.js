// Loads a trace into Perfetto's trace processor, the WebAssembly program of its user interface, and runs SQL.
//
//   node query.js FOLDER TRACE SQL...
//
// FOLDER contains engine_bundle.js and trace_processor.wasm. Prints one line of JSON per query: a list of rows,
// each a list of numbers, strings and nulls. An error of the trace processor ends it with exit code 1.
//
// Protocol: protos/perfetto/trace_processor/trace_processor.proto of Perfetto. Requests and responses are
// messages of a TraceProcessorRpcStream.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;
const NULL = 1, INTEGER = 2, FLOAT = 3, TEXT = 4;

function fail(message) {
  console.error(message);
  process.exit(1);
}

// Protocol buffers: a field is its number and wire type, then a varint (0), eight bytes (1) or a length and as
// many bytes (2).
function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    const last = rest < 128n;
    bytes.push(Number(rest & 127n) | (last ? 0 : 128));
    if (last) return Buffer.from(bytes);
  }
}
const field = (number, value) =>
  typeof value === 'number'
    ? Buffer.concat([varint(number * 8), varint(value)])
    : Buffer.concat([varint(number * 8 + 2), varint(value.length), value]);

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  done() {
    return this.at >= this.bytes.length;
  }
  varint() {
    let value = 0n, shift = 0n, byte;
    do {
      byte = this.bytes[this.at++];
      value |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte & 128);
    return BigInt.asIntN(64, value);
  }
  take(length) {
    return this.bytes.subarray(this.at, (this.at += length));
  }
  // Returns the fields as pairs of a number and a value.
  fields() {
    const found = [];
    while (!this.done()) {
      const tag = Number(this.varint());
      const value = { 0: () => this.varint(), 1: () => this.take(8), 2: () => this.take(Number(this.varint())), 5: () => this.take(4) }[tag & 7];
      if (!value) fail(`wire type ${tag & 7}`);
      found.push([tag >> 3, value()]);
    }
    return found;
  }
}
const fieldsOf = (bytes) => new Reader(bytes).fields();
const text = (bytes) => Buffer.from(bytes).toString('utf8');

// Appends the cells of a CellsBatch to a list.
function readBatch(bytes, cells) {
  const kinds = [], integers = [], floats = [], texts = [];
  for (const [number, value] of fieldsOf(bytes)) {
    const list = new Reader(value);
    if (number === 1) while (!list.done()) kinds.push(Number(list.varint()));
    if (number === 2) while (!list.done()) integers.push(Number(list.varint()));
    if (number === 3) while (!list.done()) floats.push(Buffer.from(list.take(8)).readDoubleLE());
    if (number === 5) texts.push(...text(value).split('\0'));
  }
  for (const kind of kinds) {
    const value = { [NULL]: () => null, [INTEGER]: () => integers.shift(), [FLOAT]: () => floats.shift(), [TEXT]: () => texts.shift() }[kind];
    if (!value) fail(`cell of kind ${kind}`);
    cells.push(value());
  }
}

// The trace processor runs in a worker of a browser. This is what it needs of one.
const worker = { location: { href: '' } };
class SynchronousRequest {
  open(_, name) {
    this.name = name;
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(this.name)))).buffer;
    this.status = 200;
  }
}
const context = vm.createContext({
  self: worker,
  WorkerGlobalScope: Object,
  importScripts() {},
  location: worker.location,
  XMLHttpRequest: SynchronousRequest,
  console: { log() {}, warn() {}, error: console.error },
  WebAssembly, TextDecoder, TextEncoder, performance, setTimeout, clearTimeout, crypto: globalThis.crypto,
  // Objects of this realm, so that `instanceof` agrees on both sides.
  Uint8Array, ArrayBuffer, Error, TypeError,
});
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), context);

let pending = Buffer.alloc(0);
const responses = [];
const port = {
  postMessage(bytes) {
    pending = Buffer.concat([pending, bytes]);
    // A message may come in several parts.
    while (pending.length > 1) {
      const reader = new Reader(pending);
      reader.varint();
      const length = Number(reader.varint());
      if (pending.length < reader.at + length) break;
      responses.push(fieldsOf(reader.take(length)));
      pending = pending.subarray(reader.at);
    }
  },
};
worker.onmessage({ data: port });

let sequence = 0;
// Sends a request, and returns the fields of all its responses.
function ask(method, argument = Buffer.alloc(0)) {
  const message = Buffer.concat([field(1, ++sequence), field(2, method), argument]);
  responses.length = 0;
  port.onmessage({ data: new Uint8Array(field(1, message)) });
  const all = responses.flat();
  for (const [number, value] of all) {
    if (number === 5) fail(text(value));
  }
  if (!all.length) fail(`no response to request ${method}`);
  return all;
}

function query(sql) {
  let columns = 0;
  const cells = [];
  for (const [number, result] of ask(QUERY, field(103, field(1, Buffer.from(sql))))) {
    if (number !== 203) continue;
    for (const [part, value] of fieldsOf(result)) {
      if (part === 1) columns += 1;
      if (part === 2 && value.length) fail(text(value));
      if (part === 3) readBatch(value, cells);
    }
  }
  const rows = [];
  while (cells.length) rows.push(cells.splice(0, columns));
  return rows;
}

function main() {
  ask(APPEND, field(101, fs.readFileSync(trace)));
  ask(FINALIZE);
  for (const sql of queries) console.log(JSON.stringify(query(sql)));
}
// The trace processor is ready after the tasks that are queued now.
setTimeout(main, 0);
