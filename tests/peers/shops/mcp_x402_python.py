"""PyPI x402's wrapper of paid tools, on the server of the MCP SDK, over stdio."""

import os

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult
from x402 import x402ResourceServer
from x402.http import FacilitatorConfig, HTTPFacilitatorClient
from x402.mcp.server_async import PaymentWrapperConfig, create_payment_wrapper
from x402.mechanisms.svm.exact.server import ExactSvmScheme
from x402.schemas import AssetAmount, ResourceConfig

NETWORK = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
USDC = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"

selling = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=os.environ["FACILITATOR_URL"])))
selling.register(NETWORK, ExactSvmScheme())
selling.initialize()
price = AssetAmount(amount="1000", asset=USDC)
offer = ResourceConfig(scheme="exact", network=NETWORK, pay_to=os.environ["PAY_TO"], price=price)
paid = create_payment_wrapper(
    selling, PaymentWrapperConfig(accepts=selling.build_payment_requirements(offer))
)


async def weather(arguments, _context):
    if arguments.get("city") == "nowhere":
        return {"content": [{"type": "text", "text": "no such city"}], "isError": True}
    return {"content": [{"type": "text", "text": "rain"}]}


async def list_tools(_context, _params):
    return ListToolsResult(tools=[])


async def call_tool(_context, params):
    extra = {"_meta": dict(params.meta or {}), "toolName": params.name}
    result = await paid(weather)(params.arguments or {}, extra)
    return CallToolResult.model_validate(
        {
            "content": result.content,
            "isError": result.is_error,
            "structuredContent": result.structured_content,
            "_meta": result.meta,
        }
    )


async def main():
    server = Server("weather", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
