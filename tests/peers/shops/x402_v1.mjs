// npm x402-express, which speaks version 1. It prints its URL as JSON.
import express from 'express';
import { paymentMiddleware } from 'x402-express';

const address = 'EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v';
const { FACILITATOR_URL, PAY_TO } = process.env;
const price = { amount: '1000', asset: { address, decimals: 6, eip712: { name: 'USDC', version: '2' } } };
const app = express();
app.use(paymentMiddleware(
  PAY_TO,
  { 'GET /plain': { price, network: 'solana-devnet', config: { description: 'Weather' } } },
  { url: FACILITATOR_URL },
));
app.get('/plain', (_, response) => response.json({ weather: 'rain' }));
const listening = app.listen(0, '127.0.0.1', () =>
  console.log(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}` })));
