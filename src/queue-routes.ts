/**
 * Settings of queues, and their dead letters brought back. A write is one statement and in force here
 * when it is answered; other instances read the table every second.
 */
import { type Request, type Response, Router } from 'express';
import { brokenConstraint, type Db } from './db.ts';
import { AppError } from './errors.ts';
import { bodyOf, readBytes, sendJson } from './http.ts';
import { parseBody } from './json.ts';
import {
  columnsOf,
  type QueueRow,
  type QueueSettings,
  queuePath,
  queueSettings,
  redriveRequest,
  showQueue,
} from './queue-shape.ts';
import type { Queues } from './queues.ts';
import type { Redrive } from './redrive.ts';
import { check, checkParameters } from './wire.ts';

export type QueueRouteDeps = { db: Db; queues: Queues; redrive: Redrive };

type Shown = { queue: QueueRow };

/** Room for 64 targets with long URLs. */
const MAX_BODY_BYTES = 262_144;

export function createQueueRoutes({ db, queues, redrive }: QueueRouteDeps): Router {
  const router = Router();
  const readBody = readBytes(MAX_BODY_BYTES, 'body_too_large');

  router.get('/v1/queues', async (_req, res) => {
    const rows = await db.query<Shown>('read_queues', [null]);
    sendJson(res, 200, JSON.stringify({ queues: rows.map((row) => showQueue(row.queue)) }));
  });

  router.get('/v1/queues/:queue', async (req, res) => {
    const queue = nameOf(req);
    const [row] = await db.query<Shown>('read_queues', [queue]);
    sendQueue(res, 200, queue, row);
  });

  router.put('/v1/queues/:queue', readBody, async (req, res) => {
    const queue = nameOf(req);
    const settings = readSettings(req, queue);
    const named = Object.entries(columnsOf(settings)).filter(([, value]) => value !== null);
    const own = JSON.stringify(Object.fromEntries(named));
    const [row] = await write<Shown & { created: boolean }>('put_queue', [queue, own], settings);
    if (row?.created) res.set('location', `/v1/queues/${queue}`);
    sendQueue(res, row?.created ? 201 : 200, queue, row);
  });

  router.patch('/v1/queues/:queue', readBody, async (req, res) => {
    const queue = nameOf(req);
    const settings = readSettings(req, queue);
    const said = Object.entries(columnsOf(settings));
    const own = JSON.stringify(Object.fromEntries(said.filter(([, value]) => value !== null)));
    const inherited = said.filter(([, value]) => value === null).map(([column]) => column);
    const [row] = await write<Shown>('patch_queue', [queue, own, inherited], settings);
    sendQueue(res, 200, queue, row);
  });

  router.post('/v1/queues/:queue/redrive', readBody, async (req, res) => {
    const queue = nameOf(req);
    const request = check(redriveRequest, parseBody(bodyOf(req)).value);
    const [known] = await db.query<Shown>('read_queues', [queue]);
    if (!known) throw unknownQueue(queue);
    const redriven = await redrive.run(
      {
        queue,
        reason: request.reason ?? null,
        finishedBefore: request.finished_before ?? null,
        ratePerS: request.rate_per_s,
        dryRun: request.dry_run,
      },
      () => !res.closed,
    );
    sendJson(res, 200, JSON.stringify(redriven));
  });

  return router;

  async function write<R extends Shown>(
    statement: 'put_queue' | 'patch_queue',
    params: unknown[],
    settings: QueueSettings,
  ): Promise<R[]> {
    const rows = await db.query<R>(statement, params).catch((error) => {
      throw unfit(error, settings) ?? error;
    });
    await queues.load();
    return rows;
  }
}

const nameOf = (req: Request): string => checkParameters(queuePath, req.params).queue;

function readSettings(req: Request, queue: string): QueueSettings {
  const settings = check(queueSettings, parseBody(bodyOf(req)).value);
  if ((settings.queue ?? queue) !== queue)
    throw new AppError('invalid_field', `'queue': expected '${queue}', as in the path`, { pointer: '/queue' });
  return settings;
}

function sendQueue(res: Response, status: number, queue: string, row: Shown | undefined): void {
  if (!row) throw unknownQueue(queue);
  sendJson(res, status, JSON.stringify(showQueue(row.queue)));
}

const unknownQueue = (queue: string) =>
  new AppError('unknown_queue', `There is no queue '${queue}'; PUT creates it`, { pointer: 'queue' });

/**
 * Settings that do not go together, as the table's constraints say: they judge the row as it would be, with what another
 * request changed at the same time. Undefined for any other error. Points at what the request itself named.
 */
function unfit(error: unknown, settings: QueueSettings): AppError | undefined {
  const constraint = brokenConstraint(error);
  if (constraint === 'queues_lenient_is_signed')
    return new AppError('invalid_field', "fence 'lenient' needs callback_auth 'signature'", {
      pointer: settings.fence ? '/fence' : '/callback_auth',
    });
  if (constraint === 'queues_signature_has_secret')
    return new AppError('invalid_field', "callback_auth 'signature' needs a secret", {
      pointer: settings.secrets === undefined ? '/callback_auth' : '/secrets',
    });
  return undefined;
}
