/** Where traces are sent to: an OTLP/HTTP receiver that reads what comes, counts it and keeps nothing. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { answerRequests } from '../world/child.ts';

let bytes = 0;
const server = createServer((req, res) => {
  req.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
  });
  req.on('end', () => res.writeHead(200, { 'content-type': 'application/json' }).end('{}'));
});
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo;
  answerRequests({ bytes: () => bytes }, { url: `http://127.0.0.1:${port}` });
});
