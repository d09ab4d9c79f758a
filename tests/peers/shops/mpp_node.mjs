// npm @solana/mpp with mppx, put together as its documentation says. It prints its URL as JSON.
import http from 'node:http';
import { Mppx, solana } from '@solana/mpp/server';
import { createKeyPairSignerFromBytes } from '@solana/kit';

const currency = 'EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v';
const { PAY_TO, RPC_URL, PARTNER, FEE_PAYER } = process.env;
const signer = await createKeyPairSignerFromBytes(new Uint8Array(JSON.parse(FEE_PAYER)));
const shop = extra => Mppx.create({
  secretKey: 'k'.repeat(40),
  realm: '127.0.0.1',
  methods: [solana.charge({ recipient: PAY_TO, currency, decimals: 6, network: 'localnet', rpcUrl: RPC_URL, ...extra })],
});
const plain = shop({}), sponsored = shop({ signer });
const split = shop({ splits: [{ recipient: PARTNER, amount: '100', memo: 'fee' }] });
const both = shop({ signer, splits: [{ recipient: PARTNER, amount: '100', memo: 'fee' }] });
const terms = { amount: '1000', currency, meta: { category: 'data' }, description: 'A "quoted", thing' };
const routes = {
  '/plain': plain.charge(terms),
  '/external-id': plain.charge({ ...terms, externalId: 'order-42' }),
  '/sponsored': sponsored.charge(terms),
  '/split': split.charge(terms),
  '/split-sponsored': both.charge(terms),
};
const server = http.createServer(async (incoming, outgoing) => {
  const url = `http://127.0.0.1:${server.address().port}${incoming.url}`;
  const handler = routes[new URL(url).pathname];
  if (!handler) return outgoing.writeHead(404).end();
  try {
    const result = await handler(new Request(url, { method: incoming.method, headers: incoming.headers }));
    const response = result.status === 402 ? result.challenge : result.withReceipt(Response.json({ weather: 'rain' }));
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    outgoing.end(Buffer.from(await response.arrayBuffer()));
  } catch (error) {
    outgoing.writeHead(500).end(String(error));
  }
});
server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ url: `http://127.0.0.1:${server.address().port}` })));
