"""The record of a policy, as an account on chain holds it."""

from agentpay_server.chain.transactions import PolicyRecord as PolicyRecord
from agentpay_server.chain.transactions import read_policy_record as read_policy_record
