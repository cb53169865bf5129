/** POST over kept-alive connections with as little work as undici allows, so that the load costs the box little. */
import { Pool } from 'undici';

export type Reply = { status: number; text: string };
export type Poster = {
  post(path: string, body: string): Promise<Reply>;
  close(): Promise<void>;
};

const HEADERS = { 'content-type': 'application/json' };

/** `connections`: the most at once; further requests wait inside. Rejects when the connection breaks. */
export function createPoster(origin: string, connections: number): Poster {
  const pool = new Pool(origin, { connections, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
  return {
    post: (path, body) =>
      new Promise((resolve, reject) => {
        let status = 0;
        let text = '';
        pool.dispatch(
          { path, method: 'POST', headers: HEADERS, body },
          {
            onRequestStart: () => {},
            onResponseStart: (_controller, statusCode) => {
              status = statusCode;
            },
            onResponseData: (_controller, chunk) => {
              text += chunk.toString('latin1');
            },
            onResponseEnd: () => resolve({ status, text }),
            onResponseError: (_controller, error) => reject(error),
          },
        );
      }),
    close: () => pool.destroy(),
  };
}
