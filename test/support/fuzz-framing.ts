/** A request as bytes on a connection: framed as HTTP/1.1 says, or in one of the ways it must not be. */
export const FRAMINGS = [
  ...([
    'drip',
    'chunked',
    'bad chunk',
    'short',
    'abort',
    'long',
    'both lengths',
    'two lengths',
    'other lengths',
  ] as const),
  ...([
    'negative length',
    'huge length',
    'no length',
    'http/1.0',
    'http/0.9',
    'http/3.7',
    'bare lf',
    'no host',
  ] as const),
  ...([
    'two hosts',
    'folded',
    'nul header',
    'space colon',
    'pipelined',
    'absolute',
    'bad absolute',
    'asterisk',
  ] as const),
  ...(['expect', 'odd expect', 'upgrade', 'preface', 'tls', 'te gzip', 'garbage after'] as const),
] as const;

export type FramingFault = (typeof FRAMINGS)[number];

export type Framed = {
  /** Bytes, and ms to wait before the next ones. */
  steps: (Buffer | number)[];
  methods: string[];
  /** Index of the answer that is this request's own; those before and after it are of `GET /livez`. */
  own: number;
  /** An answer has to come. */
  answered: boolean;
  /** The body arrives as it was meant. */
  whole: boolean;
  abort: boolean;
};

type Header = [name: string, value: string];

const LIVEZ = Buffer.from('GET /livez HTTP/1.1\r\nhost: x\r\n\r\n');

const headOf = (method: string, target: Buffer, headers: Header[], version = 'HTTP/1.1', eol = '\r\n'): Buffer =>
  Buffer.concat([
    Buffer.from(`${method} `, 'latin1'),
    target,
    Buffer.from(
      ` ${version}${eol}${headers.map(([name, value]) => `${name}: ${value}${eol}`).join('')}${eol}`,
      'latin1',
    ),
  ]);

const chunked = (content: Buffer): Buffer => {
  const half = content.length >> 1;
  const chunks = [content.subarray(0, half), content.subarray(half)].filter(({ length }) => length > 0);
  return Buffer.concat([
    ...chunks.flatMap((chunk) => [Buffer.from(`${chunk.length.toString(16)};x=y\r\n`), chunk, Buffer.from('\r\n')]),
    Buffer.from('0\r\n\r\n'),
  ]);
};

export function frame(
  how: FramingFault | undefined,
  method: string,
  target: Buffer,
  headers: Header[],
  content: Buffer | null,
): Framed {
  const body = content ?? Buffer.alloc(0);
  const length = (value: number | string): Header => ['content-length', String(value)];
  const sized = content === null && how !== 'short' ? headers : [...headers, length(body.length)];
  const without = (name: string) => sized.filter(([known]) => known !== name);
  const head = (more: Header[] = [], base = sized) => headOf(method, target, [...base, ...more]);
  const plain: Framed = { steps: [head(), body], methods: [method], own: 0, answered: true, whole: true, abort: false };
  const sent = (...steps: (Buffer | number)[]): Framed => ({ ...plain, steps });
  /** Refused for its framing, or taken for less than it is. */
  const broken = (...steps: (Buffer | number)[]): Framed => ({ ...plain, steps, whole: false });
  /** A route that reads a body waits for the rest of it; others answer. */
  const incomplete = (...steps: (Buffer | number)[]): Framed => ({ ...broken(...steps), answered: content === null });
  const raw = (text: string) => Buffer.from(text, 'latin1');
  switch (how) {
    case undefined:
      return plain;
    case 'drip': {
      const all = Buffer.concat(plain.steps as Buffer[]);
      const cut = [1, 20, all.length - body.length, all.length - 1].filter((at) => at > 0 && at < all.length);
      const ends = [0, ...cut.toSorted((a, b) => a - b), all.length];
      return sent(...ends.slice(1).flatMap((end, index) => [all.subarray(ends[index], end), 3]));
    }
    case 'chunked':
      return sent(head([['transfer-encoding', 'chunked']], headers), chunked(body));
    case 'bad chunk':
      return broken(head([['transfer-encoding', 'chunked']], headers), raw('zz\r\n'), body);
    case 'short':
      return incomplete(head([length(body.length + 10)], headers), body);
    case 'abort':
      return { ...incomplete(head([length(body.length + 10)], headers), body, 2), abort: content !== null };
    case 'long':
      return broken(head([length(Math.max(0, body.length - 1))], headers), body);
    case 'both lengths':
      return broken(head([['transfer-encoding', 'chunked']]), chunked(body));
    case 'two lengths':
      return broken(head([length(body.length)]), body);
    case 'other lengths':
      return broken(head([length(body.length + 1)]), body);
    case 'negative length':
      return broken(head([length(-1)], headers), body);
    case 'huge length':
      return broken(head([length('99999999999999999999')], headers), body);
    case 'no length':
      return broken(head([], headers), body);
    case 'http/1.0':
      return sent(headOf(method, target, sized, 'HTTP/1.0'), body);
    case 'http/0.9':
      return { ...broken(raw('GET /livez\r\n')), answered: false };
    case 'http/3.7':
      return broken(headOf(method, target, sized, 'HTTP/3.7'), body);
    case 'bare lf':
      return broken(headOf(method, target, sized, 'HTTP/1.1', '\n'), body);
    case 'no host':
      return sent(head([], without('host')), body);
    case 'two hosts':
      return sent(head([['host', 'other']]), body);
    case 'folded':
      return broken(head([['x-folded', 'a\r\n b']]), body);
    case 'nul header':
      return broken(head([['x-nul', 'a\0b']]), body);
    case 'space colon':
      return broken(head([['x-space ', 'a']]), body);
    case 'pipelined':
      return { ...sent(Buffer.concat([LIVEZ, head(), body, LIVEZ])), methods: ['GET', method, 'GET'], own: 1 };
    case 'absolute':
      return sent(headOf(method, Buffer.concat([raw('http://other.test'), target]), sized), body);
    case 'bad absolute':
      return sent(headOf(method, Buffer.concat([raw('http://[::1'), target]), sized), body);
    case 'asterisk':
      return sent(headOf('OPTIONS', raw('*'), sized), body);
    case 'expect':
      return sent(head([['expect', '100-continue']]), body);
    case 'odd expect':
      return sent(head([['expect', '200-maybe']]), body);
    case 'upgrade':
      return sent(
        head([
          ['connection', 'upgrade'],
          ['upgrade', 'h2c'],
        ]),
        body,
      );
    case 'preface':
      return broken(raw('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'));
    case 'tls':
      return broken(Buffer.from('160301020001000001fc0303', 'hex'));
    case 'te gzip':
      return broken(head([['transfer-encoding', 'gzip, chunked']], headers), chunked(body));
    case 'garbage after':
      return sent(Buffer.concat([head(), body, raw('\0 garbage\r\n\r\n')]));
    default:
      return how satisfies never;
  }
}
