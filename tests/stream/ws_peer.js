// SPDX-License-Identifier: Apache-2.0
//
// A Lien peer in another language, from docs/wire.md alone: ws_peer.js PORT. It opens a connection over provider `ws` (bootstrap, WebSocket, private data), calls "echo" with a body that the server READs
// from here, READs the body of the reply from there, and says goodbye. Status 0: every byte came back, and a READ with a wrong key was refused without ending the connection.
'use strict';

const net = require('net');
const crypto = require('crypto');
const WebSocket = require('ws');

const die = (text) => {
  console.error(`ws_peer: ${text}`);
  process.exit(1);
};
const must = (condition, text) => condition || die(text);
setTimeout(() => die('not over after 60 s'), 60000).unref();

// -- BLAKE2b-256 without a key (RFC 7693); Node's crypto has the 512-bit one only --

const IV = ['6a09e667f3bcc908', 'bb67ae8584caa73b', '3c6ef372fe94f82b', 'a54ff53a5f1d36f1',
  '510e527fade682d1', '9b05688c2b3e6c1f', '1f83d9abfb41bd6b', '5be0cd19137e2179'].map((h) => BigInt(`0x${h}`));
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0]];
const MASK = (1n << 64n) - 1n;
const rotate = (x, n) => ((x >> n) | (x << (64n - n))) & MASK;

function blake2b256(data) {
  const h = IV.slice();
  h[0] ^= 0x01010020n;
  const blocks = Math.max(1, Math.ceil(data.length / 128));
  for (let b = 0; b < blocks; b++) {
    const block = Buffer.alloc(128);
    data.copy(block, 0, b * 128, (b + 1) * 128);
    const last = b === blocks - 1;
    const m = Array.from({ length: 16 }, (_, i) => block.readBigUInt64LE(i * 8));
    const v = h.concat(IV);
    v[12] ^= BigInt(last ? data.length : (b + 1) * 128);
    if (last)
      v[14] ^= MASK;
    const mix = (a, bb, c, d, x, y) => {
      v[a] = (v[a] + v[bb] + x) & MASK; v[d] = rotate(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & MASK; v[bb] = rotate(v[bb] ^ v[c], 24n);
      v[a] = (v[a] + v[bb] + y) & MASK; v[d] = rotate(v[d] ^ v[a], 16n);
      v[c] = (v[c] + v[d]) & MASK; v[bb] = rotate(v[bb] ^ v[c], 63n);
    };
    for (let r = 0; r < 12; r++) {
      const s = SIGMA[r % 10];
      mix(0, 4, 8, 12, m[s[0]], m[s[1]]); mix(1, 5, 9, 13, m[s[2]], m[s[3]]);
      mix(2, 6, 10, 14, m[s[4]], m[s[5]]); mix(3, 7, 11, 15, m[s[6]], m[s[7]]);
      mix(0, 5, 10, 15, m[s[8]], m[s[9]]); mix(1, 6, 11, 12, m[s[10]], m[s[11]]);
      mix(2, 7, 8, 13, m[s[12]], m[s[13]]); mix(3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (let i = 0; i < 8; i++)
      h[i] ^= v[i] ^ v[i + 8];
  }
  const out = Buffer.alloc(32);
  for (let i = 0; i < 4; i++)
    out.writeBigUInt64LE(h[i], i * 8);
  return out;
}
must(blake2b256(Buffer.from('abc')).toString('hex') === 'bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319',
  'BLAKE2b is wrong');

// -- Bootstrap --

const PREAMBLE = Buffer.from('c74c49454e0d0a00', 'hex');
const VERSION = 1;

function offerBody() {
  const o = Buffer.alloc(72 + 32);
  o.writeUInt16LE(VERSION, 0);
  o.writeUInt16LE(VERSION, 2);
  crypto.randomFillSync(o, 4, 32);
  o.writeUInt32LE(8192, 36); // frame_max
  o.writeUInt16LE(32, 40); // message credits
  o.writeUInt16LE(32, 42); // control credits
  o.writeBigUInt64LE(1n << 26n, 44); // message_max
  o.writeUInt32LE(16, 52); // grants_max
  o.writeUInt8(1, 64); // providers
  o.writeUInt16LE(32, 66); // call credits
  o.write('ws', 72, 'latin1');
  return o;
}

function message(type, body) {
  const head = Buffer.alloc(4);
  head.writeUInt8(type, 0);
  head.writeUInt16LE(body.length, 2);
  return Buffer.concat([head, body]);
}

function bootstrap(port, done) {
  const offer = offerBody();
  const socket = net.connect(port, '127.0.0.1');
  let got = Buffer.alloc(0);
  let theirs = null;
  let over = false;
  socket.on('error', (e) => die(`bootstrap: ${e.message}`));
  socket.on('connect', () => socket.write(Buffer.concat([PREAMBLE, message(1, offer)])));
  socket.on('data', (bytes) => {
    got = Buffer.concat([got, bytes]);
    for (;;) {
      if (got.length < 8 || over)
        return;
      must(got.subarray(0, 8).equals(PREAMBLE), 'no preamble');
      const at = theirs ? 8 + 4 + theirs.length : 8;
      if (got.length < at + 4 || got.length < at + 4 + got.readUInt16LE(at + 2))
        return;
      const type = got.readUInt8(at);
      const body = Buffer.from(got.subarray(at + 4, at + 4 + got.readUInt16LE(at + 2)));
      if (!theirs) {
        must(type === 1, 'the first message is no OFFER');
        theirs = body;
        continue;
      }
      must(type === 2, `no PLACE but ${type}: ${body.subarray(4).toString()}`);
      over = true;
      done(socket, offer, theirs, {
        session: body.subarray(0, 16),
        provider: body.subarray(16, 48).toString('latin1').replace(/\0+$/, ''),
        port: body.readUInt16LE(48),
      });
    }
  });
}

function privateData(role, offer, theirs, session) {
  const parts = [Buffer.from('lien fabric connection'), Buffer.from([role.charCodeAt(0), VERSION]), offer, theirs, session];
  const input = [];
  for (const part of parts) {
    const len = Buffer.alloc(4);
    len.writeUInt32LE(part.length);
    input.push(len, part);
  }
  return Buffer.concat([Buffer.from([VERSION]), session, blake2b256(Buffer.concat(input)), Buffer.alloc(6)]);
}

// -- Frames of the inline provider --

const HELLO = 1, SEND = 2, RECVS = 3, READ = 4, DATA = 5, REFUSED = 6;

class Stream {
  constructor(ws, onFrame) {
    this.ws = ws;
    this.got = [];
    this.bytes = 0;
    ws.on('message', (data, binary) => {
      must(binary, 'a text message');
      this.got.push(data);
      this.bytes += data.length;
      for (let frame; (frame = this.take());)
        onFrame(frame);
    });
  }

  take() {
    if (this.bytes < 12)
      return null;
    if (this.got.length > 1 && this.got[0].length < 12)
      this.got = [Buffer.concat(this.got)];
    const len = this.got[0].readUInt32LE(4);
    if (this.bytes < 12 + len)
      return null;
    const all = Buffer.concat(this.got);
    this.got = [all.subarray(12 + len)];
    this.bytes -= 12 + len;
    must(all[1] === 0 && all[2] === 0 && all[3] === 0, 'bytes that must be 0');
    return { kind: all[0], number: all.readUInt32LE(8), body: all.subarray(12, 12 + len) };
  }

  put(kind, number, body) {
    const head = Buffer.alloc(12);
    head.writeUInt8(kind, 0);
    head.writeUInt32LE(body.length, 4);
    head.writeUInt32LE(number, 8);
    this.ws.send(head, { binary: true, fin: false }); // in two parts: boundaries mean nothing
    this.ws.send(body, { binary: true, fin: true });
  }
}

// -- Lien --

const RELEASE = 2, BEAT = 5, BYE = 6, CALL = 7, REPLY = 8, ALIVE = 16;
const BODY = 2500000;
const MIB = 1 << 20;

function run(socket, offer, theirs, place) {
  must(place.provider === 'ws', `provider ${place.provider}`);
  const ws = new WebSocket(`ws://127.0.0.1:${place.port}/lien`, 'lien', { perMessageDeflate: true });
  const source = crypto.randomBytes(BODY);
  const key = crypto.randomBytes(8).readBigUInt64LE();
  const args = Buffer.from('argument');
  const back = Buffer.alloc(BODY);
  let numbers = 0, greeted = false, served = 0, released = false, reply = null;
  let asked = 0, answered = 0, refusals = 0, at = 0;
  const reads = [];
  const stream = new Stream(ws, onFrame);

  const post = (kind, body) => {
    const head = Buffer.alloc(16);
    head.writeUInt8(kind, 0);
    head.writeUInt16LE(16 + body.length, 2);
    head.writeUInt32LE(++numbers, 8);
    stream.put(SEND, 0, Buffer.concat([head, body]));
  };

  ws.on('error', (e) => die(`WebSocket: ${e.message}`));
  ws.on('close', () => die('the server closed the connection'));
  ws.on('open', () => {
    must(ws.protocol === 'lien', `protocol '${ws.protocol}'`);
    ws.ping('are you there');
    stream.put(HELLO, 96, privateData('c', offer, theirs, place.session));
  });
  ws.on('pong', (data) => must(data.toString() === 'are you there', 'pong'));

  function call() {
    const method = Buffer.from('echo');
    const f = Buffer.alloc(64 + 24); // from offset 16 of the frame on
    f.writeBigUInt64LE(1n << 17n, 0); // id: generation 1, slot 0, side 0
    f.writeUInt32LE(30000, 8);
    f.writeUInt8(method.length, 12);
    f.writeUInt8(1, 13); // buffers of the body
    f.writeBigUInt64LE(BigInt(BODY), 16); // largest body of a reply
    f.writeUInt32LE(3, 32); // our grant: slot 3, generation 1, total
    f.writeUInt32LE(1, 36);
    f.writeBigUInt64LE(BigInt(BODY), 40);
    f.writeBigUInt64LE(1000n, 64); // address, as we count it
    f.writeBigUInt64LE(key, 72);
    f.writeBigUInt64LE(BigInt(BODY), 80);
    post(CALL, Buffer.concat([f, method, args]));
  }

  // The server READs the arguments' body.
  function serve(number, body) {
    const len = body.readUInt32LE(16);
    const from = Number(body.readBigUInt64LE(8)) - 1000;
    must(body.readBigUInt64LE(0) === key && from >= 0 && from + len <= BODY && len <= MIB, 'a READ outside');
    for (let i = 0; i < len; i += 65536)
      stream.put(DATA, number, source.subarray(from + i, from + Math.min(len, i + 65536)));
    served += len;
  }

  function read(readKey, address, len) {
    const body = Buffer.alloc(20);
    body.writeBigUInt64LE(readKey, 0);
    body.writeBigUInt64LE(address, 8);
    body.writeUInt32LE(len, 16);
    reads.push({ number: ++asked, len });
    stream.put(READ, asked, body);
  }

  function onReply(f) {
    must(f.readBigUInt64LE(16) === 1n << 17n && f.readInt32LE(24) === 0, 'the reply');
    must(f.readUInt8(28) === 1 && f.readBigUInt64LE(40) === BigInt(BODY), "the reply's body");
    must(f.subarray(48 + 24).equals(args), "the reply's bytes");
    reply = { slot: f.readUInt32LE(32), generation: f.readUInt32LE(36) };
    const address = f.readBigUInt64LE(48), readKey = f.readBigUInt64LE(56);
    read(readKey ^ 1n, address, 100); // refused
    for (let i = 0; i < BODY; i += MIB)
      read(readKey, address + BigInt(i), Math.min(MIB, BODY - i));
  }

  function onLien(f) {
    must(f.readUInt16LE(2) === f.length, 'a length that lies');
    switch (f.readUInt8(0)) {
      case REPLY: onReply(f); break;
      case RELEASE:
        must(f.readUInt32LE(16) === 3 && f.readUInt32LE(20) === 1, 'the release of another grant');
        released = true;
        break;
      case BEAT: post(ALIVE, Buffer.alloc(0)); break;
      default: break;
    }
  }

  function finish() {
    if (!reply || reads.length > 0 || !released)
      return;
    must(back.equals(source), 'the body came back changed');
    must(served === BODY && refusals === 1, `served ${served}, refusals ${refusals}`);
    const name = Buffer.alloc(8);
    name.writeUInt32LE(reply.slot, 0);
    name.writeUInt32LE(reply.generation, 4);
    post(RELEASE, name);
    post(BYE, Buffer.alloc(0));
    ws.removeAllListeners('close');
    ws.on('close', () => {
      console.log(`ws_peer: ${served} bytes READ from here, ${answered} READ from there, ${refusals} refused`);
      process.exit(0);
    });
    socket.destroy();
  }

  function onFrame({ kind, number, body }) {
    if (!greeted) {
      must(kind === HELLO && body.equals(privateData('s', offer, theirs, place.session)), "the server's HELLO");
      greeted = true;
      call();
      return;
    }
    switch (kind) {
      case SEND:
        stream.put(RECVS, 1, Buffer.alloc(0));
        onLien(body);
        break;
      case RECVS: break;
      case READ: serve(number, body); break;
      case DATA: {
        const first = reads[0];
        must(first && first.number === number && body.length <= first.len, 'an answer to nothing');
        body.copy(back, at);
        at += body.length;
        answered += body.length;
        first.len -= body.length;
        if (first.len === 0)
          reads.shift();
        break;
      }
      case REFUSED:
        must(reads[0] && reads[0].number === number && body.readUInt32LE(0) === 1 && number === 1, 'a refusal');
        refusals++;
        reads.shift();
        break;
      default: die(`kind ${kind}`);
    }
    finish();
  }
}

bootstrap(Number(process.argv[2]), run);
