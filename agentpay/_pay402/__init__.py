"""Paying for HTTP 402: challenges, purchases that are remembered, and pages that are paid for."""
