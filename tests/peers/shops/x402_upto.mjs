// npm @x402/express, which sells by upto with its own facilitator. It prints its URL as JSON.
import { createKeyPairSignerFromBytes } from '@solana/kit';
import { x402Facilitator } from '@x402/core/facilitator';
import { x402ResourceServer } from '@x402/core/server';
import { paymentMiddleware, setSettlementOverrides } from '@x402/express';
import { toFacilitatorSvmSigner } from '@x402/svm';
import { UptoSvmScheme as UptoFacilitator } from '@x402/svm/upto/facilitator';
import { UptoSvmScheme } from '@x402/svm/upto/server';
import express from 'express';

const network = 'solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1';
const { FEE_PAYER, PAY_TO, RPC_URL, MINT } = process.env;
const signer = await createKeyPairSignerFromBytes(Uint8Array.from(JSON.parse(FEE_PAYER)));
const facilitator = new x402Facilitator().register(
  network, new UptoFacilitator(toFacilitatorSvmSigner(signer, { defaultRpcUrl: RPC_URL })));
const client = {
  verify: (...given) => facilitator.verify(...given),
  settle: (...given) => facilitator.settle(...given),
  getSupported: async () => facilitator.getSupported(),
};
const scheme = new UptoSvmScheme({ receiverAuthorizerSigner: signer, rpcUrl: RPC_URL });
const server = new x402ResourceServer(client).register(network, scheme);
const sold = { accepts: { scheme: 'upto', network, payTo: PAY_TO, price: { amount: '10000', asset: MINT } } };
const app = express();
app.use(paymentMiddleware({ 'GET /some': sold, 'GET /none': sold, 'GET /boom': sold }, server));
app.get('/some', (_, response) => {
  setSettlementOverrides(response, { amount: '3777' });
  response.json({ weather: 'rain' });
});
app.get('/none', (_, response) => {
  setSettlementOverrides(response, { amount: '0' });
  response.json({ weather: 'rain' });
});
app.get('/boom', (_, response) => response.status(500).json({ error: 'boom' }));
const listening = app.listen(0, '127.0.0.1', () =>
  console.log(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}` })));
