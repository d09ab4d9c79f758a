#!/usr/bin/env bash
# Install the server into an environment of its own, start it, and pass its URL and operator key on.
set -euo pipefail
folder="${RUNNER_TEMP:?}/agentpay"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --constraint "$CHECKOUT/constraints.txt" "${CHECKOUT}[server]"
read -ra more <<<"$ARGUMENTS"
nohup "$folder/bin/agentpay-server" serve --in-memory --port "$PORT" --clock "$CLOCK" "${more[@]}" \
    >"$folder/started.json" 2>"$folder/server.log" &
server=$!
# The line is printed once the server accepts requests.
for _ in $(seq 300); do
    [ -s "$folder/started.json" ] && break
    kill -0 "$server" 2>/dev/null || { cat "$folder/server.log" >&2; exit 1; }
    sleep 0.1
done
[ -s "$folder/started.json" ] || { echo "the server did not start within 30 s" >&2; cat "$folder/server.log" >&2; exit 1; }
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$folder/started.json" "$1"; }
base_url="$(field base_url)"
operator_key="$(field operator_key)"
echo "::add-mask::$operator_key"
{ echo "base_url=$base_url"; echo "operator_key=$operator_key"; } >>"$GITHUB_OUTPUT"
{ echo "AGENTPAY_BASE_URL=$base_url"; echo "AGENTPAY_API_KEY=$operator_key"; } >>"$GITHUB_ENV"
