#!/bin/sh
# A payer of a crash test that uses the payment service, with curl and jq: sh payer.sh
# The order's name is the payment's key, so that an order that is asked for again is not paid again.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

service() { # PATH BODY RESULT: prints the status
  curl -s -o "$scratch/$3" -w '%{http_code}' -H "Authorization: Bearer $AGENTPAY_API_KEY" \
    -H 'Content-Type: application/json' --data-binary "@$scratch/$2" "$AGENTPAY_BASE_URL/ext/v1/payments$1"
}

buy() { # ORDER URL: prints served, refused or failed
  for attempt in 1 2 3; do # By session, an attempt may open the channel, and the next one pays.
    status=$(curl -s -o "$scratch/body" -D "$scratch/headers" -w '%{http_code}' "$2")
    [ "$status" = 200 ] && { echo served; return; }
    [ "$status" = 402 ] || { echo failed; return; }
    jq -Rn --arg account "$AGENTPAY_ACCOUNT_ID" --arg key "$1" --arg url "$2" --rawfile body "$scratch/body" \
      '{account_id: $account, idempotency_key: $key, session_cap: "0.1", url: $url, method: "GET", body: $body,
        origin: ($url | capture("^(?<origin>[a-z]+://[^/]+)").origin),
        headers: [inputs | rtrimstr("\r") | capture("^(?<name>[^:]+): *(?<value>.*)$") | [.name, .value]]}' \
      "$scratch/headers" > "$scratch/payment"
    case "$(service "" payment paid)" in
      201) ;;
      402|409|422) echo refused; return ;;
      *) echo failed; return ;;
    esac
    jq -r '.header | .name + ": " + .value' "$scratch/paid" > "$scratch/header"
    status=$(curl -s -o /dev/null -w '%{http_code}' -H "@$scratch/header" "$2")
    [ "$(jq -r '.step // ""' "$scratch/paid")" = open ] && continue
    charge=$(jq -r '.charge_id // ""' "$scratch/paid")
    if [ -n "$charge" ]; then # The next voucher waits for this report; 504 is no response.
      [ "$status" = 000 ] && status=504
      echo "{\"status_code\": $status}" > "$scratch/outcome"
      service "/$charge/outcome" outcome reported > /dev/null
    fi
    [ "$status" = 200 ] && echo served || echo failed
    return
  done
  echo failed
}

while read -r line; do
  order=$(printf '%s' "$line" | jq -r .order)
  url=$(printf '%s' "$line" | jq -r .url)
  printf '{"order": "%s", "result": "%s"}\n' "$order" "$(buy "$order" "$url")"
done
