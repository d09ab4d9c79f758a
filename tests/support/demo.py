"""The world of `agentpay-server demo`, which a test moves step by step."""

from agentpay_server.plugins.scenes.demo_world import DemoStep as DemoStep
from agentpay_server.plugins.scenes.demo_world import DemoWorld as DemoWorld
