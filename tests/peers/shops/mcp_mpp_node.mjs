// npm @solana/mpp with mppx's transport of MCP, on the server of the MCP SDK, over stdio.
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { Mppx, solana } from '@solana/mpp/server';
import { Transport } from 'mppx/mcp/server';
import { createKeyPairSignerFromBytes } from '@solana/kit';

const currency = 'EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v';
const { PAY_TO, RPC_URL, FEE_PAYER } = process.env;
const signer = await createKeyPairSignerFromBytes(new Uint8Array(JSON.parse(FEE_PAYER)));
const selling = Mppx.create({
  secretKey: 'k'.repeat(40),
  realm: 'weather',
  transport: Transport.mcpSdk(),
  methods: [solana.charge({ recipient: PAY_TO, currency, decimals: 6, network: 'localnet', rpcUrl: RPC_URL, signer })],
});
const server = new McpServer({ name: 'weather', version: '1.0.0' });
server.registerTool('weather', { description: 'Weather' }, async extra => {
  const result = await selling.charge({ amount: '1000', currency })(extra);
  if (result.status === 402) throw result.challenge;
  return result.withReceipt({ content: [{ type: 'text', text: 'rain' }] });
});
await server.connect(new StdioServerTransport());
