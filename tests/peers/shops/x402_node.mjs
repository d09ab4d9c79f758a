// npm @x402/express, put together as its documentation says. It prints its URL as JSON.
import express from 'express';
import { HTTPFacilitatorClient, x402ResourceServer } from '@x402/core/server';
import { paymentMiddleware } from '@x402/express';
import { ExactSvmScheme } from '@x402/svm/exact/server';

const network = 'solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1';
const asset = 'EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v';
const { FACILITATOR_URL, PAY_TO, HINT_RPC_URL } = process.env;
const scheme = new ExactSvmScheme(HINT_RPC_URL ? { rpcUrl: HINT_RPC_URL } : undefined);
const server = new x402ResourceServer(new HTTPFacilitatorClient({ url: FACILITATOR_URL })).register(network, scheme);
const sold = (extra = {}) => ({
  accepts: { scheme: 'exact', network, payTo: PAY_TO, price: { amount: '1000', asset, extra }, extra },
  description: 'A "quoted", thing',
});
const app = express();
app.use(paymentMiddleware({
  'GET /plain': sold(),
  'POST /plain': sold(),
  'GET /external-id': sold({ memo: 'order-42' }),
  'GET /upfront': sold({ paymentFlow: 'upfront' }),
  'GET /boom': sold(),
}, server));
for (const path of ['/plain', '/external-id', '/upfront']) app.all(path, (_, response) => response.json({ weather: 'rain' }));
app.get('/boom', (_, response) => response.status(500).json({ error: 'boom' }));
const listening = app.listen(0, '127.0.0.1', () =>
  console.log(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}` })));
