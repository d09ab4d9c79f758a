"""Lets `import httpx` mean its successor in a whole run: `PYTHONPATH=tests pytest -p httpx_is_httpx2`.

A plugin, not a conftest: plugins that are installed are loaded before any conftest, and some import httpx.
"""

import httpx2

httpx2.alias_httpx()
