// A js-libp2p peer that meets a p2pmesh node. Contract: ../README.md. One JSON object on stdout, everything else on stderr.
import './polyfill.mjs'
import { readFileSync } from 'node:fs'
import process from 'node:process'
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { noise } from '@libp2p/noise'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { yamux } from '@libp2p/yamux'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const CONTROL_PROTOCOL = '/mesh-llm/1'
const ECHO_PROTOCOL = '/interop/echo/1'
const CHUNK_BYTES = 32 * 1024
const MAX_ANSWER_BYTES = 2 * 1024 * 1024

const result = { ok: false, step: 'start' }

function setting (name) {
  const value = process.env[name]
  if (value === undefined || value === '') {
    throw new Error(`the environment variable ${name} is not set`)
  }
  return value
}

function begin (step) {
  result.step = step
  console.error(`step: ${step}`)
}

async function startPeer () {
  const privateKey = await generateKeyPairFromSeed('Ed25519', Buffer.from(setting('INTEROP_SEED'), 'hex'))
  return createLibp2p({
    privateKey,
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: {
      identify: identify(),
      ping: ping(),
      pubsub: gossipsub({ emitSelf: false, allowPublishToZeroTopicPeers: true })
    }
  })
}

// The length is a varint of seven bits a byte, lowest first; undefined while bytes are missing.
function splitMessage (bytes) {
  let length = 0
  for (let index = 0; index < bytes.length && index < 4; index++) {
    length += (bytes[index] & 0x7f) * 2 ** (7 * index)
    if (bytes[index] < 0x80) {
      if (length > MAX_ANSWER_BYTES) {
        throw new Error(`an answer of ${length} bytes is announced`)
      }
      const start = index + 1
      return bytes.length < start + length ? undefined : bytes.subarray(0, start + length)
    }
  }
  if (bytes.length >= 4) {
    throw new Error('the answer does not begin with a length')
  }
  return undefined
}

async function sayHello (connection, signal) {
  const stream = await connection.newStream(CONTROL_PROTOCOL, { signal })
  const stop = () => stream.abort(new Error('no whole answer in time'))
  signal.addEventListener('abort', stop)
  try {
    stream.send(Buffer.from(setting('INTEROP_HELLO'), 'hex'))
    let received = Buffer.alloc(0)
    for await (const chunk of stream) {
      received = Buffer.concat([received, chunk.subarray()])
      const message = splitMessage(received)
      if (message !== undefined) {
        return message.toString('hex')
      }
    }
    throw new Error(`the node ended the stream after ${received.length} bytes`)
  } finally {
    signal.removeEventListener('abort', stop)
    stream.abort(new Error('the exchange is over'))
  }
}

// Sends and receives at once, more than the windows of a stream hold.
async function exchangeEcho (connection, size, signal) {
  const stream = await connection.newStream(ECHO_PROTOCOL, { signal })
  const sent = Buffer.alloc(size, 'the quick brown fox ')
  const sending = (async () => {
    for (let start = 0; start < size; start += CHUNK_BYTES) {
      if (!stream.send(sent.subarray(start, start + CHUNK_BYTES))) {
        await stream.onDrain({ signal })
      }
    }
    await stream.close({ signal })
  })()
  const chunks = []
  for await (const chunk of stream) {
    chunks.push(chunk.subarray())
  }
  await sending
  if (!Buffer.concat(chunks).equals(sent)) {
    throw new Error(`the echo of ${size} bytes differs`)
  }
  return size
}

function hearMessage (pubsub, topic, signal) {
  const heard = Promise.withResolvers()
  pubsub.addEventListener('message', ({ detail }) => {
    if (detail.topic === topic) {
      heard.resolve({ from: String(detail.from), data: Buffer.from(detail.data).toString('hex') })
    }
  })
  signal.addEventListener('abort', () => heard.reject(new Error(`no message on ${topic} in time`)))
  return heard.promise
}

// js-libp2p identifies by itself when it connects; asking beside that exceeds its own limit of one stream.
function identified (peer, address, signal) {
  const told = Promise.withResolvers()
  peer.addEventListener('peer:identify', ({ detail }) => {
    if (address.endsWith(`/p2p/${detail.peerId}`)) {
      told.resolve({ agent_version: detail.agentVersion, protocols: [...detail.protocols].sort() })
    }
  })
  signal.addEventListener('abort', () => told.reject(new Error('no answer to identify in time')))
  return told.promise
}

async function meet (peer, signal) {
  const topic = setting('INTEROP_TOPIC')
  const address = setting('INTEROP_ADDRESS')
  const hearing = hearMessage(peer.services.pubsub, topic, signal)
  const identity = identified(peer, address, signal)
  for (const later of [hearing, identity]) {
    later.catch(() => {}) // reported where it is awaited
  }
  begin('dial')
  const connection = await peer.dial(multiaddr(address), { signal })
  result.remote_peer = String(connection.remotePeer)
  begin('identify')
  Object.assign(result, await identity)
  begin('ping')
  result.ping_ms = await peer.services.ping.ping(connection.remotePeer, { signal })
  begin('hello')
  result.answer = await sayHello(connection, signal)
  const echoBytes = Number(process.env.INTEROP_ECHO_BYTES ?? '0')
  if (echoBytes > 0) {
    begin('echo')
    result.echo_bytes = await exchangeEcho(connection, echoBytes, signal)
  }
  begin('gossip')
  peer.services.pubsub.subscribe(topic)
  result.gossip = await hearing
}

async function main () {
  const packages = JSON.parse(readFileSync(new URL('package.json', import.meta.url), 'utf8')).dependencies
  Object.assign(result, { implementation: `js-libp2p ${packages.libp2p}`, runtime: process.version })
  const seconds = Number(process.env.INTEROP_TIMEOUT_S ?? '30')
  const signal = AbortSignal.timeout(seconds * 1000)
  const peer = await startPeer()
  result.peer_id = String(peer.peerId)
  try {
    await meet(peer, signal)
    result.ok = true
    result.step = 'done'
  } finally {
    await peer.stop()
  }
}

try {
  await main()
} catch (error) {
  result.error = `${error.name}: ${error.message}`
  console.error(error)
}
process.stdout.write(JSON.stringify(result) + '\n', () => process.exit(result.ok ? 0 : 1))
